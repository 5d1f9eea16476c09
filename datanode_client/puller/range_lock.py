"""The range lock: exclusive use of key ranges by regions, and how far each range has come.

Regions split and merge while they are asked for, so two of them may claim the same keys. Of two claims the one with the higher
version (of the region's epoch; raised by splits and merges only) is right. The lock also keeps the resolved timestamp of every
range over changes of its region: a new region goes on from the smallest timestamp of its keys. What a key had reached before is
not forgotten by that: if the new region fails before it has caught up, its keys are where they were.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from datacoord.errors import InternalError
from datanode_client.puller.range_ts_map import RangeTsMap
from datanode_client.puller.span import Span, subtract


class LockRangeStatus(StrEnum):
    """Answer to a claim, named by what it means for the caller."""

    SUCCESS = "success"
    """The range is yours, from the timestamp given."""
    WAIT = "wait"
    """Older regions hold parts of it: the waiter will tell."""
    STALE = "stale"
    """A region at least as new holds parts of it: ask PD again for the rest."""
    CANCEL = "cancel"
    """The waiter was cancelled, or the lock stopped."""


@dataclass(slots=True)
class LockedRangeState:
    """How far a locked range has come; shared with who feeds it.

    Attributes:
        resolved_ts: every change of the range up to it has been received.
        initialized: whether its incremental scan is over.
        created_ms: when it was locked.
    """

    resolved_ts: int
    initialized: bool = False
    created_ms: int = 0


@dataclass(eq=False, slots=True)
class RangeClaim:
    """One region's claim of a range, and what came of it.

    Attributes:
        span: the range.
        region_id: the region.
        version: of its epoch.
        status: the answer so far; WAIT may change by `unlock_range` and `cancel`, nothing else does.
        retry_spans: STALE: the parts that no lock holds.
        locked: SUCCESS: the state of the range, its `resolved_ts` being where to go on from.
    """

    span: Span
    region_id: int
    version: int
    status: LockRangeStatus = LockRangeStatus.WAIT
    retry_spans: list[Span] = field(default_factory=list)
    locked: LockedRangeState | None = None
    _blockers: int = 0


@dataclass(eq=False, slots=True)
class _Lock:
    claim: RangeClaim
    locked: LockedRangeState
    reached: list[tuple[Span, int]]
    """How far the keys had come when they were locked."""
    waiters: list[RangeClaim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RangeLockStats:
    """A look at the lock.

    Attributes:
        locked: number of locked ranges.
        unlocked: the gaps between them.
        slowest: region and timestamp of the locked range that is furthest behind; None without locks.
        fastest: of the one furthest ahead.
    """

    locked: int
    unlocked: list[Span]
    slowest: tuple[int, int] | None
    fastest: tuple[int, int] | None


class RangeLock:
    """The locks of one subscription.

    Args:
        span: all its keys; regions outside of it must not be claimed.
        ts: where it starts.
    """

    def __init__(self, span: Span, ts: int) -> None:
        self.span = span
        self._unlocked = RangeTsMap(span, ts)
        self._starts: list[bytes] = []
        self._locks: dict[bytes, _Lock] = {}
        self._by_region: dict[int, _Lock] = {}
        self._stopped = False

    def lock_range(self, span: Span, region_id: int, version: int, *, now_ms: int = 0) -> RangeClaim:
        """Claims a range for a region.

        Returns:
            the claim. If it has to wait, it is answered later: see `unlock_range`.
        """
        claim = RangeClaim(span, region_id, version)
        self._try(claim, now_ms)
        return claim

    def unlock_range(
        self, span: Span, region_id: int, version: int, *, ts: int | None = None, now_ms: int = 0
    ) -> list[RangeClaim]:
        """Gives a range back.

        Args:
            span: exactly as it was locked.
            region_id: likewise.
            version: likewise.
            ts: how far the range has come, whatever was known; None = what its state says, and where a key had been further
                before it was locked, that.
            now_ms: the time.

        Returns:
            the claims that waited for this and are answered now, in the order in which they began to wait.

        Raises:
            InternalError: nothing, or something else, is locked there: a bug of the caller.
        """
        lock = self._locks.get(span.start)
        claim = lock.claim if lock else None
        if lock is None or claim is None or (claim.span, claim.region_id, claim.version) != (span, region_id, version):
            message = f"Region {region_id} version {version} does not hold {span}; unlock what was locked."
            raise InternalError(message, region_id=region_id, version=version, span=span, holder=claim)
        del self._locks[span.start]
        del self._starts[bisect_left(self._starts, span.start)]
        del self._by_region[region_id]
        self._write_back(lock, ts)
        waiting = [waiter for waiter in lock.waiters if waiter.status is LockRangeStatus.WAIT]
        for waiter in waiting:
            waiter._blockers -= 1
            if not waiter._blockers:
                self._try(waiter, now_ms)
        return [waiter for waiter in waiting if waiter.status is not LockRangeStatus.WAIT]

    @staticmethod
    def cancel(claim: RangeClaim) -> None:
        """Stops waiting; a claim that was answered keeps its answer."""
        if claim.status is LockRangeStatus.WAIT:
            claim.status = LockRangeStatus.CANCEL

    def stop(self) -> list[RangeClaim]:
        """Refuses all further claims.

        Returns:
            the claims that were waiting; they are cancelled.
        """
        self._stopped = True
        waiting = {id(waiter): waiter for lock in self._locks.values() for waiter in lock.waiters}
        cancelled = [waiter for waiter in waiting.values() if waiter.status is LockRangeStatus.WAIT]
        for waiter in cancelled:
            self.cancel(waiter)
        return cancelled

    @property
    def drained(self) -> bool:
        """Whether the lock is stopped and nothing is locked any more."""
        return self._stopped and not self._locks

    def locked_state(self, region_id: int) -> LockedRangeState:
        """State of the range that a region holds.

        Raises:
            InternalError: it holds none.
        """
        lock = self._by_region.get(region_id)
        if lock is None:
            raise InternalError(f"Region {region_id} holds no range; lock one first.", region_id=region_id)
        return lock.locked

    def resolved_ts(self) -> int:
        """The smallest timestamp over all ranges, locked or not: computed, so it cannot be out of date."""
        unlocked = self._unlocked.min_of_set()
        locked = min((lock.locked.resolved_ts for lock in self._locks.values()), default=None)
        return min(ts for ts in (unlocked, locked) if ts is not None)

    def __iter__(self) -> Iterator[tuple[int, LockedRangeState]]:
        """Region id and state of every locked range, in key order."""
        for start in self._starts:
            lock = self._locks[start]
            yield lock.claim.region_id, lock.locked

    def stats(self) -> RangeLockStats:
        """A look at the lock, for people."""
        by_ts = [(locked.resolved_ts, region_id) for region_id, locked in self]
        slowest, fastest = (min(by_ts), max(by_ts)) if by_ts else (None, None)
        return RangeLockStats(
            locked=len(by_ts),
            unlocked=subtract(self.span, [self._locks[start].claim.span for start in self._starts]),
            slowest=slowest and slowest[::-1],
            fastest=fastest and fastest[::-1],
        )

    def _write_back(self, lock: _Lock, ts: int | None) -> None:
        resolved_ts = lock.locked.resolved_ts if ts is None else ts
        if ts is not None or all(reached_ts <= resolved_ts for _, reached_ts in lock.reached):
            self._unlocked.set(lock.claim.span, resolved_ts)
            return
        for span, reached_ts in lock.reached:
            self._unlocked.set(span, max(reached_ts, resolved_ts))

    def _try(self, claim: RangeClaim, now_ms: int) -> None:
        """Answers a claim as of now."""
        if self._stopped:
            claim.status = LockRangeStatus.CANCEL
            return
        overlapping = self._overlapping(claim)
        if not overlapping:
            reached = self._unlocked.pieces(claim.span)
            claim.locked = LockedRangeState(min(ts for _, ts in reached), created_ms=now_ms)
            claim.status = LockRangeStatus.SUCCESS
            self._unlocked.unset(claim.span)
            lock = _Lock(claim, claim.locked, reached)
            self._starts.insert(bisect_left(self._starts, claim.span.start), claim.span.start)
            self._locks[claim.span.start] = self._by_region[claim.region_id] = lock
        elif any(lock.claim.version >= claim.version for lock in overlapping):
            claim.status = LockRangeStatus.STALE
            claim.retry_spans = subtract(claim.span, [lock.claim.span for lock in overlapping])
        else:
            claim._blockers = len(overlapping)
            for lock in overlapping:
                lock.waiters.append(claim)

    def _overlapping(self, claim: RangeClaim) -> list[_Lock]:
        """Locks that share keys with a claim, in key order, then the lock of the same region elsewhere.

        A region has one state and one request at a time, so its older shape must be gone before the newer one begins, even where
        they share no key.
        """
        found = []
        low = max(0, bisect_right(self._starts, claim.span.start) - 1)
        for start in self._starts[low:]:
            if claim.span.end and start >= claim.span.end:
                break
            lock = self._locks[start]
            if lock.claim.span.overlaps(claim.span):
                found.append(lock)
        own = self._by_region.get(claim.region_id)
        if own is not None and own not in found:
            found.append(own)
        return found
