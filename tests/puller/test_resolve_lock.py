"""Who gets its locks resolved, when, and how often."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.lock_heap import RegionTsHeap
from datanode_client.puller.range_lock import RangeLock
from datanode_client.puller.resolve_lock import (
    DEFAULT_KEYSPACE,
    REGION_STUCK_PENALTY,
    RESOLVE_LOCK_FENCE_MS,
    RESOLVE_LOCK_MIN_INTERVAL_MS,
    RESOLVE_LOCK_TASKS_PER_TICK_MAX,
    RESOLVE_LOCK_TICK_MS,
    LockResolver,
    ResolveLockRateLimiter,
    ResolveLockTask,
    compose_ts,
    physical_ms,
    resolve_target_ms,
)
from datanode_client.puller.span import Span

START_MS = 1_700_000_000_000


class Resolving:
    """A subscription of some regions that stand at START_MS, and a clock."""

    def __init__(self, regions: int = 1) -> None:
        bounds = [number.to_bytes(2, "big") for number in range(regions + 1)]
        self.lock = RangeLock(Span(bounds[0], bounds[-1]), compose_ts(START_MS))
        for number in range(regions):
            claim = self.lock.lock_range(Span(bounds[number], bounds[number + 1]), number + 1, 1)
            assert claim.locked is not None
            claim.locked.initialized = True
        self.limiter = ResolveLockRateLimiter()
        self.resolver = LockResolver(self.lock, self.limiter)
        self.now_ms = 0

    def tick(self) -> list[ResolveLockTask]:
        """Two seconds later."""
        self.now_ms += RESOLVE_LOCK_TICK_MS
        return self.resolver.tick(self.now_ms, START_MS + self.now_ms, initialized=True)

    def advance(self, region_id: int, milliseconds: int) -> None:
        """A region moves."""
        self.lock.locked_state(region_id).resolved_ts += compose_ts(milliseconds)


def test_a_region_that_stands_still_is_helped_and_one_that_moves_is_not() -> None:
    """Resolving locks reads all of a region's locks: done for every slow region, it makes the store slower still."""
    resolving = Resolving(2)
    tasks = []
    for _ in range(4):
        tasks += resolving.tick()
        resolving.advance(2, 1)

    assert [task.region_id for task in tasks] == [1]
    assert tasks[0].max_ts == compose_ts(START_MS + RESOLVE_LOCK_FENCE_MS)


def test_nothing_is_resolved_while_the_whole_moves() -> None:
    """The fence: a client that is alive ends its transactions itself."""
    resolving = Resolving()
    for _ in range(20):
        resolving.advance(1, RESOLVE_LOCK_TICK_MS)
        assert resolving.tick() == []


def test_a_region_that_was_not_helped_stays_a_candidate() -> None:
    """TiCDC's first resolver forgot a region whose resolution failed until its next resolved timestamp, which it waited for."""
    resolving = Resolving()
    started = []
    for _ in range(30):
        for task in resolving.tick():
            started.append(resolving.now_ms)
            resolving.limiter.finish(DEFAULT_KEYSPACE, task.region_id, resolving.now_ms)

    assert len(started) >= 4
    assert all(later - earlier >= RESOLVE_LOCK_MIN_INTERVAL_MS for earlier, later in pairwise(started))


def test_one_attempt_at_a_time_per_region() -> None:
    """An attempt that takes minutes must not be joined by thirty more."""
    resolving = Resolving()

    assert sum(len(resolving.tick()) for _ in range(30)) == 1


def test_attempts_per_tick_are_bounded_and_the_furthest_behind_go_first() -> None:
    """A lost store can leave thousands of regions behind."""
    regions = RESOLVE_LOCK_TASKS_PER_TICK_MAX + 10
    resolving = Resolving(regions)
    for region_id in range(2, regions + 1):
        resolving.advance(region_id, regions - region_id)
    waves = [tasks for tasks in (resolving.tick() for _ in range(6)) if tasks]

    assert [len(wave) for wave in waves] == [RESOLVE_LOCK_TASKS_PER_TICK_MAX, 10]
    assert waves[0][0].region_id == 1
    assert [task.region_id for task in waves[0][1:]] == list(range(regions, 11, -1))


def test_a_region_that_stands_still_for_an_hour_is_stuck() -> None:
    """Its store may have forgotten the request; only asking again helps."""
    resolving = Resolving(2)
    for _ in range(REGION_STUCK_PENALTY + 10):
        resolving.tick()
        resolving.advance(2, 1)

    assert resolving.resolver.stuck_regions() == [1]
    resolving.advance(1, 10**9)
    resolving.tick()
    assert resolving.resolver.stuck_regions() == []


def test_the_target_is_never_ahead_of_pds_clock() -> None:
    """A clock here that runs ahead would end transactions whose clients are alive; far above the resolved timestamp, likewise."""

    def target_ms(pd_now_ms: int) -> int:
        return resolve_target_ms(
            initialized=True,
            updated_ms=0,
            resolved_ms=1000,
            local_now_ms=100_000,
            wall_now_ms=100_000,
            pd_now_ms=pd_now_ms,
        )

    assert target_ms(1500) == 1500
    assert target_ms(90_000) == 1000 + RESOLVE_LOCK_FENCE_MS


def test_uninitialized_regions_are_not_resolved() -> None:
    """Their scan reports the locks; the region is not waiting for anybody."""
    resolving = Resolving(2)
    resolving.lock.locked_state(1).initialized = False

    assert {task.region_id for _ in range(10) for task in resolving.tick()} == {2}


def test_the_limiter_forgets_what_no_longer_matters() -> None:
    """Regions that merged never come back."""
    limiter = ResolveLockRateLimiter()
    limiter.try_start(0, 1, 0)
    limiter.finish(0, 1, 0)
    limiter.expire(RESOLVE_LOCK_MIN_INTERVAL_MS)

    assert limiter._finished_ms == {}
    assert limiter.try_start(1, 1, 0)
    assert limiter.try_start(0, 1, 0)  # another keyspace is another region


@given(steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=60))
def test_the_heap_pops_like_a_sorted_list(steps: list[tuple[int, int]]) -> None:
    """Stale entries must neither come out nor hide what is behind them."""
    heap, reference = RegionTsHeap(), dict[int, list[int]]()
    for region_id, ts in steps:
        if region_id:
            heap.upsert(region_id, ts, 0)
            known = reference.setdefault(region_id, [ts, -1])
            reference[region_id] = [ts, 0] if ts > known[0] else [known[0], known[1] + 1]
        elif reference:
            smallest = min(reference, key=lambda item: (reference[item][0], item))
            popped = heap.pop()
            assert popped is not None
            assert [popped.region_id, popped.ts, popped.penalty] == [smallest, *reference.pop(smallest)]
            if ts == 0:
                heap.put_back(popped)
                reference[smallest] = [popped.ts, popped.penalty]
        else:
            assert heap.pop() is None
        assert {item.region_id for item in heap} == set(reference)
        assert len(heap) == len(reference)


def test_timestamps_and_milliseconds() -> None:
    """PD's timestamps are milliseconds with 18 bits of a counter behind."""
    assert physical_ms(compose_ts(START_MS) + 5) == START_MS
