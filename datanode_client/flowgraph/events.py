"""What goes into an input gate and what comes out of it.

In: `Data`, `Tick`, `CheckpointBarrier`, `CancelCheckpointMarker`, `EndOfPartition`. Out: `Data`, `Tick` and `EndOfPartition` for
the nodes behind the gate, `Trigger` and `Abort` for whoever takes the snapshots. Payloads are never looked at.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from datacoord.errors import SourceInvalidError

PayloadT = TypeVar("PayloadT")


class EndPolicy(StrEnum):
    """What the end of an input does to a checkpoint that still waits for that input's barrier.

    Under both, a checkpoint that begins later does not wait for inputs that have ended.
    """

    ABORT = "abort"
    """The checkpoint is aborted (Flink before 1.15)."""
    COMPLETE = "complete"
    """The ended input counts as if its barrier had come (Flink's execution.checkpointing.checkpoints-after-tasks-finish)."""


class CheckpointFailureReason(StrEnum):
    """Why a checkpoint will not be taken."""

    SUBSUMED = "subsumed"
    """A barrier of a newer checkpoint came first."""
    CANCELLED = "cancelled"
    """A cancellation marker came."""
    END_OF_INPUT = "end_of_input"
    """An input ended before its barrier, under `EndPolicy.ABORT`."""
    LIMIT_EXCEEDED = "limit_exceeded"
    """More bytes were held back than the gate may hold."""
    CUT_ACROSS_TIMELINE = "cut_across_timeline"
    """Something before the cut is not older than something behind it: the cut and the order of timestamps exclude each other."""


@dataclass(frozen=True, slots=True)
class Data(Generic[PayloadT]):
    """One message, or several whole messages of one input in order.

    Attributes:
        payload: the rows, or a DDL statement, which has its place on the timeline like any message.
        timestamp: of the last message in it; of the message, if it is one.
        size_bytes: memory the payload holds.
        first_timestamp: of the first message in it; None = the same as `timestamp`.
    """

    payload: PayloadT
    timestamp: int
    size_bytes: int
    first_timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Tick(Generic[PayloadT]):
    """Nothing with a timestamp <= `timestamp` will come any more.

    Attributes:
        timestamp: the promise.
        payload: what the source says with it (where to seek, say); None in a tick that the gate made of several inputs.
    """

    timestamp: int
    payload: PayloadT | None = None


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Marks the cut of one checkpoint in one input: what came before it belongs to the checkpoint, what comes after does not.

    Attributes:
        id: number of the checkpoint (a snapshot's, in the contract); numbers rise, gaps are legal.
        timestamp_ms: wall clock when the checkpoint was triggered, for the log only.
    """

    id: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class CancelCheckpointMarker:
    """The checkpoint will not come; one marker on any input suffices."""

    id: int


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The input has no more to say."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """All barriers are in: take the snapshot here, after what was handed out before and before what comes after.

    Attributes:
        barrier: of the checkpoint.
        held_bytes: data held back on blocked inputs at this moment.
        processed_bytes: data handed out since the first barrier of the checkpoint.
        alignment_ns: time since the first barrier of the checkpoint.
    """

    barrier: CheckpointBarrier
    held_bytes: int
    processed_bytes: int
    alignment_ns: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The checkpoint will not be taken: decline it.

    Attributes:
        checkpoint_id: which.
        reason: why.
    """

    checkpoint_id: int
    reason: CheckpointFailureReason


Decision = Trigger | Abort
"""What becomes of a checkpoint. The ids of a gate's decisions rise, so one on n settles every older checkpoint: of those that had
no decision of their own nothing will be heard, and whoever injected their barriers declines them."""


class InputOutOfOrderError(SourceInvalidError):
    """An input broke its order: its reader has a bug. Nothing was taken in; rebuild the graph from the checkpoint."""


class InputEndedError(SourceInvalidError):
    """Data came on an input that had ended: its reader has a bug. Nothing was taken in; rebuild the graph from the checkpoint."""
