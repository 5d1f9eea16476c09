"""A coordinator process with one collection, a source to land in it, and what a reader finds there afterwards."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
from support.waiting import eventually_in_thread

from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, RetryConfig, SessionConfig
from datanode_client.config import DataNodeConfig
from datanode_client.datanode import DataNode
from datanode_client.sources.base import ReaderFactory
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


def managed(channel_count: int) -> collection_pb2.CreateCollectionRequest:
    """The collection `t`, whose channels datanodes read."""
    return collection_pb2.CreateCollectionRequest(
        collection_name="t",
        arrow_schema=SCHEMA.serialize().to_pybytes(),
        primary_key=["key"],
        channel_count=channel_count,
        channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
        timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
    )


class Datanodes:
    """Datanodes of this process, for the collection `t`.

    Args:
        coordinator: that they talk to.
        reader_factory: what they read, where nothing else is said.
    """

    def __init__(self, coordinator: CoordinatorProcess, reader_factory: ReaderFactory) -> None:
        self._coordinator = coordinator
        self._reader_factory = reader_factory
        self._running: dict[int, tuple[DataNode, asyncio.Task[Any], Broker]] = {}

    def start(
        self,
        slot: int,
        reader_factory: ReaderFactory | None = None,
        config: DataNodeConfig = SMALL_BUFFERS,
    ) -> None:
        """Starts a datanode in a slot."""
        broker = Broker(BrokerConfig(self._coordinator.target, retry=RetryConfig(0.02, 0.3)))
        datanode = DataNode(
            job="land",
            slot=slot,
            collection_names=["t"],
            reader_factory=reader_factory or self._reader_factory,
            broker=broker,
            config=config,
            session_config=SessionConfig(farewell_seconds=2.0, restart=RetryConfig(0.05, 1.0)),
        )
        self._running[slot] = datanode, asyncio.create_task(datanode.run()), broker

    async def kill(self, slot: int) -> None:
        """Ends a datanode without any goodbye, as far as the coordinator can tell."""
        _, task, broker = self._running.pop(slot)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await broker.close()

    async def kill_all(self) -> None:
        """The same for all of them."""
        for slot in list(self._running):
            await self.kill(slot)

    async def stop(self) -> None:
        """Stops all of them in order."""
        await asyncio.wait_for(asyncio.gather(*(datanode.stop() for datanode, _, _ in self._running.values())), 60)


class Landing:
    """The stage of an end-to-end test.

    Args:
        directory: for everything.
        flags: of the coordinator.
    """

    def __init__(self, directory: Path, *flags: str) -> None:
        self.coordinator = CoordinatorProcess(directory, *flags)
        channels = [operations(index, MESSAGES, SEED) for index in range(CHANNELS)]
        self.source = ListSource(channels, directory / "limit")
        self.source.set_limit(0)
        self.client = CoordinatorClient("")
        self.datanodes = Datanodes(self.coordinator, self.source.reader)

    async def __aenter__(self) -> Self:
        try:
            await self.coordinator.start()
            self.client = CoordinatorClient(self.coordinator.target, timeout_seconds=20)
            await asyncio.to_thread(self.client.create_collection, managed(CHANNELS))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.datanodes.kill_all()
        self.client.close()
        await self.coordinator.kill()

    def channels(self) -> list[admin_pb2.ChannelInfo]:
        """What the coordinator says of the channels."""
        return list(self.client.list_channels("t"))

    async def until(self, condition: Callable[[list[admin_pb2.ChannelInfo]], bool]) -> None:
        """Waits until what the coordinator, another process, says of the channels satisfies a condition."""
        await eventually_in_thread(lambda: condition(self.channels()), said_as=condition)

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
