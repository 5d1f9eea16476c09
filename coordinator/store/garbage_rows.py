"""R5 in SQL: rows that go with their segment, and the facts that a listing is judged by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, tuple_
from sqlalchemy.engine import Connection

from coordinator.core.garbage import LaneEnd, row_may_go
from coordinator.core.model import ChannelState, SegmentState
from coordinator.store.channel_writes import KIND_NUMBERS
from coordinator.store.collections import collection_ids
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.tables import (
    ACTIVE,
    DROPPED,
    binlogs,
    channel_state,
    collections,
    lanes,
    partitions,
    segments,
    vchannels,
)
from datacoord.errors import StoreUnavailableError
from datacoord.paths import BinlogKind

SEGMENTS_PER_READ = 5000
"""Segments that one read looks at: it may run on the loop's own thread."""

CHANNELS_PER_READ = 5000
"""The same for channels."""

ObjectKey = tuple[int, int, int, int]
"""from, to, field id and log id: what tells objects of one directory apart."""

_MAY_GO: ColumnElement[bool] = segments.c.state.in_([int(state) for state in SegmentState if row_may_go(state)])
"""`core.garbage.row_may_go` in SQL. With snapshots: and none that is PENDING or retained has made < n <= gone."""


@dataclass(frozen=True, slots=True)
class DroppedSegments:
    """Segments whose rows may go.

    Attributes:
        segment_ids: with binlog rows, or with nothing to remember any more.
        binlogs: binlog rows in them.
        next_after: look on from this number; 0 = all were looked at.
    """

    segment_ids: tuple[int, ...]
    binlogs: int
    next_after: int


@dataclass(frozen=True, slots=True)
class DroppedChannels:
    """Dropped channels that still have lanes.

    Attributes:
        channel_ids: by number.
        next_after: look on from this number; 0 = all were looked at.
    """

    channel_ids: tuple[int, ...]
    next_after: int


@dataclass(frozen=True, slots=True)
class Root:
    """A storage root.

    Attributes:
        uri: as stored.
        collection_id: 0 = of whichever collections; else only this one is looked at.
    """

    uri: str
    collection_id: int = 0


@dataclass(frozen=True, slots=True)
class Founder:
    """The first collection of a storage root, by which the database that owns the root is told from others.

    Its number alone says little: databases number alike. That two create it in the same millisecond is not to be expected.

    Attributes:
        collection_id: its number.
        create_time_ms: when it was created.
    """

    collection_id: int
    create_time_ms: int


@dataclass(frozen=True, slots=True)
class LeafWindow:
    """A part of a listing: objects of one directory whose ranges start in a window.

    Attributes:
        kind: of the objects.
        channel_id: their channel.
        partition_id: their partition.
        epoch: of their paths.
        from_first: smallest start of a range among them.
        from_last: largest.
    """

    kind: BinlogKind
    channel_id: int
    partition_id: int
    epoch: int
    from_first: int
    from_last: int


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """What such a part is judged by, of one read.

    Attributes:
        lane: the lane and its channel.
        collection_id: of the channel.
        root: where the collection keeps its objects.
        rows: objects of the window that have a row, each with the state of its segment.
    """

    lane: LaneEnd
    collection_id: int
    root: str
    rows: Mapping[ObjectKey, SegmentState]


# ---- step 1: rows -----------------------------------------------------------------------------------------------------------


