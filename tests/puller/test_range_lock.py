"""The range lock against a slow obvious one, and its promises."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datacoord.errors import InternalError, InvalidFieldError
from datanode_client.puller.range_lock import LockRangeStatus, RangeClaim, RangeLock
from datanode_client.puller.range_ts_map import RangeTsMap
from datanode_client.puller.span import Span

from .strategies import PROBES, spans

TOTAL = Span(b"a", b"e")
INSIDE = spans(TOTAL)


def keys_of(span: Span) -> set[bytes]:
    """The probe keys that lie in a span."""
    return {key for key in PROBES if key in span}


class SlowRangeLock:
    """The reference: a timestamp per key, and a list of locks that is searched."""

    def __init__(self, ts: int) -> None:
        self.ts = {key: ts for key in PROBES if key in TOTAL}
        self.locks: list[tuple[Span, int, int]] = []

    def try_(self, span: Span, region_id: int, version: int) -> tuple[LockRangeStatus, int, set[bytes]]:
        """Status, timestamp if it succeeds, keys to be retried if it is stale."""
        blocking = [lock for lock in self.locks if keys_of(lock[0]) & keys_of(span) or lock[1] == region_id]
        if not blocking:
            self.locks.append((span, region_id, version))
            return LockRangeStatus.SUCCESS, min(self.ts[key] for key in keys_of(span)), set()
        if any(lock[2] >= version for lock in blocking):
            return LockRangeStatus.STALE, 0, keys_of(span).difference(*(keys_of(lock[0]) for lock in blocking))
        return LockRangeStatus.WAIT, 0, set()

    def unlock(self, lock: tuple[Span, int, int], ts: int) -> None:
        self.locks.remove(lock)
        self.ts |= dict.fromkeys(keys_of(lock[0]), ts)


def check(claim: RangeClaim, expected: tuple[LockRangeStatus, int, set[bytes]]) -> None:
    """Compares a claim with the reference's answer."""
    status, ts, retry = expected
    assert claim.status is status
    assert set().union(*map(keys_of, claim.retry_spans)) == retry
    if claim.locked is not None:
        assert claim.locked.resolved_ts == ts


@given(
    steps=st.lists(
        st.tuples(st.booleans(), INSIDE, st.integers(1, 4), st.integers(1, 4), st.integers(1, 30)), max_size=30
    )
)
@settings(max_examples=300)
def test_the_range_lock_answers_like_a_slow_one(steps: list[tuple[bool, Span, int, int, int]]) -> None:
    """Two regions that feed the same keys from different timestamps make the resolved timestamp a lie."""
    lock, slow = RangeLock(TOTAL, 5), SlowRangeLock(5)
    waiting: list[RangeClaim] = []
    for is_lock, span, region_id, version, ts in steps:
        if is_lock:
            claim = lock.lock_range(span, region_id, version)
            check(claim, slow.try_(span, region_id, version))
            if claim.status is LockRangeStatus.WAIT:
                waiting.append(claim)
        elif slow.locks:
            held = slow.locks[ts % len(slow.locks)]
            answered = lock.unlock_range(*held, ts=ts)
            slow.unlock(held, ts)
            for claim in answered:
                waiting.remove(claim)
                check(claim, slow.try_(claim.span, claim.region_id, claim.version))
        locked_ts = [state.resolved_ts for _, state in lock]
        free = [slow.ts[key] for key in slow.ts if not any(key in held[0] for held in slow.locks)]
        assert lock.resolved_ts() == min(locked_ts + free)
        assert lock.stats().locked == len(slow.locks)
        gaps = set().union(*map(keys_of, lock.stats().unlocked))
        assert gaps == set(slow.ts).difference(*(keys_of(held[0]) for held in slow.locks))
    for held in list(slow.locks):
        slow.unlock(held, 9)
        for claim in lock.unlock_range(*held, ts=9):
            waiting.remove(claim)
            check(claim, slow.try_(claim.span, claim.region_id, claim.version))
    while slow.locks:  # waiters that got their turn
        held = slow.locks[0]
        slow.unlock(held, 9)
        for claim in lock.unlock_range(*held, ts=9):
            waiting.remove(claim)
            check(claim, slow.try_(claim.span, claim.region_id, claim.version))
    assert waiting == []


def test_a_new_region_goes_on_from_the_smallest_timestamp_of_its_keys() -> None:
    """After a merge the slower half decides; going on from the faster one loses what the slower has not sent."""
    lock = RangeLock(TOTAL, 1)
    left, right = lock.lock_range(Span(b"a", b"c"), 1, 1), lock.lock_range(Span(b"c", b"e"), 2, 1)
    assert left.locked is not None
    assert right.locked is not None
    left.locked.resolved_ts, right.locked.resolved_ts = 20, 10
    merged = lock.lock_range(TOTAL, 1, 2)
    assert merged.status is LockRangeStatus.WAIT

    assert lock.unlock_range(Span(b"a", b"c"), 1, 1) == []
    assert lock.unlock_range(Span(b"c", b"e"), 2, 1) == [merged]

    assert merged.locked is not None
    assert merged.locked.resolved_ts == 10


def test_a_look_names_the_slowest_and_the_fastest_range() -> None:
    """Whoever looks for what holds the feed back must not be sent to the wrong region."""
    lock = RangeLock(TOTAL, 1)
    assert (lock.stats().slowest, lock.stats().fastest) == (None, None)
    for region_id, (span, ts) in enumerate(
        [(Span(b"a", b"b"), 20), (Span(b"b", b"c"), 10), (Span(b"c", b"d"), 30)], start=1
    ):
        claim = lock.lock_range(span, region_id, 1)
        assert claim.locked is not None
        claim.locked.resolved_ts = ts

    assert (lock.stats().slowest, lock.stats().fastest) == ((2, 10), (3, 30))


