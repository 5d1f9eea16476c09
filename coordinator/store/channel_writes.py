"""The bulk statements that write what a transaction did to channels, each with the guard that states what core decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import BindParameter, ColumnElement, bindparam, insert, update
from sqlalchemy.engine import Connection

from coordinator.core.model import BinlogFacts, ChannelState, SegmentState
from coordinator.core.segments import states_before
from coordinator.store import reports
from coordinator.store.driver_statement import DriverStatement, Row, run_all
from coordinator.store.tables import (
    binlogs,
    channel_state,
    lanes,
    segments,
    vchannels,
)
from coordinator.store.transaction import GuardFailedError, Transaction
from datacoord.paths import BinlogKind

if TYPE_CHECKING:
    from coordinator.store.channels import Channel, Lane, Segment


KIND_NUMBERS = {BinlogKind.INSERT: 1, BinlogKind.DELTA: 2, BinlogKind.STATS: 3}
"""Kinds of binlogs as stored; numbers are those of the contract."""

KINDS = {number: kind for kind, number in KIND_NUMBERS.items()}
_GROWING = SegmentState.GROWING

_CHECKPOINT: dict[str, BindParameter[Any]] = {
    "checkpoint_timestamp": bindparam("b_timestamp"),
    "checkpoint_event_time_ms": bindparam("b_event_time_ms"),
    "checkpoint_msg_id": bindparam("b_msg_id"),
    "checkpoint_msg_group": bindparam("b_msg_group"),
}
_CHECKPOINT_COLUMNS = ("b_timestamp", "b_event_time_ms", "b_msg_id", "b_msg_group")

# Which channel, still in the epoch that was read, and never backwards.
_HERE = (
    channel_state.c.channel_id == bindparam("b_channel_id"),
    channel_state.c.epoch == bindparam("b_epoch_read"),
    channel_state.c.checkpoint_timestamp <= bindparam("b_timestamp_at_most"),
)

_MOVE = DriverStatement(
    update(channel_state).where(*_HERE).values(**_CHECKPOINT, flush_timestamp=bindparam("b_flush_timestamp")),
    ("b_channel_id", "b_epoch_read", "b_timestamp_at_most", "b_flush_timestamp", *_CHECKPOINT_COLUMNS),
)
# Apart from the one above because it touches the index of owners.
_CHANGE = DriverStatement(
    update(channel_state)
    .where(*_HERE, channel_state.c.state == int(ChannelState.ACTIVE))
    .values(
        **_CHECKPOINT,
        flush_timestamp=bindparam("b_flush_timestamp"),
        epoch=bindparam("b_epoch"),
        state=bindparam("b_state"),
        owner_id=bindparam("b_owner_id"),
        release_requested=bindparam("b_release_requested"),
    ),
    (
        *("b_channel_id", "b_epoch_read", "b_timestamp_at_most", "b_flush_timestamp", *_CHECKPOINT_COLUMNS),
        *("b_epoch", "b_state", "b_owner_id", "b_release_requested"),
    ),
)

_SEGMENT_COLUMNS = tuple(segments.c.keys())
_NEW_SEGMENT = DriverStatement(
    insert(segments).values({name: bindparam(name) for name in _SEGMENT_COLUMNS}), _SEGMENT_COLUMNS
)


def _change_segment(*names: str) -> DriverStatement:
    """Changes these columns of a segment that grows."""
    return DriverStatement(
        # Only what grows changes. Not `state = GROWING`: that is the condition of an index, and PostgreSQL would walk through all
        # of it for every row where it planned while few segments grew.
        update(segments)
        .where(segments.c.segment_id == bindparam("b_segment_id"), segments.c.state < int(SegmentState.SEALED))
        .values({name: bindparam(f"b_{name}") for name in names}),
        ("b_segment_id", *(f"b_{name}" for name in names)),
    )


_GROWTH = ("rows", "delete_rows", "size_bytes", "binlogs", "timestamp_to", "ranges", "last_write_time_ms")
# Apart: to set the state, even to what it is, costs SQLite a change of the index of what grows.
_GROWN_SEGMENT = _change_segment(*_GROWTH)
_SEALED_SEGMENT = _change_segment(*_GROWTH, "state", "seal_reason")

_NEW_LANE = DriverStatement(
    insert(lanes).values({name: bindparam(name) for name in lanes.c.keys()}),  # noqa: SIM118 - columns, not a dictionary
    tuple(lanes.c.keys()),
)
_LANE_HERE = (
    lanes.c.channel_id == bindparam("b_channel_id"),
    lanes.c.partition_id == bindparam("b_partition_id"),
    # Progress never goes back.
    lanes.c.progress <= bindparam("b_progress_at_most"),
)
_LANE_COLUMNS = ("b_channel_id", "b_partition_id", "b_progress_at_most", "b_progress")
_MOVED_LANE = DriverStatement(update(lanes).where(*_LANE_HERE).values(progress=bindparam("b_progress")), _LANE_COLUMNS)
# Apart: to set a reference, even to what it is, costs a look at what it refers to.
_OLD_LANE = DriverStatement(
    update(lanes)
    .where(*_LANE_HERE)
    .values(progress=bindparam("b_progress"), growing_segment_id=bindparam("b_growing_segment_id")),
    (*_LANE_COLUMNS, "b_growing_segment_id"),
)

_BINLOG_COLUMNS = tuple(name for name in binlogs.c.keys() if name != "binlog_id")  # noqa: SIM118 - columns
_NEW_BINLOG = DriverStatement(
    insert(binlogs).values({name: bindparam(name) for name in _BINLOG_COLUMNS}), _BINLOG_COLUMNS
)

_CONSUMED = DriverStatement(
    update(vchannels)
    .where(vchannels.c.channel_id == bindparam("b_channel_id"), vchannels.c.consumed_timestamp < bindparam("b_at_most"))
    .values(consumed_timestamp=bindparam("b_consumed")),
    ("b_channel_id", "b_at_most", "b_consumed"),
)

_FINISHED = DriverStatement(
    update(vchannels)
    .where(vchannels.c.channel_id == bindparam("b_channel_id"))
    .values(finished_timestamp=bindparam("b_finished")),
    ("b_channel_id", "b_finished"),
)


@dataclass(frozen=True, slots=True)
class Left:
    """A channel as its former owner left it.

    Attributes:
        channel_id: the channel.
        name: its name.
        checkpoint_timestamp: its checkpoint then.
    """

    channel_id: int
    name: str
    checkpoint_timestamp: int


def binlog_rows(segment_id: int, added: Iterable[BinlogFacts], epoch: int, start: int, end: int) -> list[Row]:
    """Rows of `binlogs`, without their numbers."""
    return [
        (
            segment_id,
            KIND_NUMBERS[kind],
            field_id,
            log_id,
            epoch,
            start,
            range_to or end,
            rows,
            ts_min,
            ts_max,
            size_bytes,
            memory_bytes,
        )
        for kind, field_id, log_id, rows, ts_min, ts_max, size_bytes, memory_bytes, range_to in added
    ]


class ChannelRows:
    """Rows to write.

    Segments go before the lanes and binlogs that refer to them, and those that are sealed before new ones of the same lane.
    """

    def __init__(self) -> None:
        self.moves: list[Row] = []
        self.changes: list[Row] = []
        self.grown_segments: list[Row] = []
        self.sealed_segments: list[Row] = []
        self.new_segments: list[Row] = []
        self.moved_lanes: list[Row] = []
        self.old_lanes: list[Row] = []
        self.new_lanes: list[Row] = []
        self.binlogs: list[Row] = []

    def change_segment(self, growth: Row, state: SegmentState, seal_reason: str) -> None:
        """Adds what changes of a segment that grew.

        Args:
            growth: its number, and its values of `_GROWTH`.
            state: of the segment afterwards.
            seal_reason: why it is sealed, where it is.
        """
        if state is _GROWING:
            self.grown_segments.append(growth)
        else:
            self.sealed_segments.append((*growth, int(state), seal_reason))

    def write(self, transaction: Transaction) -> None:
        """Writes them.

        Raises:
            GuardFailedError: a guard let fewer rows through than were to be changed. Where all is one round trip, what stands
                behind it is tried nevertheless, and an error of that comes first; nothing is kept either way.
        """
        writes = [
            ("channel_state", _MOVE, self.moves),
            ("channel_state", _CHANGE, self.changes),
            ("segments", _GROWN_SEGMENT, self.grown_segments),
            ("segments", _SEALED_SEGMENT, self.sealed_segments),
            ("", _NEW_SEGMENT, self.new_segments),
            ("lanes", _MOVED_LANE, self.moved_lanes),
            ("lanes", _OLD_LANE, self.old_lanes),
            ("", _NEW_LANE, self.new_lanes),
            ("", _NEW_BINLOG, self.binlogs),
        ]
        counts = run_all(transaction.kind, transaction.connection, [(s, rows) for _, s, rows in writes])
        for changed, (table, _, rows) in zip(counts, writes, strict=True):
            if table and changed != len(rows):
                raise GuardFailedError(f"a guard on {table} let {changed} of {len(rows)} rows through")


def write(
    transaction: Transaction, channels: Iterable[Channel], changed: Iterable[Segment], new_binlogs: list[Row]
) -> None:
    """Writes what changed.

    Raises:
        GuardFailedError: a guard let fewer rows through than were to be changed.
    """
    channels = list(channels)
    to_write = [segment for segment in changed if segment.changed]
    touched = [(c.channel_id, lane) for c in channels for lane in c.lanes.values() if lane.changed]
    rows = ChannelRows()
    rows.moves = [_move(c) for c in channels if c.checkpoint_changed and not c.owner_changed]
    rows.changes = [_change(c) for c in channels if c.owner_changed]
    for segment in to_write:
        if segment.stored:
            rows.change_segment(_growth(segment), segment.state, segment.seal_reason)
    rows.new_segments = [_new_segment(segment) for segment in to_write if not segment.stored]
    rows.old_lanes = [_old_lane(c, lane) for c, lane in touched if lane.stored]
    rows.new_lanes = [_new_lane(c, lane) for c, lane in touched if not lane.stored]
    rows.binlogs = new_binlogs
    rows.write(transaction)
    for channel in channels:
        if channel.owner_changed and channel.state is ChannelState.DROPPED:
            number = channel.channel_id
            drop_segments(transaction.connection, lanes.c.channel_id == number, segments.c.channel_id == number)


def _move(channel: Channel) -> tuple[object, ...]:
    c = channel.checkpoint
    checkpoint = (c.timestamp, c.event_time_ms, c.msg_id, c.msg_group)
    return (channel.channel_id, channel.epoch_read, c.timestamp, channel.flush_timestamp, *checkpoint)


def _change(channel: Channel) -> tuple[object, ...]:
    owner = (channel.epoch, int(channel.state), channel.owner_id, int(channel.release_requested))
    return (*_move(channel), *owner)


def _new_segment(segment: Segment) -> tuple[object, ...]:
    values = tuple(getattr(segment, name) for name in _SEGMENT_COLUMNS)
    return tuple(int(value) if isinstance(value, int) else value for value in values)


def _growth(segment: Segment) -> tuple[object, ...]:
    return (
        segment.segment_id,
        segment.rows,
        segment.delete_rows,
        segment.size_bytes,
        segment.binlogs,
        segment.timestamp_to,
        segment.ranges,
        segment.last_write_time_ms,
    )


def _growing_id(lane: Lane) -> int | None:
    return lane.growing.segment_id if lane.growing is not None else None


def _new_lane(channel_id: int, lane: Lane) -> tuple[object, ...]:
    return (channel_id, lane.partition_id, lane.progress, _growing_id(lane))


def _old_lane(channel_id: int, lane: Lane) -> tuple[object, ...]:
    return (channel_id, lane.partition_id, lane.progress, lane.progress, _growing_id(lane))


_MAY_BE_DROPPED: ColumnElement[bool] = segments.c.state.in_([int(s) for s in states_before(SegmentState.DROPPED)])


def drop_segments(connection: Connection, of_lane: ColumnElement[bool], of_segment: ColumnElement[bool]) -> None:
    """Makes segments DROPPED, so that no lane writes on in one. Rows that this transaction wrote are seen.

    Args:
        connection: in the transaction.
        of_lane: which lanes may grow one of them.
        of_segment: which segments.
    """
    grows = lanes.c.growing_segment_id.is_not(None)
    connection.execute(update(lanes).where(of_lane, grows).values(growing_segment_id=None))
    dropped = {"state": int(SegmentState.DROPPED), "seal_reason": "dropped"}
    connection.execute(update(segments).where(of_segment, _MAY_BE_DROPPED).values(dropped))


def keep_consumed(transaction: Transaction, left: Mapping[int, list[Left]]) -> None:
    """Keeps what former owners reported as consumed, so that their successors know what is a replay, and where sources ended.

    Args:
        transaction: the transaction.
        left: channels that changed hands in this transaction, by former owner.
    """
    owner_ids = [owner_id for owner_id in left if owner_id]
    reported = reports.read_messages(transaction.connection, transaction.kind, owner_ids)
    rows = []
    ended = []
    for owner_id, channels in left.items():
        for channel in channels:
            message = reported.get(owner_id, {}).get(channel.name)
            consumed = max(message.timestamp if message else 0, channel.checkpoint_timestamp)
            rows.append((channel.channel_id, consumed, consumed))
            if message is not None and message.finished:
                ended.append((channel.channel_id, message.timestamp))
    _CONSUMED.run(transaction.kind, transaction.connection, sorted(rows))
    if ended:
        _FINISHED.run(transaction.kind, transaction.connection, sorted(ended))


def reported_timestamps(transaction: Transaction, node_ids: Iterable[int]) -> dict[int, dict[str, int]]:
    """Consumed timestamps by session and channel name, as last reported."""
    return {
        node_id: {name: message.timestamp for name, message in messages.items()}
        for node_id, messages in reports.read_messages(transaction.connection, transaction.kind, node_ids).items()
    }
