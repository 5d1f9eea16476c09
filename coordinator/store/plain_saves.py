"""The parts of SaveBinlogPaths that go the usual way: every lane's range begins where the last one ended.

Nearly all do. They are decided on the rows as the driver gives them and written together, which costs half of what core's facts
and decisions cost. What is not so certain is left to core, in the same transaction: a refusal, a repetition, a drop, a flush.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from coordinator.core.model import ChannelState, LaneSave, Outcome, Save, SegmentState
from coordinator.core.save import registers_all
from coordinator.core.segments import REQUESTED, SegmentFacts, level_of, seal_reason, tally
from coordinator.store import channel_reads
from coordinator.store.answers import ChannelIdentity, LaneAnswer, WriteAnswer
from coordinator.store.channel_writes import ChannelRows, binlog_rows
from coordinator.store.driver_statement import Row
from coordinator.store.transaction import Transaction
from datacoord.limits import ALL_PARTITIONS_ID

_APPLIED = Outcome.APPLIED
_GROWING, _SEALED = SegmentState.GROWING, SegmentState.SEALED
_STATES = {int(state): state for state in ChannelState}
_PARTITION_ID, _COLLECTION_ID, _PROGRESS, _SEGMENT_ID = 1, 2, 3, 4
"""Places in a row of `channel_reads.LANE_GUARDS`."""
_new: Final = tuple.__new__
"""Makes a named tuple of all its values in a third of the time that its class takes."""


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
        channel: its channel.
    """

    call: int
    place: int
    save: Save
    channel: ChannelIdentity


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
    transaction.reserve(ids_wanted=sum([row[_SEGMENT_ID] is None for _, _, lanes in plain for row in lanes]))
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
            channel = known.get(name)
            parts[name] = None if channel is None or name in parts else _new(Part, (number, place, save, channel))
    return [part for part in parts.values() if part is not None]


def _plain(
    transaction: Transaction, parts: Sequence[Part], channel_ids: Sequence[int]
) -> list[tuple[Part, Row, list[Row]]]:
    """Reads and locks channels, and finds the parts that may be registered as they are.

    Args:
        transaction: the transaction.
        parts: of some of the channels.
        channel_ids: the channels to lock, in this order.

    Returns:
        per part its channel's row of `channel_reads.FENCES`, and a row of `channel_reads.LANE_GUARDS` per lane.
    """
    kind, connection = transaction.kind, transaction.connection
    # Two queries: the second one sees what the first has waited for.
    keys = [(channel_id,) for channel_id in channel_ids]
    channels = {row[0]: row for row in channel_reads.FENCES.run(kind, connection, keys)}
    pairs = [(part.channel.channel_id, lane.partition_id) for part in parts for lane in part.save.lanes]
    guards = {row[:2]: row for row in channel_reads.LANE_GUARDS.run(kind, connection, pairs)}
    plain = []
    at = 0
    for part in parts:
        lanes = part.save.lanes
        found = [guards[pair] for pair in pairs[at : at + len(lanes)]]
        at += len(lanes)
        channel = channels.get(part.channel.channel_id)
        if channel is None:  # of a database that was put in the place of the one that had it
            continue
        _, state, epoch, _, flush_timestamp, checkpoint_timestamp = channel
        if flush_timestamp == 0 and registers_all(
            part.save, _STATES[state], epoch, checkpoint_timestamp, [row[_PROGRESS] or 0 for row in found]
        ):
            collection_id = part.channel.collection_id
            # Whether the partitions are of the channel's collection, and not dropped.
            for row in found:
                if row[_COLLECTION_ID] != collection_id and row[_PARTITION_ID] != ALL_PARTITIONS_ID:
                    break
            else:
                plain.append((part, channel, found))
    return plain


def _register(transaction: Transaction, rows: ChannelRows, part: Part, channel: Row, lanes: Sequence[Row]) -> Taken:
    save = part.save
    channel_id, _, epoch, owner_id, flush_timestamp, checkpoint_timestamp = channel
    answers = []
    ranges = []
    for lane, row in zip(save.lanes, lanes, strict=True):
        partition_id, start, end, binlogs, _ = lane
        segment_id, state = _register_lane(transaction, rows, lane, row, epoch)
        answers.append(_new(LaneAnswer, (partition_id, _APPLIED, segment_id, state, end)))
        ts_min = min([binlog.ts_min for binlog in binlogs])
        ranges.append((partition_id, start, end, len(binlogs), ts_min, segment_id))
    moved = None
    checkpoint = save.checkpoint
    if checkpoint is not None and checkpoint.timestamp > checkpoint_timestamp:
        moved, msg_id, msg_group, event_time_ms = checkpoint
        rows.moves.append((channel_id, epoch, moved, flush_timestamp, moved, event_time_ms, msg_id, msg_group))
    transaction.renew(owner_id)
    answer = _new(WriteAnswer, (_APPLIED, None, tuple(answers), None))
    return _new(Taken, (answer, [channel_id, epoch, moved, ranges]))


def _register_lane(
    transaction: Transaction, rows: ChannelRows, lane: LaneSave, row: Row, epoch: int
) -> tuple[int, SegmentState]:
    """Adds a range to the growing segment, or to a new one.

    Returns:
        the segment, and its state afterwards.
    """
    now_ms = transaction.now_ms
    channel_id, partition_id, _, progress, segment_id, *grown = row
    _, start, end, binlogs, seal = lane
    more_rows, more_deletes, more_bytes = tally(binlogs)
    objects, created_ms, ranges = len(binlogs), now_ms, 1
    is_new = segment_id is None
    if is_new:
        segment_id = transaction.next_id()
    else:
        rows_before, deletes_before, bytes_before, objects_before, created_ms, ranges_before = grown
        more_rows += rows_before
        more_deletes += deletes_before
        more_bytes += bytes_before
        objects += objects_before
        ranges += ranges_before
    facts = _new(SegmentFacts, (more_rows, more_deletes, more_bytes, ranges, created_ms, now_ms))
    reason = REQUESTED if seal else seal_reason(facts, transaction.settings.seal_policy, now_ms)
    state, growing = (_GROWING, segment_id) if reason is None else (_SEALED, None)
    sizes = (more_rows, more_deletes, more_bytes, objects)
    if is_new:
        where = (segment_id, channel_id, partition_id, int(state), int(level_of(partition_id)))
        rows.new_segments.append((*where, *sizes, start, end, reason or "", created_ms, now_ms, ranges))
    else:
        rows.change_segment((segment_id, *sizes, end, ranges, now_ms), state, reason or "")
    if progress is None:
        rows.new_lanes.append((channel_id, partition_id, end, growing))
    elif is_new or growing is None:
        rows.old_lanes.append((channel_id, partition_id, start, end, growing))
    else:
        rows.moved_lanes.append((channel_id, partition_id, start, end))
    rows.binlogs += binlog_rows(segment_id, binlogs, epoch, start, end)
    return segment_id, state
