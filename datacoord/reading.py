"""Reading a collection back: what is registered, with deletes applied, as Arrow or as a Spark DataFrame.

A reader sees, of every channel, the rows with timestamp <= the channel's checkpoint; a delete hides strictly older rows of its
key and acts within its channel only. Rows are read in units of bounded size, one after the other: memory is bounded by one unit
and the deletes of its channel.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datacoord.client import CoordinatorClient
from datacoord.errors import InternalError, InvalidFieldError
from datacoord.objectstore import ObjectStore
from datacoord.v1 import collection_pb2, common_pb2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMESTAMP_COLUMN: Final = "_timestamp"
UNIT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Rows that are read together, by their size in memory when they were written."""


@dataclass(frozen=True, slots=True)
class LogObject:
    """One registered object as a reader needs it.

    Attributes:
        path: relative to the storage root.
        ts_min: smallest timestamp of a row.
        ts_max: largest timestamp of a row.
        memory_bytes: size of its rows in memory.
    """

    path: str
    ts_min: int
    ts_max: int
    memory_bytes: int


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
    with_timestamp: bool = False,
    unit_bytes_max: int = UNIT_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """Reads the surviving rows of a collection, channel by channel, in the order they were registered.

    Args:
        coordinator: its address, host:port, or a client of it.
        collection_name: the collection.
        columns: only these, in this order; only they are read.
        where: only rows for which this is true; parts of objects whose statistics exclude it are not read.
        with_timestamp: give the system's column `_timestamp` (int64) too.
        unit_bytes_max: rows that are read together, by their size in memory.

    Raises:
        CollectionNotFoundError: there is no such collection.
        InvalidFieldError: the collection has no such column.
        ObjectStoreError: an object cannot be read.
    """
    with _connected(coordinator) as client:
        collection = CollectionSchema.of(client.describe_collection(collection_name))
        wanted = collection.select(columns, with_timestamp=with_timestamp)
        store = ObjectStore.from_uri(collection.storage_root)
        for channel in client.list_binlogs(collection_name):
            for unit in read_units(channel, unit_bytes_max):
                yield from read_unit(store, unit, collection, wanted, where).to_batches()


def to_arrow(
    coordinator: CoordinatorClient | str,
    collection_name: str,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    with_timestamp: bool = False,
) -> pa.Table:
    """Reads the surviving rows of a collection into one table; arguments and errors are those of `read_batches`."""
    with _connected(coordinator) as client:
        collection = CollectionSchema.of(client.describe_collection(collection_name))
        wanted = collection.select(columns, with_timestamp=with_timestamp)
        batches = read_batches(client, collection_name, columns=wanted.names, where=where)
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


def log_objects(channel: collection_pb2.ChannelBinlogList, kind: common_pb2.BinlogKind) -> list[LogObject]:
    """The objects of one kind that hold something at or before the checkpoint."""
    found = []
    for registered in channel.binlogs:
        binlog = registered.binlog
        if registered.kind != kind or binlog.timestamp_from > channel.checkpoint.timestamp:
            continue
        if registered.field_id:
            raise InternalError(
                f"object {binlog.log_path} holds some of the columns only; this version reads whole rows: upgrade it",
                path=binlog.log_path,
            )
        found.append(LogObject(binlog.log_path, binlog.timestamp_from, binlog.timestamp_to, binlog.memory_size_bytes))
    return found


def read_unit(
    store: ObjectStore,
    unit: ReadUnit,
    collection: CollectionSchema,
    wanted: pa.Schema,
    where: pc.Expression | None = None,
) -> pa.Table:
    """Reads the surviving rows of a unit.

    Args:
        store: of the collection.
        unit: what to read.
        collection: the collection.
        wanted: columns to give, of `collection.select`.
        where: only rows for which this is true.
    """
    stored = collection.columns.append(pa.field(TIMESTAMP_COLUMN, pa.int64()))
    needed = list(wanted.names)
    if unit.deletes:
        needed += [name for name in (*collection.primary_key, TIMESTAMP_COLUMN) if name not in needed]
    rows = _read(store, unit.inserts, stored, needed, checkpoint=unit.checkpoint, where=where)
    if unit.deletes and rows.num_rows:
        keys = [*collection.primary_key, TIMESTAMP_COLUMN]
        # A delete hides older rows only, so what is not newer than the oldest row here is not looked at.
        newer = pc.field(TIMESTAMP_COLUMN) > pc.min(rows.column(TIMESTAMP_COLUMN)).as_py()
        deletes = _read(store, unit.deletes, stored, keys, checkpoint=unit.checkpoint, where=newer)
        rows = apply_deletes(rows, deletes, list(collection.primary_key))
    return rows.select(wanted.names).cast(wanted)


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
    keys = rows.select([*primary_key, TIMESTAMP_COLUMN]).append_column(
        "_row", pa.array(range(rows.num_rows), pa.int64())
    )
    joined = keys.join(newest, keys=primary_key, join_type="left outer")
    deleted_at = pc.fill_null(joined.column(f"{TIMESTAMP_COLUMN}_max"), 0)
    alive = joined.filter(pc.greater_equal(joined.column(TIMESTAMP_COLUMN), deleted_at)).column("_row")
    return rows.take(alive.take(pc.sort_indices(alive)))


def _read(
    store: ObjectStore,
    logs: Iterable[LogObject],
    stored: pa.Schema,
    columns: Sequence[str],
    *,
    checkpoint: int,
    where: pc.Expression | None,
) -> pa.Table:
    schema = pa.schema([stored.field(name) for name in columns])
    tables = [schema.empty_table()]
    for log in logs:
        condition = where
        if log.ts_max > checkpoint:
            seen = pc.field(TIMESTAMP_COLUMN) <= checkpoint
            condition = seen if where is None else where & seen
        with store.open_input(log.path) as file:
            table = pq.read_table(file, schema=stored, columns=list(columns), filters=condition)
        tables.append(table.select(columns).cast(schema))
    return pa.concat_tables(tables)


@contextmanager
def _connected(coordinator: CoordinatorClient | str) -> Iterator[CoordinatorClient]:
    """A client for the time of a `with`: the caller's own, left open, or one of our own, closed."""
    if isinstance(coordinator, CoordinatorClient):
        yield coordinator
        return
    with CoordinatorClient(coordinator, caller="reader") as client:
        yield client
