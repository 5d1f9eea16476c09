"""Segments: the state machine, and the policies that seal, with Milvus's defaults. Segments belong to the server (S4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.core.model import BinlogFacts, Outcome, SegmentLevel, SegmentState
from datacoord.column_groups import ROW_FIELD_IDS
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.paths import BinlogKind

_INSERT, _DELTA = BinlogKind.INSERT, BinlogKind.DELTA

REQUESTED = "requested"
"""The seal reason where the save itself asked for it; the other reasons are those of `seal_reason`."""

TRANSITIONS: Mapping[SegmentState, frozenset[SegmentState]] = {
    SegmentState.GROWING: frozenset({SegmentState.SEALED, SegmentState.DROPPED}),
    SegmentState.SEALED: frozenset({SegmentState.DROPPED}),
    SegmentState.DROPPED: frozenset(),
}
"""Stored states and where they may go. DROPPED is terminal; FLUSHED is derived and never stored."""


class SegmentFacts(NamedTuple):
    """What policies look at.

    Attributes:
        rows: rows in insert logs.
        delete_rows: rows in delta logs.
        size_bytes: bytes of the objects.
        ranges: ranges with objects, be they deletes only.
        created_ms: when the segment was created, by the database's clock.
        last_write_ms: when it last took a binlog, by the database's clock.
    """

    rows: int
    delete_rows: int
    size_bytes: int
    ranges: int
    created_ms: int
    last_write_ms: int


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """When a growing segment is closed. Defaults are Milvus's (dataCoord.segment.*), where it has them.

    Attributes:
        size_bytes_max: proportion 0.12 of 1024 MB.
        rows_max: no limit of its own in Milvus; bounds the size of what a reader opens.
        binlogs_max: ranges: as many as there are binlogs of one field, and those with deletes only.
        lifetime_ms_max: age since creation.
        idle_ms_max: time since the last write; beyond it segments larger than `idle_size_bytes_min` are closed.
        idle_size_bytes_min: idle segments of so many bytes or fewer stay open.
        channel_growing_bytes_max: bytes of all growing segments of a channel; beyond it the largest are closed.
    """

    size_bytes_max: int = int(0.12 * 1024 * 1024 * 1024)
    rows_max: int = 50_000_000
    binlogs_max: int = 32
    lifetime_ms_max: int = 86_400_000
    idle_ms_max: int = 600_000
    idle_size_bytes_min: int = 16 * 1024 * 1024
    channel_growing_bytes_max: int = 4096 * 1024 * 1024


SET_STATE: Mapping[tuple[SegmentState, SegmentState], Outcome | None] = {
    (SegmentState.GROWING, SegmentState.SEALED): Outcome.APPLIED,
    (SegmentState.SEALED, SegmentState.SEALED): Outcome.ALREADY_APPLIED,
    (SegmentState.FLUSHED, SegmentState.SEALED): Outcome.ALREADY_APPLIED,
    # A repetition, after somebody else has dropped it.
    (SegmentState.DROPPED, SegmentState.SEALED): Outcome.ALREADY_APPLIED,
    # What still takes rows is not dropped by a slip; MarkSegmentsDropped does it on purpose.
    (SegmentState.GROWING, SegmentState.DROPPED): None,
    (SegmentState.SEALED, SegmentState.DROPPED): Outcome.APPLIED,
    (SegmentState.FLUSHED, SegmentState.DROPPED): Outcome.APPLIED,
    (SegmentState.DROPPED, SegmentState.DROPPED): Outcome.ALREADY_APPLIED,
}
"""SetSegmentState: what is answered, by the state that is shown and the one that is wanted; None = refused as a conflict."""


def tally(binlogs: Iterable[BinlogFacts]) -> tuple[int, int, int]:
    """Rows in insert logs, rows in delta logs, and bytes. A row stands once, however many objects its columns take."""
    rows = delete_rows = size_bytes = 0
    for kind, field_id, _, count, _, _, binlog_bytes, _, _ in binlogs:
        size_bytes += binlog_bytes
        if kind is _INSERT:
            if field_id in ROW_FIELD_IDS:
                rows += count
        elif kind is _DELTA:
            delete_rows += count
    return rows, delete_rows, size_bytes


def level_of(partition_id: int) -> SegmentLevel:
    """Level of a segment a datanode writes: L0 for deletes that name no partition."""
    return SegmentLevel.L0 if partition_id == ALL_PARTITIONS_ID else SegmentLevel.L1


def states_before(then: SegmentState) -> frozenset[SegmentState]:
    """The stored states that may change to this one."""
    return frozenset(now for now, states in TRANSITIONS.items() if then in states)


def shown_state(stored: SegmentState, timestamp_to: int, checkpoint_timestamp: int) -> SegmentState:
    """The state others see: SEALED is FLUSHED once the checkpoint has reached the end of the last range."""
    if stored is SegmentState.SEALED and checkpoint_timestamp >= timestamp_to:
        return SegmentState.FLUSHED
    return stored


def seal_reason(segment: SegmentFacts, policy: SealPolicy, now_ms: int) -> str | None:
    """Why a growing segment should be sealed now; None = it should not."""
    if segment.rows >= policy.rows_max:
        return "rows"
    if segment.size_bytes >= policy.size_bytes_max:
        return "size"
    if segment.ranges >= policy.binlogs_max:
        return "binlogs"
    if now_ms - segment.created_ms >= policy.lifetime_ms_max:
        return "lifetime"
    if now_ms - segment.last_write_ms > policy.idle_ms_max and segment.size_bytes > policy.idle_size_bytes_min:
        return "idle"
    return None


def fullest_first(growing: Mapping[int, SegmentFacts], policy: SealPolicy) -> list[int]:
    """Which growing segments of a channel to seal, largest first, so that no more bytes grow than the policy allows.

    Args:
        growing: by any number.
        policy: see there.
    """
    left = sum(segment.size_bytes for segment in growing.values())
    chosen = []
    for number, segment in sorted(growing.items(), key=lambda item: (-item[1].size_bytes, item[0])):
        if left <= policy.channel_growing_bytes_max:
            break
        left -= segment.size_bytes
        chosen.append(number)
    return chosen


def flush_target(consumed_timestamp: int, checkpoint_timestamp: int, given_timestamp: int) -> int:
    """F of a flush: the timestamp given, else the larger of consumed as last reported and the checkpoint."""
    return given_timestamp or max(consumed_timestamp, checkpoint_timestamp)
