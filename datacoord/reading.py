"""Reading a collection back: what is registered, with deletes applied, as Arrow or as a Spark DataFrame.

A reader sees, of every channel, the rows with timestamp <= the channel's checkpoint; a delete hides strictly older rows of its
key and acts within its channel only. Rows are read in blocks of bounded size, one after the other, and the deletes of a unit once
for all its blocks: memory is bounded by one block and the newest delete of every key.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from datacoord.client import CoordinatorClient
from datacoord.column_groups import TIMESTAMP_COLUMN
from datacoord.errors import InvalidFieldError
from datacoord.key_statistics import KeyProbe, table_of_keys
from datacoord.limits import TIMESTAMP_MAX
from datacoord.objectstore import ObjectStore
from datacoord.reading_objects import LogObject, ObjectReader, ReadStatistics, log_objects
from datacoord.v1 import collection_pb2, common_pb2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DELETED_AT: Final = "_deleted_at"

UNIT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Rows that are together in memory, or in one task."""

DELETES_PER_INSERT_MAX: Final = 4
"""A channel is cut into units only where each of them reads at most so many delta logs (and so many times the bytes) as insert
logs. Every unit but the last reads all later deletes, so without a bound the deletes are read as often as there are units."""


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """Insert logs of one channel, and the delta logs that may hide rows of theirs, which are read once for all of them.

    Attributes:
        channel_name: the channel.
        checkpoint: rows and deletes beyond it are not to be seen.
        inserts: the insert logs, in the order they were registered.
        deletes: the delta logs.
    """

    channel_name: str
    checkpoint: int
    inserts: tuple[LogObject, ...]
    deletes: tuple[LogObject, ...]


@dataclass(frozen=True, slots=True)
class CollectionSchema:
    """What a reader must know of a collection.

    Attributes:
        columns: its columns.
        primary_key: its key columns; empty = nothing is ever deleted.
        storage_root: where its objects live.
    """

    columns: pa.Schema
    primary_key: tuple[str, ...]
    storage_root: str

    @classmethod
    def of(cls, collection: collection_pb2.CollectionInfo) -> "CollectionSchema":
        """Reads the description of a collection."""
        columns = pa.ipc.read_schema(pa.py_buffer(collection.arrow_schema))
        return cls(columns, tuple(collection.primary_key), collection.storage_root)

    def select(self, columns: Sequence[str] | None, *, with_timestamp: bool) -> pa.Schema:
        """The schema of what is asked for.

        Args:
            columns: names, in this order; None = all. `_timestamp` may be among them.
            with_timestamp: append `_timestamp` if it is not among them.

        Raises:
            InvalidFieldError: the collection has no such column.
        """
        names = list(self.columns.names if columns is None else columns)
        if with_timestamp and TIMESTAMP_COLUMN not in names:
            names.append(TIMESTAMP_COLUMN)
        stored = self.columns.append(pa.field(TIMESTAMP_COLUMN, pa.int64()))
        for name in names:
            if stored.get_field_index(name) < 0:
                raise InvalidFieldError(
                    f"the collection has no column {name!r}; it has {', '.join(self.columns.names)}", column=name
                )
        return pa.schema([stored.field(name) for name in names], metadata=self.columns.metadata)


