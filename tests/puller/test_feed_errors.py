"""Error classes and back-off."""

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import Reason
from datanode_client.puller.errors import (
    RECOVERY_ATTEMPTS_MAX,
    RECOVERY_DELAY_MS_MAX,
    RECOVERY_DELAY_MS_MIN,
    RECOVERY_FORGET_MS,
    SERVER_BACKOFF_MS_MAX,
    ClusterIDMismatchError,
    FatalFeedError,
    RegionErrorAction,
    RegionRecovery,
    VersionIncompatibleError,
    classify,
    fatal_error,
    server_backoff_ms,
)
from datanode_client.puller.events import RegionError, RegionErrorKind
from datanode_client.puller.span import Span

SPAN = Span(b"a", b"b")


@pytest.mark.parametrize("kind", RegionErrorKind)
def test_every_error_has_a_class_and_every_fatal_one_an_advice(kind: RegionErrorKind) -> None:
    """An error without a class would end the feed by a KeyError, in the middle of giving a region up."""
    action = classify(kind)

    if action is RegionErrorAction.FATAL:
        error = fatal_error(7, RegionError(kind, "it said so"))
        assert isinstance(error, FatalFeedError)
        assert "it said so" in str(error)
        assert error.metadata["region_id"] == "7"
        assert isinstance(pickle.loads(pickle.dumps(error)), type(error))


def test_a_region_without_known_leader_is_looked_up_again() -> None:
    """Asking for the same region again would ask the same store."""
    assert classify(RegionErrorKind.NOT_LEADER, leader_known=False) is RegionErrorAction.RETRY_RANGE
    assert classify(RegionErrorKind.CONGESTED, leader_known=False) is RegionErrorAction.RETRY_REGION


def test_what_only_people_can_mend_says_that_the_source_is_wrong() -> None:
    """A datanode retries other faults for ever; with these reasons it stops and tells."""
    compatibility = fatal_error(1, RegionError(RegionErrorKind.COMPATIBILITY))
    mismatch = fatal_error(1, RegionError(RegionErrorKind.CLUSTER_ID_MISMATCH))

    assert isinstance(compatibility, VersionIncompatibleError)
    assert isinstance(mismatch, ClusterIDMismatchError)
    assert compatibility.reason is mismatch.reason is Reason.SOURCE_INVALID


@given(attempt=st.integers(1, RECOVERY_ATTEMPTS_MAX), seed=st.integers())
def test_delays_double_up_to_a_limit_with_half_of_them_at_random(attempt: int, seed: int) -> None:
    """Without jitter all regions of a lost store come back in the same millisecond; without a limit they never do."""
    delay_ms = RegionRecovery(random.Random(seed)).delay_ms(attempt)
    full_ms = min(RECOVERY_DELAY_MS_MIN * 2 ** (attempt - 1), RECOVERY_DELAY_MS_MAX)

    assert full_ms / 2 <= delay_ms <= full_ms


def test_failures_are_counted_per_range_and_subscription() -> None:
    """TiCDC limited retries per region id; a range that splits all the time got a fresh start each time, and no rest."""
    recovery = RegionRecovery()

    assert [recovery.fail(1, SPAN, 0) for _ in range(3)] == [1, 2, 3]
    assert recovery.fail(2, SPAN, 0) == 1
    assert recovery.fail(1, Span(b"a", b"c"), 0) == 1
    recovery.reset(1, SPAN)
    assert recovery.fail(1, SPAN, 0) == 1
    recovery.forget(1)
    assert len(recovery) == 1
    assert recovery.fail(2, SPAN, 0) == 2


def test_the_count_stops_before_the_shift_overflows_reason() -> None:
    """A store that is down for a day fails a range some ten thousand times."""
    recovery = RegionRecovery()
    attempts = [recovery.fail(1, SPAN, 0) for _ in range(100)]

    assert max(attempts) == RECOVERY_ATTEMPTS_MAX
    assert recovery.delay_ms(RECOVERY_ATTEMPTS_MAX) <= RECOVERY_DELAY_MS_MAX


def test_old_failures_are_forgotten() -> None:
    """Ranges that split never come back: their counts would pile up; and last week's trouble is no reason to wait today."""
    recovery = RegionRecovery()
    recovery.fail(1, SPAN, 0)
    recovery.fail(1, SPAN, 1000)

    assert recovery.fail(1, SPAN, 1000 + RECOVERY_FORGET_MS) == 1
    recovery.expire(1000 + 2 * RECOVERY_FORGET_MS)
    assert len(recovery) == 0


def test_a_busy_store_is_left_alone_as_long_as_it_asks_within_reason() -> None:
    """A wrong number must not stop the feed for a month."""
    assert [server_backoff_ms(ms) for ms in (-5, 0, 700, 2**62)] == [0, 0, 700, SERVER_BACKOFF_MS_MAX]
