"""R2, row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model import ChannelFacts, ChannelMode, ChannelState, Outcome, Save
from coordinator.core.ownership import (
    CheckpointDecision,
    DropDecision,
    MoveDecision,
    OwnerDecision,
    decide_assign,
    decide_checkpoint,
    decide_claim,
    decide_drop,
    decide_move,
    decide_release,
)
from datacoord.errors import Reason, Refusal
from datacoord.positions import Position

EPOCH = 7
NOW = 1000


def channel(
    *,
    mode: ChannelMode = ChannelMode.MANAGED,
    state: ChannelState = ChannelState.ACTIVE,
    owner: str = "a",
    checkpoint: int = 10,
) -> ChannelFacts:
    """A channel at EPOCH."""
    return ChannelFacts(1, "c", mode, state, EPOCH, owner, Position(checkpoint))


CLAIMED = channel(mode=ChannelMode.CLAIMED)
TOMBSTONE = channel(state=ChannelState.DROPPED, owner="")


def reason_of(decision: object) -> Reason | None:
    """Why something is refused; None = it is not."""
    return decision.reason if isinstance(decision, Refusal) else None


# ---- UpdateChannelCheckpoint ------------------------------------------------------------------------------------------------


def test_a_checkpoint_goes_forward_as_a_whole_position() -> None:
    """A timestamp with another position's msg_id would seek to the wrong place."""
    position = Position(11, b"id", "group", 99)
    assert decide_checkpoint(channel(), "c", EPOCH, position) == CheckpointDecision(Outcome.APPLIED, position)


@pytest.mark.parametrize("timestamp", [0, 9, 10])
def test_a_checkpoint_that_is_not_greater_is_already_applied(timestamp: int) -> None:
    """Late and doubled updates are everyday; none may move the position back, not even its msg_id."""
    decision = decide_checkpoint(channel(), "c", EPOCH, Position(timestamp, b"other"))
    assert decision == CheckpointDecision(Outcome.ALREADY_APPLIED, None)


def test_a_checkpoint_needs_a_living_channel_and_its_epoch() -> None:
    """A zombie's update would make the owner skip rows."""
    assert reason_of(decide_checkpoint(None, "c", EPOCH, Position(11))) is Reason.CHANNEL_NOT_FOUND
    assert reason_of(decide_checkpoint(TOMBSTONE, "c", EPOCH, Position(11))) is Reason.CHANNEL_DROPPED
    assert reason_of(decide_checkpoint(channel(), "c", EPOCH - 1, Position(11))) is Reason.FENCED
    assert reason_of(decide_checkpoint(TOMBSTONE, "c", EPOCH - 1, Position(11))) is Reason.CHANNEL_DROPPED


@given(st.lists(st.tuples(st.integers(EPOCH - 1, EPOCH), st.integers(0, 20))))
def test_a_checkpoint_never_goes_back_and_only_its_epoch_moves_it(moves: list[tuple[int, int]]) -> None:
    """The first rule of all, for any sequence of updates."""
    checkpoint = 0
    for epoch, timestamp in moves:
        decision = decide_checkpoint(channel(checkpoint=checkpoint), "c", epoch, Position(timestamp))
        if isinstance(decision, CheckpointDecision) and decision.checkpoint is not None:
            assert epoch == EPOCH
            assert decision.checkpoint.timestamp > checkpoint
            checkpoint = decision.checkpoint.timestamp

    assert checkpoint == max((timestamp for epoch, timestamp in moves if epoch == EPOCH), default=0)


# ---- ReleaseChannels --------------------------------------------------------------------------------------------------------


def test_release_keeps_the_final_progress_and_takes_the_next_epoch() -> None:
    """A final position that is refused makes the next owner start from a stale one."""
    assert decide_release(channel(), "c", EPOCH, Position(12)) == OwnerDecision("", True, Position(12))
    assert decide_release(channel(), "c", EPOCH, Position(9)) == OwnerDecision("", True, None)
    assert decide_release(channel(), "c", EPOCH, None) == OwnerDecision("", True, None)


def test_release_of_another_epoch_is_fenced_which_means_done() -> None:
    """A release whose reply was lost is repeated: the epoch has moved on, and so must the caller."""
    assert reason_of(decide_release(channel(), "c", EPOCH - 1, Position(99))) is Reason.FENCED
    assert reason_of(decide_release(None, "c", EPOCH, None)) is Reason.CHANNEL_NOT_FOUND
    assert reason_of(decide_release(TOMBSTONE, "c", EPOCH, None)) is Reason.CHANNEL_DROPPED


# ---- assign -----------------------------------------------------------------------------------------------------------------


def test_assign_is_a_compare_and_set_on_the_epoch_that_was_read() -> None:
    """Two replicas that assign at once must not give a channel to both."""
    assert decide_assign(channel(owner=""), "n", EPOCH) == OwnerDecision("n", True)
    assert decide_assign(channel(owner=""), "n", EPOCH - 1) is None
    assert decide_assign(TOMBSTONE, "n", EPOCH) is None
    assert decide_assign(CLAIMED, "n", EPOCH) is None


