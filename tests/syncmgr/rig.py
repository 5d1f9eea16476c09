"""A dispatcher with its neighbours, held still: uploads end and saves are answered when the test says."""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pyarrow as pa

from datacoord.errors import DatacoordError
from datacoord.objectstore import ObjectStore
from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.binlog.writer import BinlogWriter
from datanode_client.config import DataNodeConfig
from datanode_client.metrics import DataNodeMetrics
from datanode_client.ports import CheckpointAnswer, CheckpointUpdate
from datanode_client.syncmgr.dispatcher import ChannelDispatcher
from datanode_client.syncmgr.manager import SyncManager
from datanode_client.syncmgr.task import SyncTask
from datanode_client.writebuffer.buffers import LaneRows
from datanode_client.writebuffer.metacache import MetaCache
from datanode_client.writebuffer.policies import SyncReason
from datanode_client.writebuffer.write_buffer import WriteBuffer

SCHEMA = CollectionSchema.of(pa.schema([pa.field("key", pa.int64())]), ("key",))


async def settle() -> None:
    """Lets everything run that needs neither clock, thread nor coordinator."""
    for _ in range(40):
        await asyncio.sleep(0)


class StepClock:
    """A clock whose sleepers wake when told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self._sleepers: list[asyncio.Future[None]] = []

    def monotonic(self) -> float:
        """The time it was set to."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Notes the wish and waits."""
        self.sleeps.append(seconds)
        self._sleepers.append(asyncio.get_running_loop().create_future())
        await self._sleepers[-1]

    async def wake(self) -> None:
        """Ends all sleep."""
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
        await settle()


class Threads(Executor):
    """Work that is done when the test says, by the range it is for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[SyncTask, Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Takes work; its first argument is the sync."""
        future: Future[Any] = Future()
        self.waiting.append((args[0], future, lambda: fn(*args, **kwargs)))
        return future

    def ranges(self) -> list[tuple[int, int, int]]:
        """What waits: (partition, from, to)."""
        return [(task.partition_id, task.lane.timestamp_from, task.lane.timestamp_to) for task, _, _ in self.waiting]

    async def finish(self, index: int = 0, error: BaseException | None = None) -> None:
        """Does one piece of work, or fails it."""
        _, future, run = self.waiting.pop(index)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(run())
        await settle()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to shut down."""


class Coordinator:
    """Notes saves and answers when told."""

    def __init__(self) -> None:
        self.saves: list[tuple[str, data_coord_pb2.ChannelBinlogs, asyncio.Future[data_coord_pb2.ChannelResult]]] = []
        self.sent: list[data_coord_pb2.ChannelBinlogs] = []

    async def save_binlog_paths(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """SaveBinlogPaths."""
        return await self._call("save", part)

    async def drop_partition(self, collection_name: str, partition_id: int) -> None:
        """Nobody calls it here."""
        raise AssertionError((collection_name, partition_id))

    async def drop_virtual_channel(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """DropVirtualChannel."""
        return await self._call("drop", part)

    async def update_channel_checkpoints(
        self, updates: object, timeout_seconds: float
    ) -> list[CheckpointAnswer]:  # pragma: no cover
        """Nobody calls it here."""
        raise AssertionError(CheckpointUpdate)

    def checkpoint_delay_seconds(self) -> float:
        """Never."""
        return 0.0

    async def _call(self, kind: str, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        future: asyncio.Future[data_coord_pb2.ChannelResult] = asyncio.get_running_loop().create_future()
        self.saves.append((kind, part, future))
        self.sent.append(part)
        return await future

    async def answer(
        self,
        outcome: common_pb2.Outcome = common_pb2.OUTCOME_APPLIED,
        lane_outcome: common_pb2.Outcome | None = None,
        result: data_coord_pb2.ChannelResult | None = None,
        error: DatacoordError | None = None,
    ) -> None:
        """Answers the oldest call: with one outcome for all, a whole result, or a refusal."""
        _, part, future = self.saves.pop(0)
        lanes = [
            data_coord_pb2.LaneResult(
                partition_id=lane.partition_id, outcome=lane_outcome or outcome, progress=lane.timestamp_to
            )
            for lane in part.lanes
        ]
        if future.done():
            pass  # whoever asked is gone
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result or data_coord_pb2.ChannelResult(outcome=outcome, lanes=lanes))
        await settle()


class Rig:
    """Everything around one dispatcher."""

    def __init__(self, root: Path, joined_sync_max_bytes: int = 1 << 20) -> None:
        self.clock = StepClock()
        self.threads = Threads()
        self.coordinator = Coordinator()
        self.metrics = DataNodeMetrics()
        self.memory = 0
        self.answers = 0
        self.dropped = 0
        self.errors: list[Exception] = []
        info = data_coord_pb2.ChannelRecoveryInfo(channel_name="c", channel_id=7, epoch=5, collection_id=3)
        self.metacache = MetaCache(info)
        self.buffer = WriteBuffer(info, self.metacache, DataNodeConfig(), self.clock, random.Random(1))
        self.writer = BinlogWriter(info, SCHEMA, lambda: ObjectStore.from_uri(str(root)), "zstd")
        self.manager = SyncManager(
            config=DataNodeConfig(),
            clock=self.clock,
            metrics=self.metrics,
            rng=random.Random(1),
            account=self._account,
            executor=self.threads,
        )
        self.dispatcher = ChannelDispatcher(
            epoch=5,
            coordinator=self.coordinator,
            write_buffer=self.buffer,
            sync_manager=self.manager,
            writer=self.writer,
            joined_sync_max_bytes=joined_sync_max_bytes,
            clock=self.clock,
            metrics=self.metrics,
            on_answer=self._answered,
            on_dropped=self._dropped,
            on_error=self.errors.append,
        )

    def _account(self, size_bytes: int) -> None:
        self.memory += size_bytes

    def _answered(self) -> None:
        self.answers += 1

    def _dropped(self) -> None:
        self.dropped += 1

    def cut(self, ts: int, *partitions: int) -> list[SyncTask]:
        """One message with a row for every lane, cut at once; not submitted."""
        for partition in partitions:
            self.buffer.buffer_data(rows(partition, ts))
        self.buffer.advance(at(ts))
        tasks = [self.buffer.cut(partition, SyncReason.FULL_BUFFER) for partition in partitions]
        return [task for task in tasks if task is not None]

    async def sync(self, ts: int, *partitions: int) -> None:
        """One message, cut and submitted."""
        for task in self.cut(ts, *partitions):
            self.dispatcher.submit(task)
        await settle()


def at(ts: int) -> Position:
    """A position."""
    return Position(ts, b"at %d" % ts)


def rows(partition: int, ts: int) -> LaneRows:
    """One upsert."""
    values = [pa.array([ts], pa.int64()), pa.array([ts], pa.int64())]
    inserts = pa.RecordBatch.from_arrays(values, schema=SCHEMA.insert_log)
    return LaneRows(partition, inserts, pa.RecordBatch.from_arrays(values, schema=SCHEMA.delta_log), ts)


def ranges(part: data_coord_pb2.ChannelBinlogs) -> list[tuple[int, int, int]]:
    """What a part registers: (partition, from, to)."""
    return [(lane.partition_id, lane.timestamp_from, lane.timestamp_to) for lane in part.lanes]