def read_batches(
    coordinator: CoordinatorClient | str,
    collection_name: str,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    keys: pa.Table | Sequence[object] | None = None,
    with_timestamp: bool = False,
    unit_bytes_max: int = UNIT_BYTES_MAX,
    statistics: ReadStatistics | None = None,
) -> Iterator[pa.RecordBatch]:
    """Reads the surviving rows of a collection, channel by channel, in the order they were registered.

    Which objects count, and up to which timestamp, is fixed when the first batch is asked for.

    Args:
        coordinator: its address, host:port, or a client of it.
        collection_name: the collection.
        columns: only these, in this order; only they are read.
        where: only rows for which this is true; parts of objects whose statistics exclude it are not read.
        keys: only rows with these primary keys: values, or a table of the key's columns. Objects whose statistics (smallest,
            largest, bloom filter of the key) exclude them are not read.
        with_timestamp: give the system's column `_timestamp` (int64) too.
        unit_bytes_max: rows that are together in memory.
        statistics: counts what the reading took.

    Raises:
        CollectionNotFoundError: there is no such collection.
        InvalidFieldError: the collection has no such column.
        ObjectMissingError: the collection, or a partition, was dropped and the garbage collector came before the reading's end.
        ObjectStoreError: an object cannot be read.
    """
    with _connected(coordinator) as client:
        collection = CollectionSchema.of(client.describe_collection(collection_name))
        wanted = collection.select(columns, with_timestamp=with_timestamp)
        store = ObjectStore.from_uri(collection.storage_root)
        asked = None if keys is None else KeyProbe(table_of_keys(keys, collection.columns, collection.primary_key))
        # All of them before the first row: what is dropped or landed while the caller works must not decide what counts.
        channels = list(client.list_binlogs(collection_name))
        for unit in chain.from_iterable(read_units(channel) for channel in channels):
            for rows in read_unit(
                store,
                unit,
                collection,
                wanted,
                where,
                keys=asked,
                block_bytes_max=unit_bytes_max,
                statistics=statistics,
            ):
                yield from rows.to_batches()


def to_arrow(
    coordinator: CoordinatorClient | str,
    collection_name: str,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    keys: pa.Table | Sequence[object] | None = None,
    with_timestamp: bool = False,
    statistics: ReadStatistics | None = None,
) -> pa.Table:
    """Reads the surviving rows of a collection into one table; arguments and errors are those of `read_batches`."""
    with _connected(coordinator) as client:
        collection = CollectionSchema.of(client.describe_collection(collection_name))
        wanted = collection.select(columns, with_timestamp=with_timestamp)
        batches = read_batches(
            client, collection_name, columns=wanted.names, where=where, keys=keys, statistics=statistics
        )
        return pa.Table.from_batches(list(batches), schema=wanted)


def read(
    spark: "SparkSession",
    *,
    coordinator: CoordinatorClient | str,
    collection: str,
    with_timestamp: bool = False,
) -> "DataFrame":
    """The surviving rows of a collection as a DataFrame of Spark's own Parquet reader, with deletes as an anti join.

    Which objects count, and up to which timestamp, is fixed by this call: the frame gives the same rows however often it is used.

    Args:
        spark: the session.
        coordinator: its address, host:port, or a client of it.
        collection: name of the collection.
        with_timestamp: give the system's column `_timestamp` too.

    Raises:
        CollectionNotFoundError: there is no such collection.
        InvalidFieldError: a column is of a type that Spark's Parquet reader does not know.
    """
    from datanode_client.spark.frame import collection_frame

    with _connected(coordinator) as client:
        return collection_frame(
            spark,
            CollectionSchema.of(client.describe_collection(collection)),
            list(client.list_binlogs(collection)),
            with_timestamp=with_timestamp,
        )


