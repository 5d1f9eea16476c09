"""Counts for the status page: a few aggregates of one read."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.engine import Connection

from coordinator.core.findings import job_stands
from coordinator.core.jobs import NEVER_PAUSE
from coordinator.store.ownership import count_channels
from coordinator.store.reads import LIVE_SEGMENT
from coordinator.store.tables import (
    ACTIVE,
    SESSION_ENDED,
    collections,
    datanodes,
    events,
    job_leases,
    segments,
)


@dataclass(frozen=True, slots=True)
class JobLease:
    """Who runs a background job.

    Attributes:
        name: the job.
        holder: the process.
        lease_until_ms: how long nobody else takes it; 0 = it has not run since the database was restored.
        stands: it should never pause, and no replica has run it for long.
    """

    name: str
    holder: str
    lease_until_ms: int
    stands: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """What there is.

    Attributes:
        collections: that are not dropped.
        owned: MANAGED channels with an owner.
        free: MANAGED channels without one.
        finished: MANAGED channels that need none: the source has ended, everything is registered.
        claimed: CLAIMED channels.
        datanodes: living sessions.
        rows: rows in the insert logs of segments that are not dropped.
        jobs: leases of the background jobs, by name.
        now_ms: the database's clock.
    """

    collections: int
    owned: int
    free: int
    finished: int
    claimed: int
    datanodes: int
    rows: int
    jobs: tuple[JobLease, ...]
    now_ms: int


def read_overview(connection: Connection, now_ms: int) -> Overview:
    """Counts everything.

    Args:
        connection: in one read transaction.
        now_ms: by the database's clock.
    """
    channels = count_channels(connection)
    live_rows = select(func.coalesce(func.sum(segments.c.rows), 0)).where(LIVE_SEGMENT)
    leases = connection.execute(select(job_leases).order_by(job_leases.c.name)).all()
    return Overview(
        collections=_count(connection, select(func.count()).where(collections.c.state == ACTIVE)),
        owned=channels["OWNED"],
        free=channels["FREE"],
        finished=channels["FINISHED"],
        claimed=channels["CLAIMED"],
        datanodes=_count(connection, select(func.count()).where(datanodes.c.state != SESSION_ENDED)),
        rows=_count(connection, live_rows),
        jobs=tuple(_job(lease, now_ms) for lease in leases),
        now_ms=now_ms,
    )


def _job(lease: Row[Any], now_ms: int) -> JobLease:
    stands = lease.name in NEVER_PAUSE and job_stands(lease.lease_until_ms, now_ms)
    return JobLease(lease.name, lease.holder, lease.lease_until_ms, stands)


def _count(connection: Connection, statement: Select[int]) -> int:
    return int(connection.execute(statement).scalar_one())


def read_written_items(connection: Connection, after_event_id: int) -> tuple[int, int]:
    """Items of accepted calls after an event, and the last event; only the right edge of the table is read.

    Args:
        connection: in a read transaction.
        after_event_id: the last event that was counted; -1 = count nothing, only say which is the last.
    """
    last = connection.execute(select(func.max(events.c.event_id))).scalar_one() or 0
    if after_event_id < 0 or last <= after_event_id:
        return max(last, after_event_id), 0
    statement = select(func.sum(events.c["items"])).where(events.c.event_id > after_event_id, events.c.event_id <= last)
    return last, int(connection.execute(statement).scalar_one() or 0)