def read_dropped_segments(connection: Connection, after: int, collection_id: int) -> DroppedSegments:
    """The next segments whose rows may go.

    Args:
        connection: of a read.
        after: number of the last one looked at.
        collection_id: only of this collection; 0 = of all.
    """
    # A window of numbers is looked at, whatever is in it: there is no index on states.
    window = (
        select(segments.c.segment_id)
        .where(segments.c.segment_id > after)
        .order_by(segments.c.segment_id)
        .limit(SEGMENTS_PER_READ)
    )
    looked_at = connection.execute(window).scalars().all()
    if not looked_at:
        return DroppedSegments((), 0, 0)
    last = looked_at[-1]
    statement = (
        select(segments.c.segment_id, _binlogs_of(segments.c.segment_id).label("binlogs"))
        .join(channel_state, channel_state.c.channel_id == segments.c.channel_id)
        .where(segments.c.segment_id.between(looked_at[0], last), _MAY_GO)
        .order_by(segments.c.segment_id)
    )
    if collection_id:
        of_collection = select(vchannels.c.channel_id).where(vchannels.c.collection_id == collection_id)
        statement = statement.where(segments.c.channel_id.in_(of_collection))
    has_binlogs = exists().where(binlogs.c.segment_id == segments.c.segment_id)
    rows = connection.execute(statement.where(or_(has_binlogs, channel_state.c.state != ACTIVE))).all()
    more = len(looked_at) == SEGMENTS_PER_READ
    return DroppedSegments(tuple(row.segment_id for row in rows), sum(row.binlogs for row in rows), last if more else 0)


def _binlogs_of(segment_id: ColumnElement[int]) -> Any:
    return select(func.count()).where(binlogs.c.segment_id == segment_id).scalar_subquery()


def delete_rows(connection: Connection, segment_ids: Sequence[int], limit: int) -> int:
    """Deletes binlog rows of these segments, as far as they may go; then the segments themselves where nothing asks for them.

    A dropped segment's row stays while its channel lives: it says why a range of the lane has no binlogs, and what a repeated
    drop is told. Of a dropped channel it goes with its last binlog. The channel's own rows stay for ever (tombstones): they
    are what late objects of its zombies are judged by.

    Returns:
        how many binlog rows were deleted; less than `limit` = none is left.
    """
    here = segments.c.segment_id.in_(list(segment_ids))
    doomed = (
        select(binlogs.c.binlog_id)
        .join(segments, segments.c.segment_id == binlogs.c.segment_id)
        .where(here, _MAY_GO)
        .limit(limit)
    )
    deleted = connection.execute(delete(binlogs).where(binlogs.c.binlog_id.in_(doomed))).rowcount
    if deleted < limit:
        gone = select(channel_state.c.channel_id).where(channel_state.c.state == DROPPED)
        empty = ~exists().where(binlogs.c.segment_id == segments.c.segment_id)
        connection.execute(delete(segments).where(here, _MAY_GO, segments.c.channel_id.in_(gone), empty))
    return deleted


def read_dropped_channels(connection: Connection, after: int) -> DroppedChannels:
    """The next dropped channels that still have lanes.

    Args:
        connection: of a read.
        after: number of the last one looked at.
    """
    window = select(channel_state.c.channel_id).where(channel_state.c.channel_id > after)
    looked_at = connection.execute(window.order_by(channel_state.c.channel_id).limit(CHANNELS_PER_READ)).scalars().all()
    if not looked_at:
        return DroppedChannels((), 0)
    statement = select(channel_state.c.channel_id).where(
        channel_state.c.channel_id.between(looked_at[0], looked_at[-1]),
        channel_state.c.state == DROPPED,
        exists().where(lanes.c.channel_id == channel_state.c.channel_id),
    )
    found = tuple(connection.execute(statement.order_by(channel_state.c.channel_id)).scalars())
    return DroppedChannels(found, looked_at[-1] if len(looked_at) == CHANNELS_PER_READ else 0)


def delete_lanes(connection: Connection, channel_ids: Sequence[int], limit: int) -> int:
    """Deletes lanes of dropped channels: a save is refused before its lanes are looked at.

    Returns:
        how many; less than `limit` = none is left.
    """
    statement = (
        select(lanes.c.channel_id, lanes.c.partition_id)
        .join(channel_state, channel_state.c.channel_id == lanes.c.channel_id)
        .where(lanes.c.channel_id.in_(list(channel_ids)), channel_state.c.state == DROPPED)
        .limit(limit)
    )
    keys = [(row.channel_id, row.partition_id) for row in connection.execute(statement)]
    if keys:
        connection.execute(delete(lanes).where(tuple_(lanes.c.channel_id, lanes.c.partition_id).in_(keys)))
    return len(keys)


