"""Which channels are held back, and by what: the facts of one read, judged by `coordinator.core.findings`."""

import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from coordinator.core.events_forms import FORMS, Form
from coordinator.core.findings import (
    ChannelFacts,
    Finding,
    Problem,
    Report,
    Severity,
    examine,
    gathered,
    jobs_stand,
    well,
    worst_first,
)
from coordinator.core.jobs import NEVER_PAUSE
from coordinator.core.model import ChannelMode, ChannelState
from coordinator.core.refusals import channel_not_found
from coordinator.store import reports
from coordinator.store.collections import collection_ids
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.tables import (
    SESSION_ENDED,
    channel_state,
    collections,
    datanodes,
    events,
    flush_targets,
    flushes,
    job_leases,
    owners,
    vchannels,
)
from datacoord.v1 import data_coord_pb2

_FAULT_PROBLEMS = {
    data_coord_pb2.CHANNEL_FAULT_SOURCE: Problem.SOURCE_FAILS,
    data_coord_pb2.CHANNEL_FAULT_OBJECTS: Problem.UPLOADS_FAIL,
    data_coord_pb2.CHANNEL_FAULT_GRAPH: Problem.GRAPH_FAILS,
}

CHANNELS_PER_STEP = 500
"""A few milliseconds of the loop, where reads run on it."""

EVENTS_MAX = 20_000
"""Entries of the history that are looked at for assignments: an older one was long enough ago to have been answered."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found.

    Attributes:
        items: the worst first, at most as many as were asked for.
        total: how many there are.
        counts: how many of each severity and problem.
    """

    items: tuple[Finding, ...]
    total: int
    counts: Mapping[tuple[Severity, Problem], int]


def read_findings(
    connection: Connection,
    kind: DatabaseKind,
    *,
    channel_name: str,
    collection_name: str,
    findings_max: int,
    now_ms: int,
) -> Generator[None, None, Findings]:
    """Examines channels, the worst finding first; yields every CHANNELS_PER_STEP of them.

    Args:
        connection: in one read transaction.
        kind: the database.
        channel_name: only this channel, which then gets a finding even if all is well; empty = all.
        collection_name: only this collection; empty = all.
        findings_max: findings to give back at most; all are counted.
        now_ms: by the database's clock.

    Raises:
        ChannelNotFoundError: no such channel.
        CollectionNotFoundError: no such collection.
    """
    found: list[Finding] = []
    examined = 0
    for facts in _facts(connection, kind, channel_name, collection_name):
        examined += 1
        if examined % CHANNELS_PER_STEP == 0:
            yield
        finding = examine(facts, now_ms)
        if finding is not None:
            found.append(finding)
        elif channel_name:
            found.append(well(facts))
    if channel_name and not examined:
        raise channel_not_found(channel_name).to_error()
    jobs = _jobs(connection, now_ms) if not channel_name else None
    if jobs is not None:
        found.append(jobs)
    ordered = worst_first(found)
    shown = ordered if channel_name or collection_name else gathered(ordered)
    counts = Counter((finding.severity, finding.problem) for finding in ordered)
    return Findings(tuple(shown[:findings_max]), len(ordered), counts)


def _jobs(connection: Connection, now_ms: int) -> Finding | None:
    statement = select(job_leases.c.name, job_leases.c.lease_until_ms).where(job_leases.c.name.in_(NEVER_PAUSE))
    leases = dict.fromkeys(NEVER_PAUSE, 0) | {row.name: row.lease_until_ms for row in connection.execute(statement)}
    oldest = select(func.min(datanodes.c.register_time_ms)).where(datanodes.c.state != SESSION_ENDED)
    return jobs_stand(leases, now_ms, connection.execute(oldest).scalar() or 0)


