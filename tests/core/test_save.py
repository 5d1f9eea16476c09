"""R1, row by row and by property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model import (
    BinlogFacts,
    ChannelFacts,
    ChannelMode,
    ChannelState,
    LaneFacts,
    LaneSave,
    Outcome,
    Save,
)
from coordinator.core.save import SaveDecision, check_distinct, check_shape, decide_save
from datacoord.errors import InvalidFieldError, Reason, Refusal
from datacoord.limits import TIMESTAMP_MAX
from datacoord.paths import BinlogKind
from datacoord.positions import Position

EPOCH = 7
A, B, GONE, NEVER = 1, 2, 3, 4


def channel(
    *, checkpoint: int = 10, progress: int = 20, state: ChannelState = ChannelState.ACTIVE, epoch: int = EPOCH
) -> ChannelFacts:
    """A channel with two live lanes, a dropped one, and a partition that never was."""
    lanes = {
        A: LaneFacts(progress),
        B: LaneFacts(),
        GONE: LaneFacts(5, dropped=True),
        NEVER: LaneFacts(exists=False),
    }
    return ChannelFacts(1, "c", ChannelMode.MANAGED, state, epoch, "owner", Position(checkpoint), lanes)


def binlog(ts_min: int, ts_max: int) -> BinlogFacts:
    """An object with these row timestamps."""
    return BinlogFacts(BinlogKind.INSERT, 0, 1, 1, ts_min, ts_max, 10, 10)


def lane(partition_id: int, start: int, end: int, *binlogs: BinlogFacts, seal: bool = False) -> LaneSave:
    """A range of a lane."""
    return LaneSave(partition_id, start, end, binlogs, seal)


def save(*lanes: LaneSave, epoch: int = EPOCH, checkpoint: int | None = None) -> Save:
    """A part of the channel."""
    return Save("c", epoch, lanes, None if checkpoint is None else Position(checkpoint))


def reason_of(facts: ChannelFacts | None, wanted: Save) -> Reason | None:
    """Why a part is refused; None = it is not."""
    decision = decide_save(facts, wanted)
    return decision.reason if isinstance(decision, Refusal) else None


def accepted(facts: ChannelFacts, wanted: Save) -> SaveDecision:
    """The decision on a part that must be accepted."""
    decision = decide_save(facts, wanted)
    assert isinstance(decision, SaveDecision), decision
    return decision


# ---- the rows ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_channel_is_not_found() -> None:
    """A typo in a name must not create a channel."""
    assert reason_of(None, save(lane(A, 20, 30))) is Reason.CHANNEL_NOT_FOUND


def test_a_dropped_channel_takes_nothing() -> None:
    """A late save must not revive what was dropped."""
    assert reason_of(channel(state=ChannelState.DROPPED), save(lane(A, 20, 30))) is Reason.CHANNEL_DROPPED


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_epochs_are_compared_for_equality(epoch: int) -> None:
    """A zombie's epoch is smaller, one of a restored database may be greater: neither may write."""
    assert reason_of(channel(), save(lane(A, 20, 30), epoch=epoch)) is Reason.FENCED


def test_a_refusal_says_who_owns_the_channel_and_where_it_is() -> None:
    """Whoever reads the log of a fenced datanode wants to know who took the channel."""
    refusal = decide_save(channel(), save(epoch=1))

    assert isinstance(refusal, Refusal)
    assert refusal.metadata["owner"] == "owner"
    assert refusal.metadata["epoch"] == str(EPOCH)
    assert refusal.metadata["checkpoint_timestamp"] == "10"


def test_a_range_that_starts_beyond_progress_is_a_gap() -> None:
    """Rows between progress and the start would be lost."""
    assert reason_of(channel(), save(lane(A, 21, 30))) is Reason.GAP


def test_a_range_that_starts_below_and_ends_beyond_progress_overlaps() -> None:
    """Rows up to progress would be doubled."""
    assert reason_of(channel(), save(lane(A, 19, 21))) is Reason.OVERLAP


def test_a_file_at_or_below_the_checkpoint_is_refused_where_it_would_be_registered() -> None:
    """Routing that changed between attempts would register a row of another lane's past again."""
    facts = channel(checkpoint=25)
    assert reason_of(facts, save(lane(A, 20, 30, binlog(25, 26)))) is Reason.BELOW_CHECKPOINT
    assert reason_of(facts, save(lane(A, 20, 30, binlog(26, 27)))) is None
    assert reason_of(channel(checkpoint=25), save(lane(A, 10, 20, binlog(12, 13)))) is None


