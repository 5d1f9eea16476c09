"""The order of one channel's syncs: written lane by lane, registered by one outstanding save (PROTOCOL S2)."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from datacoord import reported_metrics as names
from datacoord.errors import ChannelDroppedError, CollectionNotFoundError, InternalError, from_status
from datacoord.limits import SAVE_CHANNEL_LANES_MAX
from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.binlog.writer import BinlogWriter
from datanode_client.clock import Clock
from datanode_client.faults import Fault
from datanode_client.metrics import DataNodeMetrics, outcome_label
from datanode_client.ports import CoordinatorPort
from datanode_client.syncmgr.manager import SyncManager
from datanode_client.syncmgr.task import SyncTask
from datanode_client.writebuffer.write_buffer import WriteBuffer

_ANSWERED = {common_pb2.OUTCOME_APPLIED, common_pb2.OUTCOME_ALREADY_APPLIED}
_LANE_ANSWERED = {*_ANSWERED, common_pb2.OUTCOME_DISCARDED}


@dataclass(slots=True)
class _LaneQueue:
    """The syncs of one lane, in order: sent, ready, writing, waiting.

    At most one is ready, and while one is ready none is written. So every save carries at most one range per lane, what waits
    is joined before it gets a name, and a coordinator that is away costs two unregistered ranges per lane, not a full store.
    """

    waiting: deque[SyncTask] = field(default_factory=deque)
    writing: SyncTask | None = None
    ready: SyncTask | None = None
    sent: SyncTask | None = None

    def __len__(self) -> int:
        return len(self.waiting) + sum(one is not None for one in (self.writing, self.ready, self.sent))

    @property
    def oldest(self) -> SyncTask | None:
        """The sync that has waited longest; None = there is none."""
        return self.sent or self.ready or self.writing or (self.waiting[0] if self.waiting else None)


class ChannelDispatcher:
    """Has the syncs of one channel at one epoch written and registered. Used on the event loop's thread only.

    Args:
        epoch: of the flow graph.
        coordinator: where saves go; it repeats a part unchanged until it is answered.
        write_buffer: whose pins the answers free.
        sync_manager: writes objects.
        writer: of the channel.
        joined_sync_max_bytes: waiting ranges are joined up to this size.
        clock: elapsed time.
        metrics: of the process.
        on_answer: told after every answered save.
        on_dropped: told when the channel is dropped, after `drop_channel`.
        on_error: told of a refusal, or of anything else that waiting does not cure.
    """

    def __init__(
        self,
        *,
        epoch: int,
        coordinator: CoordinatorPort,
        write_buffer: WriteBuffer,
        sync_manager: SyncManager,
        writer: BinlogWriter,
        joined_sync_max_bytes: int,
        clock: Clock,
        metrics: DataNodeMetrics,
        on_answer: Callable[[], None],
        on_dropped: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._epoch = epoch
        self._coordinator = coordinator
        self._write_buffer = write_buffer
        self._sync_manager = sync_manager
        self._writer = writer
        self._joined_sync_max_bytes = joined_sync_max_bytes
        self._clock = clock
        self._metrics = metrics
        self._on_answer = on_answer
        self._on_dropped = on_dropped
        self._on_error = on_error
        self._lanes: dict[int, _LaneQueue] = {}
        self._outstanding = False
        self._dropping = False
        self._abandoned = False
        self._untold_drops = 0
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def syncs_in_flight(self) -> int:
        """Syncs that are not answered yet."""
        return sum(len(lane) for lane in self._lanes.values())

    @property
    def oldest_sync_age_seconds(self) -> float:
        """For how long the oldest sync has not been answered; 0 = none waits."""
        submitted = [task.submitted for lane in self._lanes.values() if (task := lane.oldest) is not None]
        return self._clock.monotonic() - min(submitted) if submitted else 0.0

    @property
    def fault(self) -> Fault | None:
        """Why objects cannot be written, while that is so: the fault that has lasted longest."""
        faults = [
            lane.writing.fault for lane in self._lanes.values() if lane.writing is not None and lane.writing.fault
        ]
        return min(faults, key=lambda fault: fault.since, default=None)

    @property
    def is_idle(self) -> bool:
        """Whether every sync is answered, and the coordinator knows of every dropped partition."""
        return not self._lanes and not self._outstanding and not self._untold_drops

    def drop_partition(self, partition_id: int, before: Position) -> None:
        """Tells the coordinator that a message of the log has dropped a partition.

        Until it knows, the checkpoint stays before the message: whoever replays the log from a later one would never hear of it.

        Args:
            partition_id: the partition.
            before: the position consumed before the message.
        """
        self._untold_drops += 1
        self._start(self._tell_dropped(partition_id, self._write_buffer.hold_checkpoint(before)))

    async def _tell_dropped(self, partition_id: int, pin_id: int) -> None:
        try:
            await self._coordinator.drop_partition(self._write_buffer.collection_name, partition_id)
        except CollectionNotFoundError as error:
            # The whole collection is dropped. The desired state says so as well; whichever comes first ends the graph.
            raise ChannelDroppedError(f"channel {self._write_buffer.channel_name} is dropped") from error
        self._write_buffer.let_go(pin_id)
        self._untold_drops -= 1
        self._on_answer()

    def submit(self, task: SyncTask) -> None:
        """Takes a sync; those of one lane come in the order of their ranges."""
        self._metrics.add(names.SYNCS, policy=task.reason.value)
        task.submitted = self._clock.monotonic()
        self._sync_manager.accept(task)
        lane = self._lanes.setdefault(task.partition_id, _LaneQueue())
        last = lane.waiting[-1] if lane.waiting else None
        if last is not None and last.size_bytes + task.size_bytes <= self._joined_sync_max_bytes:
            last.join(task)
        else:
            lane.waiting.append(task)
        self._write_next(lane)

    def drop_channel(self) -> None:
        """Drops the channel together with the last save, once everything else is registered. No checkpoint moves any more."""
        self._dropping = True
        self._send()

    def abandon(self) -> None:
        """Lets everything go at once; nothing more is sent. Objects without a row are the garbage collector's."""
        self._abandoned = True
        for job in self._jobs:
            job.cancel()
        for lane in self._lanes.values():
            for task in (*lane.waiting, *([lane.writing] if lane.writing else [])):
                self._sync_manager.abandon(task)
        self._lanes.clear()

    def _start(self, job: Coroutine[None, None, None]) -> None:
        running = asyncio.get_running_loop().create_task(job)
        self._jobs.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and isinstance(error := job.exception(), Exception):
            self._on_error(error)

    def _write_next(self, lane: _LaneQueue) -> None:
        if lane.waiting and lane.writing is None and lane.ready is None:
            lane.writing = lane.waiting.popleft()
            self._start(self._write(lane, lane.writing))

    async def _write(self, lane: _LaneQueue, task: SyncTask) -> None:
        await self._sync_manager.write(task, self._writer)
        lane.writing, lane.ready = None, task
        self._send()

    def _send(self) -> None:
        """Sends what is ready, unless a save is outstanding."""
        if self._outstanding or self._abandoned:
            return
        ready = [lane for lane in self._lanes.values() if lane.ready is not None]
        if self._dropping and len(ready) <= SAVE_CHANNEL_LANES_MAX:
            if not any(lane.waiting or lane.writing for lane in self._lanes.values()):
                self._start_call(self._drop, ready)
                return
            if not any(lane.waiting for lane in ready):
                return  # the last save carries what is being written now
        if ready:
            self._start_call(self._save, ready[:SAVE_CHANNEL_LANES_MAX])

    def _start_call(
        self,
        call: Callable[[data_coord_pb2.ChannelBinlogs, list[SyncTask]], Coroutine[None, None, None]],
        lanes: list[_LaneQueue],
    ) -> None:
        tasks = []
        for lane in lanes:
            if lane.ready is not None:
                tasks.append(lane.ready)
            lane.sent, lane.ready = lane.ready, None
            self._write_next(lane)
        self._outstanding = True
        self._start(call(self._build_part(tasks), tasks))

    def _build_part(self, tasks: list[SyncTask]) -> data_coord_pb2.ChannelBinlogs:
        """The channel's part of a save; from here on it does not change."""
        part = data_coord_pb2.ChannelBinlogs(
            channel_name=self._write_buffer.channel_name, epoch=self._epoch, lanes=[task.to_proto() for task in tasks]
        )
        # Only what this very call registers may be left out: another lane's sync in flight holds the checkpoint back.
        checkpoint = self._write_buffer.get_checkpoint({pin_id for task in tasks for pin_id in task.pins})
        if not self._dropping and checkpoint.timestamp > self._write_buffer.persisted.timestamp:
            part.check_point.CopyFrom(checkpoint.to_proto(self._write_buffer.channel_name))
        return part

    async def _save(self, part: data_coord_pb2.ChannelBinlogs, tasks: list[SyncTask]) -> None:
        started = self._clock.monotonic()
        result = await self._coordinator.save_binlog_paths(part)
        self._metrics.observe(names.SAVE_BINLOG_PATHS_SECONDS, self._clock.monotonic() - started)
        self._settle(part, tasks, result)
        self._outstanding = False
        self._on_answer()
        self._send()

    async def _drop(self, part: data_coord_pb2.ChannelBinlogs, tasks: list[SyncTask]) -> None:
        result = await self._coordinator.drop_virtual_channel(part)
        self._settle(part, tasks, result)
        self._on_dropped()

    def _settle(
        self, part: data_coord_pb2.ChannelBinlogs, tasks: list[SyncTask], result: data_coord_pb2.ChannelResult
    ) -> None:
        """Unpins what was answered, and nothing else."""
        _check_answer(part, result)
        for lane in result.lanes:
            self._metrics.add(names.SAVED_RANGES, outcome=outcome_label(lane.outcome))
        for task in tasks:
            self._write_buffer.unpin(task)
            queue = self._lanes[task.partition_id]
            queue.sent = None
            if len(queue) == 0:
                del self._lanes[task.partition_id]
        self._write_buffer.metacache.apply(result.lanes)
        if part.HasField("check_point"):
            self._write_buffer.notify_checkpoint_updated(Position.from_proto(part.check_point))


def _check_answer(part: data_coord_pb2.ChannelBinlogs, result: data_coord_pb2.ChannelResult) -> None:
    """Accepts nothing as an answer that does not say of every range that it is registered.

    Raises:
        DatacoordError: the refusal, or InternalError if the answer makes no sense.
    """
    if result.HasField("error"):
        raise from_status(result.error)
    sent = [lane.partition_id for lane in part.lanes]
    answered = [lane.partition_id for lane in result.lanes if lane.outcome in _LANE_ANSWERED]
    if result.outcome not in _ANSWERED or answered != sent:
        raise InternalError(
            f"the answer to a save of {part.channel_name} does not say what became of every lane: {result}"
        )
