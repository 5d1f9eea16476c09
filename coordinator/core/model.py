"""The facts that rules are decided on. Read in the transaction that writes, with the channel's row locked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from datacoord.paths import BinlogKind
from datacoord.positions import START, Position


class ChannelMode(IntEnum):
    """Who may own a channel; numbers are those of the contract."""

    MANAGED = 1
    CLAIMED = 2


class ChannelState(IntEnum):
    """Life of a channel; numbers are those of the contract. DROPPED is a tombstone: it never goes away."""

    ACTIVE = 1
    DROPPED = 2


class SegmentState(IntEnum):
    """Stored states of a segment; numbers are those of the contract. FLUSHED is derived (`segments.shown_state`)."""

    GROWING = 1
    SEALED = 2
    FLUSHED = 3
    DROPPED = 4


class SegmentLevel(IntEnum):
    """What a segment holds; numbers are those of the contract."""

    L0 = 1
    L1 = 2
    L2 = 3


class Outcome(IntEnum):
    """What a write did; numbers are those of the contract."""

    APPLIED = 1
    ALREADY_APPLIED = 2
    DISCARDED = 3


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """One lane.

    Attributes:
        progress: end of the last registered range; 0 while the lane has no row.
        dropped: its partition is dropped.
        exists: False: the collection never had this partition.
    """

    progress: int = 0
    dropped: bool = False
    exists: bool = True


NO_LANE = LaneFacts()
"""A lane nothing was ever registered for."""


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """One channel.

    Attributes:
        channel_id: its number.
        name: its name.
        mode: who may own it.
        state: ACTIVE or DROPPED.
        epoch: the fencing number a write must name.
        owner: name of the owner; empty = nobody.
        checkpoint: C.
        lanes: the lanes that are known, by partition id.
        flush_timestamp: smallest flush target that is not reached yet; 0 = none.
    """

    channel_id: int
    name: str
    mode: ChannelMode
    state: ChannelState
    epoch: int
    owner: str = ""
    checkpoint: Position = START
    lanes: Mapping[int, LaneFacts] = field(default_factory=dict)
    flush_timestamp: int = 0

    def lane(self, partition_id: int) -> LaneFacts:
        """Facts of a lane, whether anything was registered for it or not."""
        return self.lanes.get(partition_id, NO_LANE)


class BinlogFacts(NamedTuple):
    """One new object of a range.

    Attributes:
        kind: what it holds.
        field_id: group of columns; 0 = all.
        log_id: identity of the object.
        rows: rows in it.
        ts_min: smallest timestamp of a row.
        ts_max: largest timestamp of a row.
        size_bytes: size of the object.
        memory_bytes: size of its rows in memory.
        range_to: end of the object's own range, as its path says it, where it lies before the end of the range it is saved
            with (a sink's tasks name their objects before anybody knows the largest timestamp of the batch); 0 = the same.
    """

    kind: BinlogKind
    field_id: int
    log_id: int
    rows: int
    ts_min: int
    ts_max: int
    size_bytes: int
    memory_bytes: int
    range_to: int = 0


class LaneSave(NamedTuple):
    """A range of one lane with its new objects.

    Attributes:
        partition_id: the partition.
        timestamp_from: start, exclusive.
        timestamp_to: end, inclusive; greater than the start.
        binlogs: the objects; may be empty (rows that all folded away).
        seal: close the growing segment after this range.
    """

    partition_id: int
    timestamp_from: int
    timestamp_to: int
    binlogs: tuple[BinlogFacts, ...] = ()
    seal: bool = False


class Save(NamedTuple):
    """One channel's part of SaveBinlogPaths; shape is checked already (`save.check_shape`).

    Attributes:
        channel_name: the channel.
        epoch: of the writer.
        lanes: the ranges.
        checkpoint: move the checkpoint here if that is greater; None = leave it.
    """

    channel_name: str
    epoch: int
    lanes: tuple[LaneSave, ...]
    checkpoint: Position | None = None
