"""Statements for many rows at once, compiled once and given to the driver.

SQLAlchemy's own executemany costs 10 to 17 µs per row in Python. SQLite's driver runs one statement per row at less than 3;
PostgreSQL gets one statement for all rows, over one array per column (`unnest`), for each of its statements is a round trip.
"""

import itertools
import json
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import psycopg
from psycopg.pq import Format
from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    ColumnElement,
    FromClause,
    Insert,
    LargeBinary,
    Select,
    SmallInteger,
    Text,
    bindparam,
    column,
    func,
    insert,
    literal_column,
    select,
    text,
)
from sqlalchemy.engine import Connection
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine

from coordinator.store.database_kind import DatabaseKind

Row = tuple[Any, ...]
Execute = Callable[[Connection, Sequence[Row]], int]


_ROWS_PER_INSERT = 6
"""Of SQLite. With many more, what there is to bind costs what was saved."""


class DriverStatement:
    """An insert or update that is executed for many rows."""

    def __init__(self, statement: Any, columns: tuple[str, ...]) -> None:
        """Prepares a statement.

        Args:
            statement: an insert or update with `bindparam`s; other values in it are constant numbers. An insert has one
                parameter per column, of its name. An update changes no row twice: its rows differ in the key.
            columns: names of the parameters, in the order in which rows give them.
        """
        self._statement = statement
        self._columns = columns
        self._prepared: dict[type[DatabaseKind], Execute] = {}
        self._numbered: tuple[bytes, Sequence[str], OverArrays] | None = None

    def numbered(self, kind: DatabaseKind, rows: Sequence[Row]) -> tuple[bytes, list[bytes]]:
        """The statement for these rows as the wire has it, and its parameters, for a kind that acts at once."""
        if self._numbered is None:
            assert kind.at_once is not None  # noqa: S101 - asked by the caller
            arrays = self.over_arrays(kind)
            compiled = arrays.statement.compile(dialect=kind.at_once.dialect)
            self._numbered = str(compiled).encode(), compiled.positiontup, arrays
        sql, order, arrays = self._numbered
        packed = arrays.packed(rows)
        return sql, [packed[name] for name in order]

    def run(self, kind: DatabaseKind, connection: Connection, rows: Sequence[Row]) -> int:
        """Executes it for every row, in their order.

        Returns:
            how many rows it changed, all together.
        """
        if not rows:
            return 0
        execute = self._prepared.get(type(kind))
        if execute is None:
            prepare = self._prepare_arrays if kind.takes_arrays else self._prepare_rows
            execute = self._prepared[type(kind)] = prepare(kind)
        return execute(connection, rows)

    def _prepare_rows(self, kind: DatabaseKind) -> Execute:
        if isinstance(self._statement, Insert):
            return self._prepare_inserts(kind, self._statement)
        places: dict[str, Any] = {name: literal_column(f"?{number}") for number, name in enumerate(self._columns, 1)}
        sql = str(_replaced(self._statement, places).compile(dialect=kind.driver_dialect))

        def execute(connection: Connection, rows: Sequence[Row]) -> int:
            return connection.exec_driver_sql(sql, rows).rowcount

        return execute

    def _prepare_inserts(self, kind: DatabaseKind, statement: Insert) -> Execute:
        """Several rows at a time: what the driver does around each execution costs as much as a row."""

        def sql_of(rows: int) -> str:
            places = [f"?{number}" for number in range(1, rows * len(self._columns) + 1)]
            width = len(self._columns)
            named: list[dict[str, Any]] = [
                dict(zip(self._columns, map(literal_column, places[at : at + width]), strict=True))
                for at in range(0, len(places), width)
            ]
            # Inline, or every row would come back.
            return str(insert(statement.table).values(named).inline().compile(dialect=kind.driver_dialect))

        one, several = sql_of(1), sql_of(_ROWS_PER_INSERT)

        def execute(connection: Connection, rows: Sequence[Row]) -> int:
            whole = len(rows) - len(rows) % _ROWS_PER_INSERT
            changed = 0
            if whole:
                starts = range(0, whole, _ROWS_PER_INSERT)
                flat = [tuple(itertools.chain.from_iterable(rows[at : at + _ROWS_PER_INSERT])) for at in starts]
                changed += connection.exec_driver_sql(several, flat).rowcount
            if whole < len(rows):
                changed += connection.exec_driver_sql(one, list(rows[whole:])).rowcount
            return changed

        return execute

    def _prepare_arrays(self, kind: DatabaseKind) -> Execute:
        arrays = self.over_arrays(kind)
        compiled = arrays.statement.compile(dialect=kind.driver_dialect)
        sql, order = str(compiled), compiled.positiontup

        def execute(connection: Connection, rows: Sequence[Row]) -> int:
            packed = arrays.packed(rows)
            return connection.exec_driver_sql(sql, tuple(packed[name] for name in order)).rowcount

        return execute

    def over_arrays(
        self,
        kind: DatabaseKind,
        *,
        computed: Mapping[str, ColumnElement[Any]] = MappingProxyType({}),
        only_if: ColumnElement[bool] | None = None,
    ) -> "OverArrays":
        """The same for all rows at once.

        Args:
            kind: a database that takes arrays.
            computed: what an insert puts into these columns, in place of what rows give.
            only_if: an insert adds no row unless this is true.
        """
        binds = self._statement.compile(dialect=kind.driver_dialect).binds
        types = {name: binds[name].type for name in self._columns}
        given = _unnested({name: found for name, found in types.items() if name not in computed})
        if isinstance(self._statement, Insert):
            source = select(*(computed[name] if name in computed else given.c[name] for name in self._columns))
            source = source if only_if is None else source.where(only_if)
            statement: Any = insert(self._statement.table).from_select(list(self._columns), source).inline()
        else:
            statement = _replaced(self._statement, {name: given.c[name] for name in self._columns})
        places = {place: name for place, name in enumerate(self._columns) if name not in computed}
        return OverArrays(statement, [(place, name, _PACKERS[type(types[name])]) for place, name in places.items()])


