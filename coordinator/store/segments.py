"""Segments: how they are shown, and the job that seals by what time brings about."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, and_, func, or_, select
from sqlalchemy.engine import Connection

from coordinator.core.jobs import Job
from coordinator.core.model import SegmentLevel, SegmentState
from coordinator.core.segments import fullest_first, seal_reason, shown_state
from coordinator.store import job_leases, paging
from coordinator.store.answers import SealRound
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channels
from coordinator.store.collections import collection_ids
from coordinator.store.listings import Page, SegmentRow
from coordinator.store.tables import GROWING, channel_state, vchannels
from coordinator.store.tables import segments as table
from coordinator.store.transaction import Transaction

SEALED_PER_ROUND_MAX = 1000
"""Segments that one round of the sealing job judges: bounds its transaction."""


def select_rows() -> Select[Any]:
    """Segments with what is needed to show them."""
    return (
        select(table, vchannels.c.name.label("channel_name"), channel_state.c.checkpoint_timestamp)
        .join_from(table, vchannels, vchannels.c.channel_id == table.c.channel_id)
        .join(channel_state, channel_state.c.channel_id == table.c.channel_id)
    )


def row_of(row: Row[Any]) -> SegmentRow:
    """A segment as others see it, of a row of `select_rows`."""
    values = row._mapping  # a column is named `rows`
    stored = SegmentState(values["state"])
    return SegmentRow(
        segment_id=values["segment_id"],
        channel_name=values["channel_name"],
        partition_id=values["partition_id"],
        state=shown_state(stored, values["timestamp_to"], values["checkpoint_timestamp"]),
        level=SegmentLevel(values["level"]),
        rows=values["rows"],
        delete_rows=values["delete_rows"],
        size_bytes=values["size_bytes"],
        binlogs=values["binlogs"],
        timestamp_from=values["timestamp_from"],
        timestamp_to=values["timestamp_to"],
        seal_reason=values["seal_reason"],
    )


def read_page(
    connection: Connection, collection_name: str, states: Sequence[SegmentState], page_size: int, page_token: str
) -> Page[SegmentRow]:
    """Segments by number."""
    size = paging.size_of(page_size)
    (after,) = paging.read_token("segments", page_token, [0])
    statement = select_rows().where(table.c.segment_id > after)
    if collection_name:
        (collection_id,) = collection_ids(connection, [collection_name])
        statement = statement.where(vchannels.c.collection_id == collection_id)
    if states:
        statement = statement.where(or_(*(_shown_as(state) for state in states)))
    rows = connection.execute(statement.order_by(table.c.segment_id).limit(size + 1)).all()
    found = [row_of(row) for row in rows]
    return paging.page_of("segments", found, [[segment.segment_id] for segment in found], size)


def _shown_as(state: SegmentState) -> Any:
    passed = channel_state.c.checkpoint_timestamp >= table.c.timestamp_to
    if state is SegmentState.FLUSHED:
        return and_(table.c.state == int(SegmentState.SEALED), passed)
    if state is SegmentState.SEALED:
        return and_(table.c.state == int(SegmentState.SEALED), ~passed)
    return table.c.state == int(state)


def seal_call() -> AloneCall[SealRound]:
    """One round: growing segments that are too old, idle, or too much for their channel."""
    return AloneCall(Job.SEAL.rpc, "job", _seal)


def _seal(transaction: Transaction, channels: Channels) -> SealRound:
    if not job_leases.take(transaction, Job.SEAL):
        return SealRound(ran=False)
    due = _due(transaction)
    crowded = _crowded(transaction)
    loaded = channels.load_ids(sorted({channel_id for channel_id, _ in due} | crowded))
    channels.load_growing(loaded)
    policy = transaction.settings.seal_policy
    sealed: dict[str, int] = {}
    changes: list[list[Any]] = []
    for channel in loaded:
        growing = {p: lane.growing.facts() for p, lane in sorted(channel.lanes.items()) if lane.growing is not None}
        reasons = {p: seal_reason(facts, policy, transaction.now_ms) for p, facts in growing.items()}
        staying = {p: facts for p, facts in growing.items() if reasons[p] is None}
        reasons.update(dict.fromkeys(fullest_first(staying, policy), "channel"))
        for partition_id, reason in reasons.items():
            segment = channel.lanes[partition_id].growing
            if reason is not None and segment is not None:
                channels.seal(channel.lanes[partition_id], reason)
                sealed[reason] = sealed.get(reason, 0) + 1
                changes.append([segment.segment_id, reason])
    if changes:
        transaction.record(Job.SEAL.rpc, "job", channels=len(loaded), items=len(changes), changes=changes)
    return SealRound(True, sealed)


def _due(transaction: Transaction) -> list[tuple[int, int]]:
    """Growing segments that a policy may want sealed; core has the last word."""
    policy, now_ms = transaction.settings.seal_policy, transaction.now_ms
    old = table.c.create_time_ms <= now_ms - policy.lifetime_ms_max
    idle = and_(
        table.c.last_write_time_ms < now_ms - policy.idle_ms_max, table.c.size_bytes > policy.idle_size_bytes_min
    )
    full = or_(
        table.c["rows"] >= policy.rows_max,
        table.c.size_bytes >= policy.size_bytes_max,
        table.c.ranges >= policy.binlogs_max,
    )
    statement = (
        select(table.c.channel_id, table.c.segment_id)
        .where(table.c.state == GROWING, or_(old, idle, full))
        .order_by(table.c.segment_id)
        .limit(SEALED_PER_ROUND_MAX)
    )
    return [(channel_id, segment_id) for channel_id, segment_id in transaction.connection.execute(statement)]


def _crowded(transaction: Transaction) -> set[int]:
    """Channels in which too many bytes grow."""
    statement = (
        select(table.c.channel_id)
        .where(table.c.state == GROWING)
        .group_by(table.c.channel_id)
        .having(func.sum(table.c.size_bytes) > transaction.settings.seal_policy.channel_growing_bytes_max)
        .order_by(table.c.channel_id)
        .limit(SEALED_PER_ROUND_MAX)
    )
    return set(transaction.connection.execute(statement).scalars())