def _facts(
    connection: Connection, kind: DatabaseKind, channel_name: str, collection_name: str
) -> Iterator[ChannelFacts]:
    sessions = _sessions(connection)
    said = reports.read_messages(connection, kind, sessions)
    readers = Counter(collection_id for session in sessions.values() for collection_id in session.collection_ids)
    read_since: dict[int, int] = {}
    for session in sessions.values():
        for collection_id in session.collection_ids:
            read_since[collection_id] = min(session.since_ms, read_since.get(collection_id, session.since_ms))
    flush_since = _flush_times(connection)
    statement = (
        select(
            vchannels.c.name,
            vchannels.c.mode,
            vchannels.c.collection_id,
            vchannels.c.finished_timestamp,
            channel_state,
            collections.c.name.label("collection_name"),
            collections.c.create_time_ms,
            owners.c.name.label("owner_name"),
            owners.c.last_seen_time_ms,
            owners.c.lease_until_ms,
            datanodes.c.register_time_ms,
        )
        .join_from(vchannels, channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
        .join(collections, collections.c.collection_id == vchannels.c.collection_id)
        .join(owners, owners.c.owner_id == channel_state.c.owner_id, isouter=True)
        .join(datanodes, datanodes.c.node_id == channel_state.c.owner_id, isouter=True)
    )
    if channel_name:
        statement = statement.where(vchannels.c.name == channel_name)
    else:
        statement = statement.where(channel_state.c.state == int(ChannelState.ACTIVE))
    if collection_name:
        (collection_id,) = collection_ids(connection, [collection_name])
        statement = statement.where(vchannels.c.collection_id == collection_id)
    changed: dict[int, int] | None = None
    for row in connection.execute(statement):
        message = said.get(row.owner_id, {}).get(row.name)
        report = _report(message) if message is not None and message.epoch == row.epoch else None
        if report is None and changed is None:
            changed = _owner_times(connection)
        # When it got the owner that it has, or lost the last one; 0 = long ago.
        since_ms = (changed or {}).get(row.epoch, 0)
        yield ChannelFacts(
            channel_name=row.name,
            collection_name=row.collection_name,
            managed=row.mode == int(ChannelMode.MANAGED),
            dropped=row.state != int(ChannelState.ACTIVE),
            finished=0 < row.finished_timestamp == row.checkpoint_timestamp,
            owner=row.owner_name or "",
            owner_seen_ms=row.last_seen_time_ms or 0,
            owner_lease_until_ms=row.lease_until_ms or 0,
            owned_since_ms=max(row.register_time_ms or 0, since_ms),
            free_since_ms=max(read_since.get(row.collection_id, 0), row.create_time_ms, since_ms),
            release_requested=bool(row.release_requested),
            datanodes=readers[row.collection_id],
            checkpoint_timestamp=row.checkpoint_timestamp,
            flush_timestamp=row.flush_timestamp,
            flush_since_ms=flush_since.get(row.channel_id, 0) if row.flush_timestamp else 0,
            report=report,
        )


@dataclass(frozen=True, slots=True)
class _Session:
    collection_ids: list[int]
    since_ms: int


def _sessions(connection: Connection) -> dict[int, _Session]:
    """What each living session reads, and since when."""
    columns = (datanodes.c.node_id, datanodes.c.collection_ids, datanodes.c.register_time_ms)
    statement = select(*columns).where(datanodes.c.state != SESSION_ENDED)
    return {
        node_id: _Session(json.loads(collection_ids_json), since_ms)
        for node_id, collection_ids_json, since_ms in connection.execute(statement)
    }


def _owner_times(connection: Connection) -> dict[int, int]:
    """When the newest epochs began: a session that lives for days may have its channel for a second."""
    newest = connection.execute(select(func.max(events.c.event_id))).scalar() or 0
    owner_calls = [rpc for rpc, form in FORMS.items() if form is Form.OWNER]
    statement = (
        select(events.c.time_ms, events.c.changes)
        .where(events.c.event_id > newest - EVENTS_MAX, events.c.rpc.in_(owner_calls))
        .order_by(events.c.event_id)
    )
    times: dict[int, int] = {}
    for time_ms, changes in connection.execute(statement):
        for _, epoch, *_ in json.loads(changes):
            # Later entries of the same epoch only ask its owner for something.
            times.setdefault(epoch, time_ms)
    return times


def _flush_times(connection: Connection) -> dict[int, int]:
    """When the oldest flush that a channel has not reached was asked for."""
    statement = (
        select(flush_targets.c.channel_id, func.min(flushes.c.create_time_ms))
        .join_from(flush_targets, flushes, flushes.c.flush_id == flush_targets.c.flush_id)
        .join(channel_state, channel_state.c.channel_id == flush_targets.c.channel_id)
        .where(
            channel_state.c.flush_timestamp > 0,
            flush_targets.c.target_timestamp > channel_state.c.checkpoint_timestamp,
        )
        .group_by(flush_targets.c.channel_id)
    )
    return {channel_id: int(time_ms) for channel_id, time_ms in connection.execute(statement)}


def _report(message: data_coord_pb2.DataNodeTtMsg) -> Report:
    return Report(
        consumed_timestamp=message.timestamp,
        event_time_ms=message.event_time_ms,
        lag=message.lag if message.HasField("lag") else None,
        syncs_in_flight=message.syncs_in_flight,
        oldest_sync_age_ms=message.oldest_sync_age_ms,
        fault=message.fault,
        fault_problem=_FAULT_PROBLEMS.get(message.fault_kind, Problem.GRAPH_FAILS),
        fault_age_ms=message.fault_age_ms,
    )