def run_all(
    kind: DatabaseKind, connection: Connection, writes: Sequence[tuple[DriverStatement, Sequence[Row]]]
) -> Iterator[int]:
    """Executes statements in their order, in one round trip where that is worth it.

    Returns:
        how many rows each changed. Where it is not worth it, a statement is executed when its number is asked for: whoever does not
        like one asks for no more.
    """
    if kind.at_once is None:
        return (statement.run(kind, connection, rows) for statement, rows in writes)
    numbered = [statement.numbered(kind, rows) for statement, rows in writes if rows]
    counts = iter(kind.at_once.run_all(connection, numbered) if numbered else ())
    return (next(counts) if rows else 0 for _, rows in writes)


@dataclass(frozen=True)
class OverArrays:
    """A statement for all rows at once.

    Attributes:
        statement: its parameters are arrays, one per column, of the column's name.
        columns: place in a row, name and packer of each.
    """

    statement: Any
    columns: Sequence[tuple[int, str, Callable[[Sequence[Any]], bytes]]]

    def packed(self, rows: Sequence[Row]) -> dict[str, bytes]:
        """The parameters, by name."""
        values = list(zip(*rows, strict=True))
        return {name: pack(values[place]) for place, name, pack in self.columns}


class DriverQuery:
    """A select over many keys at once, whose rows come as the driver gives them."""

    def __init__(self, columns: Mapping[str, TypeEngine[Any]], select_of: Callable[[FromClause], Select[Any]]) -> None:
        """Prepares a query.

        Args:
            columns: of a key: whole numbers, by name.
            select_of: makes the query, given a table of the keys with these columns.
        """
        self._columns = columns
        self._select_of = select_of
        self._prepared: dict[type[DatabaseKind], str] = {}

    def run(self, kind: DatabaseKind, connection: Connection, keys: Sequence[Row]) -> list[Row]:
        """The rows of these keys."""
        if not keys:
            return []
        sql = self._prepared.get(type(kind))
        if sql is None:
            given = _unnested(self._columns) if kind.takes_arrays else self._given_json()
            sql = self._prepared[type(kind)] = str(self._select_of(given).compile(dialect=kind.driver_dialect))
        parameters: tuple[Any, ...] = (json.dumps(keys),)
        if kind.takes_arrays:
            values = zip(*keys, strict=True)
            packers = [_PACKERS[type(found)] for found in self._columns.values()]
            parameters = tuple(pack(column) for pack, column in zip(packers, values, strict=True))
        result = connection.exec_driver_sql(sql, parameters)
        rows = list(result.cursor.fetchall())
        result.close()
        return rows

    def _given_json(self) -> FromClause:
        parts = [f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(self._columns)]
        rows_of = text(f"SELECT {', '.join(parts)} FROM json_each(?1)")  # noqa: S608 - names of ours
        return rows_of.columns(**self._columns).alias("given")


