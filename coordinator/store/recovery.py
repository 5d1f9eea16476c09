"""Recovery info: everything a flow graph or a sink needs of a channel, of one read."""

from collections.abc import Collection as AbstractCollection
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.engine import Connection

from coordinator.core import refusals
from coordinator.core.model import ChannelFacts, ChannelMode, ChannelState
from coordinator.store import collections, paging, segments
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.listings import LaneProgress, Page, RecoveryInfo, SegmentRow
from coordinator.store.tables import ACTIVE, channel_state, lanes, owners, partitions, vchannels
from coordinator.store.tables import segments as segments_table
from coordinator.store.transaction import chunks
from datacoord.positions import Position


def position_of(row: Row[Any]) -> Position:
    """The checkpoint in a row of channel_state."""
    return Position(
        row.checkpoint_timestamp, bytes(row.checkpoint_msg_id), row.checkpoint_msg_group, row.checkpoint_event_time_ms
    )


def read(connection: Connection, kind: DatabaseKind, channel_ids: Sequence[int]) -> list[RecoveryInfo]:
    """Recovery info of channels, in the order given."""
    rows = {}
    for chunk in chunks(channel_ids, kind.rows_per_statement):
        statement = (
            select(vchannels, channel_state, owners.c.name.label("owner_name"))
            .join_from(vchannels, channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
            .join(owners, owners.c.owner_id == channel_state.c.owner_id, isouter=True)
            .where(vchannels.c.channel_id.in_(chunk))
        )
        rows.update({row.channel_id: row for row in connection.execute(statement)})
    progress = read_lanes(connection, kind, rows)
    growing = _read_growing(connection, kind, rows)
    owned = collections.read_by_ids(connection, [row.collection_id for row in rows.values()], kind.rows_per_statement)
    return [
        RecoveryInfo(
            channel_id=channel_id,
            channel_name=row.name,
            channel_index=row.channel_index,
            collection=owned[row.collection_id],
            epoch=row.epoch,
            owner=row.owner_name or "",
            checkpoint=position_of(row),
            lanes=progress.get(channel_id, ()),
            growing_segments=tuple(growing.get(channel_id, ())),
            consumed_timestamp=row.consumed_timestamp,
        )
        for channel_id in channel_ids
        for row in (rows[channel_id],)
    ]


def read_lanes(
    connection: Connection, kind: DatabaseKind, channel_ids: AbstractCollection[int]
) -> dict[int, tuple[LaneProgress, ...]]:
    """Every lane of these channels that has progress, and those of dropped partitions, which may have none."""
    found: dict[int, dict[int, LaneProgress]] = {}
    for chunk in chunks(channel_ids, kind.rows_per_statement):
        statement = select(lanes.c.channel_id, lanes.c.partition_id, lanes.c.progress)
        for channel_id, partition_id, progress in connection.execute(statement.where(lanes.c.channel_id.in_(chunk))):
            lane = LaneProgress(partition_id, progress, dropped=False)
            found.setdefault(channel_id, {})[partition_id] = lane
        dropped = (
            select(vchannels.c.channel_id, partitions.c.partition_id)
            .join(partitions, partitions.c.collection_id == vchannels.c.collection_id)
            .where(vchannels.c.channel_id.in_(chunk), partitions.c.state != ACTIVE)
        )
        for channel_id, partition_id in connection.execute(dropped):
            of_channel = found.setdefault(channel_id, {})
            before = of_channel[partition_id].progress if partition_id in of_channel else 0
            of_channel[partition_id] = LaneProgress(partition_id, before, dropped=True)
    return {
        channel_id: tuple(lane for _, lane in sorted(of_channel.items())) for channel_id, of_channel in found.items()
    }


def _read_growing(
    connection: Connection, kind: DatabaseKind, channel_ids: AbstractCollection[int]
) -> dict[int, list[SegmentRow]]:
    found: dict[int, list[SegmentRow]] = {}
    for chunk in chunks(channel_ids, kind.rows_per_statement):
        statement = (
            segments.select_rows()
            .join(lanes, lanes.c.growing_segment_id == segments_table.c.segment_id)
            .where(lanes.c.channel_id.in_(chunk))
            .order_by(segments_table.c.segment_id)
        )
        for row in connection.execute(statement):
            found.setdefault(row.channel_id, []).append(segments.row_of(row))
    return found


def read_page(
    connection: Connection,
    kind: DatabaseKind,
    *,
    channel_names: Sequence[str],
    collection_name: str,
    page_size: int,
    page_token: str,
) -> Page[RecoveryInfo]:
    """Recovery info of the channels named, in that order, or of every ACTIVE channel of a collection by index."""
    size = paging.size_of(page_size)
    if channel_names:
        (start,) = paging.read_token("recovery", page_token, [0])
        named = list(channel_names[int(start) : int(start) + size + 1])
        ids = _ids_by_name(connection, kind, named)
        positions = range(int(start) + 1, int(start) + len(named) + 1)
        return _page(connection, kind, ids, list(positions), size)
    (collection_id,) = collections.collection_ids(connection, [collection_name])
    (after,) = paging.read_token("recovery", page_token, [-1])
    statement = (
        select(vchannels.c.channel_id, vchannels.c.channel_index)
        .join(channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
        .where(
            vchannels.c.collection_id == collection_id,
            vchannels.c.channel_index > after,
            channel_state.c.state == ACTIVE,
        )
        .order_by(vchannels.c.channel_index)
        .limit(size + 1)
    )
    rows = connection.execute(statement).all()
    return _page(connection, kind, [row.channel_id for row in rows], [row.channel_index for row in rows], size)


def _page(
    connection: Connection, kind: DatabaseKind, ids: Sequence[int], keys: Sequence[int], size: int
) -> Page[RecoveryInfo]:
    infos = read(connection, kind, list(ids[:size]))
    return Page(tuple(infos), paging.make_token("recovery", [keys[size - 1]]) if len(ids) > size else "")


def _ids_by_name(connection: Connection, kind: DatabaseKind, names: Sequence[str]) -> list[int]:
    found = {}
    for chunk in chunks(names, kind.rows_per_statement):
        statement = (
            select(
                vchannels.c.name,
                vchannels.c.channel_id,
                vchannels.c.mode,
                channel_state.c.state,
                channel_state.c.epoch,
                channel_state.c.checkpoint_timestamp,
            )
            .join(channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
            .where(vchannels.c.name.in_(chunk))
        )
        for row in connection.execute(statement):
            if row.state != ACTIVE:
                checkpoint = Position(row.checkpoint_timestamp)
                mode = ChannelMode(row.mode)
                facts = ChannelFacts(
                    row.channel_id, row.name, mode, ChannelState.DROPPED, row.epoch, checkpoint=checkpoint
                )
                raise refusals.channel_dropped(facts).to_error()
            found[row.name] = row.channel_id
    for name in names:
        if name not in found:
            raise refusals.channel_not_found(name).to_error()
    return [found[name] for name in names]
