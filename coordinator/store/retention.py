"""The retention job: deletes what is kept long enough, in bounded transactions under the job's lease.

What is still referenced stays: an owner that a channel names, a flush that is not done, or was done so short a time ago that its
caller may still ask.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, Table, delete, exists, func, select, tuple_, update
from sqlalchemy.engine import Connection

from coordinator.core.jobs import Job
from coordinator.core.retention import RetentionPolicy, end_of_old_events
from coordinator.store import job_leases
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channels
from coordinator.store.tables import (
    ACTIVE,
    OWNER_CLAIMANT,
    SESSION_ENDED,
    channel_state,
    datanode_reports,
    datanodes,
    events,
    flush_targets,
    flushes,
    owners,
)
from coordinator.store.transaction import Transaction

EVENTS_PER_ROUND = 5000
"""A few milliseconds of a transaction that others wait for."""
OWNERS_PER_ROUND = 500
FLUSHES_PER_ROUND = 100
TARGETS_PER_ROUND = 5000
KINDS = ("events", "sessions", "claimants", "flushes")
"""What is counted, and deleted in this order."""


@dataclass(frozen=True, slots=True)
class RetentionRound:
    """One round of the retention job.

    Attributes:
        ran: False: another process holds the job.
        deleted: how many of each of KINDS.
        more: True: there is more to delete at once.
    """

    ran: bool
    deleted: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


def retention_call(policy: RetentionPolicy) -> AloneCall[RetentionRound]:
    """One round."""

    def work(transaction: Transaction, channels: Channels) -> RetentionRound:  # noqa: ARG001
        if not job_leases.take(transaction, Job.RETENTION):
            return RetentionRound(ran=False)
        connection, now_ms = transaction.connection, transaction.now_ms
        old_events = _delete_events(connection, now_ms, policy)
        old_sessions = _delete_sessions(connection, now_ms - policy.session_ms)
        old_claimants = _delete_claimants(connection, now_ms - policy.session_ms)
        _mark_done(connection, now_ms)
        old_targets, old_flushes = _delete_flushes(connection, now_ms - policy.flush_ms)
        deleted = dict(zip(KINDS, (old_events, old_sessions, old_claimants, old_flushes), strict=True))
        more = (
            old_events == EVENTS_PER_ROUND
            or OWNERS_PER_ROUND in {old_sessions, old_claimants}
            or old_targets == TARGETS_PER_ROUND
            or old_flushes == FLUSHES_PER_ROUND
        )
        return RetentionRound(True, deleted, more)

    return AloneCall(Job.RETENTION.rpc, "job", work)


def _delete_events(connection: Connection, now_ms: int, policy: RetentionPolicy) -> int:
    statement = select(events.c.event_id, events.c.time_ms).order_by(events.c.event_id).limit(EVENTS_PER_ROUND)
    oldest = [(event_id, time_ms) for event_id, time_ms in connection.execute(statement)]
    last_id = connection.execute(select(func.max(events.c.event_id))).scalar() or 0
    end = end_of_old_events(oldest, last_id, now_ms, policy)
    return connection.execute(delete(events).where(events.c.event_id <= end)).rowcount if end else 0


_OWNS = exists().where(channel_state.c.owner_id == owners.c.owner_id)


def _locked(connection: Connection, statement: Select[Any], table: Table) -> list[int]:
    """Numbers of rows, locked. Rows that somebody works with are left for another round: nobody waits, nobody deadlocks."""
    return list(connection.execute(statement.with_for_update(skip_locked=True, of=table)).scalars())


def _delete_sessions(connection: Connection, before_ms: int) -> int:
    """Ended sessions: ENDED is for ever, so that nobody can give one a channel."""
    statement = (
        select(datanodes.c.node_id)
        .join(owners, owners.c.owner_id == datanodes.c.node_id)
        .where(datanodes.c.state == SESSION_ENDED, owners.c.last_seen_time_ms < before_ms, ~_OWNS)
        .order_by(datanodes.c.node_id)
        .limit(OWNERS_PER_ROUND)
    )
    ids = _locked(connection, statement, datanodes)
    if ids:
        connection.execute(delete(datanode_reports).where(datanode_reports.c.node_id.in_(ids)))
        connection.execute(delete(datanodes).where(datanodes.c.node_id.in_(ids)))
        connection.execute(delete(owners).where(owners.c.owner_id.in_(ids)))
    return len(ids)


def _delete_claimants(connection: Connection, before_ms: int) -> int:
    """Claimants whose lease is long over and who own nothing.

    One who is claiming now holds its row with a lock (`ownership`), and a claim that has just committed has renewed the lease.
    """
    statement = (
        select(owners.c.owner_id)
        .where(
            owners.c.kind == OWNER_CLAIMANT,
            owners.c.lease_until_ms < before_ms,
            owners.c.last_seen_time_ms < before_ms,
            ~_OWNS,
        )
        .order_by(owners.c.owner_id)
        .limit(OWNERS_PER_ROUND)
    )
    ids = _locked(connection, statement, owners)
    if ids:
        connection.execute(delete(owners).where(owners.c.owner_id.in_(ids)))
    return len(ids)


def _mark_done(connection: Connection, now_ms: int) -> None:
    """Notes which flushes are done: their time begins now. Being done is for ever, as checkpoints do not go back."""
    pending: Any = (
        exists()
        .where(
            flush_targets.c.flush_id == flushes.c.flush_id,
            channel_state.c.channel_id == flush_targets.c.channel_id,
            channel_state.c.state == ACTIVE,
            channel_state.c.checkpoint_timestamp < flush_targets.c.target_timestamp,
        )
        .correlate(flushes)
    )
    done = select(flushes.c.flush_id).where(flushes.c.done_time_ms == 0, ~pending)
    ids = connection.execute(done.order_by(flushes.c.flush_id).limit(FLUSHES_PER_ROUND)).scalars().all()
    if ids:
        connection.execute(update(flushes).where(flushes.c.flush_id.in_(ids)).values(done_time_ms=now_ms))


def _delete_flushes(connection: Connection, before_ms: int) -> tuple[int, int]:
    """Flushes that were done long ago. One with many targets goes in parts; it is done all the while.

    Returns:
        how many targets and how many flushes.
    """
    old = select(flushes.c.flush_id).where(flushes.c.done_time_ms > 0, flushes.c.done_time_ms < before_ms)
    ids = connection.execute(old.order_by(flushes.c.flush_id).limit(FLUSHES_PER_ROUND)).scalars().all()
    if not ids:
        return 0, 0
    key = tuple_(flush_targets.c.flush_id, flush_targets.c.channel_id)
    doomed = select(flush_targets.c.flush_id, flush_targets.c.channel_id).where(flush_targets.c.flush_id.in_(ids))
    part = doomed.order_by(flush_targets.c.flush_id, flush_targets.c.channel_id).limit(TARGETS_PER_ROUND)
    targets = connection.execute(delete(flush_targets).where(key.in_(part))).rowcount
    if targets == TARGETS_PER_ROUND:
        return targets, 0
    return targets, connection.execute(delete(flushes).where(flushes.c.flush_id.in_(ids))).rowcount
