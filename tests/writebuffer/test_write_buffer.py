"""The write buffer, row by row of the R3 table: pins, cuts, the checkpoint, flush."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import InternalError
from datacoord.paths import BinlogKind
from datacoord.v1 import common_pb2
from datanode_client.config import DataNodeConfig
from datanode_client.writebuffer.metacache import MetaCache
from datanode_client.writebuffer.policies import SyncReason
from datanode_client.writebuffer.write_buffer import WriteBuffer

from .builders import TSO, StillClock, at, lane_result, lane_rows, recovery_info

FULL = SyncReason.FULL_BUFFER


def write_buffer(
    checkpoint: int = 0,
    lanes: dict[int, int] | None = None,
    *,
    kind: common_pb2.TimestampKind = common_pb2.TIMESTAMP_KIND_ORDINAL,
    clock: StillClock | None = None,
    seed: int = 1,
) -> WriteBuffer:
    """A write buffer as a graph has it right after recovery."""
    info = recovery_info(checkpoint, lanes, kind=kind)
    return WriteBuffer(info, MetaCache(info), DataNodeConfig(), clock or StillClock(), random.Random(seed))


def consume(buffer: WriteBuffer, ts: int, *partitions: int) -> None:
    """One message with a row for every partition."""
    for partition in partitions:
        buffer.buffer_data(lane_rows(partition, ts))
    buffer.advance(at(ts))


def test_a_graph_starts_at_the_checkpoint() -> None:
    """R3 start: consumed := C, and that is the checkpoint until something is consumed."""
    buffer = write_buffer(checkpoint=20)

    assert buffer.consumed == buffer.get_checkpoint() == at(20)


def test_the_pin_is_what_was_consumed_before_the_first_message() -> None:
    """B3: not the start of the range, which is the lane's progress, perhaps of long ago."""
    buffer = write_buffer(checkpoint=1000, lanes={1: 10})
    buffer.advance(at(1002))
    consume(buffer, 1003, 1)
    consume(buffer, 1004, 1)

    assert buffer.get_checkpoint() == at(1002)
    task = buffer.cut(1, FULL)
    assert task is not None
    assert (task.lane.timestamp_from, task.lane.timestamp_to) == (10, 1004)


def test_ticks_advance_what_is_consumed_and_nothing_goes_back() -> None:
    """An idle channel must not hold its checkpoint back; a tick that repeats itself must not move it back."""
    buffer = write_buffer(checkpoint=5)
    buffer.advance(at(9))
    buffer.advance(at(7))
    buffer.advance(at(9))

    assert buffer.get_checkpoint() == at(9)


def test_a_cut_covers_the_range_from_the_last_end_to_what_is_consumed() -> None:
    """Ranges of a lane leave no gap, or the coordinator answers GAP for ever."""
    buffer = write_buffer(lanes={1: 0})
    consume(buffer, 3, 1)
    buffer.advance(at(8))
    first = buffer.cut(1, FULL)
    consume(buffer, 12, 1, 2)
    second = buffer.cut(1, FULL)
    other = buffer.cut(2, FULL)

    assert first is not None
    assert second is not None
    assert other is not None
    assert [(task.lane.timestamp_from, task.lane.timestamp_to) for task in (first, second, other)] == [
        (0, 8),
        (8, 12),
        (0, 12),
    ]
    assert set(first.lane.rows) == {BinlogKind.INSERT, BinlogKind.DELTA}
    assert (first.rows, buffer.rows, buffer.size_bytes) == (2, 0, 0)


def test_an_empty_lane_is_not_cut() -> None:
    """A range without rows costs a row in SQL and says nothing."""
    buffer = write_buffer()
    buffer.advance(at(9))
    assert buffer.cut(1, FULL) is None
    consume(buffer, 10, 1)
    buffer.cut(1, FULL)

    assert buffer.cut(1, FULL) is None


def test_a_lane_that_holds_rows_it_should_have_filtered_is_a_bug_and_says_so() -> None:
    """A range that ends at or before its start would be INVALID_FIELD, and the rows would be doubled."""
    buffer = write_buffer(checkpoint=2, lanes={1: 50})
    consume(buffer, 30, 1)
    with pytest.raises(InternalError, match="lane 1 of c"):
        buffer.cut(1, FULL)


