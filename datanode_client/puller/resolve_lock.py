"""Lock resolution: finds regions whose resolved timestamp is held back by locks that a dead client left behind.

A region's resolved timestamp cannot pass a lock. Whoever wrote it normally ends it within milliseconds; if that client died, the
next one to meet the lock has to look up what became of its transaction. Nobody meets it on a quiet table, so the puller asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from datanode_client.puller.lock_heap import RegionTsHeap
from datanode_client.puller.range_lock import LockedRangeState, RangeLock

RESOLVE_LOCK_TICK_MS = 2_000
RESOLVE_LOCK_FENCE_MS = 4_000
"""A timestamp that stands still for less is normal; locks younger than this behind it are left to their clients."""

RESOLVE_LOCK_MIN_INTERVAL_MS = 10_000
"""Between two attempts at one region: resolving reads all its locks."""

RESOLVE_LOCK_TASKS_PER_TICK_MAX = 64
"""The rest waits for the next tick, the furthest behind first."""

RESOLVE_LOCK_PENALTY_MIN = 1
"""So many ticks a region must have stood still: one that is behind but moves is not held by a lock."""

REGION_STUCK_PENALTY = 60 * 60 * 1000 // RESOLVE_LOCK_TICK_MS
"""After an hour without any move the region is asked for anew (TiCDC's reconnectInterval): its store may have forgotten it."""

DEFAULT_KEYSPACE = 0
"""Of clusters without keyspaces, the only ones that are read."""

TSO_LOGICAL_BITS = 18


def physical_ms(ts: int) -> int:
    """The milliseconds of PD's clock in a timestamp of PD."""
    return ts >> TSO_LOGICAL_BITS


def compose_ts(milliseconds: int) -> int:
    """The first timestamp of PD in a millisecond."""
    return milliseconds << TSO_LOGICAL_BITS


def resolve_target_ms(
    *,
    initialized: bool,
    updated_ms: int,
    resolved_ms: int,
    local_now_ms: int,
    wall_now_ms: int,
    pd_now_ms: int,
    fence_ms: int = RESOLVE_LOCK_FENCE_MS,
) -> int:
    """Up to which time the locks of a subscription are to be resolved.

    Args:
        initialized: whether the subscription has a resolved timestamp at all.
        updated_ms: when it last advanced, by the clock of `wall_now_ms`.
        resolved_ms: the physical part of the resolved timestamp.
        local_now_ms: PD's time as estimated here.
        wall_now_ms: the time by this machine's clock.
        pd_now_ms: PD's time as PD said last.
        fence_ms: how long it must have stood still.

    Returns:
        milliseconds of PD's clock; 0 = there is nothing to resolve. Never above PD's own time, however wrong the clock is here,
        and never far above the resolved timestamp: younger locks have living clients.
    """
    if not initialized or wall_now_ms - updated_ms < fence_ms or local_now_ms - resolved_ms < fence_ms:
        return 0
    return min(pd_now_ms, resolved_ms + fence_ms)


class ResolveLockRateLimiter:
    """Keeps attempts at one region apart, and lets only one run at a time. Knows regions by keyspace and id.

    Args:
        min_interval_ms: between the end of an attempt and the start of the next.
    """

    def __init__(self, min_interval_ms: int = RESOLVE_LOCK_MIN_INTERVAL_MS) -> None:
        self._min_interval_ms = min_interval_ms
        self._pending: set[tuple[int, int]] = set()
        self._finished_ms: dict[tuple[int, int], int] = {}

    def try_start(self, keyspace: int, region_id: int, now_ms: int) -> bool:
        """Whether an attempt may start now; if so, it runs until `finish`."""
        region = (keyspace, region_id)
        finished_ms = self._finished_ms.get(region)
        if region in self._pending or (finished_ms is not None and now_ms - finished_ms < self._min_interval_ms):
            return False
        self._pending.add(region)
        return True

    def finish(self, keyspace: int, region_id: int, now_ms: int) -> None:
        """An attempt has ended, well or not."""
        self._pending.discard((keyspace, region_id))
        self._finished_ms[keyspace, region_id] = now_ms

    def expire(self, now_ms: int) -> None:
        """Forgets regions that may be tried again; call it now and then, regions that merged never come back."""
        self._finished_ms = {
            region: finished_ms
            for region, finished_ms in self._finished_ms.items()
            if now_ms - finished_ms < self._min_interval_ms
        }


class StaleLocks:
    """Which regions of one subscription are behind the target.

    Args:
        range_lock: the subscription's regions and how far they have come.
    """

    def __init__(self, range_lock: RangeLock) -> None:
        self._range_lock = range_lock
        self.target_ts = 0

    def request(self, target_ts: int) -> list[int]:
        """Raises the target; a lower one changes nothing.

        Returns:
            the initialized regions behind the target, in key order.
        """
        self.target_ts = max(self.target_ts, target_ts)
        return [region_id for region_id, locked in self._range_lock if self.is_behind(locked)]

    def is_behind(self, locked: LockedRangeState) -> bool:
        """Whether a region is initialized and behind the target: asked again when it is initialized or has reported."""
        return locked.initialized and locked.resolved_ts < self.target_ts


@dataclass(frozen=True, slots=True)
class ResolveLockTask:
    """Locks to resolve.

    Attributes:
        region_id: the region.
        max_ts: locks of transactions that began up to this timestamp.
    """

    region_id: int
    max_ts: int


class LockResolver:
    """Chooses the regions of one subscription whose locks are resolved next: the furthest behind first, so many per tick.

    A region that failed, or that the limiter holds back, stays a candidate until it moves. (TiCDC's first resolver forgot it
    until its next resolved timestamp, for which it may be waiting.)

    Args:
        range_lock: the subscription's regions.
        limiter: may be shared by all subscriptions of a client.
        keyspace: of the subscription.
    """

    def __init__(
        self, range_lock: RangeLock, limiter: ResolveLockRateLimiter, keyspace: int = DEFAULT_KEYSPACE
    ) -> None:
        self._range_lock = range_lock
        self._limiter = limiter
        self._keyspace = keyspace
        self._stale = StaleLocks(range_lock)
        self._heap = RegionTsHeap()
        self._resolved_ts = range_lock.resolved_ts()
        self._updated_ms = 0

    def tick(self, now_ms: int, pd_now_ms: int, *, initialized: bool) -> list[ResolveLockTask]:
        """Looks at the regions; to be called every RESOLVE_LOCK_TICK_MS.

        Args:
            now_ms: the time by a monotonic clock.
            pd_now_ms: the time by PD's clock, never ahead of it.
            initialized: whether every key of the subscription has been through its initial scan.

        Returns:
            attempts to make; the end of each is to be told to the limiter.
        """
        resolved_ts = self._range_lock.resolved_ts()
        if resolved_ts != self._resolved_ts:
            self._resolved_ts, self._updated_ms = resolved_ts, now_ms
        target_ms = resolve_target_ms(
            initialized=initialized,
            updated_ms=self._updated_ms,
            resolved_ms=physical_ms(resolved_ts),
            local_now_ms=pd_now_ms,
            wall_now_ms=now_ms,
            pd_now_ms=pd_now_ms,
        )
        if not target_ms:
            self._heap.keep_only(set())
            return []
        return self._choose(self._stale.request(compose_ts(target_ms)), now_ms)

    def stuck_regions(self) -> list[int]:
        """Regions that have not moved for an hour, whatever was tried."""
        return [region.region_id for region in self._heap if region.penalty >= REGION_STUCK_PENALTY]

    def _choose(self, behind: Sequence[int], now_ms: int) -> list[ResolveLockTask]:
        self._limiter.expire(now_ms)
        self._heap.keep_only(set(behind))
        for region_id in behind:
            self._heap.upsert(region_id, self._range_lock.locked_state(region_id).resolved_ts, now_ms)
        tasks: list[ResolveLockTask] = []
        looked_at = []
        while len(tasks) < RESOLVE_LOCK_TASKS_PER_TICK_MAX and (region := self._heap.pop()) is not None:
            looked_at.append(region)
            if region.penalty >= RESOLVE_LOCK_PENALTY_MIN and self._limiter.try_start(
                self._keyspace, region.region_id, now_ms
            ):
                tasks.append(ResolveLockTask(region.region_id, self._stale.target_ts))
        for region in looked_at:
            self._heap.put_back(region)
        return tasks
