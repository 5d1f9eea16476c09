"""The write buffer of one channel: lane buffers, pins, cuts and the checkpoint that follows from them (PROTOCOL R3)."""

import itertools
import random
from collections.abc import Collection, Iterable

from datacoord.errors import InternalError
from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.binlog.writer import RangeRows
from datanode_client.clock import Clock
from datanode_client.config import DataNodeConfig
from datanode_client.syncmgr.task import SyncTask
from datanode_client.writebuffer.buffers import LaneBuffer, LaneRows, RowBuffer
from datanode_client.writebuffer.metacache import MetaCache
from datanode_client.writebuffer.policies import SyncContext, SyncReason, choose


class WriteBuffer:
    """Everything between what a channel has consumed and what is registered. Used on the event loop's thread only.

    The checkpoint is the smallest pin, or the consumed position if nothing is pinned. A pin has a unique id; it is taken by the
    first message of an empty lane, moves to the sync with a cut, and goes only when the coordinator has answered the range.

    Args:
        info: recovery info of the channel.
        metacache: lanes and segments of the channel.
        config: buffer sizes and sync period.
        clock: elapsed time.
        rng: source of the jitter.
    """

    def __init__(
        self,
        info: data_coord_pb2.ChannelRecoveryInfo,
        metacache: MetaCache,
        config: DataNodeConfig,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.channel_name: str = info.channel_name
        self.collection_name: str = info.collection_name
        self.metacache = metacache
        self.consumed = Position.from_proto(info.checkpoint)
        self.persisted = self.consumed
        self.flush_timestamp = 0
        self.lanes: dict[int, LaneBuffer] = {}
        self.size_bytes = 0
        self._config = config
        self._clock = clock
        self._rng = rng
        self._pin_ids = itertools.count(1)
        self._sync_pins: dict[int, Position] = {}
        is_tso = info.timestamp_kind == common_pb2.TIMESTAMP_KIND_TSO
        self._sync_period_ms = int(config.sync_period_seconds * 1000) if is_tso else 0

    @property
    def rows(self) -> int:
        """Rows in all buffers."""
        return sum(lane.rows for lane in self.lanes.values())

    def buffer_data(self, lane_rows: LaneRows) -> LaneBuffer:
        """Appends whole messages to a lane, before `advance` moves what is consumed past them."""
        lane = self.lanes.get(lane_rows.partition_id)
        if lane is None:
            lane = self.lanes[lane_rows.partition_id] = self._new_lane_buffer(lane_rows)
        self.size_bytes += lane.buffer(lane_rows)
        return lane

    def advance(self, position: Position) -> None:
        """Notes what is consumed. A position at or before it changes nothing: ticks and replays may repeat themselves."""
        if position.timestamp > self.consumed.timestamp:
            self.consumed = position

    def cut(self, partition_id: int, reason: SyncReason) -> SyncTask | None:
        """Cuts a lane at the consumed position: the range (end, consumed], inserts and deletes together.

        Returns:
            the sync, which holds the lane's pin now; None if there was nothing to cut.
        """
        buffer = self.lanes.pop(partition_id, None)
        if buffer is None:
            return None
        lane = self.metacache.lane(partition_id)
        if self.consumed.timestamp <= lane.end:
            # Rows at or below the progress at start are filtered, so what is buffered lies beyond it.
            raise InternalError(
                f"lane {partition_id} of {self.channel_name} holds rows but consumed {self.consumed.timestamp} <= end {lane.end}"
            )
        rows, size_bytes = buffer.rows, buffer.size_bytes
        task = SyncTask(
            lane=RangeRows(partition_id, lane.end, self.consumed.timestamp, dict(buffer.take()), self.persisted),
            pins={buffer.pin_id: buffer.pin},
            rows=rows,
            size_bytes=size_bytes,
            reason=reason,
        )
        lane.end = self.consumed.timestamp
        self._sync_pins[buffer.pin_id] = buffer.pin
        self.size_bytes -= size_bytes
        return task

    def unpin(self, task: SyncTask) -> None:
        """Frees the pins of a sync: its range was answered APPLIED, ALREADY_APPLIED or DISCARDED, nothing else."""
        for pin_id in task.pins:
            del self._sync_pins[pin_id]

    def hold_checkpoint(self, position: Position) -> int:
        """Pins the checkpoint at a position for something that is no sync; the id of the pin, for `let_go`."""
        pin_id = next(self._pin_ids)
        self._sync_pins[pin_id] = position
        return pin_id

    def let_go(self, pin_id: int) -> None:
        """Frees a pin of `hold_checkpoint`."""
        del self._sync_pins[pin_id]

    def get_checkpoint(self, without: Collection[int] = frozenset()) -> Position:
        """The furthest position the checkpoint may move to.

        Args:
            without: ids of pins that the very call which carries the checkpoint resolves.
        """
        pins = [lane.pin for lane in self.lanes.values()]
        pins.extend(pin for pin_id, pin in self._sync_pins.items() if pin_id not in without)
        return min(pins, key=lambda pin: pin.timestamp, default=self.consumed)

    def choose(self, lanes: Iterable[LaneBuffer]) -> list[tuple[int, SyncReason]]:
        """Runs the sync policies over some lanes and returns those to cut."""
        context = SyncContext(
            now=self._clock.monotonic(),
            consumed_timestamp=self.consumed.timestamp,
            flush_timestamp=self.flush_timestamp,
            sealed_until=self.metacache.sealed_until(),
            sync_period_ms=self._sync_period_ms,
            is_dropped=lambda partition_id: self.metacache.lane(partition_id).dropped,
        )
        return list(choose(lanes, context))

    def set_flush_timestamp(self, timestamp: int) -> None:
        """Sets, repeats or withdraws (0) a flush target; one that the stored checkpoint has passed is done already."""
        self.flush_timestamp = 0 if self.persisted.timestamp > timestamp else timestamp

    @property
    def flush_is_pending(self) -> bool:
        """Whether a flush waits for the stored checkpoint."""
        return self.flush_timestamp != 0 and self.persisted.timestamp < self.flush_timestamp

    def notify_checkpoint_updated(self, persisted: Position) -> None:
        """Notes the stored checkpoint: resets a flush it has passed (strictly, as Milvus does) and forgets flushed segments."""
        if persisted.timestamp <= self.persisted.timestamp:
            return
        self.persisted = persisted
        self.metacache.forget_flushed(persisted.timestamp)
        if persisted.timestamp > self.flush_timestamp:
            self.flush_timestamp = 0

    def _new_lane_buffer(self, lane_rows: LaneRows) -> LaneBuffer:
        period_seconds = self._config.sync_period_seconds
        jitter_seconds = period_seconds * self._config.sync_period_jitter_ratio * self._rng.random()
        return LaneBuffer(
            partition_id=lane_rows.partition_id,
            insert_buffer=RowBuffer(self._config.insert_buf_size_bytes),
            delta_buffer=RowBuffer(self._config.delete_buf_bytes),
            pin_id=next(self._pin_ids),
            pin=self.consumed,
            ts_min=lane_rows.ts_min,
            stale_at=self._clock.monotonic() + period_seconds + jitter_seconds,
        )
