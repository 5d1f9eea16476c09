"""R5 as a plain function: what is garbage, and that what is garbage once stays garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.garbage import LaneEnd, Verdict, can_never_be_registered, is_doubtful, judge, row_may_go
from coordinator.core.model import (
    BinlogFacts,
    ChannelFacts,
    ChannelMode,
    ChannelState,
    LaneFacts,
    LaneSave,
    Outcome,
    Save,
    SegmentState,
)
from coordinator.core.save import SaveDecision, check_shape, decide_save
from coordinator.jobs.garbage_sweep import GarbageSettings
from coordinator.store.garbage import GcStatus
from datacoord.errors import InvalidFieldError
from datacoord.paths import BinlogKind
from datacoord.positions import Position
from datacoord.v1 import admin_pb2

LIVE = LaneEnd(ChannelState.ACTIVE, epoch=5, partition_dropped=False, progress=100)


@pytest.mark.parametrize(
    ("lane", "epoch", "start", "expected"),
    [
        (LIVE, 5, 100, None),
        (LIVE, 5, 101, None),
        (LIVE, 5, 99, Verdict.RANGE_TAKEN),
        (LIVE, 4, 100, Verdict.EPOCH_OVER),
        (LaneEnd(ChannelState.ACTIVE, 5, True, 0), 5, 0, Verdict.PARTITION_DROPPED),
        (LaneEnd(ChannelState.DROPPED, 6, False, 0), 5, 0, Verdict.CHANNEL_DROPPED),
        (LaneEnd(ChannelState.ACTIVE, 5, False, 0), 5, 0, None),
    ],
)
def test_an_object_without_a_row_goes_iff_it_can_never_get_one(
    lane: LaneEnd, epoch: int, start: int, expected: Verdict | None
) -> None:
    """One row too many loses acknowledged data; one too few keeps orphans for ever."""
    assert judge(lane, epoch, start, None) is expected


@pytest.mark.parametrize("state", [SegmentState.GROWING, SegmentState.SEALED])
@pytest.mark.parametrize("lane", [LIVE, LaneEnd(ChannelState.DROPPED, 9, True, 10**6)])
def test_an_object_with_a_row_stays_whatever_else_is_true(lane: LaneEnd, state: SegmentState) -> None:
    """Every registered object of a former owner has an epoch that is over and a range that is taken."""
    assert judge(lane, 1, 0, state) is None
    assert not row_may_go(state)


def test_an_object_of_a_dropped_segment_waits_for_its_row() -> None:
    """A snapshot may need the row and the object; the row decides."""
    assert judge(LIVE, 1, 0, SegmentState.DROPPED) is Verdict.SEGMENT_DROPPED
    assert row_may_go(SegmentState.DROPPED)


def test_an_epoch_that_the_channel_has_not_reached_makes_the_facts_doubtful() -> None:
    """A read replica, or a database restored by hand, knows less than the writer of the object did."""
    assert is_doubtful(LIVE, 6)
    assert not is_doubtful(LIVE, 5)
    assert not is_doubtful(LIVE, 4)


# ---- stability: why the age of the read does not matter --------------------------------------------------------------------------

EPOCHS = st.integers(1, 4)
ENDS = st.integers(0, 6)
SAVES = st.tuples(st.just("save"), EPOCHS, ENDS, st.integers(1, 3))
OTHERS = st.sampled_from([("owner",), ("drop channel",), ("drop partition",), ("checkpoint",)])
HISTORY = st.lists(SAVES | SAVES | SAVES | OTHERS, max_size=12)


class Lane:
    """One lane of one channel, decided by `core.save` alone."""

    def __init__(self) -> None:
        self.state, self.epoch, self.dropped, self.progress, self.checkpoint = ChannelState.ACTIVE, 1, False, 0, 0

    def end(self) -> LaneEnd:
        return LaneEnd(self.state, self.epoch, self.dropped, self.progress)

    def step(self, what: tuple[object, ...]) -> set[tuple[int, int]]:
        """Does it; (epoch, from) of the objects it registers."""
        if what[0] == "owner":
            self.epoch += self.state is ChannelState.ACTIVE
        elif what[0] == "drop channel":
            self.epoch += self.state is ChannelState.ACTIVE
            self.state = ChannelState.DROPPED
        elif what[0] == "drop partition":
            self.dropped = True
        elif what[0] == "checkpoint":
            self.checkpoint = max(self.checkpoint, self.progress)
        else:
            return self._save(*what[1:])  # type: ignore[arg-type]
        return set()

    def _save(self, epoch: int, start: int, length: int) -> set[tuple[int, int]]:
        end = start + length
        binlog = BinlogFacts(BinlogKind.INSERT, 0, 1, 1, end, end, 1, 1)
        part = Save("c", epoch, (LaneSave(1, start, end, (binlog,)),))
        try:
            check_shape(part, ChannelMode.MANAGED)
        except InvalidFieldError:
            return set()
        lanes = {1: LaneFacts(self.progress, self.dropped)}
        facts = ChannelFacts(
            1, "c", ChannelMode.MANAGED, self.state, self.epoch, checkpoint=Position(self.checkpoint), lanes=lanes
        )
        decision = decide_save(facts, part)
        if not isinstance(decision, SaveDecision) or decision.lanes[0].outcome is not Outcome.APPLIED:
            return set()
        self.progress = decision.lanes[0].progress
        return {(epoch, start)}


@given(before=HISTORY, after=HISTORY)
def test_what_can_never_be_registered_never_is_however_old_the_read(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]]
) -> None:
    """A collector that was stopped for a day, or has lost its lease, deletes by what it read then."""
    lane = Lane()
    for what in before:
        lane.step(what)
    read = lane.end()
    doomed = {
        (epoch, start)
        for epoch in range(1, 5)
        for start in range(7)
        if not is_doubtful(read, epoch) and can_never_be_registered(read, epoch, start) is not None
    }
    for what in after:
        assert not lane.step(what) & doomed
        now = lane.end()
        assert all(can_never_be_registered(now, epoch, start) is not None for epoch, start in doomed)


@given(before=HISTORY, more=st.integers(1, 3))
def test_what_may_still_be_registered_is_kept(before: list[tuple[object, ...]], more: int) -> None:
    """The rule must not be stricter than it has to be either: a valid owner's next save is always possible."""
    lane = Lane()
    for what in before:
        lane.step(what)
    for epoch in range(1, lane.epoch + 1):
        for start in range(7):
            if can_never_be_registered(lane.end(), epoch, start) is None and start == lane.progress:
                lane.checkpoint = min(lane.checkpoint, start)
                assert lane.step(("save", epoch, start, more)) == {(epoch, start)}
                return


