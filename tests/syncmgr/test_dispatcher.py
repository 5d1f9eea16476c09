"""S2: one outstanding save per channel, every ready lane, ranges of a lane in order and joined, unchanged until answered."""

from pathlib import Path

import pyarrow as pa
import pytest

from datacoord import reported_metrics as names
from datacoord.errors import DatacoordError, FencedError, GapError, InternalError, to_status
from datacoord.v1 import common_pb2, data_coord_pb2

from .rig import Rig, at, ranges, rows, settle


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A dispatcher and what surrounds it."""
    return Rig(tmp_path)


async def test_a_range_is_named_only_after_its_objects_are_durable(rig: Rig) -> None:
    """Section 4.4: files first, then the row."""
    await rig.sync(3, 1)
    assert rig.coordinator.sent == []
    await rig.threads.finish()

    [part] = rig.coordinator.sent
    assert (part.channel_name, part.epoch, ranges(part)) == ("c", 5, [(1, 0, 3)])
    assert len(part.lanes[0].insert_logs[0].binlogs) == len(part.lanes[0].delta_logs[0].binlogs) == 1


async def test_a_channel_has_one_outstanding_save(rig: Rig) -> None:
    """Two writing calls of one channel overtake each other; the second then meets a GAP."""
    await rig.sync(3, 1, 2, 3)
    for _ in range(3):
        await rig.threads.finish()
    assert [ranges(part) for part in rig.coordinator.sent] == [[(1, 0, 3)]]
    await rig.coordinator.answer()

    assert [ranges(part) for part in rig.coordinator.sent[1:]] == [[(2, 0, 3), (3, 0, 3)]]


async def test_uploads_of_different_lanes_run_side_by_side(rig: Rig) -> None:
    """One slow object must not hold up the others."""
    await rig.sync(3, 1, 2, 3)

    assert rig.threads.ranges() == [(1, 0, 3), (2, 0, 3), (3, 0, 3)]


async def test_ranges_of_a_lane_are_saved_in_order_and_waiting_ones_are_joined(rig: Rig) -> None:
    """B7: what waits becomes one range before it has a name; what was sent is never joined with anything."""
    await rig.sync(3, 1)
    await rig.threads.finish()
    await rig.sync(4, 1)
    await rig.threads.finish()
    for ts in (5, 6, 7):
        await rig.sync(ts, 1)
    assert rig.threads.ranges() == []
    assert [ranges(part) for part in rig.coordinator.sent] == [[(1, 0, 3)]]
    await rig.coordinator.answer()
    assert rig.threads.ranges() == [(1, 4, 7)]
    await rig.coordinator.answer()
    await rig.threads.finish()
    await rig.coordinator.answer()

    assert [ranges(part) for part in rig.coordinator.sent] == [[(1, 0, 3)], [(1, 3, 4)], [(1, 4, 7)]]
    last = rig.coordinator.sent[-1].lanes[0]
    assert [binlog.entries_num for binlog in last.insert_logs[0].binlogs] == [3]
    assert rig.dispatcher.is_idle
    assert rig.buffer.get_checkpoint() == at(7)


async def test_while_the_coordinator_is_away_a_lane_writes_one_range_ahead_and_no_more(rig: Rig) -> None:
    """Hours without a coordinator must not fill the store with objects that nobody has registered."""
    for ts in range(1, 30):
        await rig.sync(ts, 1)
        while rig.threads.waiting:
            await rig.threads.finish()

    assert rig.metrics.value(names.BINLOGS_WRITTEN, kind="insert") == 2
    assert rig.dispatcher.syncs_in_flight == 3


async def test_joined_ranges_stay_below_their_limit(tmp_path: Path) -> None:
    """An object that holds an hour of backlog does not fit into memory when it is encoded."""
    rig = Rig(tmp_path, joined_sync_max_bytes=70)
    await rig.sync(1, 1)
    for ts in (2, 3, 4, 5, 6):
        await rig.sync(ts, 1)
    await rig.threads.finish()
    written = []
    while rig.coordinator.saves or rig.threads.waiting:
        if rig.threads.waiting:
            written.append(rig.threads.ranges()[0])
            await rig.threads.finish()
        if rig.coordinator.saves:
            await rig.coordinator.answer()

    assert written == [(1, 1, 3), (1, 3, 5), (1, 5, 6)]


async def test_a_save_carries_the_checkpoint_that_its_own_ranges_allow(rig: Rig) -> None:
    """B4, from both sides: the own pin is left out, everybody else's counts."""
    await rig.sync(3, 1)
    await rig.sync(5, 2)
    await rig.threads.finish(1)
    [part] = rig.coordinator.sent
    assert ranges(part) == [(2, 0, 5)]
    assert not part.HasField("check_point")
    await rig.coordinator.answer()
    await rig.threads.finish()

    part = rig.coordinator.sent[-1]
    assert ranges(part) == [(1, 0, 3)]
    assert (part.check_point.timestamp, part.check_point.msg_id) == (5, b"at 5")
    await rig.coordinator.answer()
    assert rig.buffer.persisted == at(5)


