"""R2: checkpoints, ownership, drop. Each function decides one row set of the table; the store writes what the decision says."""

from dataclasses import dataclass

from coordinator.core import refusals
from coordinator.core.model import ChannelFacts, ChannelMode, ChannelState, Outcome, Save
from coordinator.core.save import SaveDecision, decide_save
from datacoord.errors import Refusal
from datacoord.positions import Position


@dataclass(frozen=True, slots=True)
class CheckpointDecision:
    """An accepted checkpoint update; the owner's lease is renewed.

    Attributes:
        outcome: APPLIED or ALREADY_APPLIED.
        checkpoint: the new checkpoint; None = it stays.
    """

    outcome: Outcome
    checkpoint: Position | None


@dataclass(frozen=True, slots=True)
class OwnerDecision:
    """A change of owner.

    Attributes:
        owner: the new owner; empty = nobody.
        new_epoch: True: take the next epoch; False: it stays (a claim repeated by the owner).
        checkpoint: the new checkpoint; None = it stays.
    """

    owner: str
    new_epoch: bool
    checkpoint: Position | None = None


@dataclass(frozen=True, slots=True)
class DropDecision:
    """A drop of a channel: write the save, then the tombstone, in one transaction.

    Attributes:
        outcome: APPLIED or ALREADY_APPLIED.
        save: the last save; None when the channel was dropped already.
    """

    outcome: Outcome
    save: SaveDecision | None


@dataclass(frozen=True, slots=True)
class MoveDecision:
    """A move by hand: where the channel shall be is kept, and its owner asked for it.

    Attributes:
        outcome: APPLIED or ALREADY_APPLIED.
        release: True: the owner is asked to hand it over.
    """

    outcome: Outcome
    release: bool


def decide_checkpoint(
    channel: ChannelFacts | None, channel_name: str, epoch: int, position: Position
) -> Refusal | CheckpointDecision:
    """UpdateChannelCheckpoint(c, e, C')."""
    refusal = _refuse_writer(channel, channel_name, epoch)
    if channel is None or refusal is not None:
        return refusal or refusals.channel_not_found(channel_name)
    if position.timestamp <= channel.checkpoint.timestamp:
        return CheckpointDecision(Outcome.ALREADY_APPLIED, None)
    return CheckpointDecision(Outcome.APPLIED, position)


def decide_release(
    channel: ChannelFacts | None, channel_name: str, epoch: int, position: Position | None
) -> Refusal | OwnerDecision:
    """ReleaseChannels(c, e, C'). FENCED means done: the epoch has moved on."""
    refusal = _refuse_writer(channel, channel_name, epoch)
    if channel is None or refusal is not None:
        return refusal or refusals.channel_not_found(channel_name)
    forward = position is not None and position.timestamp > channel.checkpoint.timestamp
    return OwnerDecision(owner="", new_epoch=True, checkpoint=position if forward else None)


def decide_assign(channel: ChannelFacts, owner: str, epoch_read: int) -> OwnerDecision | None:
    """assign(c, node, e0), by the job: compare-and-set on the epoch it read. None = somebody was faster; look again."""
    if (
        channel.mode is not ChannelMode.MANAGED
        or channel.state is not ChannelState.ACTIVE
        or channel.epoch != epoch_read
    ):
        return None
    return OwnerDecision(owner=owner, new_epoch=True)


def decide_move(
    channel: ChannelFacts | None, channel_name: str, *, owner_id: int, target_id: int, on_its_way: bool
) -> Refusal | MoveDecision:
    """MoveChannel(c, target), by an operator. Nothing is taken from anybody: the owner releases, then the job assigns.

    Args:
        channel: the facts; None = no such channel.
        channel_name: the channel.
        owner_id: the session that owns it; 0 = nobody.
        target_id: the session that shall have it; 0 = any but the owner.
        on_its_way: its owner was asked to hand it over already.
    """
    if channel is None:
        return refusals.channel_not_found(channel_name)
    if channel.state is ChannelState.DROPPED:
        return refusals.channel_dropped(channel)
    if channel.mode is not ChannelMode.MANAGED:
        return refusals.wrong_mode(channel)
    there = owner_id == target_id and not on_its_way
    return MoveDecision(Outcome.ALREADY_APPLIED if there else Outcome.APPLIED, release=owner_id != 0 and not there)


def decide_claim(
    channel: ChannelFacts | None, channel_name: str, owner: str, *, owner_lease_until_ms: int, now_ms: int, force: bool
) -> Refusal | OwnerDecision:
    """ClaimChannels(c, name, force).

    Args:
        channel: the facts; None = no such channel.
        channel_name: the channel.
        owner: name of the claimant.
        owner_lease_until_ms: end of the lease of the owner that stands in `channel`, by the database's clock.
        now_ms: the database's clock.
        force: take it although the lease lives.
    """
    if channel is None:
        return refusals.channel_not_found(channel_name)
    if channel.state is ChannelState.DROPPED:
        return refusals.channel_dropped(channel)
    if channel.mode is ChannelMode.MANAGED:
        return refusals.wrong_mode(channel)
    if channel.owner == owner:
        return OwnerDecision(owner=owner, new_epoch=False)
    if channel.owner and owner_lease_until_ms > now_ms and not force:
        return refusals.owned(channel, owner_lease_until_ms)
    return OwnerDecision(owner=owner, new_epoch=True)


def decide_drop(channel: ChannelFacts | None, save: Save) -> Refusal | DropDecision:
    """DropVirtualChannel(c, e, last save)."""
    if channel is not None and channel.state is ChannelState.DROPPED:
        return DropDecision(Outcome.ALREADY_APPLIED, None)
    last = decide_save(channel, save)
    if isinstance(last, Refusal):
        return last
    return DropDecision(Outcome.APPLIED, last)


def _refuse_writer(channel: ChannelFacts | None, channel_name: str, epoch: int) -> Refusal | None:
    if channel is None:
        return refusals.channel_not_found(channel_name)
    if channel.state is ChannelState.DROPPED:
        return refusals.channel_dropped(channel)
    if epoch != channel.epoch:
        return refusals.fenced(channel, epoch)
    return None
