"""What `datacoord verify` reads: everything of chosen collections, in parts, in one transaction and so of one moment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, RowMapping, func, select
from sqlalchemy.engine import Connection

from coordinator.core import events_forms
from coordinator.core.model import ChannelMode, ChannelState, SegmentState
from coordinator.core.verify_history import History
from coordinator.core.verify_rows import Counters, StoredBinlog, StoredChannel, StoredLane, StoredSegment
from coordinator.store.collections import collection_not_found
from coordinator.store.reads import path_of
from coordinator.store.tables import (
    ACTIVE,
    OWNER_CLAIMANT,
    SESSION_ENDED,
    binlogs,
    channel_state,
    collections,
    datanodes,
    epochs,
    events,
    flush_targets,
    lanes,
    owners,
    partitions,
    segments,
    vchannels,
)
from coordinator.store.transaction import chunks

CHANNELS_PER_STATEMENT = 100
BINLOGS_PER_GROUP = 100_000
EVENTS_PER_STATEMENT = 5000


@dataclass(frozen=True, slots=True)
class CollectionRoot:
    """A collection and where its objects are.

    Attributes:
        collection_id: its number.
        name: its name.
        storage_root: where its objects are.
    """

    collection_id: int
    name: str
    storage_root: str


def read_roots(connection: Connection, names: Sequence[str]) -> tuple[list[CollectionRoot], list[CollectionRoot]]:
    """Every collection, dropped ones too, and of these the ones asked for.

    Args:
        connection: in a transaction.
        names: of collections; none = all.

    Raises:
        CollectionNotFoundError: one of them.
    """
    rows = connection.execute(select(collections).order_by(collections.c.collection_id)).all()
    every = [CollectionRoot(row.collection_id, row.name, row.storage_root) for row in rows]
    live = {row.name for row in rows if row.state == ACTIVE}
    for name in names:
        if name not in live:
            raise collection_not_found(name)
    wanted = {row.collection_id for row in rows if not names or (row.name in names and row.state == ACTIVE)}
    return every, [root for root in every if root.collection_id in wanted]


def read_counters(connection: Connection) -> Counters:
    """What has been given out."""
    values = {row.name: row.value for row in connection.execute(select(epochs))}
    return Counters(epoch=values.get("epoch", 0), number=values.get("id", 0))


@dataclass(frozen=True, slots=True)
class ChannelNumbers:
    """Every channel of the database.

    Attributes:
        epochs: name and epoch of each.
        of_collection: numbers by collection.
    """

    epochs: list[tuple[str, int]] = field(default_factory=list)
    of_collection: dict[int, list[int]] = field(default_factory=dict)


def read_numbers(connection: Connection) -> ChannelNumbers:
    """Which channels there are."""
    found = ChannelNumbers()
    statement = (
        select(vchannels.c.channel_id, vchannels.c.collection_id, vchannels.c.name, channel_state.c.epoch)
        .join(channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
        .order_by(vchannels.c.channel_id)
    )
    for channel_id, collection_id, name, epoch in connection.execute(statement):
        found.epochs.append((name, epoch))
        found.of_collection.setdefault(collection_id, []).append(channel_id)
    return found


def read_channels(connection: Connection, channel_ids: Sequence[int]) -> Iterator[StoredChannel]:
    """Everything that is stored of these channels, one after the other."""
    for chunk in _groups(connection, channel_ids):
        statement = (
            select(
                vchannels,
                channel_state,
                collections.c.name.label("collection_name"),
                owners.c.kind.label("owner_kind"),
                datanodes.c.state.label("session_state"),
            )
            .join_from(vchannels, channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
            .join(collections, collections.c.collection_id == vchannels.c.collection_id)
            .join(owners, owners.c.owner_id == channel_state.c.owner_id, isouter=True)
            .join(datanodes, datanodes.c.node_id == channel_state.c.owner_id, isouter=True)
            .where(vchannels.c.channel_id.in_(chunk))
            .order_by(vchannels.c.channel_id)
        )
        rows = connection.execute(statement).all()
        parts = _Parts(connection, chunk, {row.collection_id for row in rows})
        for row in rows:
            yield parts.channel(row)


def _groups(connection: Connection, channel_ids: Sequence[int]) -> Iterator[list[int]]:
    """Channels in groups whose binlogs fit into memory together; a channel is never split."""
    for chunk in chunks(channel_ids, CHANNELS_PER_STATEMENT):
        statement = select(segments.c.channel_id, func.sum(segments.c.binlogs)).where(segments.c.channel_id.in_(chunk))
        counts = {
            channel_id: int(count)
            for channel_id, count in connection.execute(statement.group_by(segments.c.channel_id))
        }
        group: list[int] = []
        total = 0
        for channel_id in chunk:
            count = counts.get(channel_id, 0)
            if group and total + count > BINLOGS_PER_GROUP:
                yield group
                group, total = [], 0
            group.append(channel_id)
            total += count
        yield group


class _Parts:
    """Lanes, segments, binlogs and flush targets of a few channels."""

    def __init__(self, connection: Connection, channel_ids: list[int], collection_ids: set[int]) -> None:
        self._lanes: dict[int, dict[int, StoredLane]] = {channel_id: {} for channel_id in channel_ids}
        self._segments: dict[int, dict[int, StoredSegment]] = {channel_id: {} for channel_id in channel_ids}
        self._binlogs: dict[int, list[StoredBinlog]] = {channel_id: [] for channel_id in channel_ids}
        self._dropped: dict[int, set[int]] = {collection_id: set() for collection_id in collection_ids}
        self._read(connection, channel_ids)
        dropped = select(partitions.c.collection_id, partitions.c.partition_id).where(partitions.c.state != ACTIVE)
        for collection_id, partition_id in connection.execute(
            dropped.where(partitions.c.collection_id.in_(collection_ids))
        ):
            self._dropped[collection_id].add(partition_id)
        self._targets: dict[int, int] = dict(
            connection.execute(
                select(flush_targets.c.channel_id, func.min(flush_targets.c.target_timestamp))
                .join(channel_state, channel_state.c.channel_id == flush_targets.c.channel_id)
                .where(
                    flush_targets.c.channel_id.in_(channel_ids),
                    flush_targets.c.target_timestamp > channel_state.c.checkpoint_timestamp,
                )
                .group_by(flush_targets.c.channel_id)
            ).all()
        )

    def _read(self, connection: Connection, channel_ids: list[int]) -> None:
        for stored in connection.execute(select(lanes).where(lanes.c.channel_id.in_(channel_ids))):
            lane = StoredLane(stored.partition_id, stored.progress, stored.growing_segment_id)
            self._lanes[stored.channel_id][stored.partition_id] = lane
        statement = select(segments).where(segments.c.channel_id.in_(channel_ids)).order_by(segments.c.segment_id)
        for row in connection.execute(statement).mappings():
            self._segments[row["channel_id"]][row["segment_id"]] = StoredSegment(
                segment_id=row["segment_id"],
                partition_id=row["partition_id"],
                state=SegmentState(row["state"]),
                rows=row["rows"],
                delete_rows=row["delete_rows"],
                size_bytes=row["size_bytes"],
                binlogs=row["binlogs"],
                timestamp_from=row["timestamp_from"],
                timestamp_to=row["timestamp_to"],
            )
        for mapping in connection.execute(_select_binlogs().where(segments.c.channel_id.in_(channel_ids))).mappings():
            self._binlogs[mapping["channel_id"]].append(_binlog(mapping))

    def channel(self, row: Row[Any]) -> StoredChannel:
        """One of the channels."""
        alive = row.owner_kind == OWNER_CLAIMANT or (
            row.owner_kind is not None and row.session_state not in {None, SESSION_ENDED}
        )
        return StoredChannel(
            channel_id=row.channel_id,
            name=row.name,
            collection_id=row.collection_id,
            collection=row.collection_name,
            mode=ChannelMode(row.mode),
            state=ChannelState(row.state),
            epoch=row.epoch,
            owner_id=row.owner_id,
            owner_alive=alive,
            checkpoint_timestamp=row.checkpoint_timestamp,
            flush_timestamp=row.flush_timestamp,
            flush_target=self._targets.get(row.channel_id, 0),
            dropped_partitions=frozenset(self._dropped[row.collection_id]),
            lanes=self._lanes[row.channel_id],
            segments=self._segments[row.channel_id],
            binlogs=self._binlogs[row.channel_id],
        )


def _select_binlogs() -> Any:
    return select(segments.c.channel_id, segments.c.partition_id, binlogs).join_from(
        segments, binlogs, binlogs.c.segment_id == segments.c.segment_id
    )


def _binlog(row: RowMapping) -> StoredBinlog:
    figures = (row["rows"], row["ts_min"], row["ts_max"], row["size_bytes"])
    return StoredBinlog(row["binlog_id"], row["segment_id"], path_of(row), *figures)


def read_binlogs(connection: Connection, binlog_ids: Sequence[int], chunk_size: int) -> dict[int, StoredBinlog]:
    """Rows of `binlogs`, by number; those that are gone are absent."""
    found = {}
    for chunk in chunks(binlog_ids, chunk_size):
        for row in connection.execute(_select_binlogs().where(binlogs.c.binlog_id.in_(chunk))).mappings():
            found[row["binlog_id"]] = _binlog(row)
    return found


def count_events(connection: Connection) -> int:
    """About how many entries the history has."""
    first, last = connection.execute(select(func.min(events.c.event_id), func.max(events.c.event_id))).one()
    return int(last) - int(first) + 1 if last is not None else 0


def read_history(
    connection: Connection, history: History, numbers: ChannelNumbers, wanted: Sequence[int]
) -> Iterator[int]:
    """Folds the history of these channels.

    Yields:
        how many entries were read, part by part.
    """
    after = 0
    looked_at = set(wanted)
    while True:
        statement = select(events.c.event_id, events.c.rpc, events.c.changes).where(events.c.event_id > after)
        rows = connection.execute(statement.order_by(events.c.event_id).limit(EVENTS_PER_STATEMENT)).all()
        for event_id, rpc, changes in rows:
            events_forms.feed(history, event_id, rpc, changes, channels_of=numbers.of_collection, wanted=looked_at)
        yield len(rows)
        if len(rows) < EVENTS_PER_STATEMENT:
            return
        after = rows[-1].event_id
