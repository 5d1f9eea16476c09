"""Lists for readers and operators, each page from one snapshot."""

from collections.abc import Generator, Sequence
from typing import Any

from sqlalchemy import Row, RowMapping, func, select
from sqlalchemy.engine import Connection

from coordinator.core.model import BinlogFacts, ChannelMode, ChannelState, SegmentState
from coordinator.core.refusals import channel_not_found
from coordinator.store import paging, reports
from coordinator.store.channel_writes import KINDS
from coordinator.store.collections import collection_ids
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.listings import ChannelBinlogList, ChannelRow, DataNodeRow, DataNodeState, Page, RegisteredBinlog
from coordinator.store.recovery import position_of, read_lanes
from coordinator.store.tables import (
    OWNER_DATANODE,
    SESSION_ENDED,
    binlogs,
    channel_state,
    collections,
    datanodes,
    owners,
    segments,
    vchannels,
)
from coordinator.store.transaction import chunks
from datacoord.paths import BinlogPath
from datacoord.v1 import data_coord_pb2

BINLOGS_PER_STEP = 1000
"""Objects that a list reads before others get a turn: some milliseconds."""
LIVE_SEGMENT = segments.c.state != int(SegmentState.DROPPED)


# ---- binlogs ----------------------------------------------------------------------------------------------------------------


