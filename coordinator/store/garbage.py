"""The garbage collector's control row, the lease it works under, and its way into the database."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from coordinator.core.garbage import Verdict
from coordinator.core.jobs import Job
from coordinator.store import garbage_rows, job_leases
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channels
from coordinator.store.engine import Database
from coordinator.store.garbage_rows import Founder, LeafWindow, Root, WindowFacts
from coordinator.store.group_commit import GroupCommit
from coordinator.store.tables import gc_control
from coordinator.store.tables import job_leases as leases
from coordinator.store.transaction import Transaction
from datacoord.errors import GcPausedError
from datacoord.v1 import admin_pb2

T = TypeVar("T")

CONTROL_ID = 1
RETRY_MS = 60_000
"""A round that ended early is tried again after this time, where the interval is longer."""

RETRY_REST = 10
"""Or after so many times as long as it took: what fails for good must not have every root listed all the time."""

_MISSING = "the control row of the garbage collector is missing; RESUME makes a new one"


@dataclass(frozen=True, slots=True)
class GcStatus:
    """What the collector is told, and what it did last.

    Attributes:
        paused: nothing is deleted now.
        paused_until_ms: when that ends, by the database's clock; 0 = not by itself.
        reason: why it is paused.
        run_requested: a round was asked for and has not begun.
        last_round: what it did; the empty message = there was none.
        now_ms: the database's clock.
    """

    paused: bool
    paused_until_ms: int
    reason: str
    run_requested: bool
    last_round: admin_pb2.GcRound
    now_ms: int

    def is_due(self, interval_ms: int) -> bool:
        """Whether a round should begin."""
        if self.paused:
            return False
        if self.last_round.error:
            interval_ms = min(interval_ms, max(RETRY_MS, RETRY_REST * self.last_round.duration_ms))
        over_ms = self.last_round.start_time_ms + self.last_round.duration_ms
        return self.run_requested or self.last_round.start_time_ms == 0 or self.now_ms >= over_ms + interval_ms


@dataclass(frozen=True, slots=True)
class Begun:
    """A round that may run.

    Attributes:
        fence: of the lease; another holder in between has another one.
        start_ms: by the database's clock.
    """

    fence: int
    start_ms: int


@dataclass(frozen=True, slots=True)
class GcCandidate:
    """An object of a plan.

    Attributes:
        path: below its storage root.
        size_bytes: its size.
        verdict: why it would go, or UNKNOWN_NAME.
    """

    path: str
    size_bytes: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a round would do.

    Attributes:
        round: its figures.
        candidates: the first objects of it.
    """

    round: admin_pb2.GcRound
    candidates: tuple[GcCandidate, ...]


class Permit(Enum):
    """Whether a round may go on deleting."""

    GRANTED = "granted"
    PAUSED = "paused"
    LOST = "lost"


