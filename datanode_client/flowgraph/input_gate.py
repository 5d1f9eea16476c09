"""The head of a flow graph: many inputs in, one stream out, cut where the barriers say."""

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Generic, TypeAlias

from datanode_client.flowgraph.barriers import (
    CheckpointBarrierAligner,
    CheckpointBarrierHandler,
    CheckpointBarrierTracker,
)
from datanode_client.flowgraph.buffer_storage import BufferStorage, GateEvent, Splitter, TimestampMerge
from datanode_client.flowgraph.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointFailureReason,
    Data,
    Decision,
    EndOfPartition,
    EndPolicy,
    PayloadT,
    Tick,
)

DEFAULT_MAX_HELD_BYTES = 64 * 1024 * 1024
"""Four full write buffers of 16 MiB: an alignment that needs more costs more memory than a snapshot repeated later."""

DEFAULT_MAX_WAITING_BYTES = 64 * 1024 * 1024
"""The same for inputs that are ahead of the others."""

GateOutput: TypeAlias = Data[PayloadT] | Tick[PayloadT] | EndOfPartition | Decision
"""What comes out of a gate."""


class CheckpointingMode(StrEnum):
    """What a snapshot holds when inputs do not reach their barriers together."""

    EXACTLY_ONCE = "exactly_once"
    """Exactly what came before the barriers: inputs wait for each other."""
    AT_LEAST_ONCE = "at_least_once"
    """What came before the barriers and perhaps more: nobody waits."""


class MergeOrder(StrEnum):
    """In which order data of several inputs comes out."""

    TIMESTAMP = "timestamp"
    """The inputs are parts of one timeline."""
    ARRIVAL = "arrival"
    """The inputs have nothing to do with each other; timestamps are not looked at, and ticks of several inputs mean nothing."""