def test_the_checkpoint_does_not_pass_a_sync_in_flight() -> None:
    """The rule every earlier system broke once: a cut moves the pin, it does not free it."""
    buffer = write_buffer()
    consume(buffer, 3, 1)
    task = buffer.cut(1, FULL)
    buffer.advance(at(9))
    assert task is not None
    assert buffer.get_checkpoint() == at(0)
    buffer.unpin(task)

    assert buffer.get_checkpoint() == at(9)


def test_a_call_leaves_out_only_the_pins_it_resolves_itself() -> None:
    """B4: a save of lane 1 that carries a checkpoint beyond lane 2's sync loses lane 2's rows in a crash."""
    buffer = write_buffer()
    consume(buffer, 3, 1)
    one = buffer.cut(1, FULL)
    consume(buffer, 5, 2)
    two = buffer.cut(2, FULL)
    consume(buffer, 8, 3)
    assert one is not None
    assert two is not None

    assert buffer.get_checkpoint(set(one.pins)) == at(3)
    assert buffer.get_checkpoint({*one.pins, *two.pins}) == at(5)
    assert buffer.get_checkpoint() == at(0)


def test_two_syncs_of_a_lane_with_the_same_pin_position_are_two_pins() -> None:
    """Milvus keys pins by segment and timestamp: the first answer frees both, and the second's rows are passed."""
    buffer = write_buffer(checkpoint=4)
    buffer.buffer_data(lane_rows(1, 6))
    buffer.buffer_data(lane_rows(2, 6))
    buffer.advance(at(6))
    one, two = buffer.cut(1, FULL), buffer.cut(2, FULL)
    assert one is not None
    assert two is not None
    assert list(one.pins.values()) == list(two.pins.values()) == [at(4)]
    buffer.unpin(one)
    assert buffer.get_checkpoint() == at(4)
    with pytest.raises(KeyError):
        buffer.unpin(one)
    buffer.unpin(two)

    assert buffer.get_checkpoint() == at(6)


@given(st.lists(st.tuples(st.sampled_from(["rows", "tick", "cut", "answer"]), st.integers(0, 2)), max_size=40))
def test_the_checkpoint_never_passes_a_row_that_is_not_answered(steps: list[tuple[str, int]]) -> None:
    """The invariant of section 4.2, whatever the order of rows, cuts and answers; and it never goes back."""
    buffer = write_buffer()
    before = 0
    unanswered: dict[int, int] = {}
    in_flight = []
    for ts, (step, number) in enumerate(steps, start=1):
        if step == "rows":
            consume(buffer, ts, number)
            unanswered[ts] = number
        elif step == "tick":
            buffer.advance(at(ts))
        elif step == "cut" and (task := buffer.cut(number, FULL)) is not None:
            in_flight.append(task)
        elif step == "answer" and in_flight:
            task = in_flight.pop(number % len(in_flight))
            buffer.unpin(task)
            answered = range(task.lane.timestamp_from + 1, task.lane.timestamp_to + 1)
            unanswered = {
                row: lane for row, lane in unanswered.items() if lane != task.partition_id or row not in answered
            }
        checkpoint = buffer.get_checkpoint().timestamp
        assert before <= checkpoint < min(unanswered, default=ts + 1)
        before = checkpoint


def test_the_jitter_of_the_stale_period_differs_between_lanes_and_is_bounded() -> None:
    """256 channels that start together must not sync together for ever after."""
    clock = StillClock()
    buffer = write_buffer(clock=clock)
    consume(buffer, 3, 1, 2, 3)
    waits = {lane.stale_at - clock.now for lane in buffer.lanes.values()}

    assert len(waits) == 3
    assert all(600.0 <= wait <= 660.0 for wait in waits)