def read_binlogs(
    connection: Connection,
    kind: DatabaseKind,
    *,
    collection_name: str,
    channel_names: Sequence[str],
    page_size: int,
    page_token: str,
) -> Generator[None, None, Page[ChannelBinlogList]]:
    """The objects readers see, by channel index; a page ends with the channel that reaches its size, however many that one has.

    Yields:
        every so many objects: a page may have very many, and others wait.
    """
    size = paging.size_of(page_size)
    (collection_id,) = collection_ids(connection, [collection_name])
    (after,) = paging.read_token("binlogs", page_token, [-1])
    statement = (
        select(vchannels.c.name, vchannels.c.channel_index, channel_state)
        .join_from(vchannels, channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
        .where(vchannels.c.collection_id == collection_id)
        .order_by(vchannels.c.channel_index)
    )
    if channel_names:
        rows = _rows_named(connection, kind, statement, channel_names)
        rows = [row for row in rows if row.channel_index > int(after)]
    else:
        # No channel counts for nothing, so that a page of empty channels is bounded too.
        rows = list(connection.execute(statement.where(vchannels.c.channel_index > after).limit(size + 1)))
    counts = _count_binlogs(connection, kind, [row.channel_id for row in rows])
    taken: list[Row[Any]] = []
    total = 0
    for row in rows:
        if total >= size:
            break
        taken.append(row)
        total += max(1, counts.get(row.channel_id, 0))
    lists = yield from _binlog_lists(connection, kind, taken)
    more = len(taken) < len(rows)
    return Page(tuple(lists), paging.make_token("binlogs", [taken[-1].channel_index]) if more else "")


def _rows_named(connection: Connection, kind: DatabaseKind, statement: Any, names: Sequence[str]) -> list[Row[Any]]:
    rows: list[Row[Any]] = []
    for chunk in chunks(dict.fromkeys(names), kind.rows_per_statement):
        rows += connection.execute(statement.where(vchannels.c.name.in_(chunk)))
    found = {row.name for row in rows}
    for name in names:
        if name not in found:
            raise channel_not_found(name).to_error()
    return sorted(rows, key=lambda row: int(row.channel_index))


def _count_binlogs(connection: Connection, kind: DatabaseKind, channel_ids: Sequence[int]) -> dict[int, int]:
    counts = {}
    for chunk in chunks(channel_ids, kind.rows_per_statement):
        statement = select(segments.c.channel_id, func.sum(segments.c.binlogs).label("count"))
        grouped = statement.where(segments.c.channel_id.in_(chunk), LIVE_SEGMENT).group_by(segments.c.channel_id)
        counts.update({channel_id: int(count) for channel_id, count in connection.execute(grouped)})
    return counts


def _binlog_lists(
    connection: Connection, kind: DatabaseKind, rows: Sequence[Row[Any]]
) -> Generator[None, None, list[ChannelBinlogList]]:
    ids = [row.channel_id for row in rows]
    found: dict[int, list[RegisteredBinlog]] = {channel_id: [] for channel_id in ids}
    for chunk in chunks(ids, kind.rows_per_statement):
        statement = (
            select(segments.c.channel_id, segments.c.partition_id, binlogs)
            .join_from(segments, binlogs, binlogs.c.segment_id == segments.c.segment_id)
            .where(segments.c.channel_id.in_(chunk), LIVE_SEGMENT)
            .order_by(segments.c.channel_id, binlogs.c.range_to, binlogs.c.binlog_id)
        )
        for part in connection.execute(statement).partitions(BINLOGS_PER_STEP):
            for row in part:
                found[row.channel_id].append(_registered(row))
            yield
    progress = read_lanes(connection, kind, ids)
    return [
        ChannelBinlogList(row.name, position_of(row), progress.get(row.channel_id, ()), tuple(found[row.channel_id]))
        for row in rows
    ]


def path_of(values: RowMapping) -> BinlogPath:
    """The path of an object, of a row of `binlogs` with its segment's channel and partition."""
    return BinlogPath(
        KINDS[values["kind"]],
        values["channel_id"],
        values["partition_id"],
        values["epoch"],
        values["range_from"],
        values["range_to"],
        values["field_id"],
        values["log_id"],
    )


def _registered(row: Row[Any]) -> RegisteredBinlog:
    values = row._mapping  # a column is named `rows`
    path = path_of(values)
    facts = BinlogFacts(
        kind=path.kind,
        field_id=values["field_id"],
        log_id=values["log_id"],
        rows=values["rows"],
        ts_min=values["ts_min"],
        ts_max=values["ts_max"],
        size_bytes=values["size_bytes"],
        memory_bytes=values["memory_bytes"],
    )
    return RegisteredBinlog(
        path=str(path),
        facts=facts,
        segment_id=values["segment_id"],
        partition_id=values["partition_id"],
        epoch=values["epoch"],
        range_from=values["range_from"],
        range_to=values["range_to"],
    )


# ---- channels ---------------------------------------------------------------------------------------------------------------


def read_channels(
    connection: Connection,
    kind: DatabaseKind,
    *,
    collection_name: str,
    channel_name: str,
    page_size: int,
    page_token: str,
) -> Page[ChannelRow]:
    """Channels by name; with `channel_name` that one, if it is there."""
    size = paging.size_of(page_size)
    (after,) = paging.read_token("channels", page_token, [""])
    statement = (
        select(
            vchannels.c.name,
            vchannels.c.mode,
            channel_state,
            collections.c.name.label("collection_name"),
            owners.c.name.label("owner_name"),
            owners.c.kind.label("owner_kind"),
            owners.c.last_seen_time_ms,
        )
        .join_from(vchannels, channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
        .join(collections, collections.c.collection_id == vchannels.c.collection_id)
        .join(owners, owners.c.owner_id == channel_state.c.owner_id, isouter=True)
        .where(vchannels.c.name > after)
        .order_by(vchannels.c.name)
        .limit(size + 1)
    )
    if collection_name:
        (collection_id,) = collection_ids(connection, [collection_name])
        statement = statement.where(vchannels.c.collection_id == collection_id)
    if channel_name:
        statement = statement.where(vchannels.c.name == channel_name)
    rows = connection.execute(statement).all()
    progress = read_lanes(connection, kind, [row.channel_id for row in rows[:size]])
    nodes = {row.owner_id for row in rows if row.owner_kind == OWNER_DATANODE}
    said = reports.read_messages(connection, kind, nodes)
    found = [
        ChannelRow(
            channel_name=row.name,
            collection_name=row.collection_name,
            state=ChannelState(row.state),
            mode=ChannelMode(row.mode),
            owner=row.owner_name or "",
            node_id=row.owner_id if row.owner_kind == OWNER_DATANODE else 0,
            epoch=row.epoch,
            checkpoint=position_of(row),
            lanes=progress.get(row.channel_id, ()),
            report=said.get(row.owner_id, {}).get(row.name),
            last_seen_time_ms=row.last_seen_time_ms or 0,
            flush_timestamp=row.flush_timestamp,
        )
        for row in rows
    ]
    return paging.page_of("channels", found, [[channel.channel_name] for channel in found], size)


# ---- datanodes --------------------------------------------------------------------------------------------------------------


def read_datanodes(
    connection: Connection,
    kind: DatabaseKind,
    *,
    job: str,
    include_ended: bool,
    page_size: int,
    page_token: str,
) -> Page[DataNodeRow]:
    """Sessions, living ones first, then by number."""
    size = paging.size_of(page_size)
    ended, after = paging.read_token("datanodes", page_token, [0, 0])
    rows: list[Row[Any]] = []
    if not ended:
        rows += _sessions(connection, job, datanodes.c.state != SESSION_ENDED, int(after), size + 1)
    if include_ended and len(rows) <= size:
        start = int(after) if ended else 0
        rows += _sessions(connection, job, datanodes.c.state == SESSION_ENDED, start, size + 1 - len(rows))
    said = reports.read(connection, kind, [row.node_id for row in rows[:size]])
    counts = _count_channels(connection, kind, [row.node_id for row in rows])
    found = [_datanode(row, counts.get(row.node_id, 0), said.get(row.node_id)) for row in rows]
    keys: list[paging.Key] = [[int(row.state == SESSION_ENDED), row.node_id] for row in rows]
    return paging.page_of("datanodes", found, keys, size)


def _sessions(connection: Connection, job: str, condition: Any, after: int, limit: int) -> Sequence[Row[Any]]:
    statement = (
        select(datanodes, owners.c.lease_until_ms)
        .join(owners, owners.c.owner_id == datanodes.c.node_id)
        .where(condition, datanodes.c.node_id > after)
        .order_by(datanodes.c.node_id)
        .limit(limit)
    )
    if job:
        statement = statement.where(datanodes.c.job == job)
    return connection.execute(statement).all()


def _count_channels(connection: Connection, kind: DatabaseKind, node_ids: Sequence[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for chunk in chunks(node_ids, kind.rows_per_statement):
        statement = select(channel_state.c.owner_id, func.count()).where(channel_state.c.owner_id.in_(chunk))
        counts.update(connection.execute(statement.group_by(channel_state.c.owner_id)).all())
    return counts


def _datanode(row: Row[Any], channels: int, report: data_coord_pb2.ReportDataNodeTtMsgsRequest | None) -> DataNodeRow:
    state = DataNodeState(row.state)
    return DataNodeRow(
        node_id=row.node_id,
        job=row.job,
        slot=row.slot,
        state=DataNodeState.HEALTHY if state is DataNodeState.IDLE and channels else state,
        host=row.host,
        pid=row.pid,
        channels=channels,
        lease_until_time_ms=row.lease_until_ms,
        register_time_ms=row.register_time_ms,
        report=report or data_coord_pb2.ReportDataNodeTtMsgsRequest(),
    )
