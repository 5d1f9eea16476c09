"""A coordinator process with one collection, a source to land in it, and what a reader finds there afterwards."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2
from datanode_client.config import DataNodeConfig
from datanode_process.coordinator_process import CoordinatorProcess
from datanode_process.lists import SCHEMA, ListSource, Operation, operations, state

CHANNELS = 8
MESSAGES = 400
SEED = 20261121

SMALL_BUFFERS = DataNodeConfig(
    insert_buf_size_bytes=4000,
    delete_buf_bytes=4000,
    sync_policy_tick_seconds=0.1,
    source_retry_delay_seconds_initial=0.01,
)
"""Buffers so small that every channel syncs many times."""


class Landing:
    """The stage of an end-to-end test.

    Args:
        directory: for everything.
    """

    def __init__(self, directory: Path) -> None:
        self.coordinator = CoordinatorProcess(directory)
        channels = [operations(index, MESSAGES, SEED) for index in range(CHANNELS)]
        self.source = ListSource(channels, directory / "limit")
        self.source.set_limit(0)
        self.client = CoordinatorClient("")

    async def start(self) -> None:
        """Starts the coordinator and creates the collection."""
        await self.coordinator.start()
        self.client = CoordinatorClient(self.coordinator.target, timeout_seconds=20)
        request = collection_pb2.CreateCollectionRequest(
            collection_name="t",
            arrow_schema=SCHEMA.serialize().to_pybytes(),
            primary_key=["key"],
            channel_count=CHANNELS,
            channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
            timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
        )
        await asyncio.to_thread(self.client.create_collection, request)

    async def close(self) -> None:
        """Ends the coordinator."""
        self.client.close()
        await self.coordinator.kill()

    def channels(self) -> list[admin_pb2.ChannelInfo]:
        """What the coordinator says of the channels."""
        return list(self.client.list_channels("t"))

    async def until(self, condition: Callable[[list[admin_pb2.ChannelInfo]], bool], seconds: float = 60.0) -> None:
        """Waits until what the coordinator, another process, says of the channels satisfies a condition."""
        async with asyncio.timeout(seconds):
            while not condition(await asyncio.to_thread(self.channels)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def until_consumed(self, timestamp: int) -> None:
        """Waits until every channel has read so far."""
        await self.until(lambda channels: all(channel.report.timestamp >= timestamp for channel in channels))

    async def check(self, timestamp: int = MESSAGES) -> None:
        """Compares what is there with the source up to a timestamp: the rows seen, and that none is registered twice."""
        visible, registered = await asyncio.to_thread(self._read_back)
        read = [channel[:timestamp] for channel in self.source.channels]
        assert visible == [state(channel) for channel in read]
        assert registered == [_upserts(channel) for channel in read]

    def _read_back(self) -> tuple[list[dict[int, tuple[int, str]]], list[Counter[tuple[int, int]]]]:
        """Rows a reader sees by channel, and how often every (timestamp, key) was registered as a row."""
        root = Path(self.client.describe_collection("t").storage_root.removeprefix("file://"))
        visible, registered = [], []
        for channel in self.client.list_binlogs("t"):
            rows: list[tuple[int, int, str]] = []
            deletes: dict[int, int] = {}
            for log in channel.binlogs:
                for row in pq.read_table(root / log.binlog.log_path).to_pylist():
                    if log.kind == common_pb2.BINLOG_KIND_INSERT:
                        rows.append((row["_timestamp"], row["key"], row["value"]))
                    else:
                        deletes[row["key"]] = max(deletes.get(row["key"], 0), row["_timestamp"])
            registered.append(Counter((timestamp, key) for timestamp, key, _ in rows))
            visible.append(
                {
                    key: (timestamp, value)
                    for timestamp, key, value in rows
                    if deletes.get(key, 0) <= timestamp <= channel.checkpoint.timestamp
                }
            )
        return visible, registered


def _upserts(channel: list[Operation]) -> Counter[tuple[int, int]]:
    return Counter((timestamp, key) for timestamp, key, value in channel if value is not None)


def finished(channels: list[admin_pb2.ChannelInfo]) -> bool:
    """Every channel has landed to its end."""
    return all(channel.report.finished and channel.report.epoch == channel.epoch for channel in channels)
