"""The parts of SaveBinlogPaths that go the usual way: every lane's range begins where the last one ended.

Nearly all do. They are decided on the rows as the driver gives them and written together, which costs half of what core's facts
and decisions cost. What is not so certain is left to core, in the same transaction: a refusal, a repetition, a drop, a flush.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from coordinator.core.model import ChannelState, LaneSave, Outcome, Save, SegmentState
from coordinator.core.save import registers_all
from coordinator.core.segments import REQUESTED, SegmentFacts, level_of, seal_reason, tally
from coordinator.store import channel_reads
from coordinator.store.answers import LaneAnswer, WriteAnswer
from coordinator.store.channel_writes import ChannelRows, binlog_rows
from coordinator.store.driver_statement import Row
from coordinator.store.transaction import Transaction
from datacoord.limits import ALL_PARTITIONS_ID

_APPLIED = Outcome.APPLIED
_GROWING, _SEALED = SegmentState.GROWING, SegmentState.SEALED
_STATES = {int(state): state for state in ChannelState}


class Taken(NamedTuple):
    """A part that is registered.

    Attributes:
        answer: to it.
        change: for the history.
    """

    answer: WriteAnswer
    change: list[Any]


class Part(NamedTuple):
    """A part as it stands in the calls of a group.

    Attributes:
        call: which of them.
        place: in the call.
        save: the part.
        channel_id: of its channel.
        collection_id: of its channel.
    """

    call: int
    place: int
    save: Save
    channel_id: int
    collection_id: int


class LaneRow(NamedTuple):
    """A row of `channel_reads.LANE_GUARDS`: of a lane, and of its growing segment, where there are any.

    Attributes:
        collection_id: the collection that has the partition, if it lives.
        progress: of the lane.
        segment_id: what grows.
        rows: in it; so are the others.
    """

    collection_id: int | None
    progress: int | None
    segment_id: int | None
    rows: int
    delete_rows: int
    size_bytes: int
    binlogs: int
    created_ms: int
    ranges: int


def take(
    transaction: Transaction, calls: Sequence[Sequence[Save]], beside: Iterable[str] = ()
) -> list[dict[int, Taken]]:
    """Registers every part of these calls of which core would register every lane now.

    A shortcut, not a rule: proven equal to `core` by a differential test.

    Args:
        transaction: nothing of these channels was read in it before.
        calls: their parts.
        beside: names of channels that the transaction will look at later. They are locked as well: all channels in one order,
            and before numbers are taken, or replicas wait for each other in a circle.

    Returns:
        per call, the parts that were registered, by their place; the others are left to core.
    """
    taken: list[dict[int, Taken]] = [{} for _ in calls]
    parts = _alone(transaction, calls)
    if not parts:
        return taken
    known = transaction.memory.channels
    named = {save.channel_name for saves in calls for save in saves}.union(beside)
    # The order in which every transaction locks channels.
    channel_ids = sorted([known[name].channel_id for name in named if name in known])
    plain = _plain(transaction, parts, channel_ids)
    new = sum([1 for _, _, lanes in plain for row in lanes if row.segment_id is None])
    transaction.reserve(ids_wanted=new)
    rows = ChannelRows()
    for part, channel, lanes in plain:
        taken[part.call][part.place] = _register(transaction, rows, part, channel, lanes)
    rows.write(transaction)
    return taken


def _alone(transaction: Transaction, calls: Sequence[Sequence[Save]]) -> list[Part]:
    """The parts whose channels are known here and named once: two of one channel must see each other."""
    known = transaction.memory.channels
    parts: dict[str, Part | None] = {}
    for number, saves in enumerate(calls):
        for place, save in enumerate(saves):
            name = save.channel_name
            identity = known.get(name)
            if identity is None or name in parts:
                parts[name] = None
            else:
                parts[name] = Part(number, place, save, identity.channel_id, identity.collection_id)
    return [part for part in parts.values() if part is not None]


def _plain(
    transaction: Transaction, parts: Sequence[Part], channel_ids: Sequence[int]
) -> list[tuple[Part, Row, list[LaneRow]]]:
    """Reads and locks channels, and finds the parts that may be registered as they are.

    Args:
        transaction: the transaction.
        parts: of some of the channels.
        channel_ids: the channels to lock, in this order.

    Returns:
        per part its channel's row, and a row per lane.
    """
    kind, connection = transaction.kind, transaction.connection
    # Two queries: the second one sees what the first has waited for.
    keys = [(channel_id,) for channel_id in channel_ids]
    channels = {row[0]: row for row in channel_reads.FENCES.run(kind, connection, keys)}
    pairs = [(part.channel_id, lane.partition_id) for part in parts for lane in part.save.lanes]
    lanes = {row[:2]: LaneRow(*row[2:]) for row in channel_reads.LANE_GUARDS.run(kind, connection, pairs)}
    plain = []
    for part in parts:
        channel = channels.get(part.channel_id)
        if channel is None:  # of a database that was put in the place of the one that had it
            continue
        _, state, epoch, _, flush_timestamp, checkpoint_timestamp = channel
        found = [lanes[part.channel_id, lane.partition_id] for lane in part.save.lanes]
        if (
            flush_timestamp == 0
            and registers_all(
                part.save, _STATES[state], epoch, checkpoint_timestamp, [row.progress or 0 for row in found]
            )
            and _are_live(part, found)
        ):
            plain.append((part, channel, found))
    return plain


def _are_live(part: Part, found: Sequence[LaneRow]) -> bool:
    """Whether the partitions of all lanes are of the channel's collection, and not dropped."""
    for lane, row in zip(part.save.lanes, found, strict=True):
        if row.collection_id != part.collection_id and lane.partition_id != ALL_PARTITIONS_ID:
            return False
    return True


