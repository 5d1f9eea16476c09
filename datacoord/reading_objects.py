"""Reading objects: what of the registered ones a reader needs, and their rows, with as few bytes as the question allows."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from datacoord.column_groups import ROW_FIELD_IDS, SHARED_FIELD_ID, TIMESTAMP_COLUMN, columns_of
from datacoord.errors import InternalError
from datacoord.key_statistics import KeyProbe
from datacoord.objectstore import ObjectStore, translated
from datacoord.v1 import collection_pb2, common_pb2

_ROW_NUMBER: Final = "_row_number"
_WRITE_ID: Final = b"datacoord.write_id"


@dataclass(frozen=True, slots=True)
class LogObject:
    """One registered object as a reader needs it, or several that hold the columns of the same rows.

    Attributes:
        path: relative to the storage root; of several, the one with `_timestamp`.
        ts_min: smallest timestamp of a row.
        ts_max: largest timestamp of a row.
        memory_bytes: size of the rows in memory.
        field_id: group of `path`.
        groups: field id and path of the others, with the other columns.
    """

    path: str
    ts_min: int
    ts_max: int
    memory_bytes: int
    field_id: int = SHARED_FIELD_ID
    groups: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class ReadStatistics:
    """What a reading took.

    Attributes:
        objects_read: objects of which rows were read.
        objects_skipped: objects that were left alone, because their statistics say that no key that matters is in them.
        groups_skipped: groups of columns that were left alone, because no row of theirs was left.
    """

    objects_read: int = 0
    objects_skipped: int = 0
    groups_skipped: int = 0


def log_objects(channel: collection_pb2.ChannelBinlogList, kind: common_pb2.BinlogKind) -> list[LogObject]:
    """The objects of one kind that hold something at or before the checkpoint, in the order they were registered.

    Raises:
        InternalError: groups of columns do not fit together.
    """
    ranges: dict[tuple[int, int, int], dict[int, list[common_pb2.Binlog]]] = {}
    for registered in channel.binlogs:
        if registered.kind == kind:
            key = (registered.partition_id, registered.epoch, registered.range_from)
            ranges.setdefault(key, {}).setdefault(registered.field_id, []).append(registered.binlog)
    found = [log for groups in ranges.values() for log in _together(groups)]
    return [log for log in found if log.ts_min <= channel.checkpoint.timestamp]


def _together(groups: dict[int, list[common_pb2.Binlog]]) -> Iterator[LogObject]:
    """The objects of one range: the n-th of each group hold the columns of the same rows."""
    with_rows = [field_id for field_id in groups if field_id in ROW_FIELD_IDS]
    if len(with_rows) != 1 or len({len(logs) for logs in groups.values()}) != 1:
        first = next(iter(groups.values()))[0]
        raise InternalError(f"the groups of columns beside object {first.log_path} are not whole", path=first.log_path)
    base = with_rows[0]
    for number, log in enumerate(groups[base]):
        others = [(field_id, logs[number]) for field_id, logs in groups.items() if field_id != base]
        for _, other in others:
            if (other.entries_num, other.timestamp_from) != (log.entries_num, log.timestamp_from):
                raise InternalError(
                    f"objects {log.log_path} and {other.log_path} do not hold columns of the same rows",
                    path=log.log_path,
                )
        memory_bytes = log.memory_size_bytes + sum(other.memory_size_bytes for _, other in others)
        paths = tuple((field_id, other.log_path) for field_id, other in others)
        yield LogObject(log.log_path, log.timestamp_from, log.timestamp_to, memory_bytes, base, paths)


class ObjectReader:
    """Reads rows of a collection's objects.

    Args:
        store: of the collection.
        columns: of the collection, now: objects may lack the last of them, which are null there.
        statistics: counts what was done.
    """

    def __init__(self, store: ObjectStore, columns: pa.Schema, statistics: ReadStatistics) -> None:
        self._store = store
        self._columns = columns
        self._stored = columns.append(pa.field(TIMESTAMP_COLUMN, pa.int64()))
        self._statistics = statistics

    def read(
        self, log: LogObject, names: Sequence[str], where: pc.Expression | None = None, probe: KeyProbe | None = None
    ) -> pa.Table:
        """Reads rows.

        Args:
            log: what to read.
            names: columns to give.
            where: only rows for which this is true.
            probe: nothing is read where none of these keys can be; which rows have them, `where` must say.

        Raises:
            ObjectStoreError: an object cannot be read.
            InternalError: groups of columns do not belong together.
        """
        schema = self.schema(names)
        if log.field_id != SHARED_FIELD_ID:
            probe = None  # the key is in other objects
        if probe is not None or not log.groups:
            with self._open(log.path) as file:
                if probe is not None and not probe.may_be_in(file):
                    return self._skip(log, schema)
                if not log.groups:
                    self._statistics.objects_read += 1
                    return self._table(file, self._stored.names, names, where).cast(schema)
        return self._read_groups(log, names, where).select(list(names)).cast(schema)

    def _skip(self, log: LogObject, schema: pa.Schema) -> pa.Table:
        self._statistics.objects_skipped += 1 + len(log.groups)
        return schema.empty_table()

    def _read_groups(self, log: LogObject, names: Sequence[str], where: pc.Expression | None) -> pa.Table:
        """Reads what decides about the rows first, and of the other groups only what is left of them."""
        paths = {log.field_id: log.path, **dict(log.groups)}
        group_of = columns_of(self._columns, paths.keys())
        deciding = [] if where is None else _columns_in(where, self._stored)
        wanted = list(dict.fromkeys([*deciding, *names]))
        early = {group_of[name] for name in deciding} if deciding else {group_of[name] for name in wanted}
        rows, write_id = None, None
        for field_id, columns in self._by_group(group_of, wanted, early or {log.field_id}).items():
            table, found_id = self._group(paths[field_id], field_id, group_of, columns)
            rows = table if rows is None else _beside(rows, table, log.path, same=found_id == write_id)
            write_id = found_id
        assert rows is not None  # noqa: S101 - there is at least the group with the timestamp
        if where is None:
            return rows
        # Those that decide come first: where a filter names columns by their place, they are all, in the collection's order.
        rows = rows.select([name for name in wanted if group_of[name] in early])
        numbered = rows.append_column(_ROW_NUMBER, pa.arange(0, rows.num_rows))
        left = numbered.filter(where)
        total, numbers = rows.num_rows, left.column(_ROW_NUMBER)
        left = left.drop_columns([_ROW_NUMBER])
        late = set(paths) - early
        for field_id, columns in self._by_group(group_of, wanted, late).items():
            if not columns:
                continue
            if left.num_rows == 0:
                self._statistics.groups_skipped += 1
                table = self.schema(columns).empty_table()
            else:
                table, found_id = self._group(paths[field_id], field_id, group_of, columns)
                if found_id != write_id or table.num_rows != total:
                    raise _foreign(log.path, paths[field_id])
                table = table.take(numbers)
            left = _beside(left, table, log.path, same=True)
        return left

    def _by_group(self, group_of: dict[str, int], names: Sequence[str], of: Collection[int]) -> dict[int, list[str]]:
        return {field_id: [name for name in names if group_of[name] == field_id] for field_id in sorted(of)}

    def _group(
        self, path: str, field_id: int, group_of: dict[str, int], names: Sequence[str]
    ) -> tuple[pa.Table, bytes | None]:
        with self._open(path) as file:
            self._statistics.objects_read += 1
            write_id = (pq.read_schema(file).metadata or {}).get(_WRITE_ID)
            inside = [name for name in self._stored.names if group_of[name] == field_id]
            return self._table(file, inside, names, None), write_id

    def _table(
        self, file: pa.NativeFile, inside: Sequence[str], names: Sequence[str], where: pc.Expression | None
    ) -> pa.Table:
        file.seek(0)
        table = pq.read_table(file, schema=_as_parquet_has_it(self.schema(inside)), columns=list(names), filters=where)
        for place, name in enumerate(table.column_names):
            if table.field(place).type != self._stored.field(name).type:
                table = table.set_column(place, name, table.column(place).dictionary_encode())
        return table

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Columns by name, as the collection has them now."""
        return pa.schema([self._stored.field(name) for name in names])

    @contextmanager
    def _open(self, path: str) -> Iterator[pa.NativeFile]:
        with translated("read", path), self._store.open_input(path) as file:
            yield file