def test_staleness_counts_from_the_arrival_of_the_oldest_row() -> None:
    """A lane that gets a row every minute must not wait for ever."""
    clock = StillClock()
    buffer = write_buffer(clock=clock)
    consume(buffer, 3, 1)
    clock.now += 599.0
    consume(buffer, 4, 1)
    assert buffer.choose(buffer.lanes.values()) == []
    clock.now += 62.0

    assert buffer.choose(buffer.lanes.values()) == [(1, SyncReason.STALE)]


def test_data_time_makes_a_tso_lane_stale() -> None:
    """Milvus's staleness, where timestamps mean time."""
    buffer = write_buffer(kind=common_pb2.TIMESTAMP_KIND_TSO)
    consume(buffer, 1 * TSO, 1)
    buffer.advance(at(601_002 * TSO))

    assert buffer.choose(buffer.lanes.values()) == [(1, SyncReason.STALE)]


# ---- flush ------------------------------------------------------------------------------------------------------------------


def test_a_flush_is_pending_until_the_stored_checkpoint_is_there() -> None:
    """Checkpoint updates are urgent exactly so long."""
    buffer = write_buffer(checkpoint=10)
    pending = [buffer.flush_is_pending]
    buffer.set_flush_timestamp(20)
    pending.append(buffer.flush_is_pending)
    for stored in (19, 20):
        buffer.notify_checkpoint_updated(at(stored))
        pending.append(buffer.flush_is_pending)

    assert pending == [False, True, True, False]


@pytest.mark.parametrize(("stored", "left"), [(19, 20), (20, 20), (21, 0)])
def test_a_flush_target_is_reset_strictly_beyond_it(stored: int, left: int) -> None:
    """As Milvus does; on an idle channel it stays set and costs nothing."""
    buffer = write_buffer(checkpoint=10)
    buffer.set_flush_timestamp(20)
    buffer.notify_checkpoint_updated(at(stored))

    assert buffer.flush_timestamp == left


def test_a_flush_that_is_repeated_after_it_is_done_stays_done() -> None:
    """Desired state is level-triggered: it says the same target again until the coordinator has noticed."""
    buffer = write_buffer(checkpoint=10)
    buffer.set_flush_timestamp(20)
    buffer.notify_checkpoint_updated(at(25))
    buffer.set_flush_timestamp(20)
    assert (buffer.flush_timestamp, buffer.flush_is_pending) == (0, False)
    buffer.set_flush_timestamp(30)
    assert buffer.flush_is_pending
    buffer.set_flush_timestamp(0)

    assert (buffer.flush_timestamp, buffer.flush_is_pending) == (0, False)


def test_an_answer_that_comes_late_does_not_move_the_stored_checkpoint_back() -> None:
    """Saves and updates run side by side; their answers come in any order."""
    buffer = write_buffer(checkpoint=10)
    buffer.notify_checkpoint_updated(at(25))
    buffer.notify_checkpoint_updated(at(20))

    assert buffer.persisted == at(25)


def test_a_flush_withdrawn_or_repeated_cuts_nothing_twice() -> None:
    """A lane cut for a flush holds newer rows afterwards, which the same flush does not concern."""
    buffer = write_buffer()
    consume(buffer, 3, 1)
    buffer.set_flush_timestamp(3)
    assert buffer.choose(buffer.lanes.values()) == [(1, SyncReason.FLUSH_TS)]
    buffer.cut(1, SyncReason.FLUSH_TS)
    consume(buffer, 4, 1)

    assert buffer.choose(buffer.lanes.values()) == []


def test_a_sealed_segment_lets_lanes_that_hold_it_back_be_cut() -> None:
    """Segment sealed to 5, lane 2 pinned at 3: it is flushed only once lane 2's rows are registered."""
    buffer = write_buffer()
    consume(buffer, 4, 2)
    consume(buffer, 5, 1)
    buffer.cut(1, FULL)
    buffer.metacache.apply([lane_result(1, 9, 5, state=common_pb2.SEGMENT_STATE_SEALED)])
    assert buffer.choose(buffer.lanes.values()) == [(2, SyncReason.SEALED)]
    buffer.notify_checkpoint_updated(at(5))

    assert buffer.metacache.segments == {}