def test_a_merge_that_fails_before_it_has_caught_up_leaves_its_keys_where_they_were() -> None:
    """Sent back to the slower half's timestamp, the faster half would deliver again what may have been announced since."""
    lock = RangeLock(TOTAL, 1)
    lock.lock_range(Span(b"a", b"c"), 1, 1)
    lock.unlock_range(Span(b"a", b"c"), 1, 1, ts=20)
    lock.lock_range(Span(b"c", b"e"), 2, 1)
    lock.unlock_range(Span(b"c", b"e"), 2, 1, ts=10)
    merged = lock.lock_range(TOTAL, 1, 2)
    assert merged.locked is not None
    assert merged.locked.resolved_ts == 10
    merged.locked.resolved_ts = 15

    lock.unlock_range(TOTAL, 1, 2)

    left, right = lock.lock_range(Span(b"a", b"c"), 1, 3), lock.lock_range(Span(b"c", b"e"), 2, 3)
    assert left.locked is not None
    assert right.locked is not None
    assert (left.locked.resolved_ts, right.locked.resolved_ts) == (20, 15)


def test_a_timestamp_that_goes_back_is_seen_at_once() -> None:
    """TiCDC's heap of minima had to be told of each update, and gave stale minima in between; here it is computed."""
    lock = RangeLock(TOTAL, 100)
    claim = lock.lock_range(TOTAL, 1, 1)
    assert claim.locked is not None
    for ts in (110, 50, 120):
        claim.locked.resolved_ts = ts

        assert lock.resolved_ts() == ts


def test_the_older_shape_of_a_region_must_go_first_even_where_it_is_elsewhere() -> None:
    """A region has one request; two at once would be told apart by nothing in messages that name only the region."""
    lock = RangeLock(TOTAL, 1)
    lock.lock_range(Span(b"a", b"b"), 1, 1)
    moved = lock.lock_range(Span(b"c", b"d"), 1, 2)
    assert moved.status is LockRangeStatus.WAIT

    assert lock.unlock_range(Span(b"a", b"b"), 1, 1, ts=7) == [moved]
    assert moved.locked is not None
    assert moved.locked.resolved_ts == 1  # of its own keys, not of the region's other range


def test_stopping_cancels_who_waits_and_drains_with_the_last_lock() -> None:
    """A session that stops while a claim waits must not begin to feed it a moment later."""
    lock = RangeLock(TOTAL, 1)
    lock.lock_range(Span(b"a", b"c"), 1, 1)
    waiting = lock.lock_range(TOTAL, 2, 2)

    assert lock.stop() == [waiting]
    drained_before = lock.drained
    assert lock.unlock_range(Span(b"a", b"c"), 1, 1) == []
    assert (drained_before, lock.drained) == (False, True)
    assert lock.lock_range(TOTAL, 3, 3).status is LockRangeStatus.CANCEL


def test_a_cancelled_waiter_does_not_get_the_range() -> None:
    """The range would stay locked for ever, fed by nobody."""
    lock = RangeLock(TOTAL, 1)
    lock.lock_range(TOTAL, 1, 1)
    waiting = lock.lock_range(TOTAL, 1, 2)
    lock.cancel(waiting)

    assert lock.unlock_range(TOTAL, 1, 1) == []
    assert lock.lock_range(TOTAL, 1, 1).status is LockRangeStatus.SUCCESS


@pytest.mark.parametrize("wrong", [(Span(b"a", b"b"), 1, 1), (Span(b"b", b"e"), 1, 1), (TOTAL, 2, 1), (TOTAL, 1, 2)])
def test_unlocking_what_is_not_held_is_a_bug_and_says_so(wrong: tuple[Span, int, int]) -> None:
    """Writing a timestamp back for keys that somebody else feeds would undo their progress or fake it."""
    lock = RangeLock(TOTAL, 1)
    lock.lock_range(TOTAL, 1, 1)

    with pytest.raises(InternalError):
        lock.unlock_range(*wrong)
    with pytest.raises(InternalError):
        lock.locked_state(2)
    assert lock.stats().locked == 1


def test_claims_outside_the_span_are_refused() -> None:
    """There is no timestamp to go on from."""
    with pytest.raises(InvalidFieldError):
        RangeLock(Span(b"b", b"d"), 1).lock_range(Span(b"a", b"c"), 1, 1)


@given(steps=st.lists(st.tuples(st.booleans(), INSIDE, st.integers(1, 9)), max_size=20))
def test_the_map_of_timestamps_refuses_what_would_hide_a_mistake(steps: list[tuple[bool, Span, int]]) -> None:
    """Setting twice would overwrite progress, reading what is locked would take it for known."""
    ranges, reference = RangeTsMap(TOTAL, 5), dict.fromkeys(keys_of(TOTAL), 5)
    for is_set, span, ts in steps:
        known = [reference[key] for key in keys_of(span) if key in reference]
        if len(known) == len(keys_of(span)):
            assert ranges.min(span) == min(known)
        else:
            with pytest.raises(InvalidFieldError):
                ranges.min(span)
        if not is_set:
            ranges.unset(span)
            reference = {key: value for key, value in reference.items() if key not in span}
        elif known:
            with pytest.raises(InvalidFieldError):
                ranges.set(span, ts)
        else:
            ranges.set(span, ts)
            reference |= dict.fromkeys(keys_of(span), ts)
        assert ranges.min_of_set() == min(reference.values(), default=None)
