"""Sync policies, each by its rule and its border."""

from typing import Any

import pytest

from datanode_client.writebuffer.buffers import LaneBuffer
from datanode_client.writebuffer.policies import (
    POLICIES,
    SyncContext,
    SyncReason,
    choose,
    flush_ts_policy,
    full_buffer_policy,
    oldest_buffer,
    sealed_segments_policy,
    sync_dropped_policy,
    sync_stale_buffer_policy,
)

from .builders import TSO, inserts, lane_buffer


def context(**changes: Any) -> SyncContext:
    """A moment at which no policy chooses anything."""
    values: dict[str, Any] = {
        "now": 100.0,
        "consumed_timestamp": 50,
        "flush_timestamp": 0,
        "sealed_until": 0,
        "sync_period_ms": 0,
        "is_dropped": lambda _: False,
    }
    return SyncContext(**{**values, **changes})


def test_a_quiet_lane_is_left_alone() -> None:
    """A policy that chooses without reason makes objects of one row."""
    assert list(choose([lane_buffer()], context())) == []


def test_a_full_buffer_is_chosen() -> None:
    """Otherwise memory grows without limit."""
    assert full_buffer_policy(lane_buffer(limit=inserts(6).nbytes), context())
    assert not full_buffer_policy(lane_buffer(limit=10_000), context())


@pytest.mark.parametrize(("now", "stale"), [(99.9, False), (100.0, True), (500.0, True)])
def test_a_lane_that_waited_its_period_is_chosen(now: float, stale: bool) -> None:
    """A lane that fills slowly must become visible, and let the checkpoint pass, all the same."""
    assert sync_stale_buffer_policy(lane_buffer(stale_at=100.0), context(now=now)) is stale


@pytest.mark.parametrize(
    ("consumed_ms", "period_ms", "stale"),
    [(600_006, 600_000, False), (600_007, 600_000, True), (600_007, 0, False)],
)
def test_data_time_counts_only_where_timestamps_are_tso(consumed_ms: int, period_ms: int, stale: bool) -> None:
    """An offset of Kafka or a commit number says nothing of elapsed time: it would sync every 150 billion messages."""
    moment = context(consumed_timestamp=consumed_ms * TSO, sync_period_ms=period_ms)
    assert sync_stale_buffer_policy(lane_buffer(ts_min=6 * TSO), moment) is stale


@pytest.mark.parametrize(
    ("wanted", "consumed", "pin", "chosen"),
    [
        (0, 50, 5, False),  # no flush
        (30, 50, 5, True),
        (30, 29, 5, False),  # not everything the flush concerns is consumed: cutting now would cut twice
        (30, 30, 5, True),
        (30, 50, 29, True),  # the row after the pin may be at 30 exactly
        (30, 50, 30, False),  # only rows the flush does not concern
    ],
)
def test_a_flush_chooses_the_lanes_that_hold_the_checkpoint_below_it(
    wanted: int, consumed: int, pin: int, chosen: bool
) -> None:
    """A row at the target itself that is not cut keeps the flush waiting for the stale period."""
    moment = context(flush_timestamp=wanted, consumed_timestamp=consumed)
    assert flush_ts_policy(lane_buffer(pin=pin, ts_min=pin + 1), moment) is chosen


@pytest.mark.parametrize(("sealed_until", "chosen"), [(0, False), (5, False), (6, True)])
def test_a_sealed_segment_chooses_the_lanes_that_keep_it_from_being_flushed(sealed_until: int, chosen: bool) -> None:
    """A sealed segment stays unflushed while any lane pins the checkpoint before its end."""
    assert sealed_segments_policy(lane_buffer(pin=5), context(sealed_until=sealed_until)) is chosen


def test_a_dropped_partition_is_settled_at_once() -> None:
    """Rows from before the drop would pin the checkpoint until they are stale."""
    assert sync_dropped_policy(lane_buffer(partition_id=9), context(is_dropped=lambda partition: partition == 9))
    assert not sync_dropped_policy(lane_buffer(partition_id=8), context(is_dropped=lambda partition: partition == 9))


def test_every_reason_that_is_a_policy_is_tried_and_the_first_counts() -> None:
    """A policy that exists and is not asked is worse than none."""
    lane = lane_buffer(limit=1, stale_at=0.0)
    assert [reason for reason, _ in POLICIES] == [
        SyncReason.FULL_BUFFER,
        SyncReason.DROPPED,
        SyncReason.FLUSH_TS,
        SyncReason.SEALED,
        SyncReason.STALE,
    ]
    assert list(choose([lane], context())) == [(1, SyncReason.FULL_BUFFER)]


@pytest.mark.parametrize(("pins", "oldest"), [([], None), ([7], 7), ([9, 3, 5], 3)])
def test_eviction_takes_the_lane_that_holds_the_checkpoint_back_the_furthest(
    pins: list[int], oldest: int | None
) -> None:
    """Evicting a young lane frees memory and leaves the replay after a crash as long as before."""
    lanes: list[LaneBuffer] = [lane_buffer(pin=pin, ts_min=pin + 1) for pin in pins]
    found = oldest_buffer(lanes)
    assert (found.pin.timestamp if found else None) == oldest
