"""An update of many rows and what is inserted after it, as one statement that is a transaction of its own (PostgreSQL)."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, and_, bindparam, func, literal_column, select

from coordinator.store.database_kind import DatabaseKind
from coordinator.store.driver_statement import DriverStatement, OverArrays, Row

_NUMBER = struct.Struct("!q")
_ROWS, _NOW, _BEFORE = "at_once_rows", "at_once_now_ms", "at_once_before_ms"


@dataclass(frozen=True)
class _Made:
    sql: bytes
    order: Sequence[str]
    update: OverArrays
    insert: OverArrays


class AtOnce:
    """An update and an insert that are both done or neither.

    They are done if the update changes each of its rows, and the database's clock is not beyond a given time. The condition stands
    in the statement, which fails where it does not hold: it is not tried and taken back.
    """

    def __init__(self, update: DriverStatement, insert: DriverStatement, clock: str) -> None:
        """Prepares it.

        Args:
            update: of many rows.
            insert: of other rows, at least one.
            clock: a column of them that gets the database's clock, whatever rows say.
        """
        self._update = update
        self._insert = insert
        self._clock = clock
        self._made: dict[type[DatabaseKind], _Made] = {}

    def statement(
        self,
        kind: DatabaseKind,
        updated: Sequence[Row],
        inserted: Sequence[Row],
        *,
        before_ms: int,
        now_ms: int | None = None,
    ) -> tuple[bytes, list[bytes | None]]:
        """The statement for these rows.

        Args:
            kind: a database that acts at once.
            updated: rows of the update.
            inserted: rows of the insert.
            before_ms: nothing is done once the clock has come to this time.
            now_ms: in place of the database's clock, for tests.

        Returns:
            the statement and the values of its parameters.
        """
        made = self._made.get(type(kind))
        if made is None:
            made = self._made[type(kind)] = self._make(kind)
        numbers = {_ROWS: len(updated), _NOW: now_ms, _BEFORE: before_ms}
        values: dict[str, bytes | None] = {
            name: None if number is None else _NUMBER.pack(number) for name, number in numbers.items()
        }
        values |= made.update.packed(updated)
        values |= made.insert.packed(inserted)
        return made.sql, [values[name] for name in made.order]

    def _make(self, kind: DatabaseKind) -> _Made:
        at_once = kind.at_once
        assert at_once is not None  # noqa: S101 - asked by the caller
        update = self._update.over_arrays(kind)
        changed = update.statement.returning(literal_column("1")).cte("changed")
        # When the transaction began, as with any other: it may wait for locks after that.
        now_ms: Any = func.coalesce(bindparam(_NOW, type_=BigInteger), at_once.now_ms)
        all_changed = select(func.count()).select_from(changed).scalar_subquery() == bindparam(_ROWS, type_=BigInteger)
        holds = and_(all_changed, now_ms < bindparam(_BEFORE, type_=BigInteger))
        insert = self._insert.over_arrays(kind, computed={self._clock: now_ms}, only_if=at_once.required(holds))
        returned = (insert.statement.table.c[self._clock], at_once.micros)
        compiled = insert.statement.returning(*returned).compile(dialect=at_once.dialect)
        return _Made(str(compiled).encode(), compiled.positiontup, update, insert)