async def test_rows_buffered_meanwhile_hold_the_checkpoint_of_a_save_back(rig: Rig) -> None:
    """The checkpoint is read when the part is built, with everything consumed by then."""
    await rig.sync(3, 1)
    rig.buffer.buffer_data(rows(2, 6))
    rig.buffer.advance(at(6))
    await rig.threads.finish()

    assert rig.coordinator.sent[0].check_point.timestamp == 3


@pytest.mark.parametrize(
    ("outcome", "lane_outcome"),
    [
        (common_pb2.OUTCOME_APPLIED, common_pb2.OUTCOME_APPLIED),
        (common_pb2.OUTCOME_ALREADY_APPLIED, common_pb2.OUTCOME_ALREADY_APPLIED),
        (common_pb2.OUTCOME_APPLIED, common_pb2.OUTCOME_DISCARDED),
    ],
)
async def test_the_three_good_answers_unpin(
    rig: Rig, outcome: common_pb2.Outcome, lane_outcome: common_pb2.Outcome
) -> None:
    """R3 answer: unpin only on APPLIED, ALREADY_APPLIED, DISCARDED."""
    await rig.sync(3, 1)
    await rig.threads.finish()
    assert rig.buffer.get_checkpoint().timestamp == 0
    await rig.coordinator.answer(outcome, lane_outcome)

    assert rig.buffer.get_checkpoint() == at(3)
    assert rig.metacache.lane(1).dropped is (lane_outcome == common_pb2.OUTCOME_DISCARDED)
    assert (rig.answers, rig.errors, rig.dispatcher.is_idle) == (1, [], True)


@pytest.mark.parametrize("error", [FencedError("fenced", epoch=9), GapError("gap"), InternalError("what?")])
async def test_a_refusal_never_unpins_and_is_told_once(rig: Rig, error: DatacoordError) -> None:
    """Milvus treats ErrChannelNotFound as success: the report is lost and a later checkpoint passes the rows."""
    await rig.sync(3, 1)
    await rig.threads.finish()
    await rig.coordinator.answer(error=error)

    assert rig.errors == [error]
    assert rig.buffer.get_checkpoint().timestamp == 0
    assert rig.answers == 0


ODD_ANSWERS = {
    "empty": data_coord_pb2.ChannelResult(),
    "no lanes": data_coord_pb2.ChannelResult(outcome=common_pb2.OUTCOME_APPLIED),
    "lane undecided": data_coord_pb2.ChannelResult(
        outcome=common_pb2.OUTCOME_APPLIED, lanes=[data_coord_pb2.LaneResult(partition_id=1)]
    ),
    "another lane": data_coord_pb2.ChannelResult(
        outcome=common_pb2.OUTCOME_APPLIED,
        lanes=[data_coord_pb2.LaneResult(partition_id=2, outcome=common_pb2.OUTCOME_APPLIED)],
    ),
    "refusal inside": data_coord_pb2.ChannelResult(error=to_status(GapError("gap"))),
}


