"""R1: SaveBinlogPaths, per channel. First matching row of the table wins; a refused channel applies nothing of its part."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coordinator.core import refusals
from coordinator.core.model import ChannelFacts, ChannelMode, ChannelState, LaneSave, Outcome, Save
from datacoord.errors import InvalidFieldError, Refusal
from datacoord.limits import TIMESTAMP_MAX
from datacoord.positions import Position


@dataclass(frozen=True, slots=True)
class LaneDecision:
    """What to do for one lane: register its binlogs and move its progress if APPLIED, else nothing.

    Attributes:
        lane: the range as sent.
        outcome: APPLIED, ALREADY_APPLIED or DISCARDED.
        progress: of the lane, afterwards.
    """

    lane: LaneSave
    outcome: Outcome
    progress: int


@dataclass(frozen=True, slots=True)
class SaveDecision:
    """What to write for an accepted part; the lease of the owner is renewed as well.

    Attributes:
        outcome: APPLIED if anything changes, else ALREADY_APPLIED.
        lanes: in the order of the request.
        checkpoint: the new checkpoint; None = it stays.
    """

    outcome: Outcome
    lanes: tuple[LaneDecision, ...]
    checkpoint: Position | None


def check_shape(save: Save, mode: ChannelMode | None) -> None:
    """Refuses a malformed part, and with it the whole call, before any rule is looked at.

    Paths are checked where they are read (`datacoord.paths`); channels twice in a call by `check_distinct`.

    Args:
        save: the part.
        mode: of the channel; None when the channel is not known.

    Raises:
        InvalidFieldError: a range is empty or reversed, a lane stands twice, a file's timestamps lie outside its range, or a
            lane of a CLAIMED channel does not end at the checkpoint of the call.
    """
    if len(save.lanes) > 1:
        check_distinct([lane.partition_id for lane in save.lanes], "partition", save.channel_name)
    for lane in save.lanes:
        start, end = lane.timestamp_from, lane.timestamp_to
        if not 0 <= start < end <= TIMESTAMP_MAX:
            raise InvalidFieldError(
                f"range ({start}, {end}] of {_where(save, lane)} is empty, reversed or beyond 63 bits",
                channel_name=save.channel_name,
            )
        for binlog in lane.binlogs:
            if not start < binlog.ts_min <= binlog.ts_max <= end:
                raise InvalidFieldError(
                    f"object {binlog.log_id} of {_where(save, lane)} has timestamps {binlog.ts_min} to {binlog.ts_max}, "
                    f"outside its range ({start}, {end}]",
                    channel_name=save.channel_name,
                    log_id=binlog.log_id,
                )
        if mode is ChannelMode.CLAIMED and (save.checkpoint is None or save.checkpoint.timestamp != end):
            raise InvalidFieldError(
                f"{_where(save, lane)} is CLAIMED: its range must end at the checkpoint of the same call",
                channel_name=save.channel_name,
            )


def _where(save: Save, lane: LaneSave) -> str:
    return f"channel {save.channel_name!r}, partition {lane.partition_id}"


def check_distinct(names: Iterable[object], what: str, where: str) -> None:
    """Refuses a list that names something twice.

    Raises:
        InvalidFieldError: with the name that stands twice.
    """
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise InvalidFieldError(f"{what} {name!r} stands twice in {where}", duplicate=name)
        seen.add(name)


def decide_save(channel: ChannelFacts | None, save: Save) -> Refusal | SaveDecision:
    """Decides one channel's part.

    Args:
        channel: the facts, with every lane the part names; None = no such channel.
        save: the part, of good shape.
    """
    if channel is None:
        return refusals.channel_not_found(save.channel_name)
    if channel.state is ChannelState.DROPPED:
        return refusals.channel_dropped(channel)
    if save.epoch != channel.epoch:
        return refusals.fenced(channel, save.epoch)
    return _refuse_lanes(channel, save) or _accept(channel, save)


def registers_all(
    save: Save, state: ChannelState, epoch: int, checkpoint_timestamp: int, progress: Sequence[int]
) -> bool:
    """Whether every lane of a part brings objects and is registered: the last row of the table with `f = P`, at a glance.

    Args:
        save: the part, of good shape; its partitions are there and not dropped.
        state: of the channel.
        epoch: of the channel.
        checkpoint_timestamp: C.
        progress: P of the lanes, in the order of the part.
    """
    if save.epoch != epoch or state is not ChannelState.ACTIVE or not save.lanes:
        return False
    for lane, at in zip(save.lanes, progress, strict=True):
        if lane.timestamp_from != at or not lane.binlogs:
            return False
        for binlog in lane.binlogs:
            if binlog.ts_min <= checkpoint_timestamp:
                return False
    return True


def _refuse_lanes(channel: ChannelFacts, save: Save) -> Refusal | None:
    for lane in save.lanes:
        if not channel.lane(lane.partition_id).exists:
            return refusals.partition_not_found(channel, lane.partition_id)
    live = [lane for lane in save.lanes if not channel.lane(lane.partition_id).dropped]
    for lane in live:
        if lane.timestamp_from > channel.lane(lane.partition_id).progress:
            return refusals.gap(channel, lane.partition_id, lane.timestamp_from)
    for lane in live:
        if lane.timestamp_from < channel.lane(lane.partition_id).progress < lane.timestamp_to:
            return refusals.overlap(channel, lane.partition_id, lane.timestamp_from, lane.timestamp_to)
    for lane in live:
        if lane.timestamp_from == channel.lane(lane.partition_id).progress:
            for binlog in lane.binlogs:
                if binlog.ts_min <= channel.checkpoint.timestamp:
                    return refusals.below_checkpoint(channel, lane.partition_id, binlog.ts_min)
    return None


def _accept(channel: ChannelFacts, save: Save) -> SaveDecision:
    lanes = tuple(_decide_lane(channel, lane) for lane in save.lanes)
    forward = save.checkpoint is not None and save.checkpoint.timestamp > channel.checkpoint.timestamp
    changed = forward or any(lane.outcome is Outcome.APPLIED for lane in lanes)
    return SaveDecision(
        outcome=Outcome.APPLIED if changed else Outcome.ALREADY_APPLIED,
        lanes=lanes,
        checkpoint=save.checkpoint if forward else None,
    )


def _decide_lane(channel: ChannelFacts, lane: LaneSave) -> LaneDecision:
    facts = channel.lane(lane.partition_id)
    if facts.dropped:
        return LaneDecision(lane, Outcome.DISCARDED, facts.progress)
    if lane.timestamp_to <= facts.progress:
        return LaneDecision(lane, Outcome.ALREADY_APPLIED, facts.progress)
    return LaneDecision(lane, Outcome.APPLIED, lane.timestamp_to)