# ---- ClaimChannels ----------------------------------------------------------------------------------------------------------


def claim(facts: ChannelFacts | None, owner: str, lease_until_ms: int = 0, *, force: bool = False) -> object:
    """Decides a claim at NOW."""
    return decide_claim(facts, "c", owner, owner_lease_until_ms=lease_until_ms, now_ms=NOW, force=force)


def test_claiming_as_the_owner_keeps_the_epoch_whatever_the_lease_says() -> None:
    """Spark builds the writer twice per batch: a new epoch would fence the batch's own commit, for ever."""
    for lease in (0, NOW, NOW + 1):
        for force in (False, True):
            assert claim(CLAIMED, "a", lease, force=force) == OwnerDecision("a", False)


def test_another_name_waits_for_the_lease() -> None:
    """Two claimants where the newest wins fence each other before either's batch ends."""
    assert reason_of(claim(CLAIMED, "b", NOW + 1)) is Reason.OWNED
    assert claim(CLAIMED, "b", NOW) == OwnerDecision("b", True)
    assert claim(CLAIMED, "b", NOW + 1, force=True) == OwnerDecision("b", True)


def test_a_channel_nobody_owns_is_free() -> None:
    """The lease of nobody is no lease."""
    assert claim(channel(mode=ChannelMode.CLAIMED, owner=""), "b", NOW + 1) == OwnerDecision("b", True)


def test_a_refused_claim_says_until_when() -> None:
    """A claimant that does not know how long to wait asks all the time."""
    refusal = claim(CLAIMED, "b", NOW + 5)

    assert isinstance(refusal, Refusal)
    assert refusal.metadata["lease_until_ms"] == str(NOW + 5)
    assert refusal.metadata["owner"] == "a"


def test_only_channels_of_mode_claimed_can_be_claimed() -> None:
    """The assigner would give a managed channel back to a datanode, and the batch would be fenced for ever."""
    assert reason_of(claim(channel(), "a")) is Reason.WRONG_MODE
    assert reason_of(claim(channel(), "b", force=True)) is Reason.WRONG_MODE
    assert reason_of(claim(None, "a")) is Reason.CHANNEL_NOT_FOUND
    dropped = channel(mode=ChannelMode.CLAIMED, state=ChannelState.DROPPED)
    assert reason_of(claim(dropped, "a", force=True)) is Reason.CHANNEL_DROPPED


# ---- DropVirtualChannel -----------------------------------------------------------------------------------------------------


def test_a_drop_saves_and_then_buries() -> None:
    """The last rows of a channel land with its end, or not at all."""
    decision = decide_drop(channel(), Save("c", EPOCH, (), Position(12)))

    assert isinstance(decision, DropDecision)
    assert decision.outcome is Outcome.APPLIED
    assert decision.save is not None
    assert decision.save.checkpoint == Position(12)


def test_a_drop_of_a_tombstone_is_already_applied_whatever_the_epoch() -> None:
    """The reply of a drop was lost: its repetition must not be an error."""
    assert decide_drop(TOMBSTONE, Save("c", EPOCH - 3, ())) == DropDecision(Outcome.ALREADY_APPLIED, None)


def test_a_drop_is_fenced_like_every_write() -> None:
    """A zombie must not be able to drop what others write to."""
    assert reason_of(decide_drop(channel(), Save("c", EPOCH - 1, ()))) is Reason.FENCED
    assert reason_of(decide_drop(None, Save("c", EPOCH, ()))) is Reason.CHANNEL_NOT_FOUND


# ---- MoveChannel ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner_id", "target_id", "on_its_way", "expected"),
    [
        (1, 2, False, MoveDecision(Outcome.APPLIED, release=True)),
        (1, 0, False, MoveDecision(Outcome.APPLIED, release=True)),
        (0, 2, False, MoveDecision(Outcome.APPLIED, release=False)),
        (0, 0, False, MoveDecision(Outcome.ALREADY_APPLIED, release=False)),
        (2, 2, False, MoveDecision(Outcome.ALREADY_APPLIED, release=False)),
        # It is leaving where it shall be: it comes back, under a new epoch.
        (2, 2, True, MoveDecision(Outcome.APPLIED, release=True)),
        (1, 2, True, MoveDecision(Outcome.APPLIED, release=True)),
    ],
)
def test_a_move_asks_the_owner_and_takes_nothing(
    owner_id: int, target_id: int, on_its_way: bool, expected: MoveDecision
) -> None:
    """Taken from its owner, a channel loses what that has buffered; told "there" although it leaves, an operator looks away."""
    assert decide_move(channel(), "c", owner_id=owner_id, target_id=target_id, on_its_way=on_its_way) == expected


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (None, Reason.CHANNEL_NOT_FOUND),
        (TOMBSTONE, Reason.CHANNEL_DROPPED),
        (CLAIMED, Reason.WRONG_MODE),
    ],
)
def test_what_no_job_assigns_cannot_be_moved(facts: ChannelFacts | None, reason: Reason) -> None:
    """Its owner would be asked for it, and nobody would ever get it."""
    assert reason_of(decide_move(facts, "c", owner_id=1, target_id=2, on_its_way=False)) is reason