class Garbage:
    """What the garbage collector asks of the store. Reads are one snapshot each; writes go through the queue like any other.

    Args:
        database: for reads.
        queue: for writes.
        now_ms: asks the database's clock.
    """

    def __init__(self, database: Database, queue: GroupCommit, now_ms: Callable[[Connection], int]) -> None:
        self._database = database
        self._queue = queue
        self._now_ms = now_ms

    async def _write(self, rpc: str, caller: str, work: Any, deadline: float | None = None) -> Any:
        return await self._queue.submit(AloneCall(rpc, caller, work), deadline)

    # ---- control ------------------------------------------------------------------------------------------------------------

    async def status(self) -> GcStatus:
        """What the collector is told and what it did."""
        return await self._database.read(lambda connection: _read_status(connection, self._now_ms(connection)))

    async def pause(self, pause_ms: int, reason: str, *, caller: str, deadline: float | None = None) -> GcStatus:
        """Lets nothing be deleted for a time; 0 = until `resume`. A hold stays what it is."""

        def work(transaction: Transaction, _channels: Channels) -> GcStatus:
            until_ms = transaction.now_ms + pause_ms if pause_ms else 0
            _set(transaction, paused=1, paused_until_ms=until_ms, pause_reason=reason)
            _record(transaction, caller, ["PAUSE", until_ms, reason])
            return _status(transaction)

        status: GcStatus = await self._write("GcControl", caller, work, deadline)
        return status

    async def resume(self, *, caller: str, deadline: float | None = None) -> GcStatus:
        """Ends a pause, and the hold of a restore."""

        def work(transaction: Transaction, _channels: Channels) -> GcStatus:
            if _status(transaction).paused:
                _record(transaction, caller, ["RESUME"])
            nothing = {"paused": 0, "paused_until_ms": 0, "pause_reason": "", "held": 0, "hold_reason": ""}
            _set(transaction, **nothing)
            return _status(transaction)

        status: GcStatus = await self._write("GcControl", caller, work, deadline)
        return status

    async def request_run(self, *, caller: str, deadline: float | None = None) -> GcStatus:
        """Asks for a round.

        Raises:
            GcPausedError: nothing may be deleted now.
        """

        def work(transaction: Transaction, _channels: Channels) -> GcStatus:
            status = _status(transaction)
            if status.paused:
                raise paused_error(status)
            if not status.run_requested:
                _set(transaction, run_requested=1)
                _record(transaction, caller, ["RUN"])
            return _status(transaction)

        status: GcStatus = await self._write("GcControl", caller, work, deadline)
        return status

    # ---- a round ------------------------------------------------------------------------------------------------------------

    async def begin(self, interval_ms: int) -> Begun | None:
        """Takes the job and begins a round; None: it is another process's, or nothing is due."""

        def work(transaction: Transaction, _channels: Channels) -> Begun | None:
            if not job_leases.take(transaction, Job.GARBAGE) or not _status(transaction).is_due(interval_ms):
                return None
            _set(transaction, run_requested=0)
            return Begun(_fence(transaction), transaction.now_ms)

        begun: Begun | None = await self._write(Job.GARBAGE.rpc, "job", work)
        return begun

    async def permit(self, fence: int) -> Permit:
        """Renews the lease of a round, and tells whether it may go on."""

        def work(transaction: Transaction, _channels: Channels) -> Permit:
            return _permit(transaction, fence)

        permit: Permit = await self._write(Job.GARBAGE.rpc, "job", work)
        return permit

    async def finish(self, fence: int, done: admin_pb2.GcRound) -> None:
        """Keeps what a round did, unless another process has taken the job meanwhile."""

        def work(transaction: Transaction, _channels: Channels) -> None:
            if _permit(transaction, fence) is Permit.LOST:
                return
            _set(transaction, last_round=done.SerializeToString())
            if done.objects_deleted or done.binlog_rows_deleted:
                change = ["ROUND", done.objects_deleted, done.bytes_deleted, done.binlog_rows_deleted]
                transaction.record(Job.GARBAGE.rpc, "job", channels=0, items=done.objects_deleted, changes=[change])

        await self._write(Job.GARBAGE.rpc, "job", work)

    # ---- rows ---------------------------------------------------------------------------------------------------------------

    async def dropped_segments(self, after: int, collection_id: int) -> garbage_rows.DroppedSegments:
        """Segments whose rows may go, by number; see `garbage_rows`."""
        return await self._database.read(lambda c: garbage_rows.read_dropped_segments(c, after, collection_id))

    async def delete_rows(self, fence: int, segment_ids: Sequence[int], limit: int) -> int | Permit:
        """Deletes rows of dropped segments in one short transaction: at most `limit`.

        Returns:
            how many binlog rows went; less than `limit` = none is left. Or why nothing was done.
        """

        def work(transaction: Transaction, _channels: Channels) -> int | Permit:
            permit = _permit(transaction, fence)
            if permit is not Permit.GRANTED:
                return permit
            return garbage_rows.delete_rows(transaction.connection, segment_ids, limit)

        deleted: int | Permit = await self._write(Job.GARBAGE.rpc, "job", work)
        return deleted

    async def dropped_channels(self, after: int) -> garbage_rows.DroppedChannels:
        """Dropped channels that still have lanes, by number; see `garbage_rows`."""
        return await self._database.read(lambda c: garbage_rows.read_dropped_channels(c, after))

    async def delete_lanes(self, fence: int, channel_ids: Sequence[int], limit: int) -> int | Permit:
        """Deletes lanes of dropped channels, at most `limit`: what no save will be decided on any more."""

        def work(transaction: Transaction, _channels: Channels) -> int | Permit:
            permit = _permit(transaction, fence)
            if permit is not Permit.GRANTED:
                return permit
            return garbage_rows.delete_lanes(transaction.connection, channel_ids, limit)

        deleted: int | Permit = await self._write(Job.GARBAGE.rpc, "job", work)
        return deleted

    # ---- objects ------------------------------------------------------------------------------------------------------------

    async def roots(self, collection_name: str = "") -> list[Root]:
        """Storage roots of all collections, dropped ones too, or of the one that has this name.

        Raises:
            CollectionNotFoundError: no such collection.
        """
        return await self._database.read(lambda c: garbage_rows.read_roots(c, collection_name))

    async def founder(self, uri: str) -> Founder | None:
        """The first collection of a storage root; None = it has none."""
        return await self._database.read(lambda c: garbage_rows.read_founder(c, uri))

    async def has_founder(self, founder: Founder) -> bool:
        """Whether a collection is, or was, one of this database."""
        return await self._database.read(lambda c: garbage_rows.has_founder(c, founder))

    async def lane(self, window: LeafWindow) -> WindowFacts | None:
        """The one SQL read that a part of a listing is judged by; None: no such channel.

        Raises:
            StoreUnavailableError: the database did not answer, or is a read replica.
        """
        kind = self._database.kind
        return await self._database.read(lambda c: garbage_rows.read_lane(c, kind, window))


