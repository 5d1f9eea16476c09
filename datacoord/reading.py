"""Reading a collection back: what is registered, with deletes applied, as Arrow or as a Spark DataFrame.

A reader sees, of every channel, the rows with timestamp <= the channel's checkpoint; a delete hides strictly older rows of its
key and acts within its channel only. Rows are read in units of bounded size, one after the other: memory is bounded by one unit
and the deletes of its channel.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datacoord.client import CoordinatorClient
from datacoord.column_groups import TIMESTAMP_COLUMN
from datacoord.errors import InvalidFieldError
from datacoord.key_statistics import KeyProbe, table_of_keys
from datacoord.objectstore import ObjectStore
from datacoord.reading_objects import LogObject, ObjectReader, ReadStatistics, log_objects
from datacoord.v1 import collection_pb2, common_pb2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNIT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Rows that are read together, by their size in memory when they were written."""


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """Insert logs of one channel that are read together, and the delta logs that may hide rows of theirs.

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

    Args:
        coordinator: its address, host:port, or a client of it.
        collection_name: the collection.
        columns: only these, in this order; only they are read.
        where: only rows for which this is true; parts of objects whose statistics exclude it are not read.
        keys: only rows with these primary keys: values, or a table of the key's columns. Objects whose statistics (smallest,
            largest, bloom filter of the key) exclude them are not read.
        with_timestamp: give the system's column `_timestamp` (int64) too.
        unit_bytes_max: rows that are read together, by their size in memory.
        statistics: counts what the reading took.

    Raises:
        CollectionNotFoundError: there is no such collection.
        InvalidFieldError: the collection has no such column.
        ObjectStoreError: an object cannot be read.
    """
    with _connected(coordinator) as client:
        collection = CollectionSchema.of(client.describe_collection(collection_name))
        wanted = collection.select(columns, with_timestamp=with_timestamp)
        store = ObjectStore.from_uri(collection.storage_root)
        asked = None if keys is None else KeyProbe(table_of_keys(keys, collection.columns, collection.primary_key))
        for channel in client.list_binlogs(collection_name):
            for unit in read_units(channel, unit_bytes_max):
                rows = read_unit(store, unit, collection, wanted, where, keys=asked, statistics=statistics)
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


def read_units(channel: collection_pb2.ChannelBinlogList, unit_bytes_max: int) -> Iterator[ReadUnit]:
    """Cuts a channel into units of about this size; rows beyond the checkpoint are in none of them."""
    checkpoint = channel.checkpoint.timestamp
    inserts = log_objects(channel, common_pb2.BINLOG_KIND_INSERT)
    deletes = log_objects(channel, common_pb2.BINLOG_KIND_DELTA)
    taken: list[LogObject] = []
    size_bytes = 0
    for number, insert in enumerate(inserts, 1):
        taken.append(insert)
        size_bytes += insert.memory_bytes
        if size_bytes >= unit_bytes_max or number == len(inserts):
            oldest = min(log.ts_min for log in taken)
            hiding = tuple(log for log in deletes if log.ts_max > oldest)
            yield ReadUnit(channel.channel_name, checkpoint, tuple(taken), hiding)
            taken, size_bytes = [], 0


def read_unit(
    store: ObjectStore,
    unit: ReadUnit,
    collection: CollectionSchema,
    wanted: pa.Schema,
    where: pc.Expression | None = None,
    *,
    keys: KeyProbe | None = None,
    statistics: ReadStatistics | None = None,
) -> pa.Table:
    """Reads the surviving rows of a unit.

    Args:
        store: of the collection.
        unit: what to read.
        collection: the collection.
        wanted: columns to give, of `collection.select`.
        where: only rows for which this is true.
        keys: only rows with these primary keys, each once; None = all.
        statistics: counts what the reading took.
    """
    reader = ObjectReader(store, collection.columns, statistics or ReadStatistics())
    primary_key = list(collection.primary_key)
    needed = list(wanted.names) or [TIMESTAMP_COLUMN]  # rows without columns are rows, too
    if unit.deletes or keys is not None:
        needed += [name for name in (*primary_key, TIMESTAMP_COLUMN) if name not in needed]
    condition = where if keys is None else _both(where, keys.condition)
    rows = _read(reader, unit.inserts, needed, checkpoint=unit.checkpoint, where=condition, probe=keys)
    if keys is not None and len(primary_key) > 1:
        rows = _rows_with(rows, keys.keys, primary_key)
    if unit.deletes and rows.num_rows:
        # A delete hides older rows only, so what is not newer than the oldest row here is not looked at; nor is an object whose
        # statistics say that no key of these rows is in it.
        newer = pc.field(TIMESTAMP_COLUMN) > pc.min(rows.column(TIMESTAMP_COLUMN)).as_py()
        probe = KeyProbe(rows.select(primary_key))
        hiding = [*primary_key, TIMESTAMP_COLUMN]
        deletes = _read(reader, unit.deletes, hiding, checkpoint=unit.checkpoint, where=newer, probe=probe)
        rows = apply_deletes(rows, deletes, primary_key)
    rows = rows.select(wanted.names)
    return rows.cast(wanted) if wanted.names else rows  # a cast would forget how many there are


def apply_deletes(rows: pa.Table, deletes: pa.Table, primary_key: list[str]) -> pa.Table:
    """Takes away the rows that a delete hides.

    Args:
        rows: inserts with `_timestamp`.
        deletes: keys with `_timestamp`.
        primary_key: the key columns of both.

    Returns:
        the rows whose timestamp is not below the newest delete of their key, in their order.
    """
    if deletes.num_rows == 0:
        return rows
    newest = deletes.group_by(primary_key).aggregate([(TIMESTAMP_COLUMN, "max")])
    # Only keys and row numbers go through the join: it cannot carry nested columns, and the rest would be copied for nothing.
    keys = rows.select([*primary_key, TIMESTAMP_COLUMN]).append_column("_row", pa.array(np.arange(rows.num_rows)))
    joined = keys.join(newest, keys=primary_key, join_type="left outer")
    deleted_at = pc.fill_null(joined.column(f"{TIMESTAMP_COLUMN}_max"), 0)
    alive = joined.filter(pc.greater_equal(joined.column(TIMESTAMP_COLUMN), deleted_at)).column("_row")
    return rows.take(alive.take(pc.sort_indices(alive)))


def _read(
    reader: ObjectReader,
    logs: Iterable[LogObject],
    columns: Sequence[str],
    *,
    checkpoint: int,
    where: pc.Expression | None,
    probe: KeyProbe | None,
) -> pa.Table:
    tables = [reader.schema(columns).empty_table()]
    for log in logs:
        seen = pc.field(TIMESTAMP_COLUMN) <= checkpoint if log.ts_max > checkpoint else None
        tables.append(reader.read(log, columns, _both(seen, where), probe))
    return pa.concat_tables(tables)


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _rows_with(rows: pa.Table, keys: pa.Table, primary_key: list[str]) -> pa.Table:
    """Rows with one of these keys, in their order."""
    numbered = rows.select(primary_key).append_column("_row", pa.array(np.arange(rows.num_rows)))
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
