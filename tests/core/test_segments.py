"""Segments: the state machine, exhaustively, and the policies at their bounds."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model import Outcome, SegmentLevel, SegmentState
from coordinator.core.segments import (
    SET_STATE,
    SealPolicy,
    SegmentFacts,
    flush_target,
    fullest_first,
    level_of,
    seal_reason,
    shown_state,
    states_before,
)
from datacoord.limits import ALL_PARTITIONS_ID

GROWING, SEALED, FLUSHED, DROPPED = SegmentState
LEGAL = {(GROWING, SEALED), (GROWING, DROPPED), (SEALED, DROPPED)}


@pytest.mark.parametrize(("now", "then"), list(itertools.product(SegmentState, SegmentState)))
def test_the_state_machine_is_exactly_this(now: SegmentState, then: SegmentState) -> None:
    """A late save once revived a dropped segment in Milvus: DROPPED is terminal, and FLUSHED is never stored."""
    assert (now in states_before(then)) == ((now, then) in LEGAL)


def test_flushed_is_sealed_and_passed_by_the_checkpoint() -> None:
    """A stored FLUSHED could be wrong; a derived one cannot."""
    assert shown_state(SEALED, 10, 9) is SEALED
    assert shown_state(SEALED, 10, 10) is FLUSHED
    assert shown_state(GROWING, 10, 99) is GROWING
    assert shown_state(DROPPED, 10, 99) is DROPPED


def test_deletes_without_a_partition_go_to_level_zero() -> None:
    """Readers apply level zero to every partition."""
    assert level_of(ALL_PARTITIONS_ID) is SegmentLevel.L0
    assert level_of(1) is SegmentLevel.L1


POLICY = SealPolicy(
    size_bytes_max=100,
    rows_max=50,
    binlogs_max=5,
    lifetime_ms_max=1000,
    idle_ms_max=100,
    idle_size_bytes_min=10,
    channel_growing_bytes_max=30,
)


def facts(rows: int = 0, size: int = 0, ranges: int = 1, created: int = 0, written: int = 0) -> SegmentFacts:
    """A segment as policies see it."""
    return SegmentFacts(rows, 0, size, ranges, created, written)


@pytest.mark.parametrize(
    ("segment", "now_ms", "reason"),
    [
        (facts(), 0, None),
        (facts(rows=49), 0, None),
        (facts(rows=50), 0, "rows"),
        (facts(size=99), 0, None),
        (facts(size=100), 0, "size"),
        (facts(ranges=4), 0, None),
        (facts(ranges=5), 0, "binlogs"),
        (facts(written=999), 999, None),
        (facts(written=999), 1000, "lifetime"),
        (facts(size=11), 100, None),
        (facts(size=11), 101, "idle"),
        (facts(size=10), 101, None),
    ],
)
def test_policies_at_their_bounds(segment: SegmentFacts, now_ms: int, reason: str | None) -> None:
    """An off-by-one here makes segments twice as large, or endless."""
    assert seal_reason(segment, POLICY, now_ms) == reason


def test_the_defaults_are_milvuss() -> None:
    """dataCoord.segment.*: 1024 MB × 0.12, 32 binlogs, a day, 600 s idle above 16 MB; 4096 MB growing per channel."""
    policy = SealPolicy()

    assert policy.size_bytes_max == int(1024 * 1024 * 1024 * 0.12)
    assert (policy.binlogs_max, policy.lifetime_ms_max) == (32, 86_400_000)
    assert (policy.idle_ms_max, policy.idle_size_bytes_min) == (600_000, 16 * 1024 * 1024)
    assert policy.channel_growing_bytes_max == 4096 * 1024 * 1024


@given(st.dictionaries(st.integers(1, 9), st.integers(1, 40)))
def test_of_a_crowded_channel_the_largest_are_sealed_and_no_more_than_needed(sizes: dict[int, int]) -> None:
    """Sealing everything would leave crowds of tiny segments."""
    chosen = fullest_first({number: facts(size=size) for number, size in sizes.items()}, POLICY)

    left = sum(sizes.values()) - sum(sizes[number] for number in chosen)
    assert left <= POLICY.channel_growing_bytes_max
    if chosen:
        assert left + sizes[chosen[-1]] > POLICY.channel_growing_bytes_max
        assert min(sizes[n] for n in chosen) >= max((s for n, s in sizes.items() if n not in chosen), default=0)


def test_a_flush_reaches_what_was_consumed_even_if_the_owner_changes() -> None:
    """A new owner that has consumed less must not make a flush look done."""
    assert flush_target(50, 20, 0) == 50
    assert flush_target(0, 20, 0) == 20
    assert flush_target(50, 20, 10) == 10


ANSWERS = {
    SEALED: {GROWING: "APPLIED", SEALED: "ALREADY_APPLIED", FLUSHED: "ALREADY_APPLIED", DROPPED: "ALREADY_APPLIED"},
    DROPPED: {GROWING: "conflict", SEALED: "APPLIED", FLUSHED: "APPLIED", DROPPED: "ALREADY_APPLIED"},
}


@pytest.mark.parametrize(("now", "wanted"), list(itertools.product(SegmentState, (SEALED, DROPPED))))
def test_what_operators_may_do_to_a_segment_is_exactly_this(now: SegmentState, wanted: SegmentState) -> None:
    """A repetition must be answered as one, and what still takes rows is not dropped by a slip."""
    outcome = SET_STATE[now, wanted]

    assert (outcome.name if outcome is not None else "conflict") == ANSWERS[wanted][now]
    stored = SEALED if now is FLUSHED else now
    if outcome is Outcome.APPLIED:
        assert stored in states_before(wanted)


def test_operators_can_ask_for_nothing_else() -> None:
    """GROWING cannot come back, and FLUSHED cannot be claimed."""
    assert {wanted for _, wanted in SET_STATE} == {SEALED, DROPPED}