def paused_error(status: GcStatus) -> GcPausedError:
    """Why no round begins."""
    end = datetime.fromtimestamp(status.paused_until_ms / 1000, UTC)
    until = f"until {end:%Y-%m-%d %H:%M:%S} UTC" if status.paused_until_ms else "until it is resumed"
    why = f" ({status.reason})" if status.reason else ""
    return GcPausedError(
        f"the garbage collector is paused {until}{why}; `datacoord gc resume` lets it go on",
        paused_until_ms=status.paused_until_ms,
        reason=status.reason,
    )


def _status(transaction: Transaction) -> GcStatus:
    return _read_status(transaction.connection, transaction.now_ms)


def _read_status(connection: Connection, now_ms: int) -> GcStatus:
    row = connection.execute(select(gc_control).where(gc_control.c.control_id == CONTROL_ID)).one_or_none()
    if row is None:
        return GcStatus(True, 0, _MISSING, False, admin_pb2.GcRound(), now_ms)
    last = admin_pb2.GcRound.FromString(bytes(row.last_round))
    asked = bool(row.run_requested)
    if row.held:
        return GcStatus(True, 0, row.hold_reason, asked, last, now_ms)
    if row.paused and (row.paused_until_ms == 0 or now_ms < row.paused_until_ms):
        return GcStatus(True, row.paused_until_ms, row.pause_reason, asked, last, now_ms)
    return GcStatus(False, 0, "", asked, last, now_ms)


def _set(transaction: Transaction, **values: Any) -> None:
    here = update(gc_control).where(gc_control.c.control_id == CONTROL_ID)
    if transaction.connection.execute(here.values(**values)).rowcount == 0:
        row: dict[str, Any] = {
            "control_id": CONTROL_ID,
            **dict.fromkeys(("paused", "paused_until_ms", "held", "run_requested"), 0),
            **dict.fromkeys(("pause_reason", "hold_reason"), ""),
            "last_round": b"",
        }
        transaction.connection.execute(insert(gc_control).values({**row, **values}))


def _record(transaction: Transaction, caller: str, change: list[Any]) -> None:
    transaction.record("GcControl", caller, channels=0, items=1, changes=[change])


def _fence(transaction: Transaction) -> int:
    return int(transaction.connection.execute(select(leases.c.fence).where(leases.c.name == Job.GARBAGE)).scalar_one())


def _permit(transaction: Transaction, fence: int) -> Permit:
    """Renews the lease: a round must not write on after another process has begun one."""
    if not job_leases.take(transaction, Job.GARBAGE) or _fence(transaction) != fence:
        return Permit.LOST
    return Permit.PAUSED if _status(transaction).paused else Permit.GRANTED


def hold(connection: Connection, reason: str) -> None:
    """Lets nothing be deleted until RESUME: for a restore or a rebuild, in its own transaction."""
    values = {"held": 1, "hold_reason": reason, "run_requested": 0}
    connection.execute(update(gc_control).where(gc_control.c.control_id == CONTROL_ID).values(**values))