def read_units(channel: collection_pb2.ChannelBinlogList, unit_bytes_max: int | None = None) -> Iterator[ReadUnit]:
    """Cuts a channel into units; rows beyond the checkpoint are in none of them.

    Args:
        channel: its objects and checkpoint.
        unit_bytes_max: about so many bytes of rows are one unit, by their size in memory when they were written; more where
            deletes would outweigh them (`DELETES_PER_INSERT_MAX`). None = the channel is one unit.
    """
    checkpoint = channel.checkpoint.timestamp
    inserts = log_objects(channel, common_pb2.BINLOG_KIND_INSERT)
    deletes = sorted(log_objects(channel, common_pb2.BINLOG_KIND_DELTA), key=lambda log: log.ts_max, reverse=True)
    newest_first = [-log.ts_max for log in deletes]
    bytes_upto = list(accumulate((log.memory_bytes for log in deletes), initial=0))
    taken: list[LogObject] = []
    size_bytes, oldest = 0, TIMESTAMP_MAX
    for number, insert in enumerate(inserts, 1):
        taken.append(insert)
        size_bytes += insert.memory_bytes
        oldest = min(oldest, insert.ts_min)
        hiding = bisect_left(newest_first, -oldest)  # so many are newer than the oldest row
        full = (
            unit_bytes_max is not None
            and size_bytes >= unit_bytes_max
            and hiding <= DELETES_PER_INSERT_MAX * len(taken)
            and bytes_upto[hiding] <= DELETES_PER_INSERT_MAX * size_bytes
        )
        if full or number == len(inserts):
            yield ReadUnit(channel.channel_name, checkpoint, tuple(taken), tuple(deletes[:hiding]))
            taken, size_bytes, oldest = [], 0, TIMESTAMP_MAX


def read_unit(
    store: ObjectStore,
    unit: ReadUnit,
    collection: CollectionSchema,
    wanted: pa.Schema,
    where: pc.Expression | None = None,
    *,
    keys: KeyProbe | None = None,
    block_bytes_max: int = UNIT_BYTES_MAX,
    statistics: ReadStatistics | None = None,
) -> Iterator[pa.Table]:
    """Reads the surviving rows of a unit, in blocks. Every object is read once, however many blocks there are.

    Args:
        store: of the collection.
        unit: what to read.
        collection: the collection.
        wanted: columns to give, of `collection.select`.
        where: only rows for which this is true.
        keys: only rows with these primary keys, each once; None = all.
        block_bytes_max: so many bytes of rows are a block; more where the deletes take more.
        statistics: counts what the reading took.
    """
    reader = ObjectReader(store, collection.columns, statistics or ReadStatistics())
    primary_key = list(collection.primary_key)
    needed = list(wanted.names) or [TIMESTAMP_COLUMN]  # rows without columns are rows, too
    if unit.deletes or keys is not None:
        needed += [name for name in (*primary_key, TIMESTAMP_COLUMN) if name not in needed]
    condition = where if keys is None else _both(where, keys.condition)
    newest: pa.Table | None = None
    gathered, size_bytes, limit_bytes = [reader.schema(needed).empty_table()], 0, block_bytes_max
    for number, log in enumerate(unit.inserts, 1):
        rows = reader.read(log, needed, _both(_upto(unit, log), condition), keys)
        if keys is not None and len(primary_key) > 1:
            rows = _rows_with(rows, keys.keys, primary_key)
        if rows.num_rows:
            gathered.append(rows)
            size_bytes += rows.nbytes
        last = number == len(unit.inserts)
        if size_bytes < limit_bytes and not last:
            continue
        rows = pa.concat_tables(gathered)
        gathered, size_bytes = gathered[:1], 0
        if unit.deletes and rows.num_rows:
            if newest is None:
                newest = _deletes_of(reader, unit, primary_key, block_bytes_max, keys, only=rows if last else None)
                limit_bytes = max(block_bytes_max, newest.nbytes)  # a join looks at all of them, however few the rows
            rows = apply_deletes(rows, newest, primary_key)
        rows = rows.select(wanted.names)
        yield rows.cast(wanted) if wanted.names else rows  # a cast would forget how many there are