def test_a_range_of_a_partition_that_never_was_is_refused() -> None:
    """Its rows would belong to nobody, and nobody would ever read them."""
    assert reason_of(channel(), save(lane(NEVER, 0, 30))) is Reason.PARTITION_NOT_FOUND


def test_a_range_at_progress_is_applied() -> None:
    """The one way rows get registered."""
    decision = accepted(channel(), save(lane(A, 20, 30, binlog(21, 30)), checkpoint=15))

    assert decision.outcome is Outcome.APPLIED
    assert [(d.outcome, d.progress) for d in decision.lanes] == [(Outcome.APPLIED, 30)]
    assert decision.checkpoint == Position(15)


def test_the_first_range_of_a_lane_starts_at_zero() -> None:
    """There is no row of the lane yet: progress is 0, not the checkpoint."""
    assert reason_of(channel(), save(lane(B, 10, 30))) is Reason.GAP
    assert accepted(channel(), save(lane(B, 0, 30))).outcome is Outcome.APPLIED


@pytest.mark.parametrize(("start", "end"), [(10, 20), (0, 20), (10, 15), (0, 1)])
def test_a_range_up_to_progress_is_already_applied_whoever_did_it(start: int, end: int) -> None:
    """A retry must neither fail nor register twice; "your files are registered" is not what it says."""
    decision = accepted(channel(), save(lane(A, start, end)))

    assert decision.outcome is Outcome.ALREADY_APPLIED
    assert decision.lanes[0].outcome is Outcome.ALREADY_APPLIED
    assert decision.lanes[0].progress == 20


def test_a_dropped_lane_is_discarded_wherever_its_range_stands() -> None:
    """Refused as a whole and repeated unchanged, the other lanes would never land."""
    for start, end in [(5, 30), (0, 3), (100, 200), (3, 7)]:
        decision = accepted(channel(), save(lane(GONE, start, end, binlog(start + 1, end)), lane(A, 20, 30)))
        assert [d.outcome for d in decision.lanes] == [Outcome.DISCARDED, Outcome.APPLIED]


def test_a_smaller_checkpoint_never_refuses_a_save() -> None:
    """A checkpoint update that ran beside the save was faster; the rows must land all the same."""
    decision = accepted(channel(), save(lane(A, 20, 30), checkpoint=3))

    assert decision.outcome is Outcome.APPLIED
    assert decision.checkpoint is None


def test_a_checkpoint_alone_applies() -> None:
    """A channel without data still moves on."""
    assert accepted(channel(), save(checkpoint=11)).outcome is Outcome.APPLIED
    assert accepted(channel(), save(checkpoint=10)).outcome is Outcome.ALREADY_APPLIED
    assert accepted(channel(), save()).outcome is Outcome.ALREADY_APPLIED


def test_one_bad_lane_refuses_the_whole_channel_part() -> None:
    """Half a part would break the checkpoint that came with it."""
    for bad, reason in [(lane(B, 1, 30), Reason.GAP), (lane(A, 19, 21), Reason.OVERLAP)]:
        good = lane(A, 20, 30) if bad.partition_id == B else lane(B, 0, 30)
        assert reason_of(channel(), save(good, bad, checkpoint=30)) is reason


def test_the_first_matching_row_wins() -> None:
    """Two developers must not be able to answer one call differently."""
    gap_and_overlap = (lane(A, 19, 21), lane(B, 5, 30))
    assert reason_of(channel(), save(*gap_and_overlap)) is Reason.GAP
    overlap_and_below = (lane(B, 0, 30, binlog(1, 30)), lane(A, 19, 21))
    assert reason_of(channel(), save(*overlap_and_below)) is Reason.OVERLAP
    assert reason_of(channel(), save(*gap_and_overlap, epoch=1)) is Reason.FENCED
    assert reason_of(channel(), save(lane(NEVER, 0, 1), *gap_and_overlap)) is Reason.PARTITION_NOT_FOUND
    assert reason_of(channel(state=ChannelState.DROPPED), save(epoch=1)) is Reason.CHANNEL_DROPPED


# ---- shape ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        save(lane(A, 5, 5)),
        save(lane(A, 6, 5)),
        save(lane(A, -1, 5)),
        save(lane(A, 5, TIMESTAMP_MAX + 1)),
        save(lane(A, 5, 9, binlog(5, 9))),
        save(lane(A, 5, 9, binlog(6, 10))),
        save(lane(A, 5, 9, binlog(8, 7))),
        save(lane(A, 5, 9), lane(A, 9, 10)),
    ],
)
def test_bad_shape_refuses_the_call(wanted: Save) -> None:
    """A bug of a client must be told to it, not stored."""
    with pytest.raises(InvalidFieldError):
        check_shape(wanted, ChannelMode.MANAGED)


