"""Reading a collection back, without Spark: what is registered, with deletes applied, as Arrow.

A reader sees, of every channel, the rows with timestamp <= the channel's checkpoint; a delete hides strictly older rows of its
key and acts within its channel only. Channels are read one after the other, so memory is bounded by the largest channel.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datacoord.client import CoordinatorClient
from datacoord.objectstore import ObjectStore
from datacoord.v1 import collection_pb2, common_pb2

TIMESTAMP_COLUMN = "_timestamp"


def read_batches(
    client: CoordinatorClient, collection_name: str, *, with_timestamp: bool = False
) -> Iterator[pa.RecordBatch]:
    """Reads the surviving rows of a collection, channel by channel.

    Args:
        client: of the coordinator.
        collection_name: the collection.
        with_timestamp: keep the system's column `_timestamp` (int64).

    Raises:
        CollectionNotFoundError: there is no such collection.
        ObjectStoreError: an object cannot be read.
    """
    collection = client.describe_collection(collection_name)
    schema = pa.ipc.read_schema(pa.py_buffer(collection.arrow_schema))
    store = ObjectStore.from_uri(collection.storage_root)
    for channel in client.list_binlogs(collection_name):
        table = read_channel(store, channel, schema, list(collection.primary_key))
        if not with_timestamp:
            table = table.drop_columns([TIMESTAMP_COLUMN])
        yield from table.to_batches()


def to_arrow(client: CoordinatorClient, collection_name: str, *, with_timestamp: bool = False) -> pa.Table:
    """Reads the surviving rows of a collection into one table; see `read_batches`."""
    collection = client.describe_collection(collection_name)
    schema = pa.ipc.read_schema(pa.py_buffer(collection.arrow_schema))
    if with_timestamp:
        schema = schema.append(pa.field(TIMESTAMP_COLUMN, pa.int64()))
    batches = read_batches(client, collection_name, with_timestamp=with_timestamp)
    return pa.Table.from_batches(list(batches), schema=schema)


def read_channel(
    store: ObjectStore, channel: collection_pb2.ChannelBinlogList, schema: pa.Schema, primary_key: list[str]
) -> pa.Table:
    """Reads the surviving rows of one channel, with `_timestamp`, in the order they were registered."""
    timestamp = pa.field(TIMESTAMP_COLUMN, pa.int64())
    checkpoint = channel.checkpoint.timestamp
    rows = _read(store, channel, common_pb2.BINLOG_KIND_INSERT, schema.append(timestamp), checkpoint)
    if not primary_key or rows.num_rows == 0:
        return rows
    key_schema = pa.schema([*(schema.field(name) for name in primary_key), timestamp])
    deletes = _read(store, channel, common_pb2.BINLOG_KIND_DELTA, key_schema, checkpoint)
    return apply_deletes(rows, deletes, primary_key)


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
    channel: collection_pb2.ChannelBinlogList,
    kind: common_pb2.BinlogKind,
    schema: pa.Schema,
    checkpoint: int,
) -> pa.Table:
    tables = []
    for registered in channel.binlogs:
        binlog = registered.binlog
        if registered.kind != kind or binlog.timestamp_from > checkpoint:
            continue
        with store.open_input(binlog.log_path) as file:
            table = pq.read_table(file, columns=schema.names).cast(schema)
        if binlog.timestamp_to > checkpoint:
            table = table.filter(pc.less_equal(table.column(TIMESTAMP_COLUMN), checkpoint))
        tables.append(table)
    return pa.concat_tables(tables) if tables else schema.empty_table()
