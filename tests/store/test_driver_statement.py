"""Arrays of PostgreSQL as we write them; what the server makes of them stands in test_postgresql."""

import struct
from typing import Any

import pytest
from sqlalchemy import BigInteger, SmallInteger
from sqlalchemy.types import TypeEngine

from coordinator.store import driver_statement


@pytest.mark.parametrize(("kind", "wrong"), [(BigInteger, 2**63), (SmallInteger, 2**15), (BigInteger, 1.5)])
def test_a_number_that_does_not_fit_is_an_error_and_not_another_number(
    kind: type[TypeEngine[Any]], wrong: float
) -> None:
    """Cut off or rounded, it would be a position that nobody sent."""
    for beside in (1, None):
        with pytest.raises((OverflowError, TypeError, struct.error)):
            driver_statement._PACKERS[kind]([beside, wrong])
