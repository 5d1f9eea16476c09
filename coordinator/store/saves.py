"""SaveBinlogPaths and DropVirtualChannel (R1)."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.core.model import LaneSave, Outcome, Save, SegmentState
from coordinator.core.ownership import decide_drop
from coordinator.core.save import LaneDecision, SaveDecision, decide_save
from coordinator.core.segments import REQUESTED, seal_reason
from coordinator.store.answers import LaneAnswer, WriteAnswer
from coordinator.store.calls import WriteCall
from coordinator.store.channels import Channel, Channels, Segment
from coordinator.store.plain_saves import Taken
from coordinator.store.transaction import Transaction
from datacoord.errors import Refusal

_LANE_BYTES = 64
_BINLOG_BYTES = 128


class SaveCall(WriteCall[list[WriteAnswer]]):
    """SaveBinlogPaths.

    Attributes:
        saves: the parts.
        taken: the parts that are registered already in this transaction, by their place.
    """

    def __init__(self, saves: Sequence[Save], caller: str) -> None:
        lanes = [lane for save in saves for lane in save.lanes]
        size_bytes = len(lanes) * _LANE_BYTES + sum(len(lane.binlogs) for lane in lanes) * _BINLOG_BYTES
        super().__init__("SaveBinlogPaths", caller, items=max(len(lanes), len(saves)), size_bytes=size_bytes)
        self.saves = saves
        self.taken: Mapping[int, Taken] = {}

    def needs(self) -> Mapping[str, Sequence[int]]:
        """See the base class."""
        return {save.channel_name: [lane.partition_id for lane in save.lanes] for _, save in self._left()}

    def _left(self) -> list[tuple[int, Save]]:
        return [(index, save) for index, save in enumerate(self.saves) if index not in self.taken]

    def run(self, transaction: Transaction, channels: Channels) -> list[WriteAnswer]:
        """See the base class."""
        answers = []
        changes = []
        items = 0
        transaction.reserve(ids_wanted=self._new_segments(channels))
        for index, save in enumerate(self.saves):
            if (taken := self.taken.get(index)) is not None:
                answers.append(taken.answer)
                changes.append(taken.change)
                items += len(save.lanes)
                continue
            channel = channels.get(save.channel_name)
            partition_ids = [lane.partition_id for lane in save.lanes]
            facts = channels.facts(channel, partition_ids) if channel is not None else None
            decision = decide_save(facts, save)
            if channel is None or isinstance(decision, Refusal):
                answers.append(WriteAnswer(None, _refusal(decision), (), facts))
                continue
            lanes = apply_save(transaction, channels, channel, save, decision)
            after = None if is_applied(decision) else channels.facts(channel, partition_ids)
            answers.append(WriteAnswer(decision.outcome, None, lanes, after))
            items += max(1, len(lanes))
            if decision.outcome is Outcome.APPLIED:
                changes.append(change_of(channel, decision, lanes))
        _record(transaction, self, answers, items, changes)
        return answers

    def _new_segments(self, channels: Channels) -> int:
        """How many segments this call will create, at most: each needs a number."""
        return sum(
            1
            for _, save in self._left()
            if (channel := channels.get(save.channel_name)) is not None and channel.epoch == save.epoch
            for lane in save.lanes
            if lane.binlogs and channel.lanes[lane.partition_id].growing is None
        )


class DropCall(WriteCall[WriteAnswer]):
    """DropVirtualChannel."""

    def __init__(self, save: Save, caller: str) -> None:
        super().__init__("DropVirtualChannel", caller, items=max(1, len(save.lanes)))
        self._save = save

    def needs(self) -> Mapping[str, Sequence[int]]:
        """See the base class."""
        return {self._save.channel_name: [lane.partition_id for lane in self._save.lanes]}

    def run(self, transaction: Transaction, channels: Channels) -> WriteAnswer:
        """See the base class."""
        save = self._save
        channel = channels.get(save.channel_name)
        partition_ids = [lane.partition_id for lane in save.lanes]
        facts = channels.facts(channel, partition_ids) if channel is not None else None
        decision = decide_drop(facts, save)
        if channel is None or isinstance(decision, Refusal):
            return WriteAnswer(None, _refusal(decision), (), facts)
        lanes: tuple[LaneAnswer, ...] = ()
        changes = []
        if decision.save is not None:
            lanes = apply_save(transaction, channels, channel, save, decision.save)
            changes.append(change_of(channel, decision.save, lanes))
            channels.drop(channel)
            # The segments that took the last ranges were dropped with the channel.
            lanes = tuple(lane._replace(segment_state=lane.segment_state and SegmentState.DROPPED) for lane in lanes)
        answer = WriteAnswer(decision.outcome, None, lanes, channels.facts(channel, partition_ids))
        _record(transaction, self, [answer], self.items, changes)
        return answer


def is_applied(decision: SaveDecision) -> bool:
    """Whether all of a part was registered now: then what is stored is what was sent, and need not be said."""
    applied = Outcome.APPLIED
    return decision.outcome is applied and all(lane.outcome is applied for lane in decision.lanes)


def _refusal(decision: object) -> Refusal:
    assert isinstance(decision, Refusal)  # noqa: S101 - core refuses whatever it has no facts of
    return decision


def _record(
    transaction: Transaction, call: WriteCall[Any], answers: Sequence[WriteAnswer], items: int, changes: Sequence[Any]
) -> None:
    accepted = sum(1 for answer in answers if answer.refusal is None)
    if accepted:
        transaction.record(call.rpc, call.caller, channels=accepted, items=items, changes=changes)


def change_of(channel: Channel, decision: SaveDecision, answers: Sequence[LaneAnswer]) -> list[Any]:
    """An accepted save, for the history."""
    moved = decision.checkpoint.timestamp if decision.checkpoint is not None else None
    ranges = [
        _range_of(d.lane, answer)
        for d, answer in zip(decision.lanes, answers, strict=True)
        if d.outcome is Outcome.APPLIED
    ]
    return [channel.channel_id, channel.epoch, moved, ranges]


def _range_of(lane: LaneSave, answer: LaneAnswer) -> list[int]:
    """A registered range: what `datacoord verify` proves the rows by."""
    objects = len(lane.binlogs)
    ts_min = min([binlog.ts_min for binlog in lane.binlogs]) if objects else 0
    segment_id = answer.segment_id if objects else 0
    return [lane.partition_id, lane.timestamp_from, lane.timestamp_to, objects, ts_min, segment_id]


def apply_save(
    transaction: Transaction, channels: Channels, channel: Channel, save: Save, decision: SaveDecision
) -> tuple[LaneAnswer, ...]:
    """Does what core decided for one channel: binlogs and progress first, then the checkpoint, which may reach a flush target."""
    took = [_apply_lane(transaction, channels, channel, save.epoch, lane) for lane in decision.lanes]
    if decision.checkpoint is not None:
        channels.move_checkpoint(channel, decision.checkpoint)
    transaction.renew(channel.owner_id)
    return tuple(_lane_answer(channel, lane, segment) for lane, segment in zip(decision.lanes, took, strict=True))


def _apply_lane(
    transaction: Transaction, channels: Channels, channel: Channel, epoch: int, decision: LaneDecision
) -> Segment | None:
    """Registers a range.

    Returns:
        the segment that took it.
    """
    if decision.outcome is not Outcome.APPLIED:
        return None
    wanted: LaneSave = decision.lane
    lane = channel.lanes[wanted.partition_id]
    lane.progress = decision.progress
    lane.changed = True
    took = None
    if wanted.binlogs:
        start, end = wanted.timestamp_from, wanted.timestamp_to
        took = channels.add_binlogs(channel, lane, wanted.binlogs, epoch=epoch, start=start, end=end)
    if lane.growing is not None:
        policy = seal_reason(lane.growing.facts(), transaction.settings.seal_policy, transaction.now_ms)
        reason = REQUESTED if wanted.seal else policy
        if reason is not None:
            channels.seal(lane, reason)
    return took


def _lane_answer(channel: Channel, decision: LaneDecision, took: Segment | None) -> LaneAnswer:
    segment = took or channel.lanes[decision.lane.partition_id].growing
    return LaneAnswer(
        partition_id=decision.lane.partition_id,
        outcome=decision.outcome,
        segment_id=segment.segment_id if segment is not None else 0,
        segment_state=segment.state if segment is not None else None,
        progress=decision.progress,
    )