def test_a_claimed_channel_is_clean_between_transactions() -> None:
    """Every lane of a sink's batch ends at the batch's checkpoint: that is what lets a snapshot ack it at once."""
    check_shape(save(lane(A, 0, 9), lane(B, 3, 9), checkpoint=9), ChannelMode.CLAIMED)
    for bad in (
        save(lane(A, 0, 9)),
        save(lane(A, 0, 9), checkpoint=8),
        save(lane(A, 0, 9), lane(B, 0, 8), checkpoint=9),
    ):
        with pytest.raises(InvalidFieldError):
            check_shape(bad, ChannelMode.CLAIMED)
        check_shape(bad, ChannelMode.MANAGED)


def test_a_channel_named_twice_is_refused() -> None:
    """Which of the two parts came first would be a matter of luck."""
    with pytest.raises(InvalidFieldError, match="twice"):
        check_distinct(["a", "b", "a"], "channel", "the call")


# ---- by property ------------------------------------------------------------------------------------------------------------

SMALL = st.integers(0, 6)


@given(st.lists(st.tuples(SMALL, SMALL), max_size=40))
def test_whatever_ranges_are_sent_every_timestamp_is_registered_once_and_without_gaps(
    ranges: list[tuple[int, int]],
) -> None:
    """The compare-and-set on progress alone prevents loss and doubling."""
    progress = 0
    registered: list[int] = []
    for start, length in ranges:
        end = start + length + 1
        decision = decide_save(channel(checkpoint=0, progress=progress), save(lane(A, start, end)))
        if isinstance(decision, SaveDecision) and decision.outcome is Outcome.APPLIED:
            registered += range(start + 1, end + 1)
            progress = decision.lanes[0].progress

    assert registered == list(range(1, progress + 1))


@st.composite
def saves(draw: st.DrawFn) -> tuple[ChannelFacts, Save]:
    """Any facts and any part of good shape."""
    facts = ChannelFacts(
        1,
        "c",
        ChannelMode.MANAGED,
        draw(st.sampled_from(ChannelState)),
        draw(st.integers(1, 2)),
        checkpoint=Position(draw(SMALL)),
        lanes={p: LaneFacts(draw(SMALL), draw(st.booleans())) for p in draw(st.sets(st.integers(1, 3)))},
    )
    lanes = []
    for partition_id in draw(st.sets(st.integers(1, 3))):
        start = draw(SMALL)
        end = start + 1 + draw(SMALL)
        ts = sorted(draw(st.lists(st.integers(start + 1, end), min_size=0, max_size=2)))
        lanes.append(lane(partition_id, start, end, *([binlog(ts[0], ts[-1])] if ts else [])))
    return facts, save(*lanes, epoch=draw(st.integers(1, 2)), checkpoint=draw(st.none() | SMALL))


@given(saves())
def test_an_accepted_save_repeated_changes_nothing(case: tuple[ChannelFacts, Save]) -> None:
    """A lost reply is answered by the same call again: it must have the effect of one."""
    facts, wanted = case
    first = decide_save(facts, wanted)
    if isinstance(first, Refusal):
        return
    lanes = dict(facts.lanes)
    for d in first.lanes:
        lanes[d.lane.partition_id] = LaneFacts(d.progress, facts.lane(d.lane.partition_id).dropped)
    after = ChannelFacts(
        1, "c", facts.mode, facts.state, facts.epoch, checkpoint=first.checkpoint or facts.checkpoint, lanes=lanes
    )

    again = decide_save(after, wanted)

    assert isinstance(again, SaveDecision)
    assert again.outcome is Outcome.ALREADY_APPLIED
    assert again.checkpoint is None


@given(saves())
def test_a_decision_never_takes_anything_back(case: tuple[ChannelFacts, Save]) -> None:
    """Progress and checkpoints only grow, and only APPLIED grows them."""
    facts, wanted = case
    decision = decide_save(facts, wanted)
    if isinstance(decision, Refusal):
        return
    assert facts.state is ChannelState.ACTIVE
    assert wanted.epoch == facts.epoch
    assert decision.checkpoint is None or decision.checkpoint.timestamp > facts.checkpoint.timestamp
    for d in decision.lanes:
        before = facts.lane(d.lane.partition_id)
        assert d.progress >= before.progress
        assert (d.progress > before.progress) == (d.outcome is Outcome.APPLIED)
        assert (d.outcome is Outcome.DISCARDED) == before.dropped
