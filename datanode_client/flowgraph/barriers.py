"""Checkpoint barriers of several inputs: when a snapshot is taken, and which inputs must wait until then.

`CheckpointBarrierAligner` is exactly once: an input whose barrier has come is blocked until every other input's has. The cut of the
snapshot is then the barrier itself, in every input. `CheckpointBarrierTracker` is at least once: nothing is ever blocked, the
snapshot is taken when the last barrier comes and may hold more than what stood before the barriers, never less.

Both are plain state machines: what comes in is one event, what goes out is a list of decisions, in order. They do not see data;
the gate that asks them (`input_gate.CheckpointedInputGate`) holds back what they block. Not thread-safe.

After Flink's classes of the same names, without these of their properties (each has a test):

- A barrier or marker that comes twice on one input counts once. (Flink: an error, or counted twice.)
- The inputs to wait for are fixed when the first barrier of a checkpoint comes, and each counts once, be it by barrier or by end.
- Each id is decided at most once and decisions rise, with one input as with many. (Flink's tracker triggers repeated and older
  barriers again when one input is open.) So a decision on n settles all older ids, also those that get none of their own because
  a newer cancellation or a newer complete checkpoint overtook them: whoever counts what is outstanding declines them then.
- A tracker that lost an input goes on completing. (Classic Flink: never again.) One that tracks too many checkpoints aborts the
  oldest aloud. (Flink: in silence.)
- Time and bytes are measured for each checkpoint, also where several are under way at once. (Flink: for the newest.)
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import structlog

from datanode_client.flowgraph.events import (
    Abort,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointFailureReason,
    Decision,
    EndPolicy,
    Trigger,
)

MAX_CHECKPOINTS_TO_TRACK = 50
"""Incomplete checkpoints a tracker keeps, as in Flink: an input that never sends its barriers must not cost memory for ever."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class CheckpointBarrierCount:
    """A checkpoint of which some barriers have come and some have not.

    Attributes:
        barrier: the first that came.
        missing: inputs whose barrier has not come.
        started_ns: the clock when the first came.
        processed_before_bytes: data handed out before that.
    """

    barrier: CheckpointBarrier
    missing: set[int]
    started_ns: int
    processed_before_bytes: int