def _as_parquet_has_it(schema: pa.Schema) -> pa.Schema:
    """The schema without dictionaries of anything but text: Parquet gives their values, and Arrow has no cast back."""
    plain = [
        field.with_type(field.type.value_type)
        if pa.types.is_dictionary(field.type) and not pa.types.is_string(field.type.value_type)
        else field
        for field in schema
    ]
    return pa.schema(plain)


def _beside(left: pa.Table, right: pa.Table, path: str, *, same: bool) -> pa.Table:
    if not same or left.num_rows != right.num_rows:
        raise _foreign(path, "its neighbour")
    for name, column in zip(right.column_names, right.columns, strict=True):
        left = left.append_column(right.schema.field(name), column)
    return left


def _foreign(path: str, other: str) -> InternalError:
    return InternalError(f"objects {path} and {other} do not hold columns of the same rows", path=path)


def _columns_in(where: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns an expression looks at, in their order; all of them if it names one by its place.

    pyarrow does not tell them. Their names stand in the expression's text, where others may stand, too: those it can do without.
    """

    def binds(names: Sequence[str]) -> bool:
        try:
            ds.dataset(pa.schema([schema.field(name) for name in names]).empty_table()).scanner(filter=where)
        except (pa.ArrowException, KeyError):
            return False
        return True

    text = str(where)
    found = [name for name in schema.names if name in text]
    if "FieldPath(" in text or not binds(found):
        return list(schema.names)  # of an expression that is none, the error is raised where the rows are read
    return [name for name in found if not binds([other for other in found if other != name])]