class CheckpointedInputGate(Generic[PayloadT]):
    """Merges any number of inputs into one stream and says where its snapshots are to be cut.

    `put` takes one event of one input and returns, in order, everything that it sets free. One input is the usual case and costs
    next to nothing: data passes through, a barrier triggers at once. Not thread-safe; nothing here waits.

    **What always holds.** Nothing is lost and nothing doubled; events of one input keep their order; barriers and markers are
    never handed out; a checkpoint is triggered or aborted at most once, and the ids of these decisions rise. In exactly-once
    mode, what is handed out before `Trigger` n is exactly what came before barrier n in every input (before the end, in an input
    that ended without it). In at-least-once mode it is at least that. When all inputs have ended, nothing is left inside.

    **Blocked inputs** (exactly once). From its barrier on everything of an input is held back, whatever it is, until the
    alignment ends: by the last barrier, a newer checkpoint, a cancellation, an end of input, the limit on held bytes. What was
    held comes out before the next `put` is looked at; barriers, markers and ends among it take effect when they come out.

    **The merge** (`MergeOrder.TIMESTAMP`: the inputs are parts of one timeline). The timestamps of an input must rise. Data comes
    out in the order of timestamps, and only once every input has spoken up to it: by later data, by a tick, or by its end. So an
    input that has nothing to say holds the others back beyond its last word; readers must send ticks. Messages of one timestamp
    from several inputs come out side by side, in one `put`, with nothing between them, so that they can be made one message.
    When the merged stream is known to be complete beyond what came out, a `Tick` says so. Data of several messages is cut by
    `split` where another input's message lies between them.

    **Blocked inputs in the merge.** The merge never waits *because* an input is blocked. What an input says behind its barrier,
    ticks and timestamps, counts as spoken, while the data itself is after the cut and stays held. Data of open inputs is before
    the cut and goes on coming out, up to the first timestamp held back. If an open input has data there or beyond, no stream
    can be both in order and cut there: the checkpoint is aborted (`CUT_ACROSS_TIMELINE`), everything is released, and the order
    is kept. It never comes to that, nor does anything wait for what a blocked input says, if the barriers stand at one place of
    the timeline: choose a T that no input has passed, and put `Tick(T)` and the barrier into each behind its last message <= T.

    **Limits.** Held bytes beyond `max_held_bytes` abort the alignment. What waits for a slow input cannot be dropped; readers ask
    `wants_more` before they read on, which keeps all that is inside at about `max_waiting_bytes`.

    Args:
        channel_count: inputs, numbered from 0; at least one.
        mode: aligner or tracker.
        order: how inputs are merged.
        end_policy: what the end of an input does to a checkpoint that waits for its barrier.
        max_held_bytes: data that an alignment may hold back; exactly so much is still allowed. None = no limit.
        max_waiting_bytes: data kept, for whatever reason, beyond which inputs that are ahead are not wanted.
        split: cuts data that holds several messages; needed to merge such data of several inputs.
        task_name: the channel, for the log.
        clock: monotonic, nanoseconds.
    """

    def __init__(
        self,
        channel_count: int = 1,
        *,
        mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
        order: MergeOrder = MergeOrder.TIMESTAMP,
        end_policy: EndPolicy = EndPolicy.COMPLETE,
        max_held_bytes: int | None = DEFAULT_MAX_HELD_BYTES,
        max_waiting_bytes: int = DEFAULT_MAX_WAITING_BYTES,
        split: Splitter[PayloadT] | None = None,
        task_name: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        handler = CheckpointBarrierAligner if mode is CheckpointingMode.EXACTLY_ONCE else CheckpointBarrierTracker
        self._barrier_handler: CheckpointBarrierHandler = handler(
            channel_count, end_policy=end_policy, task_name=task_name, clock=clock
        )
        self._storage: BufferStorage[PayloadT] = (
            TimestampMerge(channel_count, split) if order is MergeOrder.TIMESTAMP else BufferStorage(channel_count)
        )
        self._max_held_bytes = max_held_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._handed_out_to = -1

    @property
    def barrier_handler(self) -> CheckpointBarrierHandler:
        """Aligner or tracker, to look at."""
        return self._barrier_handler

    @property
    def blocked_channels(self) -> AbstractSet[int]:
        """Inputs whose events are held back."""
        return self._barrier_handler.blocked_channels

    @property
    def held_bytes(self) -> int:
        """Data held back on blocked inputs."""
        return self._storage.pending_bytes(self._barrier_handler.blocked_channels)

    @property
    def waiting_bytes(self) -> int:
        """All data inside: held back, or waiting for other inputs to speak."""
        return self._storage.total_bytes()

    @property
    def is_finished(self) -> bool:
        """Whether all inputs have ended and everything has been handed out."""
        return self._storage.has_ended()

    def wants_more(self, channel_index: int) -> bool:
        """Whether the reader of this input should go on; False = it is ahead of the others and the gate is full."""
        return self._storage.wants_more(channel_index, self._max_waiting_bytes)

    def put(self, channel_index: int, event: GateEvent[PayloadT]) -> list[GateOutput[PayloadT]]:
        """Takes in one event.

        An ended input may still be sent barriers (they mean nothing there), cancellation markers, ticks and a second end.

        Args:
            channel_index: the input.
            event: what it says.

        Returns:
            What the event sets free, in the order in which it is to be handled.

        Raises:
            InputOutOfOrderError: data that is not later than everything its input has said. Nothing has changed.
            InputEndedError: data on an input that has ended. Nothing has changed.
        """
        if not self._storage.accept(channel_index, event):
            return []
        output: list[GateOutput[PayloadT]] = []
        if self._storage.passes_through(channel_index, self._barrier_handler.blocked_channels):
            self._process(channel_index, event, output)
            if isinstance(event, Data):
                return output
        else:
            self._storage.add(channel_index, event)
        self._hand_out_ready(output)
        return output

    def cancel_checkpoint(self, checkpoint_id: int) -> list[GateOutput[PayloadT]]:
        """Gives up a checkpoint at once: whoever triggered it does not wait for it any more.

        A cancellation marker in an input stands in line there, and an input that is blocked holds it back; this does not.

        Returns:
            As `put`.
        """
        output: list[GateOutput[PayloadT]] = []
        output += self._barrier_handler.process_cancellation_barrier(CancelCheckpointMarker(checkpoint_id))
        self._hand_out_ready(output)
        return output

    def _hand_out_ready(self, output: list[GateOutput[PayloadT]]) -> None:
        handler, storage = self._barrier_handler, self._storage
        while True:
            while ready := storage.pop_ready(handler.blocked_channels):
                for channel_index, event in ready:
                    self._process(channel_index, event, output)
            if not handler.blocked_channels:
                break
            # Only now, with nothing left to hand out, is what remains really held back.
            if self._max_held_bytes is not None and self.held_bytes > self._max_held_bytes:
                output += handler.abort_pending(CheckpointFailureReason.LIMIT_EXCEEDED)
            elif storage.crosses(handler.blocked_channels):
                output += handler.abort_pending(CheckpointFailureReason.CUT_ACROSS_TIMELINE)
            else:
                break
        watermark = storage.watermark()
        if watermark is not None and watermark > self._handed_out_to:
            self._handed_out_to = watermark
            output.append(Tick(watermark))

    def _process(self, channel_index: int, event: GateEvent[PayloadT], output: list[GateOutput[PayloadT]]) -> None:
        handler = self._barrier_handler
        if isinstance(event, Data):
            handler.add_processed_bytes(event.size_bytes)
            self._handed_out_to = event.timestamp
            output.append(event)
        elif isinstance(event, Tick):
            self._handed_out_to = event.timestamp
            output.append(event)
        elif isinstance(event, CheckpointBarrier):
            output += handler.process_barrier(event, channel_index, self.held_bytes)
        elif isinstance(event, CancelCheckpointMarker):
            output += handler.process_cancellation_barrier(event)
        else:
            output += handler.process_end_of_partition(channel_index, self.held_bytes)
            output.append(event)
