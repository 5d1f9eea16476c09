"""Drops under running datanodes, every part real: by messages of the log, by command, and of what is being written."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import structlog
from support.waiting import eventually_in_thread

from datacoord.client import CoordinatorClient
from datacoord.positions import Position
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.config import DataNodeConfig
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_UPSERT,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    ChannelContext,
    DropPartitionMessage,
    EndOfChannel,
    MessageBatch,
    SourceEvent,
)
from datanode_process.coordinator_process import CoordinatorProcess
from datanode_process.landing import Datanodes, managed
from datanode_process.lists import SCHEMA

ROWS = pa.schema(
    [*SCHEMA, *(pa.field(n, t) for n, t in ((TIMESTAMP_COLUMN, pa.int64()), (OP_COLUMN, pa.int8())))]
).append(pa.field(PARTITION_COLUMN, pa.int64()))
CHANNELS = 3
DROP_AT = 40
END = 80
UNSYNCED = DataNodeConfig(insert_buf_size_bytes=1 << 20, delete_buf_bytes=1 << 20, sync_policy_tick_seconds=0.1)
"""Buffers so large that nothing is synced before it must be."""
SYNCED = DataNodeConfig(insert_buf_size_bytes=1, delete_buf_bytes=1, sync_policy_tick_seconds=0.1)
"""Buffers so small that every row is synced at once."""


@dataclass(frozen=True)
class Script:
    """One message per timestamp, in turn for two partitions; at one of them a partition is dropped; the end, or silence.

    Attributes:
        drop_at: timestamp of the message that drops `side`; 0 = there is none.
        ends: the log has an end.
        last: timestamp of the last message that is there.
    """

    drop_at: int
    ends: bool
    last: int = END

    def reader(self, context: ChannelContext) -> "ScriptReader":
        """The reader factory."""
        return ScriptReader(self, context)


class ScriptReader:
    """Reads one channel."""

    def __init__(self, script: Script, context: ChannelContext) -> None:
        self._script = script
        self._context = context
        # Of old: readers that start after the drop have to know what the number was.
        self._partitions = [context.partitions["_default"], context.partitions.get("side", 0)]
        self._at = 0

    async def open(self, after: Position) -> None:
        self._at = after.timestamp

    async def next(self) -> SourceEvent:
        if self._at >= self._script.last:
            if not self._script.ends:
                await asyncio.Event().wait()
            return EndOfChannel(Position(self._script.last))
        self._at += 1
        if self._at == self._script.drop_at and self._partitions[1]:
            return DropPartitionMessage(self._partitions[1], Position(self._at))
        partition = self._partitions[self._at % 2] or self._partitions[0]
        values = [self._at, f"{self._context.channel_index}", self._at, OP_UPSERT, partition]
        arrays = [pa.array([value], type=kind.type) for value, kind in zip(values, ROWS, strict=True)]
        return MessageBatch(pa.RecordBatch.from_arrays(arrays, schema=ROWS), Position(self._at))

    def head(self) -> int | None:
        return END

    async def close(self) -> None:
        return


class Stage:
    """A coordinator process, a collection with two partitions, and datanodes of this process."""

    def __init__(self, directory: Path) -> None:
        self.coordinator = CoordinatorProcess(directory)
        self.client = CoordinatorClient("")
        self.datanodes = Datanodes(self.coordinator, Script(0, ends=True).reader)

    async def start(self) -> None:
        """Starts the coordinator and creates the collection."""
        await self.coordinator.start()
        self.client = CoordinatorClient(self.coordinator.target, timeout_seconds=20)
        await self.create()

    async def create(self) -> collection_pb2.CollectionInfo:
        """Creates the collection with the partition `side`."""
        await asyncio.to_thread(self.client.create_collection, managed(CHANNELS))
        await asyncio.to_thread(self.client.create_partition, "t", "side")
        return await asyncio.to_thread(self.client.describe_collection, "t")

    def datanode(self, script: Script, slot: int = 0, config: DataNodeConfig = UNSYNCED) -> None:
        """Starts a datanode."""
        self.datanodes.start(slot, script.reader, config)

    async def close(self) -> None:
        """Ends everything."""
        await self.datanodes.kill_all()
        self.client.close()
        await self.coordinator.kill()

    def consumed(self) -> bool:
        """Whether every channel of the collection is read to its end."""
        return all(row.report.timestamp >= END for row in self.client.list_channels("t"))

    def finished(self) -> bool:
        """Whether every row of the collection is registered."""
        return all(row.report.finished for row in self.client.list_channels("t"))

    def partitions_seen(self) -> set[int]:
        """Partitions of the objects that readers see."""
        return {log.partition_id for channel in self.client.list_binlogs("t") for log in channel.binlogs}

    def segment_states(self, partition_id: int) -> list[int]:
        """States of all segments of a partition."""
        return [row.state for row in self.client.list_segments("t") if row.partition_id == partition_id]

    def rows_seen(self) -> int:
        """Rows of insert logs that readers see."""
        return sum(
            log.binlog.entries_num
            for channel in self.client.list_binlogs("t")
            for log in channel.binlogs
            if log.kind == common_pb2.BINLOG_KIND_INSERT
        )


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A coordinator with a collection of three channels."""
    made = Stage(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


async def test_a_partition_that_the_log_drops_is_dropped_though_everybody_is_killed(stage: Stage) -> None:
    """A message that only a dead graph knew would leave the partition alive for ever."""
    side = (await asyncio.to_thread(stage.client.describe_collection, "t")).partitions["side"]
    # Some of its rows are registered before, in every channel, so that there is something to drop.
    stage.datanode(Script(DROP_AT, ends=False, last=DROP_AT // 2), config=SYNCED)
    await eventually_in_thread(lambda: len(stage.segment_states(side)) == CHANNELS)
    await stage.datanodes.kill_all()
    stage.datanode(Script(DROP_AT, ends=False))
    await eventually_in_thread(stage.consumed)
    await stage.coordinator.kill()
    await stage.datanodes.kill_all()
    await stage.coordinator.start()
    stage.datanode(Script(DROP_AT, ends=True))
    await eventually_in_thread(stage.finished)

    partitions = (await asyncio.to_thread(stage.client.describe_collection, "t")).partitions
    assert dict(partitions).keys() == {"_default"}
    assert await asyncio.to_thread(stage.partitions_seen) == {partitions["_default"]}
    assert set(await asyncio.to_thread(stage.segment_states, side)) == {common_pb2.SEGMENT_STATE_DROPPED}
    assert await asyncio.to_thread(stage.rows_seen) >= CHANNELS * (END // 2 - 1)


async def test_graphs_that_run_throw_away_what_a_command_drops(stage: Stage) -> None:
    """Rows that wait in a buffer for a lane that is gone must hold up neither a flush nor the checkpoint."""
    stage.datanode(Script(0, ends=False))
    await eventually_in_thread(stage.consumed)
    dropped = await asyncio.to_thread(stage.client.drop_partition, "t", "side")
    flush = await asyncio.to_thread(stage.client.flush, "t")
    await eventually_in_thread(lambda: stage.client.get_flush_state(flush.flush_id).flushed)

    assert dropped.partition_id not in await asyncio.to_thread(stage.partitions_seen)
    assert await asyncio.to_thread(stage.rows_seen) == CHANNELS * END // 2


async def test_a_collection_is_dropped_under_its_writers_without_complaint(stage: Stage) -> None:
    """An operator who drops a table must not wake up another who reads errors; and what comes after is a table like any other."""
    with structlog.testing.capture_logs() as logs:
        stage.datanode(Script(0, ends=False))
        await eventually_in_thread(stage.consumed)
        await asyncio.to_thread(stage.client.drop_collection, "t")
        await eventually_in_thread(lambda: not any(row.channels for row in stage.client.list_datanodes()))
        again = await stage.create()
        stage.datanode(Script(0, ends=True), slot=1)
        await eventually_in_thread(stage.finished)

    assert [line for line in logs if line["log_level"] in {"warning", "error"}] == []
    assert await asyncio.to_thread(stage.rows_seen) == CHANNELS * END
    assert {row.channel_name for row in stage.client.list_channels("t")} == set(again.channel_names)
