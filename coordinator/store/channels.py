"""Channels as one write transaction sees them.

They are read in bulk with their rows locked, changed in memory in the order of the calls, and written in bulk at the end.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection

from coordinator.core.model import (
    BinlogFacts,
    ChannelFacts,
    ChannelMode,
    ChannelState,
    LaneFacts,
    SegmentLevel,
    SegmentState,
)
from coordinator.core.segments import SegmentFacts, level_of, tally
from coordinator.store import channel_reads, channel_writes
from coordinator.store.answers import ChannelIdentity
from coordinator.store.driver_statement import Row
from coordinator.store.tables import (
    ACTIVE,
    channel_state,
    flush_targets,
    partitions,
    vchannels,
)
from coordinator.store.transaction import Transaction, chunks
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.positions import Position

_MODES = {int(mode): mode for mode in ChannelMode}
_CHANNEL_STATES = {int(state): state for state in ChannelState}
_LEVELS = {int(level): level for level in SegmentLevel}
_SEGMENT_STATES = {int(state): state for state in SegmentState}
"""A look is cheaper than a call, on the hottest of paths."""


@dataclass(slots=True)
class Segment:
    """A growing segment, or one that this transaction seals. `stored`: its row exists; `changed`: it must be written."""

    segment_id: int
    channel_id: int
    partition_id: int
    level: SegmentLevel
    state: SegmentState
    rows: int
    delete_rows: int
    size_bytes: int
    binlogs: int
    timestamp_from: int
    timestamp_to: int
    seal_reason: str
    create_time_ms: int
    last_write_time_ms: int
    ranges: int
    stored: bool
    changed: bool = False

    def facts(self) -> SegmentFacts:
        """What policies look at."""
        return SegmentFacts(
            self.rows, self.delete_rows, self.size_bytes, self.ranges, self.create_time_ms, self.last_write_time_ms
        )


@dataclass(slots=True)
class Lane:
    """One lane. `stored`: its row exists; `changed`: it must be written."""

    partition_id: int
    progress: int
    dropped: bool
    exists: bool
    stored: bool
    growing: Segment | None = None
    changed: bool = False


@dataclass(slots=True)
class Channel:
    """One channel. `flush_targets`: those beyond the checkpoint, smallest first, where there are any."""

    channel_id: int
    name: str
    collection_id: int
    mode: ChannelMode
    state: ChannelState
    epoch: int
    owner_id: int
    release_requested: bool
    flush_timestamp: int
    checkpoint: Position
    epoch_read: int
    lanes: dict[int, Lane] = field(default_factory=dict)
    flush_targets: list[int] = field(default_factory=list)
    owner_changed: bool = False
    checkpoint_changed: bool = False


class Channels:
    """The channels a transaction works on."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self._binlogs: list[Row] = []
        self._by_name: dict[str, Channel] = {}
        self._by_id: dict[int, Channel] = {}
        self._unknown: set[str] = set()
        self._partitions: dict[int, tuple[int, int]] = {}
        self._segments: list[Segment] = []
        self._left: dict[int, list[channel_writes.Left]] = {}

    @property
    def _connection(self) -> Connection:
        return self.transaction.connection

    @property
    def _chunk(self) -> int:
        return self.transaction.kind.rows_per_statement

    # ---- reading ------------------------------------------------------------------------------------------------------------

    def load(self, wanted: Mapping[str, Collection[int]]) -> None:
        """Reads and locks channels, by name, with the lanes named. What is here already stays as it is."""
        identities = self._identities([name for name in wanted if name not in self._by_name])
        self.load_ids([identity.channel_id for identity in identities.values()])
        self.load_lanes({name: ids for name, ids in wanted.items() if name in self._by_name})

    def _identities(self, names: list[str]) -> dict[str, ChannelIdentity]:
        memory = self.transaction.memory.channels
        found = {name: memory[name] for name in names if name in memory}
        missing = [name for name in names if name not in found and name not in self._unknown]
        if missing:
            read = read_identities(self._connection, missing, self._chunk)
            self.transaction.remember_channels(read)
            self._unknown.update(name for name in missing if name not in read)
            found.update(read)
        return found

    def load_ids(self, channel_ids: Iterable[int]) -> list[Channel]:
        """Reads and locks channels by number, in the order in which every transaction locks them."""
        missing = sorted({channel_id for channel_id in channel_ids if channel_id not in self._by_id})
        kind = self.transaction.kind
        rows = channel_reads.CHANNELS.run(kind, self._connection, [(channel_id,) for channel_id in missing])
        loaded = [self._add(row) for row in rows]
        self.transaction.learn_owners({channel.owner_id for channel in loaded})
        self._load_flushes([channel for channel in loaded if channel.flush_timestamp])
        return loaded

    def load_owned(self, owner_id: int) -> list[Channel]:
        """Reads and locks every channel of an owner."""
        statement = select(channel_state.c.channel_id).where(channel_state.c.owner_id == owner_id)
        self.load_ids(self._connection.execute(statement).scalars())
        return sorted(
            (channel for channel in self._by_id.values() if channel.owner_id == owner_id),
            key=lambda channel: channel.channel_id,
        )

    def load_collection(self, collection_id: int) -> list[Channel]:
        """Reads and locks every channel of a collection."""
        statement = select(vchannels.c.channel_id).where(vchannels.c.collection_id == collection_id)
        ids = sorted(self._connection.execute(statement).scalars())
        self.load_ids(ids)
        return [self._by_id[channel_id] for channel_id in ids]

    def load_active(self) -> list[Channel]:
        """Reads and locks every ACTIVE channel."""
        statement = select(channel_state.c.channel_id).where(channel_state.c.state == ACTIVE)
        ids = sorted(self._connection.execute(statement).scalars())
        self.load_ids(ids)
        # One may have been dropped between the two reads.
        return [c for channel_id in ids if (c := self._by_id[channel_id]).state is ChannelState.ACTIVE]

    def _add(self, row: Sequence[Any]) -> Channel:
        channel_id, name, collection_id, mode, state, epoch, owner_id, release_requested, flush_timestamp, *at = row
        timestamp, msg_id, msg_group, event_time_ms = at
        checkpoint = Position(timestamp, msg_id, msg_group, event_time_ms)
        facts = (_MODES[mode], _CHANNEL_STATES[state], epoch, owner_id, bool(release_requested), flush_timestamp)
        channel = Channel(channel_id, name, collection_id, *facts, checkpoint, epoch)
        self._by_name[name] = self._by_id[channel_id] = channel
        return channel

    def _load_flushes(self, flushing: list[Channel]) -> None:
        """Channels that wait for a flush may have to seal what grows, and then wait for the next target."""
        for chunk in chunks(flushing, self._chunk):
            ids = [channel.channel_id for channel in chunk]
            statement = (
                select(flush_targets.c.channel_id, flush_targets.c.target_timestamp)
                .join(channel_state, channel_state.c.channel_id == flush_targets.c.channel_id)
                .where(
                    flush_targets.c.channel_id.in_(ids),
                    flush_targets.c.target_timestamp > channel_state.c.checkpoint_timestamp,
                )
                .order_by(flush_targets.c.target_timestamp)
                .distinct()
            )
            for row in self._connection.execute(statement):
                self._by_id[row.channel_id].flush_targets.append(row.target_timestamp)
            self.load_growing(chunk)

    def load_growing(self, of: Iterable[Channel]) -> None:
        """Reads every lane of these channels that has a growing segment."""
        keys = sorted((channel.channel_id,) for channel in of)
        self._add_lanes(channel_reads.GROWING.run(self.transaction.kind, self._connection, keys))

    def load_lanes(self, wanted: Mapping[str, Collection[int]]) -> None:
        """Reads lanes of channels that are loaded."""
        pairs = [
            (channel.channel_id, partition_id)
            for name, partition_ids in wanted.items()
            for channel in (self._by_name[name],)
            for partition_id in partition_ids
            if partition_id not in channel.lanes
        ]
        self._add_lanes(channel_reads.LANES.run(self.transaction.kind, self._connection, pairs))
        self._load_partitions({partition_id for _, partition_id in pairs})
        for channel_id, partition_id in pairs:
            channel = self._by_id[channel_id]
            lane = channel.lanes.get(partition_id)
            if lane is None:
                lane = channel.lanes[partition_id] = Lane(partition_id, 0, dropped=False, exists=True, stored=False)
            if partition_id != ALL_PARTITIONS_ID:
                collection_id, state = self._partitions.get(partition_id, (0, 0))
                lane.exists = collection_id == channel.collection_id
                lane.dropped = lane.exists and state != ACTIVE

    def _load_partitions(self, partition_ids: set[int]) -> None:
        for chunk in chunks(sorted(partition_ids - self._partitions.keys()), self._chunk):
            statement = select(partitions.c.partition_id, partitions.c.collection_id, partitions.c.state)
            for row in self._connection.execute(statement.where(partitions.c.partition_id.in_(chunk))):
                self._partitions[row.partition_id] = (row.collection_id, row.state)

    def _add_lanes(self, rows: Iterable[Sequence[Any]]) -> None:
        for channel_id, partition_id, progress, *growing in rows:
            held = self._by_id[channel_id].lanes
            if partition_id in held:
                continue
            lane = held[partition_id] = Lane(partition_id, progress, dropped=False, exists=True, stored=True)
            if growing[0] is not None:
                segment_id, _, _, level, state, *rest = growing
                where = (segment_id, channel_id, partition_id)
                lane.growing = Segment(*where, _LEVELS[level], _SEGMENT_STATES[state], *rest, True)  # type: ignore[call-arg] # `rest` is as long as it is
                self._segments.append(lane.growing)

    def get(self, name: str) -> Channel | None:
        """A channel that is loaded; None = there is none of this name."""
        return self._by_name.get(name)

    def by_ids(self, channel_ids: Iterable[int]) -> list[Channel]:
        """Channels that are loaded, by number."""
        return [self._by_id[channel_id] for channel_id in sorted(channel_ids) if channel_id in self._by_id]

    def facts(self, channel: Channel, partition_ids: Iterable[int] = ()) -> ChannelFacts:
        """What core decides on, with the lanes named."""
        held = channel.lanes
        return ChannelFacts(
            channel_id=channel.channel_id,
            name=channel.name,
            mode=channel.mode,
            state=channel.state,
            epoch=channel.epoch,
            owner=self.transaction.owner_name(channel.owner_id),
            checkpoint=channel.checkpoint,
            lanes={p: LaneFacts(held[p].progress, held[p].dropped, held[p].exists) for p in partition_ids},
            flush_timestamp=channel.flush_timestamp,
        )

    # ---- changing -----------------------------------------------------------------------------------------------------------

    def move_checkpoint(self, channel: Channel, position: Position) -> None:
        """C := position, which core found to be greater. A flush target that is reached seals what grows."""
        channel.checkpoint = position
        channel.checkpoint_changed = True
        if channel.flush_timestamp and position.timestamp >= channel.flush_timestamp:
            self.seal_growing(channel, "flush")
            channel.flush_targets = [t for t in channel.flush_targets if t > position.timestamp]
            channel.flush_timestamp = channel.flush_targets[0] if channel.flush_targets else 0
            self.transaction.desired_state_changes(channel.owner_id)

    def set_flush_target(self, channel: Channel, target: int) -> None:
        """Waits for one more flush target; where the checkpoint has reached it, what grows is sealed now."""
        if target <= channel.checkpoint.timestamp:
            self.seal_growing(channel, "flush")
        elif channel.flush_timestamp == 0 or target < channel.flush_timestamp:
            channel.flush_timestamp = target
            channel.checkpoint_changed = True
            self.transaction.desired_state_changes(channel.owner_id)

    def change_owner(self, channel: Channel, owner_id: int) -> None:
        """Gives a channel to another owner, or to nobody (0), under the next epoch."""
        left = channel_writes.Left(channel.channel_id, channel.name, channel.checkpoint.timestamp)
        self._left.setdefault(channel.owner_id, []).append(left)
        self.transaction.desired_state_changes(channel.owner_id)
        self.transaction.desired_state_changes(owner_id)
        channel.epoch = self.transaction.next_epoch()
        channel.owner_id = owner_id
        channel.release_requested = False
        channel.owner_changed = True
        self.transaction.remember_epoch(channel.epoch, owner_id)

    def request_release(self, channel: Channel) -> None:
        """Asks the owner to hand a channel back."""
        if not channel.release_requested:
            channel.release_requested = True
            channel.owner_changed = True
            self.transaction.desired_state_changes(channel.owner_id)

    def drop(self, channel: Channel) -> None:
        """Makes a channel a tombstone; its segments are DROPPED with it."""
        self.change_owner(channel, 0)
        channel.state = ChannelState.DROPPED
        channel.flush_timestamp = 0
        channel.flush_targets = []

    def add_binlogs(
        self, channel: Channel, lane: Lane, binlogs: Sequence[BinlogFacts], *, epoch: int, start: int, end: int
    ) -> Segment:
        """Adds the objects of a range to the lane's growing segment, which is created if there is none."""
        now_ms = self.transaction.now_ms
        segment = lane.growing
        if segment is None:
            segment = lane.growing = Segment(
                segment_id=self.transaction.next_id(),
                channel_id=channel.channel_id,
                partition_id=lane.partition_id,
                level=level_of(lane.partition_id),
                state=SegmentState.GROWING,
                rows=0,
                delete_rows=0,
                size_bytes=0,
                binlogs=0,
                timestamp_from=start,
                timestamp_to=end,
                seal_reason="",
                create_time_ms=now_ms,
                last_write_time_ms=now_ms,
                ranges=0,
                stored=False,
            )
            self._segments.append(segment)
        rows, delete_rows, size_bytes = tally(binlogs)
        segment.ranges += 1
        segment.binlogs += len(binlogs)
        segment.size_bytes += size_bytes
        segment.rows += rows
        segment.delete_rows += delete_rows
        self._binlogs += channel_writes.binlog_rows(segment.segment_id, binlogs, epoch, start, end)
        segment.timestamp_to = end
        segment.last_write_time_ms = now_ms
        segment.changed = lane.changed = True
        return segment

    def seal(self, lane: Lane, reason: str) -> None:
        """Closes the lane's growing segment, if there is one."""
        if lane.growing is not None:
            lane.growing.state = SegmentState.SEALED
            lane.growing.seal_reason = reason
            lane.growing.changed = lane.changed = True
            lane.growing = None

    def seal_growing(self, channel: Channel, reason: str) -> None:
        """Closes every growing segment of a channel; `load_growing` has read them."""
        for lane in channel.lanes.values():
            self.seal(lane, reason)

    def finish(self) -> None:
        """Writes everything that changed since the last time."""
        channel_writes.write(self.transaction, self._by_id.values(), self._segments, self._binlogs)
        channel_writes.keep_consumed(self.transaction, self._left)
        for channel in self._by_id.values():
            channel.epoch_read = channel.epoch
            channel.owner_changed = channel.checkpoint_changed = False
            for lane in channel.lanes.values():
                lane.stored = lane.stored or lane.changed
                lane.changed = False
        for segment in self._segments:
            segment.stored = segment.stored or segment.changed
            segment.changed = False
        self._binlogs.clear()
        self._left.clear()


def read_identities(connection: Connection, names: Collection[str], chunk_size: int) -> dict[str, ChannelIdentity]:
    """Reads what never changes of channels; unknown names are absent."""
    found = {}
    for chunk in chunks(names, chunk_size):
        statement = select(vchannels.c.name, vchannels.c.channel_id, vchannels.c.collection_id, vchannels.c.mode)
        for row in connection.execute(statement.where(vchannels.c.name.in_(chunk))):
            found[row.name] = ChannelIdentity(row.channel_id, row.collection_id, ChannelMode(row.mode))
    return found
