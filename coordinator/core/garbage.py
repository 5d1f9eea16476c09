"""R5: what is garbage. An object goes iff it has no row and can never get one.

The judgement is *stable*: each of its four grounds (the channel is dropped, the partition is dropped, the epoch of the object is
over, the lane has passed the start of its range) stays true for ever once it is true, and a save that would register the object
is refused or discarded from then on (`core.save`). So a verdict that was right when its facts were read is right whenever the
object is deleted, by whomever: no clock, no age, no grace, and no fence is needed for safety.
"""

from dataclasses import dataclass
from enum import IntEnum

from coordinator.core.model import ChannelState, SegmentState


class Verdict(IntEnum):
    """Why an object is garbage, or reported; numbers are those of the contract."""

    SEGMENT_DROPPED = 1
    CHANNEL_DROPPED = 2
    PARTITION_DROPPED = 3
    EPOCH_OVER = 4
    RANGE_TAKEN = 5
    UNKNOWN_NAME = 6


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """A lane and its channel, as far as they decide whether an object can still be registered.

    Attributes:
        channel_state: ACTIVE or DROPPED.
        epoch: of the channel now.
        partition_dropped: its partition is a tombstone; False for the lane of deletes that name no partition.
        progress: P; 0 while the lane has no row.
    """

    channel_state: ChannelState
    epoch: int
    partition_dropped: bool
    progress: int


def is_doubtful(lane: LaneEnd, object_epoch: int) -> bool:
    """Whether the facts cannot be right: an object was written under an epoch that the channel has not reached.

    Epochs of a channel only grow, and an owner learns of its epoch after the transaction that gave it. As objects are listed
    before the facts are read, this happens only where the facts are not the truth: a read replica, a database that was restored
    without `datacoord restore`, another database on the same storage root. Nothing of the listing may be deleted then.
    """
    return object_epoch > lane.epoch


def can_never_be_registered(lane: LaneEnd, object_epoch: int, timestamp_from: int) -> Verdict | None:
    """Why an object without a row will never get one; None: it may still get one.

    Args:
        lane: the lane that the object's path names, not doubtful.
        object_epoch: of its path.
        timestamp_from: start of its range, of its path.
    """
    if lane.channel_state is ChannelState.DROPPED:
        return Verdict.CHANNEL_DROPPED
    if lane.partition_dropped:
        return Verdict.PARTITION_DROPPED
    if object_epoch != lane.epoch:
        return Verdict.EPOCH_OVER
    if lane.progress > timestamp_from:
        return Verdict.RANGE_TAKEN
    return None


def judge(lane: LaneEnd, object_epoch: int, timestamp_from: int, row_of: SegmentState | None) -> Verdict | None:
    """Judges an object.

    Args:
        lane: see `can_never_be_registered`.
        object_epoch: see there.
        timestamp_from: see there.
        row_of: state of the segment that its row belongs to; None = it has no row.

    Returns:
        None: it stays. SEGMENT_DROPPED: its row goes first (`row_may_go`), then the object. Else it goes.
    """
    if row_of is None:
        return can_never_be_registered(lane, object_epoch, timestamp_from)
    return Verdict.SEGMENT_DROPPED if row_may_go(row_of) else None


def row_may_go(segment: SegmentState) -> bool:
    """Whether the row of a binlog may be deleted: nobody reads it any more.

    There are no snapshots yet. With them it is here, and in the one statement that mirrors it (`store.garbage_rows`), that a row
    has to stay while a PENDING or retained snapshot n has made < n <= gone.
    """
    return segment is SegmentState.DROPPED