def _register(transaction: Transaction, rows: ChannelRows, part: Part, channel: Row, lanes: Sequence[LaneRow]) -> Taken:
    save, channel_id = part.save, part.channel_id
    _, _, epoch, owner_id, flush_timestamp, checkpoint_timestamp = channel
    answers = []
    ranges = []
    for lane, row in zip(save.lanes, lanes, strict=True):
        segment_id, state = _register_lane(transaction, rows, part, lane, row)
        answers.append(LaneAnswer(lane.partition_id, _APPLIED, segment_id, state, lane.timestamp_to))
        ts_min = min([binlog.ts_min for binlog in lane.binlogs])
        start, end = lane.timestamp_from, lane.timestamp_to
        ranges.append([lane.partition_id, start, end, len(lane.binlogs), ts_min, segment_id])
    moved = None
    at = save.checkpoint
    if at is not None and at.timestamp > checkpoint_timestamp:
        moved = at.timestamp
        where = (channel_id, epoch, moved, flush_timestamp)
        rows.moves.append((*where, moved, at.event_time_ms, at.msg_id, at.msg_group))
    transaction.renew(owner_id)
    return Taken(WriteAnswer(_APPLIED, None, tuple(answers)), [channel_id, epoch, moved, ranges])


def _register_lane(
    transaction: Transaction, rows: ChannelRows, part: Part, lane: LaneSave, row: LaneRow
) -> tuple[int, SegmentState]:
    """Adds a range to the growing segment, or to a new one.

    Returns:
        the segment, and its state afterwards.
    """
    now_ms, channel_id = transaction.now_ms, part.channel_id
    partition_id, start, end = lane.partition_id, lane.timestamp_from, lane.timestamp_to
    more_rows, more_deletes, more_bytes = tally(lane.binlogs)
    segment_id = row.segment_id
    if segment_id is None:
        segment_id, binlogs, created_ms = transaction.next_id(), 0, now_ms
        facts = SegmentFacts(more_rows, more_deletes, more_bytes, 1, now_ms, now_ms)
    else:
        binlogs, created_ms = row.binlogs, row.created_ms
        sizes = (row.rows + more_rows, row.delete_rows + more_deletes, row.size_bytes + more_bytes)
        facts = SegmentFacts(*sizes, row.ranges + 1, created_ms, now_ms)
    binlogs += len(lane.binlogs)
    reason = REQUESTED if lane.seal else seal_reason(facts, transaction.settings.seal_policy, now_ms)
    state = _GROWING if reason is None else _SEALED
    written = (int(state), facts.rows, facts.delete_rows, facts.size_bytes, binlogs)
    if row.segment_id is None:
        rows.new_segments.append(
            (
                *(segment_id, channel_id, partition_id, written[0], int(level_of(partition_id)), *written[1:]),
                *(start, end, reason or "", created_ms, now_ms, 1),
            )
        )
    else:
        rows.old_segments.append((segment_id, *written, end, facts.ranges, reason or "", now_ms))
    growing = segment_id if reason is None else None
    if row.progress is None:
        rows.new_lanes.append((channel_id, partition_id, end, growing))
    else:
        rows.old_lanes.append((channel_id, partition_id, start, end, growing))
    rows.binlogs += binlog_rows(segment_id, lane.binlogs, part.save.epoch, start, end)
    return segment_id, state