# ---- when a round is due ---------------------------------------------------------------------------------------------------------


def _status(**changes: object) -> GcStatus:
    last = admin_pb2.GcRound(start_time_ms=1_000_000, duration_ms=5_000)
    values = {
        "paused": False,
        "paused_until_ms": 0,
        "reason": "",
        "run_requested": False,
        "last_round": last,
        "now_ms": 1_005_000,
    }
    return GcStatus(**{**values, **changes})  # type: ignore[arg-type]


def test_a_round_is_due_an_interval_after_the_end_of_the_last_one() -> None:
    """By the database's clock, so that a takeover does not begin one at once."""
    assert not _status(now_ms=1_014_999).is_due(10_000)
    assert _status(now_ms=1_015_000).is_due(10_000)
    assert _status(last_round=admin_pb2.GcRound()).is_due(10_000)
    assert _status(run_requested=True).is_due(10_000)


def test_a_round_that_ended_early_is_tried_again_sooner() -> None:
    """An hour of garbage for one lost connection is too much; one round after the other is too."""
    failed = admin_pb2.GcRound(start_time_ms=1_000_000, error="why")
    assert _status(last_round=failed, now_ms=1_060_000).is_due(3_600_000)
    assert not _status(last_round=failed, now_ms=1_059_999).is_due(3_600_000)


def test_nothing_is_due_while_it_is_paused() -> None:
    """Also not what was asked for before the pause."""
    assert not _status(paused=True, run_requested=True).is_due(0)


def test_a_replica_looks_often_enough_for_a_short_interval() -> None:
    """A look every few seconds would make an interval of a second one of five."""
    assert GarbageSettings(interval_ms=1_000).poll_seconds == 1.0
    assert GarbageSettings().poll_seconds == 5.0
