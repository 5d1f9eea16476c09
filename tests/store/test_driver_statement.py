"""Arrays of PostgreSQL as we write them (what the server makes of them: test_postgresql), and several statements at once."""

import struct
from typing import Any

import pytest
from sqlalchemy import BigInteger, SmallInteger, bindparam, insert, select, update
from sqlalchemy.types import TypeEngine

from coordinator.store import driver_statement
from coordinator.store.driver_statement import DriverStatement, run_all
from coordinator.store.engine import WriteFailedError
from coordinator.store.tables import epochs
from datacoord.errors import InternalError

from .support import World

ADD = DriverStatement(insert(epochs).values(name=bindparam("name"), value=bindparam("value")), ("name", "value"))
RAISE = DriverStatement(
    update(epochs).where(epochs.c.name == bindparam("b_name")).values(value=bindparam("b_value")),
    ("b_name", "b_value"),
)


@pytest.mark.parametrize(("kind", "wrong"), [(BigInteger, 2**63), (SmallInteger, 2**15), (BigInteger, 1.5)])
def test_a_number_that_does_not_fit_is_an_error_and_not_another_number(
    kind: type[TypeEngine[Any]], wrong: float
) -> None:
    """Cut off or rounded, it would be a position that nobody sent."""
    for beside in (1, None):
        with pytest.raises((OverflowError, TypeError, struct.error)):
            driver_statement._PACKERS[kind]([beside, wrong])


async def test_statements_that_are_run_together_see_each_other_and_say_how_many_rows_each_changed(world: World) -> None:
    """A count that belongs to another statement lets a guard pass that has stopped a row."""
    database = world.store._database
    writes: list[tuple[DriverStatement, list[tuple[object, ...]]]] = [
        (ADD, [("a", 1), ("b", 2), ("c", 3)]),
        (ADD, []),
        (RAISE, [("a", 11), ("nobody", 1), ("c", 13)]),
        (RAISE, [("nobody", 1)]),
    ]
    for _ in range(2):
        counts = await database.write(lambda connection, _now_ms: list(run_all(database.kind, connection, writes)))
        assert counts == [3, 0, 2, 0]
        added = epochs.c.name.in_(["a", "b", "c"])
        values = await database.read(
            lambda connection, added=added: dict(
                connection.execute(select(epochs.c.name, epochs.c.value).where(added)).all()
            )  # type: ignore[misc]
        )
        assert values == {"a": 11, "b": 2, "c": 13}
        await database.write(lambda connection, _now_ms, added=added: connection.execute(epochs.delete().where(added)))  # type: ignore[misc]


@pytest.mark.parametrize("bad", [[("b", -1)], [("a", 2)]], ids=["a value", "a name twice"])
async def test_where_one_of_several_statements_fails_none_is_kept(world: World, bad: list[tuple[object, ...]]) -> None:
    """They are on their way together: those behind the one that fails must not be done without it."""
    database = world.store._database
    writes: list[tuple[DriverStatement, list[tuple[object, ...]]]]
    writes = [(ADD, [("a", 1)]), (ADD, bad), (RAISE, [("epoch", 1_000_000)])]
    with pytest.raises(WriteFailedError) as raised:
        await database.write(lambda connection, _now_ms: list(run_all(database.kind, connection, writes)))
    names = select(epochs.c.name, epochs.c.value)
    stored = await database.read(lambda connection: dict(connection.execute(names).all()))

    assert isinstance(raised.value.outcome.error, InternalError)
    assert "a" not in stored
    assert stored["epoch"] < 1_000_000
