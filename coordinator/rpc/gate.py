"""The gate before every call: who calls, whether they may, and a line of the audit log."""

import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from coordinator.logging import get_logger
from coordinator.rpc.authentication import ANYBODY, Authenticator, Identity
from coordinator.rpc.roles import Role
from datacoord.errors import DatacoordError, PermissionDeniedError, UnauthenticatedError

REFUSALS_PER_SECOND_MAX: Final = 20
"""Lines about refusals; what is left out is counted on the next line. Whoever knocks must not be able to fill the disk."""

CERTIFICATE_CHARS_SHOWN: Final = 128

Context = grpc.aio.ServicerContext[Any, Any]
_log = get_logger("audit")


class Gate:
    """Lets a call in, or refuses it before anything of it is read.

    Args:
        authenticator: knows tokens; None = there are none, and everybody who can connect may do everything.
        monotonic_seconds: for the number of lines about refusals.
    """

    def __init__(
        self, authenticator: Authenticator | None, *, monotonic_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._authenticator = authenticator
        self._monotonic_seconds = monotonic_seconds
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def admit(self, method: str, required: Role, context: Context) -> Identity:
        """Says who calls, if they may.

        Args:
            method: what is called.
            required: the least role that may call it.
            context: of the call.

        Raises:
            UnauthenticatedError: no token, or none that counts.
            PermissionDeniedError: the token's role may not call this.
        """
        if self._authenticator is None:
            return ANYBODY
        try:
            identity = self._authenticator.identify(context.invocation_metadata() or ())
        except UnauthenticatedError as error:
            self._audit_refusal(method, None, context, error)
            raise
        if identity.role < required:
            denied = PermissionDeniedError(
                f"{method} needs the role {required.word}, but the token {identity.name!r} has {identity.role.word}",
                method=method,
                required_role=required.word,
                role=identity.role.word,
                name=identity.name,
            )
            self._audit_refusal(method, identity, context, denied)
            raise denied
        return identity

    def leave(self, method: str, required: Role, identity: Identity | None, context: Context, code: str) -> None:
        """Writes down a call that only an admin may make, with its outcome. Refusals at the gate are written already.

        Args:
            method: what was called.
            required: the least role that may call it.
            identity: who called; None = was not let in.
            context: of the call.
            code: name of the gRPC code it ended with.
        """
        if required is Role.ADMIN and identity is not None:
            _log.info("audit", **_facts(method, identity, context), outcome=code)

    def _audit_refusal(self, method: str, identity: Identity | None, context: Context, error: DatacoordError) -> None:
        second = int(self._monotonic_seconds())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > REFUSALS_PER_SECOND_MAX:
            self._left_out += 1
            return
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        _log.warning("audit", **_facts(method, identity, context), outcome=error.reason.value, **more)


def _facts(method: str, identity: Identity | None, context: Context) -> dict[str, str]:
    facts = {
        "method": method,
        "name": identity.name if identity else "",
        "role": identity.role.word if identity else "",
        "peer": context.peer(),
    }
    names = list(context.auth_context().get("x509_common_name", ()))
    if names:
        facts["certificate"] = ascii(names[0][:CERTIFICATE_CHARS_SHOWN].decode(errors="replace"))
    return facts