def _deletes_of(
    reader: ObjectReader,
    unit: ReadUnit,
    primary_key: list[str],
    fold_bytes: int,
    keys: KeyProbe | None,
    *,
    only: pa.Table | None,
) -> pa.Table:
    """The newest delete of every key that may hide rows of a unit.

    Args:
        reader: of the collection's objects.
        unit: what is read.
        primary_key: its key columns.
        fold_bytes: so many bytes of deletes are gathered before only the newest of each key are kept.
        keys: the rows have these keys; None = any.
        only: all the unit's rows there will be; None = there are more to come.
    """
    # A delete hides older rows only, so what is not newer than the oldest row is not looked at; nor is an object whose statistics
    # say that no key of the rows is in it.
    oldest = min(log.ts_min for log in unit.inserts) if only is None else pc.min(only.column(TIMESTAMP_COLUMN)).as_py()
    where = pc.field(TIMESTAMP_COLUMN) > oldest
    if only is not None:
        probe: KeyProbe | None = KeyProbe(only.select(primary_key))
    else:
        probe, where = keys, where if keys is None else where & keys.condition
    hiding = [*primary_key, TIMESTAMP_COLUMN]
    gathered, size_bytes, limit_bytes = [reader.schema(hiding).empty_table()], 0, fold_bytes
    for log in unit.deletes:
        deletes = reader.read(log, hiding, _both(_upto(unit, log), where), probe)
        if deletes.num_rows:
            gathered.append(deletes)
            size_bytes += deletes.nbytes
        if size_bytes >= limit_bytes:
            gathered = [newest_deletes(pa.concat_tables(gathered), primary_key)]
            # Each time for as much again as is left: so no delete is looked at more than a few times.
            size_bytes, limit_bytes = 0, max(fold_bytes, gathered[0].nbytes)
    return newest_deletes(pa.concat_tables(gathered), primary_key)


def newest_deletes(deletes: pa.Table, primary_key: list[str]) -> pa.Table:
    """The newest delete of every key: its columns and `_timestamp`."""
    newest = deletes.group_by(primary_key).aggregate([(TIMESTAMP_COLUMN, "max")])
    return newest.select([*primary_key, f"{TIMESTAMP_COLUMN}_max"]).rename_columns([*primary_key, TIMESTAMP_COLUMN])


def apply_deletes(rows: pa.Table, newest: pa.Table, primary_key: list[str]) -> pa.Table:
    """Takes away the rows that a delete hides.

    Args:
        rows: inserts with `_timestamp`.
        newest: of every key the newest delete.
        primary_key: the key columns of both.

    Returns:
        the rows whose timestamp is not below the newest delete of their key, in their order.
    """
    if newest.num_rows == 0:
        return rows
    newest = newest.rename_columns([*primary_key, _DELETED_AT])
    # Only keys and row numbers go through the join: it cannot carry nested columns, and the rest would be copied for nothing.
    # The numbers are Arrow's own memory: where a thread of the join frees numpy's, it needs Python's lock, and a process that ends
    # meanwhile is aborted (apache/arrow#34314).
    keys = rows.select([*primary_key, TIMESTAMP_COLUMN]).append_column("_row", pa.arange(0, rows.num_rows))
    joined = keys.join(newest, keys=primary_key, join_type="left outer")
    deleted_at = pc.fill_null(joined.column(_DELETED_AT), 0)
    alive = joined.filter(pc.greater_equal(joined.column(TIMESTAMP_COLUMN), deleted_at)).column("_row")
    return rows.take(alive.take(pc.sort_indices(alive)))


def _upto(unit: ReadUnit, log: LogObject) -> pc.Expression | None:
    """What keeps rows beyond the checkpoint out."""
    return pc.field(TIMESTAMP_COLUMN) <= unit.checkpoint if log.ts_max > unit.checkpoint else None


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _rows_with(rows: pa.Table, keys: pa.Table, primary_key: list[str]) -> pa.Table:
    """Rows with one of these keys, in their order."""
    numbered = rows.select(primary_key).append_column("_row", pa.arange(0, rows.num_rows))
    found = numbered.join(keys, keys=primary_key, join_type="inner").column("_row")
    return rows.take(found.take(pc.sort_indices(found)))


@contextmanager
def _connected(coordinator: CoordinatorClient | str) -> Iterator[CoordinatorClient]:
    """A client for the time of a `with`: the caller's own, left open, or one of our own, closed."""
    if isinstance(coordinator, CoordinatorClient):
        yield coordinator
        return
    with CoordinatorClient(coordinator, caller="reader") as client:
        yield client
