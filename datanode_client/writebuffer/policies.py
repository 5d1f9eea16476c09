"""Sync policies: which lanes of a channel are cut now. Pure functions over the lane buffers; Milvus's set, Milvus's names.

All that concern durability compare *pins*, not row timestamps: it is the pin that holds the checkpoint back.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from datanode_client.writebuffer.buffers import LaneBuffer

_TSO_LOGICAL_BITS = 18


class SyncReason(StrEnum):
    """Why a lane was cut: the policy that chose it, or a moment that cuts all lanes."""

    FULL_BUFFER = "full_buffer"
    STALE = "stale"
    SEALED = "sealed"
    DROPPED = "dropped"
    FLUSH_TS = "flush_ts"
    MEMORY = "memory"
    END_OF_CHANNEL = "end_of_channel"
    DRAIN = "drain"
    DROP_CHANNEL = "drop_channel"


@dataclass(frozen=True, slots=True)
class SyncContext:
    """What policies may look at besides a lane's buffers.

    Attributes:
        now: monotonic time in seconds.
        consumed_timestamp: of the last consumed position.
        flush_timestamp: everything up to here is to be made durable; 0 = no flush.
        sealed_until: end of the last sealed segment that is not flushed; 0 = none.
        sync_period_ms: how long a row may wait; used for timestamps only where they are TSO, 0 = they are not.
        is_dropped: whether the partition of a lane is dropped.
    """

    now: float
    consumed_timestamp: int
    flush_timestamp: int
    sealed_until: int
    sync_period_ms: int
    is_dropped: Callable[[int], bool]


SyncPolicy = Callable[[LaneBuffer, SyncContext], bool]


def full_buffer_policy(lane: LaneBuffer, context: SyncContext) -> bool:  # noqa: ARG001  # one shape for all policies
    """The insert buffer or the delta buffer is full."""
    return lane.is_full


def sync_stale_buffer_policy(lane: LaneBuffer, context: SyncContext) -> bool:
    """The oldest row has waited for the sync period (plus jitter), by the clock or, where timestamps are TSO, by data time."""
    if context.now >= lane.stale_at:
        return True
    if not context.sync_period_ms:
        return False
    waited_ms = (context.consumed_timestamp >> _TSO_LOGICAL_BITS) - (lane.ts_min >> _TSO_LOGICAL_BITS)
    return waited_ms > context.sync_period_ms


def sealed_segments_policy(lane: LaneBuffer, context: SyncContext) -> bool:
    """The lane keeps the checkpoint from passing a sealed segment, which is flushed only then.

    In Milvus a sealed segment has a buffer of its own that is synced; here the server closes segments by itself, and what is
    left to do for the datanode is to let the checkpoint pass.
    """
    return lane.pin.timestamp < context.sealed_until


def sync_dropped_policy(lane: LaneBuffer, context: SyncContext) -> bool:
    """The partition is dropped: what was buffered before is settled now."""
    return context.is_dropped(lane.partition_id)


def flush_ts_policy(lane: LaneBuffer, context: SyncContext) -> bool:
    """A flush was asked for, everything it concerns is consumed, and the lane keeps the checkpoint below it."""
    wanted = context.flush_timestamp
    return wanted != 0 and context.consumed_timestamp >= wanted and lane.pin.timestamp < wanted


POLICIES: tuple[tuple[SyncReason, SyncPolicy], ...] = (
    (SyncReason.FULL_BUFFER, full_buffer_policy),
    (SyncReason.DROPPED, sync_dropped_policy),
    (SyncReason.FLUSH_TS, flush_ts_policy),
    (SyncReason.SEALED, sealed_segments_policy),
    (SyncReason.STALE, sync_stale_buffer_policy),
)
"""In this order; the first that chooses a lane is counted for it."""


def choose(lanes: Iterable[LaneBuffer], context: SyncContext) -> Iterator[tuple[int, SyncReason]]:
    """Runs all policies.

    Yields:
        the lanes to cut, each with the policy that chose it.
    """
    for lane in lanes:
        for reason, policy in POLICIES:
            if policy(lane, context):
                yield lane.partition_id, reason
                break


def oldest_buffer(lanes: Iterable[LaneBuffer]) -> LaneBuffer | None:
    """What memory eviction takes from a channel: the lane that holds the checkpoint back the furthest; None if all are empty."""
    return min(lanes, key=lambda lane: lane.pin.timestamp, default=None)
