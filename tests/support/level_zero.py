"""A collection in which deletes that name no partition hide rows of several: landed by a real datanode, for all readers."""

import asyncio

import pyarrow as pa

from datacoord.client import CoordinatorClient
from datacoord.limits import ALL_PARTITIONS_ID, DEFAULT_PARTITION_NAME
from datacoord.positions import Position
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig
from datanode_client.config import DataNodeConfig
from datanode_client.datanode import DataNode
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_DELETE,
    OP_UPSERT,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    ChannelContext,
    EndOfChannel,
    MessageBatch,
    SourceEvent,
)

COLLECTION = "level_zero"
SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.string())])
ROWS = pa.schema(
    [
        *SCHEMA,
        pa.field(TIMESTAMP_COLUMN, pa.int64()),
        pa.field(OP_COLUMN, pa.int8()),
        pa.field(PARTITION_COLUMN, pa.int64()),
    ]
)
EVERYWHERE = "everywhere"
LOG: list[tuple[int, int, str | None, str]] = [
    (1, 1, "default, deleted", DEFAULT_PARTITION_NAME),
    (1, 2, "side, deleted", "side"),
    (2, 3, "default", DEFAULT_PARTITION_NAME),
    (2, 4, "side", "side"),
    (3, 1, None, EVERYWHERE),
    (3, 2, None, EVERYWHERE),
    (4, 2, "side, again", "side"),
    (5, 5, None, EVERYWHERE),
    (6, 3, "default, newer", DEFAULT_PARTITION_NAME),
]
"""Timestamp, key, value (None = a delete), partition."""
SEEN = [(2, "side, again", 4), (3, "default, newer", 6), (4, "side", 2)]
"""Key, value, timestamp of what a reader must see."""


class _Reader:
    def __init__(self, context: ChannelContext) -> None:
        self._partitions = {**context.partitions, EVERYWHERE: ALL_PARTITIONS_ID}
        self._left: list[int] = []

    async def open(self, after: Position) -> None:
        self._left = sorted({timestamp for timestamp, *_ in LOG if timestamp > after.timestamp})

    async def next(self) -> SourceEvent:
        if not self._left:
            return EndOfChannel(Position(LOG[-1][0]))
        at = self._left.pop(0)
        rows = [
            (key, value, at, OP_DELETE if value is None else OP_UPSERT, self._partitions[partition])
            for timestamp, key, value, partition in LOG
            if timestamp == at
        ]
        columns = [pa.array(column, type=kind.type) for column, kind in zip(zip(*rows, strict=True), ROWS, strict=True)]
        return MessageBatch(pa.RecordBatch.from_arrays(columns, schema=ROWS), Position(at))

    def head(self) -> int | None:
        return LOG[-1][0]

    async def close(self) -> None:
        return


def land(address: str) -> str:
    """Creates the collection and lands the log in objects of one message each; its name."""
    with CoordinatorClient(address, timeout_seconds=20) as client:
        request = collection_pb2.CreateCollectionRequest(
            collection_name=COLLECTION,
            arrow_schema=SCHEMA.serialize().to_pybytes(),
            primary_key=["key"],
            channel_count=1,
            channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
            timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
        )
        client.create_collection(request)
        client.create_partition(COLLECTION, "side")
        asyncio.run(_land(address, client))
    return COLLECTION


async def _land(address: str, client: CoordinatorClient) -> None:
    broker = Broker(BrokerConfig(address))
    datanode = DataNode(
        job="level-zero",
        slot=0,
        collection_names=[COLLECTION],
        reader_factory=_Reader,
        broker=broker,
        config=DataNodeConfig(insert_buf_size_bytes=1, delete_buf_bytes=1),
    )
    running = asyncio.create_task(datanode.run())
    try:
        async with asyncio.timeout(60):
            while not all(row.report.finished for row in client.list_channels(COLLECTION)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await datanode.stop()
        await asyncio.wait_for(running, 30)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await broker.close()