# ---- step 2: objects --------------------------------------------------------------------------------------------------------


def read_roots(connection: Connection, collection_name: str) -> list[Root]:
    """Storage roots: all, each once, or that of one collection.

    Raises:
        CollectionNotFoundError: no such collection.
    """
    if collection_name:
        (collection_id,) = collection_ids(connection, [collection_name])
        statement = select(collections.c.storage_root).where(collections.c.collection_id == collection_id)
        return [Root(connection.execute(statement).scalar_one(), collection_id)]
    statement = select(collections.c.storage_root).distinct().order_by(collections.c.storage_root)
    return [Root(uri) for uri in connection.execute(statement).scalars()]


def read_founder(connection: Connection, uri: str) -> Founder | None:
    """The first collection of a storage root; None = it has none."""
    statement = (
        select(collections.c.collection_id, collections.c.create_time_ms)
        .where(collections.c.storage_root == uri)
        .order_by(collections.c.collection_id)
        .limit(1)
    )
    row = connection.execute(statement).one_or_none()
    return Founder(row.collection_id, row.create_time_ms) if row is not None else None


def has_founder(connection: Connection, founder: Founder) -> bool:
    """Whether a collection is, or was, one of this database."""
    statement = select(collections.c.collection_id).where(
        collections.c.collection_id == founder.collection_id,
        collections.c.create_time_ms == founder.create_time_ms,
    )
    return connection.execute(statement).scalar() is not None


def read_lane(connection: Connection, kind: DatabaseKind, window: LeafWindow) -> WindowFacts | None:
    """The facts of a part of a listing; None: no such channel.

    Raises:
        StoreUnavailableError: the database is a read replica: what it says may be old.
    """
    if kind.is_replica(connection):
        raise StoreUnavailableError("the database is a read replica; garbage is judged on the primary only")
    statement = (
        select(vchannels.c.collection_id, collections.c.storage_root, channel_state.c.state, channel_state.c.epoch)
        .join_from(vchannels, channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
        .join(collections, collections.c.collection_id == vchannels.c.collection_id)
        .where(vchannels.c.channel_id == window.channel_id)
    )
    channel = connection.execute(statement).one_or_none()
    if channel is None:
        return None
    partition = connection.execute(
        select(partitions.c.state).where(
            partitions.c.partition_id == window.partition_id, partitions.c.collection_id == channel.collection_id
        )
    ).scalar()
    progress = connection.execute(
        select(lanes.c.progress).where(
            lanes.c.channel_id == window.channel_id, lanes.c.partition_id == window.partition_id
        )
    ).scalar()
    end = LaneEnd(
        channel_state=ChannelState(channel.state),
        epoch=channel.epoch,
        partition_dropped=partition is not None and partition != ACTIVE,
        progress=progress or 0,
    )
    return WindowFacts(end, channel.collection_id, channel.storage_root, _rows(connection, window))


def _rows(connection: Connection, window: LeafWindow) -> dict[ObjectKey, SegmentState]:
    statement = (
        select(segments.c.state, binlogs.c.range_from, binlogs.c.range_to, binlogs.c.field_id, binlogs.c.log_id)
        .join_from(segments, binlogs, binlogs.c.segment_id == segments.c.segment_id)
        .where(
            segments.c.channel_id == window.channel_id,
            segments.c.partition_id == window.partition_id,
            # The ranges of a segment's binlogs lie in its own.
            and_(segments.c.timestamp_from <= window.from_last, segments.c.timestamp_to > window.from_first),
            binlogs.c.epoch == window.epoch,
            binlogs.c.kind == KIND_NUMBERS[window.kind],
            binlogs.c.range_from.between(window.from_first, window.from_last),
        )
    )
    found: dict[ObjectKey, SegmentState] = {}
    for state, *key in connection.execute(statement):
        start, end, field_id, log_id = key
        identity = (start, end, field_id, log_id)
        # Two rows of one object cannot be; if they were, the one that lives counts.
        if found.get(identity, SegmentState.DROPPED) is SegmentState.DROPPED:
            found[identity] = SegmentState(state)
    return found