def _unnested(columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """A table of what arrays hold, one per column, which are parameters of the columns' names."""
    arrays = [bindparam(name, type_=ARRAY(found)) for name, found in columns.items()]
    rows_of = func.unnest(*arrays).table_valued(*(column(name, found) for name, found in columns.items()))
    return rows_of.render_derived(name="given")


def _replaced(statement: Any, places: dict[str, Any]) -> Any:
    """The statement with something else in the place of each parameter, and constants written out."""

    def replace(element: Any, **_: object) -> Any:
        if not isinstance(element, BindParameter):
            return None
        if element.key in places:
            return places[element.key]
        assert isinstance(element.value, int), element  # noqa: S101 - ours, and nothing else is safe to write out
        return literal_column(str(int(element.value)))

    return visitors.replacement_traverse(statement, {}, replace)


# ---- arrays of PostgreSQL, packed as its wire format has them -------------------------------------------------------------------


class _Array(bytes):
    """An array in binary form."""


class _BigintArray(_Array):
    __slots__ = ()


class _SmallintArray(_Array):
    __slots__ = ()


class _TextArray(_Array):
    __slots__ = ()


class _ByteaArray(_Array):
    __slots__ = ()


_BIGINT, _SMALLINT, _TEXT, _BYTEA = 20, 21, 25, 17
_OIDS: dict[type[_Array], int] = {_BigintArray: 1016, _SmallintArray: 1005, _TextArray: 1009, _ByteaArray: 1001}
_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)


def _head(element: int, values: Sequence[Any], *, nulls: bool = False) -> bytes:
    return _HEAD.pack(1, int(nulls), element, len(values), 1)


def _pack_numbers(element: int, code: str, size: int, values: Sequence[Any]) -> bytes:
    if None in values:
        one = struct.Struct(f"!i{code}")
        return _head(element, values, nulls=True) + b"".join(
            _NULL if value is None else one.pack(size, value) for value in values
        )
    packed = np.empty(len(values), [("length", ">i4"), ("value", f">i{size}")])
    packed["length"] = size
    # An array first: it refuses what is no whole number, where numpy would round.
    packed["value"] = array(code, values)
    return _head(element, values) + packed.tobytes()


def _pack_bytes(element: int, values: Sequence[bytes]) -> bytes:
    lengths = list(map(len, values))
    if len(set(lengths)) == 1:
        length = _LENGTH.pack(lengths[0])
        return _head(element, values) + length + length.join(values)
    parts = itertools.chain.from_iterable(zip(map(_LENGTH.pack, lengths), values, strict=True))
    return _head(element, values) + b"".join(parts)


_PACKERS: dict[type[TypeEngine[Any]], Callable[[Sequence[Any]], _Array]] = {
    BigInteger: lambda values: _BigintArray(_pack_numbers(_BIGINT, "q", 8, values)),
    SmallInteger: lambda values: _SmallintArray(_pack_numbers(_SMALLINT, "h", 2, values)),
    Text: lambda values: _TextArray(_pack_bytes(_TEXT, [value.encode() for value in values])),
    LargeBinary: lambda values: _ByteaArray(_pack_bytes(_BYTEA, values)),
}


def _dumper(kind: type[_Array]) -> type[psycopg.adapt.Dumper]:
    class Dumper(psycopg.adapt.Dumper):
        format = Format.BINARY
        oid: ClassVar[int] = _OIDS[kind]  # type: ignore[misc] # a class has it as well as an instance

        def dump(self, obj: bytes) -> bytes:
            return obj

    return Dumper


for _kind in _OIDS:
    psycopg.adapters.register_dumper(_kind, _dumper(_kind))
