"""RPCs that the contract declares and that are being built: refused as UNIMPLEMENTED by name. This module goes when it is empty."""

from typing import Any, NoReturn

from datacoord.errors import InvalidFieldError


class Pending:
    """Answers the methods of the contract that a servicer does not have yet."""

    PENDING: frozenset[str] = frozenset({})

    def __getattr__(self, name: str) -> Any:
        """The method that refuses."""
        if name not in self.PENDING:
            raise AttributeError(name)

        async def refuse(_request: object, _call: object) -> NoReturn:
            raise InvalidFieldError(f"this version does not serve {name} yet")

        return refuse