@pytest.mark.parametrize("result", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
async def test_an_answer_that_does_not_speak_of_every_range_is_no_answer(
    rig: Rig, result: data_coord_pb2.ChannelResult
) -> None:
    """A proxy, a bug, an older server: unpinning on anything but a clear yes loses rows."""
    await rig.sync(3, 1)
    await rig.threads.finish()
    await rig.coordinator.answer(result=result)

    assert len(rig.errors) == 1
    assert isinstance(rig.errors[0], InternalError | GapError)
    assert rig.buffer.get_checkpoint().timestamp == 0


async def test_rows_that_cannot_be_parquet_end_the_channel_and_stay_pinned(rig: Rig) -> None:
    """Trying again for ever would look like a slow disk."""
    await rig.sync(3, 1)
    await rig.threads.finish(error=pa.ArrowInvalid("no such type"))

    assert [type(error) for error in rig.errors] == [pa.ArrowInvalid]
    assert rig.buffer.get_checkpoint().timestamp == 0
    assert rig.coordinator.sent == []


async def test_after_abandoning_nothing_more_is_sent(rig: Rig) -> None:
    """Fenced: another graph writes now; whatever this one still sends can only confuse."""
    await rig.sync(3, 1, 2)
    await rig.threads.finish()
    await rig.sync(4, 1)
    rig.dispatcher.abandon()
    await settle()
    while rig.threads.waiting:
        await rig.threads.finish()
    await rig.coordinator.answer()

    assert len(rig.coordinator.sent) == 1
    assert (rig.answers, rig.errors) == (0, [])
    assert rig.memory == 0


async def test_abandoned_rows_count_as_memory_until_no_thread_holds_them(rig: Rig) -> None:
    """Fenced while the disk hangs, again and again: each graph's rows are still there."""
    await rig.sync(3, 1)
    size_bytes = rig.memory
    rig.dispatcher.abandon()
    await settle()
    assert rig.memory == size_bytes > 0
    await rig.threads.finish()

    assert rig.memory == 0


async def test_abandoning_before_the_first_step_frees_the_memory(rig: Rig) -> None:
    """Cut and fenced within one turn of the loop."""
    for task in rig.cut(3, 1):
        rig.dispatcher.submit(task)
    rig.dispatcher.abandon()
    await settle()

    assert rig.memory == 0


async def test_dropping_a_channel_takes_the_last_ranges_along(rig: Rig) -> None:
    """DropVirtualChannel is the last save and the tombstone in one transaction, and moves no checkpoint."""
    await rig.sync(3, 1)
    await rig.threads.finish()
    await rig.sync(5, 1, 2)
    rig.dispatcher.drop_channel()
    await settle()
    await rig.coordinator.answer()
    assert len(rig.coordinator.sent) == 1
    await rig.threads.finish()
    await rig.threads.finish()

    [(kind, part, _)] = rig.coordinator.saves
    assert (kind, ranges(part)) == ("drop", [(1, 3, 5), (2, 0, 5)])
    assert not part.HasField("check_point")
    await rig.coordinator.answer()
    assert (rig.dropped, rig.errors) == (1, [])


async def test_dropping_a_channel_with_a_backlog_saves_what_does_not_fit_into_the_last_save(tmp_path: Path) -> None:
    """A lane registers one range per call: a backlog must not wait for a call that waits for the backlog."""
    rig = Rig(tmp_path, joined_sync_max_bytes=1)
    for ts in (1, 2, 3):
        await rig.sync(ts, 1)
    rig.dispatcher.drop_channel()
    kinds = []
    for _ in range(3):
        while rig.threads.waiting:
            await rig.threads.finish()
        kinds.append(rig.coordinator.saves[0][0])
        await rig.coordinator.answer()

    assert kinds == ["save", "save", "drop"]
    assert [ranges(part) for part in rig.coordinator.sent] == [[(1, 0, 1)], [(1, 1, 2)], [(1, 2, 3)]]
    assert not any(part.HasField("check_point") for part in rig.coordinator.sent)
    assert rig.dropped == 1


async def test_a_call_carries_no_more_lanes_than_the_contract_allows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 partitions and the lane ALL are one lane too many: refused as a whole, such a part would be repeated for ever."""
    monkeypatch.setattr("datanode_client.syncmgr.dispatcher.SAVE_CHANNEL_LANES_MAX", 2)
    await rig.sync(3, 9)
    await rig.threads.finish()
    await rig.sync(4, 1, 2, 3, 4, 5)
    while rig.threads.waiting:
        await rig.threads.finish()
    await rig.coordinator.answer()
    rig.dispatcher.drop_channel()
    kinds = []
    while rig.coordinator.saves:
        kinds.append(rig.coordinator.saves[0][0])
        await rig.coordinator.answer()

    assert [[lane for lane, _, _ in ranges(part)] for part in rig.coordinator.sent] == [[9], [1, 2], [3, 4], [5]]
    assert (kinds, rig.dropped) == (["save", "save", "drop"], 1)


async def test_an_empty_channel_is_dropped_at_once(rig: Rig) -> None:
    """There may be nothing to save."""
    rig.dispatcher.drop_channel()
    await settle()
    [(kind, part, _)] = rig.coordinator.saves
    await rig.coordinator.answer()

    assert (kind, ranges(part), rig.dropped) == ("drop", [], 1)


async def test_what_happened_is_counted(rig: Rig) -> None:
    """An operator sees why lanes are cut, and what the coordinator says to them."""
    await rig.sync(3, 1, 2)
    await rig.threads.finish()
    rig.clock.now += 1.5
    await rig.coordinator.answer(common_pb2.OUTCOME_ALREADY_APPLIED)

    assert rig.metrics.value(names.SYNCS, policy="full_buffer") == 2
    assert rig.metrics.value(names.SAVED_RANGES, outcome="already_applied") == 1
    assert rig.metrics.value(names.FLUSHED_ROWS, kind="insert") == 1
    assert rig.metrics.export()[f"{names.SAVE_BINLOG_PATHS_SECONDS}_sum"] == 1.5