class CheckpointBarrierHandler(ABC):
    """What aligner and tracker have in common: they differ in what a new checkpoint does to older ones, and in blocking.

    Args:
        total_number_of_input_channels: inputs, numbered from 0.
        end_policy: what the end of an input does to a checkpoint that waits for it.
        task_name: whose barriers these are, for the log; the channel's name.
        clock: monotonic, nanoseconds.
    """

    def __init__(
        self,
        total_number_of_input_channels: int,
        *,
        end_policy: EndPolicy = EndPolicy.COMPLETE,
        task_name: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._open_channels = set(range(total_number_of_input_channels))
        self._end_policy = end_policy
        self._log = _log.bind(task_name=task_name)
        self._clock = clock
        # In the order of their ids: only ids above all seen so far are ever added.
        self._pending: dict[int, CheckpointBarrierCount] = {}
        self._blocked_channels: frozenset[int] = frozenset()
        self._latest_checkpoint_id = -1
        self._latest_alignment_duration_ns = 0
        self._processed_bytes = 0

    @property
    def latest_checkpoint_id(self) -> int:
        """The highest checkpoint taken up: begun, or seen cancelled; -1 before the first. Never goes back."""
        return self._latest_checkpoint_id

    @property
    def pending_checkpoint_ids(self) -> tuple[int, ...]:
        """Checkpoints that wait for barriers, ascending."""
        return tuple(self._pending)

    @property
    def blocked_channels(self) -> AbstractSet[int]:
        """Inputs whose events must be held back."""
        return self._blocked_channels

    @property
    def alignment_duration_ns(self) -> int:
        """Time since the first barrier of the newest checkpoint that waits; if none does, what the latest took."""
        for count in reversed(self._pending.values()):
            return self._clock() - count.started_ns
        return self._latest_alignment_duration_ns

    def add_processed_bytes(self, size_bytes: int) -> None:
        """Counts data that is handed out."""
        self._processed_bytes += size_bytes

    def process_barrier(
        self, received_barrier: CheckpointBarrier, channel_index: int, buffered_bytes: int = 0
    ) -> list[Decision]:
        """A barrier has come on an input that is not blocked; one on an input that has ended means nothing.

        Args:
            received_barrier: the barrier.
            channel_index: the input.
            buffered_bytes: data held back on blocked inputs at this moment, for the measurements.

        Returns:
            What becomes of checkpoints by this, in order.
        """
        barrier_id = received_barrier.id
        if channel_index not in self._open_channels:
            return []
        now_ns = self._clock()
        decisions: list[Decision] = []
        if barrier_id > self._latest_checkpoint_id:
            decisions += self._make_room(barrier_id)
            self._latest_checkpoint_id = barrier_id
            self._pending[barrier_id] = CheckpointBarrierCount(
                received_barrier, set(self._open_channels), now_ns, self._processed_bytes
            )
        count = self._pending.get(barrier_id)
        if count is not None:
            self._on_barrier(count, channel_index)
            if not count.missing:
                decisions.append(self._notify_checkpoint(count, now_ns, buffered_bytes))
        return decisions

    def process_cancellation_barrier(self, cancel_barrier: CancelCheckpointMarker) -> list[Decision]:
        """A cancellation marker has come: aborts this and all older checkpoints; later barriers of it are stale."""
        cancelled_id = cancel_barrier.id
        reason = CheckpointFailureReason.CANCELLED
        decisions = self._notify_abort([key for key in self._pending if key <= cancelled_id], reason)
        if cancelled_id > self._latest_checkpoint_id:
            self._latest_checkpoint_id = cancelled_id
            decisions.append(Abort(cancelled_id, reason))
        return decisions

    def process_end_of_partition(self, channel_index: int, buffered_bytes: int = 0) -> list[Decision]:
        """An input that is not blocked has ended: aborts what is pending, or goes on without the input, as the policy says.

        Args:
            channel_index: the input.
            buffered_bytes: as for `process_barrier`.
        """
        self._open_channels.discard(channel_index)
        if self._end_policy is EndPolicy.ABORT:
            return self.abort_pending(CheckpointFailureReason.END_OF_INPUT)
        for count in self._pending.values():
            count.missing.discard(channel_index)
        complete = [count for count in self._pending.values() if not count.missing]
        return [self._notify_checkpoint(complete[-1], self._clock(), buffered_bytes)] if complete else []

    def abort_pending(self, reason: CheckpointFailureReason) -> list[Decision]:
        """Gives up every checkpoint that waits for barriers, and unblocks all inputs."""
        return self._notify_abort(list(self._pending), reason)

    @abstractmethod
    def _make_room(self, barrier_id: int) -> list[Decision]:
        """Gives up what a newer checkpoint does not tolerate beside it."""

    def _on_barrier(self, count: CheckpointBarrierCount, channel_index: int) -> None:
        count.missing.discard(channel_index)

    def _notify_checkpoint(self, count: CheckpointBarrierCount, now_ns: int, buffered_bytes: int) -> Trigger:
        barrier = count.barrier
        self._log.debug("all_barriers_received", checkpoint=barrier.id, triggered_at_ms=barrier.timestamp_ms)
        self._latest_alignment_duration_ns = now_ns - count.started_ns
        self._release_blocks_and_reset_barriers([key for key in self._pending if key <= barrier.id])
        return Trigger(
            barrier,
            held_bytes=buffered_bytes,
            processed_bytes=self._processed_bytes - count.processed_before_bytes,
            alignment_ns=self._latest_alignment_duration_ns,
        )

    def _notify_abort(self, checkpoint_ids: Iterable[int], reason: CheckpointFailureReason) -> list[Decision]:
        checkpoint_ids = list(checkpoint_ids)
        for checkpoint_id in checkpoint_ids:
            self._log.info("checkpoint_aborted", checkpoint=checkpoint_id, reason=reason.value)
            self._latest_alignment_duration_ns = self._clock() - self._pending[checkpoint_id].started_ns
        self._release_blocks_and_reset_barriers(checkpoint_ids)
        return [Abort(checkpoint_id, reason) for checkpoint_id in checkpoint_ids]

    def _release_blocks_and_reset_barriers(self, checkpoint_ids: Iterable[int]) -> None:
        for checkpoint_id in checkpoint_ids:
            del self._pending[checkpoint_id]
        if not self._pending:
            self._blocked_channels = frozenset()


class CheckpointBarrierAligner(CheckpointBarrierHandler):
    """Exactly once: blocks an input from its barrier on until all barriers of the checkpoint are in.

    One checkpoint at a time: a barrier or marker of a newer one ends the alignment of the current one, barriers of older ones
    are stale.
    """

    def process_cancellation_barrier(self, cancel_barrier: CancelCheckpointMarker) -> list[Decision]:
        """As the base; an older checkpoint ends in silence, as in Flink: the decision on the newer one settles it."""
        return super().process_cancellation_barrier(cancel_barrier)[-1:]

    def _make_room(self, barrier_id: int) -> list[Decision]:
        for checkpoint_id in self._pending:
            self._log.warning("checkpoint_skipped", checkpoint=checkpoint_id, newer_checkpoint=barrier_id)
        return self.abort_pending(CheckpointFailureReason.SUBSUMED)

    def _on_barrier(self, count: CheckpointBarrierCount, channel_index: int) -> None:
        super()._on_barrier(count, channel_index)
        self._blocked_channels |= {channel_index}


class CheckpointBarrierTracker(CheckpointBarrierHandler):
    """At least once: counts barriers and blocks nothing; several checkpoints may be under way, late barriers still complete them.

    A complete checkpoint gives up all older incomplete ones.
    """

    def _make_room(self, barrier_id: int) -> list[Decision]:
        if len(self._pending) < MAX_CHECKPOINTS_TO_TRACK:
            return []
        oldest_id = next(iter(self._pending))
        self._log.warning("checkpoint_skipped", checkpoint=oldest_id, newer_checkpoint=barrier_id)
        return self._notify_abort([oldest_id], CheckpointFailureReason.SUBSUMED)
