"""Rules of the input gate and its barrier handlers, one by one; the other tests of this folder play whole histories."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from datacoord.errors import DatacoordError, InternalError, Reason
from datanode_client.flowgraph.barriers import (
    MAX_CHECKPOINTS_TO_TRACK,
    CheckpointBarrierAligner,
    CheckpointBarrierHandler,
    CheckpointBarrierTracker,
)
from datanode_client.flowgraph.buffer_storage import BufferStorage
from datanode_client.flowgraph.events import (
    Abort,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Data,
    EndOfPartition,
    EndPolicy,
    InputEndedError,
    InputOutOfOrderError,
    Tick,
    Trigger,
)
from datanode_client.flowgraph.input_gate import (
    CheckpointedInputGate,
    CheckpointingMode,
    MergeOrder,
)

from .reference_gate import Event, Output, checkpoint_id

HANDLERS = (CheckpointBarrierAligner, CheckpointBarrierTracker)
END = EndOfPartition()


def data(timestamp: int, payload: str = "", size_bytes: int = 1) -> Data[str]:
    """A message."""
    return Data(payload or f"at {timestamp}", timestamp, size_bytes)


def run_of(*timestamps: int) -> Data[str]:
    """Several messages in one piece; the payload names them all."""
    return Data(",".join(map(str, timestamps)), timestamps[-1], len(timestamps), first_timestamp=timestamps[0])


def split_run(event: Data[str], timestamp: int) -> tuple[Data[str], Data[str]]:
    """Cuts what `run_of` made."""
    timestamps = [int(number) for number in event.payload.split(",")]
    return run_of(*(t for t in timestamps if t <= timestamp)), run_of(*(t for t in timestamps if t > timestamp))


def barrier(checkpoint_id: int) -> CheckpointBarrier:
    """A barrier."""
    return CheckpointBarrier(checkpoint_id)


def cancel(checkpoint_id: int) -> CancelCheckpointMarker:
    """A cancellation marker."""
    return CancelCheckpointMarker(checkpoint_id)


def by_arrival(channel_count: int, **settings: object) -> CheckpointedInputGate[str]:
    """A gate whose inputs have no common timeline: only barriers order them."""
    return CheckpointedInputGate(channel_count, order=MergeOrder.ARRIVAL, **settings)  # type: ignore[arg-type]


def put_all(gate: CheckpointedInputGate[str], *events: tuple[int, Event]) -> list[Output]:
    """Puts events one after the other; what came out of all of them."""
    return [output for channel, event in events for output in gate.put(channel, event)]


def short(outputs: list[Output]) -> list[object]:
    """Outputs in a form that fits on a line: payloads, (tick, timestamp), (trigger, id), (reason, id), end."""
    words: list[object] = []
    for output in outputs:
        match output:
            case Data():
                words.append(output.payload)
            case Tick():
                words.append(("tick", output.timestamp))
            case Trigger():
                words.append(("trigger", output.barrier.id))
            case Abort():
                words.append((output.reason.value, output.checkpoint_id))
            case _:
                words.append("end")
    return words


class TestOneInput:
    """The usual case: one channel, one reader."""

    def test_everything_passes_through_as_it_is_and_at_once(self) -> None:
        """The danger: a gate that costs something, or delays something, where there is nothing to merge or to align."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate()
        events: list[Event] = [data(5), Tick(7, payload="position 7"), data(8), END]

        for event in events:
            (output,) = gate.put(0, event)
            assert output is event
        assert gate.is_finished

    def test_a_barrier_triggers_at_once_with_nothing_held_and_no_time_spent(self) -> None:
        """The danger: alignment figures of a channel that never aligned."""
        times = iter(range(0, 1_000_000, 7))
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(clock=lambda: next(times))
        put_all(gate, (0, data(1)), (0, data(2)))

        assert gate.put(0, barrier(4)) == [Trigger(barrier(4), held_bytes=0, processed_bytes=0, alignment_ns=0)]
        assert gate.barrier_handler.alignment_duration_ns == 0
        assert not gate.blocked_channels

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_a_repeated_or_older_barrier_does_not_trigger_again(self, mode: CheckpointingMode) -> None:
        """The danger: two snapshots of one number. Flink's tracker has no protection when one channel is open."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(mode=mode)

        outputs = put_all(gate, *((0, barrier(n)) for n in (3, 3, 2, 4, 1, 4)))
        assert short(outputs) == [("trigger", 3), ("trigger", 4)]

    def test_a_run_of_messages_needs_no_splitting(self) -> None:
        """The danger: the usual reader, which yields many messages in one batch, is asked for a function it has no use for."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate()

        assert short(put_all(gate, (0, run_of(1, 2, 3)), (0, run_of(4, 9)))) == ["1,2,3", "4,9"]

    def test_a_cancellation_from_outside_says_nothing_twice(self) -> None:
        """The danger: the same tick or data again, because the gate looked for what is ready."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate()
        put_all(gate, (0, data(3)), (0, Tick(5)))

        assert short(gate.cancel_checkpoint(1)) == [("cancelled", 1)]
        assert gate.cancel_checkpoint(1) == []


class TestBothHandlers:
    """What holds for aligner and tracker alike, each with the danger that a version of Flink has."""

    @pytest.mark.parametrize("handler_type", HANDLERS)
    def test_a_barrier_that_comes_twice_on_one_input_counts_once(
        self, handler_type: type[CheckpointBarrierHandler]
    ) -> None:
        """The danger: a snapshot without the other input's part (classic tracker), or a failed task (classic aligner)."""
        handler = handler_type(3)

        assert handler.process_barrier(barrier(1), 0) == []
        assert handler.process_barrier(barrier(1), 0) == []
        assert handler.process_barrier(barrier(1), 1) == []
        assert len(handler.process_barrier(barrier(1), 2)) == 1

    @pytest.mark.parametrize("policy", EndPolicy)
    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_an_input_that_ends_twice_counts_once(self, mode: CheckpointingMode, policy: EndPolicy) -> None:
        """The danger: two of three inputs counted as ended, and a snapshot that lacks the third."""
        gate = by_arrival(3, mode=mode, end_policy=policy)

        assert short(put_all(gate, (2, END), (2, END), (0, barrier(1)))) == ["end"]
        assert short(gate.put(1, barrier(1))) == [("trigger", 1)]

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_a_barrier_and_the_end_of_the_same_input_count_once(self, mode: CheckpointingMode) -> None:
        """The danger: arrived plus closed reaches the number of inputs while one has said nothing."""
        gate = by_arrival(3, mode=mode, end_policy=EndPolicy.COMPLETE)
        put_all(gate, (0, barrier(1)), (0, END), (1, barrier(1)))

        assert gate.barrier_handler.pending_checkpoint_ids == (1,)
        assert ("trigger", 1) in short(gate.put(2, barrier(1)))

    @pytest.mark.parametrize("policy", EndPolicy)
    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_a_gate_that_lost_inputs_goes_on_completing(self, mode: CheckpointingMode, policy: EndPolicy) -> None:
        """The danger: the classic tracker waits for the original number of inputs and never completes again."""
        gate = by_arrival(3, mode=mode, end_policy=policy)
        put_all(gate, (1, END))

        assert short(put_all(gate, (0, barrier(1)), (2, barrier(1)))) == [("trigger", 1)]
        put_all(gate, (2, END))
        assert short(gate.put(0, barrier(2))) == [("trigger", 2)]

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_barriers_on_an_ended_input_mean_nothing(self, mode: CheckpointingMode) -> None:
        """The danger: who injects barriers has not heard of the end, and begins a checkpoint that no open input knows."""
        gate = by_arrival(2, mode=mode)
        put_all(gate, (1, END))

        assert gate.put(1, barrier(7)) == []
        assert gate.barrier_handler.latest_checkpoint_id == -1
        assert not gate.blocked_channels
        assert short(gate.put(0, barrier(1))) == [("trigger", 1)]

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_an_ended_input_can_still_cancel(self, mode: CheckpointingMode) -> None:
        """The danger: the last word about a checkpoint is lost and the others wait for nothing."""
        gate = by_arrival(2, mode=mode)

        assert short(put_all(gate, (1, END), (1, cancel(3)), (0, barrier(3)))) == ["end", ("cancelled", 3)]

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_interleaved_markers_of_two_checkpoints_abort_each_once(self, mode: CheckpointingMode) -> None:
        """The danger: a flood of declines (FLINK-5285)."""
        gate = by_arrival(3, mode=mode)
        markers = [(0, cancel(2)), (1, cancel(1)), (1, cancel(2)), (2, cancel(1)), (2, cancel(2)), (0, cancel(1))]

        assert short(put_all(gate, *markers)) == [("cancelled", 2)]

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_late_barriers_of_a_cancelled_checkpoint_begin_nothing(self, mode: CheckpointingMode) -> None:
        """The danger: a checkpoint that the coordinator has forgotten blocks inputs, or triggers."""
        gate = by_arrival(2, mode=mode)

        assert short(put_all(gate, (0, barrier(5)), (1, cancel(5)))) == [("cancelled", 5)]
        assert put_all(gate, (0, barrier(5)), (1, barrier(5)), (1, barrier(4))) == []
        assert not gate.blocked_channels
        assert gate.barrier_handler.pending_checkpoint_ids == ()

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_a_decision_settles_every_older_checkpoint(self, mode: CheckpointingMode) -> None:
        """The danger: a checkpoint overtaken by a newer cancellation gets no notice in Flink, and somebody waits for one.

        Here the ids of decisions rise, so that the newer decision says it.
        """
        gate = by_arrival(2, mode=mode)
        outputs = put_all(gate, (0, barrier(1)), (1, cancel(3)))
        decided = [checkpoint_id(output) for output in outputs if isinstance(output, Abort)]

        assert decided[-1] == 3
        assert decided == sorted(set(decided))
        assert gate.barrier_handler.pending_checkpoint_ids == ()
        assert put_all(gate, (1, barrier(1)), (0, cancel(1)), (0, cancel(3)), (1, barrier(2))) == []

    @pytest.mark.parametrize("policy", EndPolicy)
    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_when_all_inputs_have_ended_no_checkpoint_is_left_without_a_decision(
        self, mode: CheckpointingMode, policy: EndPolicy
    ) -> None:
        """The danger: Flink's gate releases its blocks at the end of all input without telling anybody."""
        gate = by_arrival(2, mode=mode, end_policy=policy)
        outputs = put_all(gate, (0, barrier(1)), (0, data(1)), (0, END), (1, END))

        expected = "trigger" if policy is EndPolicy.COMPLETE else "end_of_input"
        assert (expected, 1) in short(outputs)
        assert gate.barrier_handler.pending_checkpoint_ids == ()
        assert gate.is_finished


class TestAligner:
    """Exactly once."""

    def test_the_inputs_to_wait_for_are_fixed_when_the_first_barrier_comes(self) -> None:
        """The danger: a checkpoint that completes because the number of inputs changed under it."""
        handler = CheckpointBarrierAligner(3, end_policy=EndPolicy.COMPLETE)
        handler.process_barrier(barrier(1), 0)

        assert handler.process_end_of_partition(0) == []
        assert handler.process_barrier(barrier(1), 1) == []
        assert len(handler.process_barrier(barrier(1), 2)) == 1

    def test_a_repeated_barrier_behind_a_block_is_stale_when_it_comes_out(self) -> None:
        """The danger: a duplicate that was held back begins the finished checkpoint anew and blocks its input for good."""
        gate = by_arrival(2)
        put_all(gate, (0, barrier(1)), (0, barrier(1)), (0, data(1)))

        assert short(gate.put(1, barrier(1))) == [("trigger", 1), "at 1"]
        assert not gate.blocked_channels

    def test_exactly_the_limit_may_be_held_and_not_a_byte_more(self) -> None:
        """The danger: an alignment given up one message early, or memory beyond what was promised."""
        gate = by_arrival(2, max_held_bytes=100)
        put_all(gate, (0, barrier(1)), (0, data(1, size_bytes=60)))

        assert gate.put(0, data(2, size_bytes=40)) == []
        assert gate.held_bytes == 100
        assert short(gate.put(0, data(3, size_bytes=1))) == [("limit_exceeded", 1), "at 1", "at 2", "at 3"]
        assert gate.held_bytes == 0
        assert gate.put(1, barrier(1)) == []

    def test_only_data_counts_against_the_limit(self) -> None:
        """The danger: Flink's storages count a page for every queued event, so that many barriers abort an alignment."""
        gate = by_arrival(2, max_held_bytes=0)

        assert (
            put_all(gate, (0, barrier(1)), *((0, barrier(n)) for n in range(2, 40)), (0, Tick(9)), (0, cancel(1))) == []
        )
        assert gate.blocked_channels == {0}

    def test_what_is_held_again_after_a_release_counts_once(self) -> None:
        """The danger: Flink counts a sequence that is pushed back at its full size, and aborts again and again."""
        gate = by_arrival(3, max_held_bytes=100)
        put_all(gate, (0, barrier(1)), (0, data(1, size_bytes=50)), (0, barrier(2)), (0, data(2, size_bytes=30)))
        put_all(gate, (1, barrier(1)), (2, barrier(1)))

        assert gate.blocked_channels == {0}
        assert gate.held_bytes == 30
        assert gate.put(0, data(3, size_bytes=70)) == []
        assert short(gate.put(0, data(4, size_bytes=1)))[0] == ("limit_exceeded", 2)

    def test_an_alignment_that_begins_in_what_was_held_is_held_to_the_limit_too(self) -> None:
        """The danger: the limit is looked at once per event, and what a release blocks anew escapes it."""
        gate = by_arrival(3, max_held_bytes=100)
        put_all(gate, (0, barrier(1)), (0, barrier(2)), (0, data(1, size_bytes=100)))

        outputs = gate.put(0, data(2, size_bytes=1))
        assert short(outputs) == [("limit_exceeded", 1), ("limit_exceeded", 2), "at 1", "at 2"]

    def test_the_trigger_comes_before_anything_that_was_held(self) -> None:
        """The danger: rows from behind the barrier in the snapshot."""
        gate = by_arrival(2)
        put_all(gate, (0, data(1)), (0, barrier(1)), (0, data(2)), (1, data(3)))

        assert short(gate.put(1, barrier(1))) == [("trigger", 1), "at 2"]

    def test_a_trigger_says_how_long_and_how_much(self) -> None:
        """The danger: a stalled alignment nobody can see."""
        now_ns = 0
        gate = by_arrival(2, clock=lambda: now_ns)
        put_all(gate, (0, data(1, size_bytes=500)), (0, barrier(1)), (0, data(2, size_bytes=20)))
        now_ns = 40
        put_all(gate, (1, data(3, size_bytes=7)))

        assert gate.barrier_handler.alignment_duration_ns == 40
        assert gate.held_bytes == gate.waiting_bytes == 20
        now_ns = 100
        assert gate.put(1, barrier(1))[0] == Trigger(barrier(1), held_bytes=20, processed_bytes=7, alignment_ns=100)
        now_ns = 5000
        assert gate.barrier_handler.alignment_duration_ns == 100

    def test_an_aborted_alignment_keeps_the_time_it_took(self) -> None:
        """The danger: the figure of an older, completed alignment stands for one that was given up after an hour."""
        now_ns = 30
        gate = by_arrival(2, clock=lambda: now_ns)
        assert gate.barrier_handler.alignment_duration_ns == 0
        put_all(gate, (0, barrier(1)))
        now_ns = 100
        put_all(gate, (1, cancel(1)))
        now_ns = 5000

        assert gate.barrier_handler.alignment_duration_ns == 70

    def test_a_cancellation_from_outside_acts_at_once_although_all_that_could_carry_a_marker_is_blocked(self) -> None:
        """The danger: the coordinator gave the snapshot up, and the datanode holds its input until memory is full."""
        gate = by_arrival(2)
        put_all(gate, (0, barrier(1)), (0, data(1)))

        assert gate.put(0, cancel(1)) == []
        assert short(gate.cancel_checkpoint(1)) == [("cancelled", 1), "at 1"]
        assert not gate.blocked_channels

    def test_a_skipped_checkpoint_and_a_completed_one_are_logged(self) -> None:
        """The danger: an operator who cannot tell why a snapshot never came."""
        with capture_logs() as logs:
            gate = by_arrival(2, task_name="channel-7")
            put_all(gate, (0, barrier(1)), (1, barrier(2)))
            gate.put(0, CheckpointBarrier(2, timestamp_ms=99))

        events = [(log["event"], log["log_level"], log["checkpoint"]) for log in logs]
        assert events == [
            ("checkpoint_skipped", "warning", 1),
            ("checkpoint_aborted", "info", 1),
            ("all_barriers_received", "debug", 2),
        ]
        assert {log["task_name"] for log in logs} == {"channel-7"}
        assert logs[0]["newer_checkpoint"] == 2


class TestTracker:
    """At least once."""

    def test_nothing_is_ever_held_back(self) -> None:
        """The danger: at-least-once mode is chosen to never wait."""
        gate = by_arrival(2, mode=CheckpointingMode.AT_LEAST_ONCE, max_held_bytes=0)

        assert short(put_all(gate, (0, barrier(1)), (0, data(1)), (0, barrier(2)), (0, data(2)))) == ["at 1", "at 2"]
        assert not gate.blocked_channels

    def test_time_is_measured_for_each_checkpoint_where_several_are_under_way(self) -> None:
        """The danger: Flink measures the newest only, or one by the start of another (FLINK-23201)."""
        times = iter(range(100))
        gate = by_arrival(2, mode=CheckpointingMode.AT_LEAST_ONCE, clock=lambda: next(times))
        outputs = put_all(
            gate, (0, barrier(1)), (0, data(1, size_bytes=10)), (0, barrier(2)), (0, data(2, size_bytes=5)), (1, barrier(1)),
            (1, barrier(2)),
        )  # fmt: skip
        triggers = [output for output in outputs if isinstance(output, Trigger)]

        assert [(t.barrier.id, t.alignment_ns, t.processed_bytes) for t in triggers] == [(1, 2, 15), (2, 2, 5)]

    def test_the_time_so_far_is_that_of_the_newest_checkpoint_under_way(self) -> None:
        """The danger: a checkpoint that one input skipped makes every later one look stalled."""
        now_ns = 0
        gate = by_arrival(2, mode=CheckpointingMode.AT_LEAST_ONCE, clock=lambda: now_ns)
        put_all(gate, (0, barrier(1)))
        now_ns = 600
        put_all(gate, (0, barrier(2)))
        now_ns = 610

        assert gate.barrier_handler.alignment_duration_ns == 10

    def test_the_cancellation_of_an_older_checkpoint_does_not_disturb_a_newer_one(self) -> None:
        """The danger: an aligned newer checkpoint measured or aborted by the late marker of an older one (FLINK-23201)."""
        gate = by_arrival(2, mode=CheckpointingMode.AT_LEAST_ONCE)
        outputs = put_all(gate, (0, barrier(1)), (0, barrier(2)), (1, cancel(1)), (1, barrier(2)))

        assert short(outputs) == [("cancelled", 1), ("trigger", 2)]

    def test_too_many_incomplete_checkpoints_abort_the_oldest_aloud(self) -> None:
        """The danger: Flink forgets it in silence, and memory without a limit if it did not."""
        gate = by_arrival(2, mode=CheckpointingMode.AT_LEAST_ONCE)
        most = MAX_CHECKPOINTS_TO_TRACK

        assert put_all(gate, *((0, barrier(n)) for n in range(1, most + 1))) == []
        assert short(gate.put(0, barrier(most + 1))) == [("subsumed", 1)]
        assert len(gate.barrier_handler.pending_checkpoint_ids) == most
        assert gate.put(1, barrier(1)) == []
        assert short(gate.put(1, barrier(2))) == [("trigger", 2)]

    def test_cancelled_checkpoints_are_not_kept(self) -> None:
        """The danger: entries kept to absorb late barriers count against the limit and push out living checkpoints."""
        gate = by_arrival(2, mode=CheckpointingMode.AT_LEAST_ONCE)
        put_all(gate, *((0, cancel(n)) for n in range(1, 3 * MAX_CHECKPOINTS_TO_TRACK)))

        assert gate.barrier_handler.pending_checkpoint_ids == ()

    def test_the_highest_number_is_remembered_after_its_checkpoint_is_done(self) -> None:
        """The danger: Flink answers -1 once nothing is tracked, so that an old number looks new."""
        handler = CheckpointBarrierTracker(2)
        for channel in (0, 1):
            handler.process_barrier(barrier(8), channel)

        assert handler.latest_checkpoint_id == 8
        assert handler.process_barrier(barrier(7), 0) == []
        assert handler.pending_checkpoint_ids == ()


class TestMerge:
    """Several inputs on one timeline."""

    def test_data_waits_until_every_input_has_spoken_up_to_it(self) -> None:
        """The danger: a message handed out before an older one of a slower input: rows lost behind the checkpoint."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(3)

        assert put_all(gate, (0, data(5)), (1, data(6))) == []
        assert short(gate.put(2, data(3))) == ["at 3"]
        assert short(gate.put(2, data(9))) == ["at 5"]
        assert short(gate.put(0, data(8))) == ["at 6"]
        assert gate.waiting_bytes == 2

    def test_an_input_with_nothing_to_say_holds_back_the_others_until_it_ticks_or_ends(self) -> None:
        """The danger: waiting for ever on an idle input, or not waiting for it at all."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        put_all(gate, *((0, data(t)) for t in (10, 20, 30)))

        assert short(gate.put(1, Tick(9))) == [("tick", 9)]
        assert short(gate.put(1, Tick(20))) == ["at 10", "at 20"]
        assert short(gate.put(1, Tick(25))) == [("tick", 25)]
        assert short(gate.put(1, END)) == ["end", "at 30"]

    def test_messages_of_one_timestamp_come_out_side_by_side(self) -> None:
        """The danger: half a message in one sync and half in the next."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(3)
        put_all(gate, (2, data(5, "c")), (0, data(5, "a")), (0, data(6, "later")))

        # Input 1 may still say 5 itself, so 4 is not enough.
        assert short(gate.put(1, Tick(4))) == [("tick", 4)]
        assert short(gate.put(1, data(5, "b"))) == ["a", "b", "c"]

    @pytest.mark.parametrize("mode", CheckpointingMode)
    def test_no_trigger_comes_between_messages_of_one_timestamp(self, mode: CheckpointingMode) -> None:
        """The danger: a snapshot at a position of which one input's rows are in it and another's are not."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2, mode=mode)
        outputs = put_all(
            gate, (0, data(5, "a")), (0, barrier(1)), (1, barrier(1)), (1, data(5, "b")), (0, Tick(9)), (1, Tick(9))
        )
        words = [word for word in short(outputs) if word[0] != "tick"]  # type: ignore[index]

        # At least once the cut moves behind the whole message; exactly once there is no such cut.
        expected = {
            CheckpointingMode.AT_LEAST_ONCE: ["a", "b", ("trigger", 1)],
            CheckpointingMode.EXACTLY_ONCE: [("cut_across_timeline", 1), "a", "b"],
        }
        assert words == expected[mode]

    def test_ticks_say_how_far_the_merged_stream_is_complete_and_never_go_back(self) -> None:
        """The danger: an idle channel whose checkpoint stands still, or a tick before older data."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        outputs = put_all(
            gate, (0, Tick(10)), (1, Tick(5)), (1, Tick(4)), (1, Tick(5)), (1, data(8)), (0, Tick(7)), (1, Tick(50)), (0, data(12))
        )  # fmt: skip

        assert short(outputs) == [("tick", 5), "at 8", ("tick", 10), "at 12"]

    def test_a_barrier_takes_effect_where_it_stands_among_its_inputs_data(self) -> None:
        """The danger: a barrier that overtakes data waiting for the merge."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        put_all(gate, (0, data(5)), (0, barrier(1)), (1, barrier(1)))

        assert gate.barrier_handler.pending_checkpoint_ids == (1,)
        assert gate.blocked_channels == {1}
        assert short(gate.put(1, Tick(6))) == ["at 5", ("trigger", 1)]

    def test_what_a_blocked_input_says_behind_its_barrier_lets_the_others_go_on(self) -> None:
        """The danger: the merge waits for an input that the alignment blocks, and the alignment for data that the merge keeps."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        put_all(gate, (0, Tick(1)), (0, barrier(1)), (1, data(5)), (1, barrier(1)))

        assert gate.blocked_channels == {0}
        assert short(gate.put(0, Tick(6))) == ["at 5", ("trigger", 1)]

    def test_data_behind_the_barrier_lets_older_data_of_others_go_on_and_stays_behind_the_cut(self) -> None:
        """The danger: held data is forgotten when it is asked how far its input has spoken."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        put_all(gate, (0, barrier(1)), (0, data(8)), (1, data(5)))

        assert gate.held_bytes == 1
        assert short(gate.put(1, barrier(1))) == [("trigger", 1)]
        assert short(gate.put(1, Tick(8))) == ["at 8"]

    def test_a_cut_across_the_timeline_is_given_up_and_the_order_is_kept(self) -> None:
        """The danger: 9 handed out before the held 7. A checkpoint at 9 would say that 7 is done: a row lost."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        outputs = put_all(gate, (0, data(2)), (1, data(2)), (0, barrier(1)), (1, data(9)), (0, data(7)), (0, Tick(20)))

        assert short(outputs) == ["at 2", "at 2", ("cut_across_timeline", 1), "at 7", "at 9"]
        assert put_all(gate, (1, barrier(1))) == []

    def test_a_message_that_the_cut_would_split_is_a_cut_across_the_timeline(self) -> None:
        """The danger: the same timestamp before and behind the cut."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        outputs = put_all(gate, (0, barrier(1)), (0, data(5, "a")), (1, data(5, "b")))

        assert short(outputs) == [("cut_across_timeline", 1), "a", "b"]

    def test_an_input_that_is_ahead_is_not_wanted_when_the_gate_is_full_and_one_that_is_awaited_always_is(self) -> None:
        """The danger: memory without a limit, or a full gate that refuses the one event that would empty it."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(3, max_waiting_bytes=10)
        put_all(gate, (0, data(5, size_bytes=9)), (1, data(6, size_bytes=0)))
        assert all(gate.wants_more(channel) for channel in range(3))

        put_all(gate, (0, data(7, size_bytes=1)))
        assert [gate.wants_more(channel) for channel in range(3)] == [False, False, True]
        put_all(gate, (2, Tick(9)))
        assert all(gate.wants_more(channel) for channel in range(3))

    def test_a_full_gate_wants_the_input_whose_barrier_is_missing(self) -> None:
        """The danger: blocked inputs fill the gate, and the input that could end the alignment is not read."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2, max_waiting_bytes=10)
        put_all(gate, (0, barrier(1)), (0, data(5, size_bytes=50)))

        assert [gate.wants_more(channel) for channel in range(2)] == [False, True]

    def test_by_arrival_a_tick_of_one_of_several_inputs_is_no_promise_of_all(self) -> None:
        """The danger: whoever believes it counts what the other inputs still send as consumed, and never reads it again."""
        gate = by_arrival(2)

        assert short(put_all(gate, (0, data(5)), (0, Tick(100)), (1, data(7)))) == ["at 5", "at 7"]
        assert short(by_arrival(1).put(0, Tick(100))) == [("tick", 100)]

    def test_by_arrival_a_full_gate_wants_the_inputs_that_are_not_blocked(self) -> None:
        """The same danger without a timeline."""
        gate = by_arrival(2, max_waiting_bytes=10)
        put_all(gate, (0, barrier(1)), (0, data(5, size_bytes=9)))
        assert gate.wants_more(0)

        put_all(gate, (0, data(6, size_bytes=1)))
        assert [gate.wants_more(channel) for channel in range(2)] == [False, True]

    def test_an_awaited_input_is_wanted_although_something_of_it_is_held(self) -> None:
        """The danger: the gate is full of what waits for an input, and does not want it because a barrier of it is kept."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2, max_waiting_bytes=10)
        put_all(gate, (0, barrier(1)), (0, barrier(2)), (1, data(5, size_bytes=50)))

        assert [gate.wants_more(channel) for channel in range(2)] == [True, False]

    def test_a_gate_is_finished_when_all_inputs_have_ended(self) -> None:
        """The danger: a graph that is closed before it has begun, or while an input goes on."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)
        assert not gate.is_finished
        put_all(gate, (0, END))
        assert not gate.is_finished
        put_all(gate, (1, END))
        assert gate.is_finished

    def test_a_storage_with_something_inside_has_not_ended(self) -> None:
        """The danger: a graph that is closed over what is still kept."""
        storage: BufferStorage[str] = BufferStorage(1)
        storage.accept(0, END)
        storage.add(0, END)
        assert not storage.has_ended()

        assert storage.pop_ready(frozenset()) == [(0, END)]
        assert storage.has_ended()


class TestRuns:
    """Several messages of an input in one piece, as readers yield them."""

    def test_a_run_is_cut_where_another_inputs_message_lies_between(self) -> None:
        """The danger: a batch that ends after another input's message begins before it: rows handed out behind younger ones."""
        gate = CheckpointedInputGate(2, split=split_run)
        outputs = put_all(gate, (0, run_of(1, 3, 5, 7)), (1, run_of(3, 4)), (1, Tick(6)), (1, Tick(9)))

        assert short(outputs) == ["1", "3", "3", "4", "5", ("tick", 6), "7"]
        assert gate.waiting_bytes == 0

    def test_bytes_follow_the_parts_of_a_run(self) -> None:
        """The danger: a limit measured on data that has left."""
        gate = CheckpointedInputGate(2, split=split_run)
        put_all(gate, (0, run_of(1, 3, 5, 7)), (1, Tick(3)))

        assert gate.waiting_bytes == 2

    def test_parts_may_need_other_memory_than_the_whole(self) -> None:
        """The danger: slices of Arrow batches share buffers, their sizes do not add up, and the count drifts until it is full."""

        def split(event: Data[str], timestamp: int) -> tuple[Data[str], Data[str]]:
            head, tail = split_run(event, timestamp)
            return replace(head, size_bytes=50), replace(tail, size_bytes=60)

        gate = CheckpointedInputGate(2, split=split)
        put_all(gate, (0, run_of(1, 3, 5, 7)), (1, Tick(3)))
        assert gate.waiting_bytes == 60

        put_all(gate, (1, END))
        assert gate.waiting_bytes == 0

    def test_a_run_before_the_cut_goes_out_up_to_what_is_held(self) -> None:
        """The danger: a whole run is kept, or handed out, where only its first messages may go."""
        gate = CheckpointedInputGate(2, split=split_run)
        outputs = put_all(gate, (0, barrier(1)), (0, run_of(4, 6)), (1, run_of(1, 2, 5)))

        assert short(outputs) == ["1,2", ("cut_across_timeline", 1), "4", "5"]

    @settings(deadline=None)
    @given(
        inputs=st.lists(st.lists(st.sets(st.integers(1, 40), max_size=5), max_size=4), min_size=2, max_size=3),
        turns=st.lists(st.integers(0, 2), max_size=60),
    )
    def test_runs_come_out_as_their_messages_would_one_by_one(
        self, inputs: list[list[set[int]]], turns: list[int]
    ) -> None:
        """The danger: cutting runs loses, doubles or reorders messages."""
        in_runs = CheckpointedInputGate(len(inputs), split=split_run)
        one_by_one: CheckpointedInputGate[str] = CheckpointedInputGate(len(inputs))
        remaining = [list(_rising(runs)) for runs in inputs]
        out_of_runs: list[str] = []
        out_of_messages: list[str] = []
        everything = [*(turn % len(inputs) for turn in turns), *range(len(inputs))]
        for position, channel in enumerate(everything):
            is_last = position >= len(turns)
            for run in remaining[channel][: None if is_last else 1]:
                out_of_runs += _messages(in_runs.put(channel, run_of(*run)))
                for timestamp in run:
                    out_of_messages += _messages(one_by_one.put(channel, run_of(timestamp)))
                assert out_of_runs == out_of_messages
            del remaining[channel][: None if is_last else 1]
            if is_last:
                out_of_runs += _messages(in_runs.put(channel, EndOfPartition()))
                out_of_messages += _messages(one_by_one.put(channel, EndOfPartition()))
        assert out_of_runs == out_of_messages
        assert in_runs.is_finished
        assert [int(message) for message in out_of_runs] == sorted(
            timestamp for runs in inputs for run in _rising(runs) for timestamp in run
        )

    def test_arrow_batches_are_cut_without_copying_a_row(self) -> None:
        """The danger: an interface that fits strings in tests and not what readers yield."""

        def split(event: Data[pa.RecordBatch], timestamp: int) -> tuple[Data[pa.RecordBatch], Data[pa.RecordBatch]]:
            column = event.payload.column("_timestamp")
            rows = pc.sum(pc.less_equal(column, timestamp)).as_py()
            return piece(event.payload.slice(0, rows)), piece(event.payload.slice(rows))

        def piece(batch: pa.RecordBatch) -> Data[pa.RecordBatch]:
            first, last = batch.column("_timestamp")[0].as_py(), batch.column("_timestamp")[-1].as_py()
            return Data(batch, last, batch.nbytes, first_timestamp=first)

        gate = CheckpointedInputGate(2, split=split)
        batch = pa.record_batch({"_timestamp": [1, 1, 2, 5], "value": ["a", "b", "c", "d"]})
        outputs = [*gate.put(0, piece(batch)), *gate.put(1, Tick(3)), *gate.put(1, END)]
        parts = [output.payload for output in outputs if isinstance(output, Data)]

        assert [part.num_rows for part in parts] == [3, 1]
        assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
        assert parts[0].column("value").buffers()[1].address == batch.column("value").buffers()[1].address

    def test_runs_without_a_way_to_cut_them_are_refused_where_they_would_have_to_be(self) -> None:
        """The danger: found out after a day, at the first run that another input's message falls into."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2)

        with pytest.raises(InputOutOfOrderError, match="split"):
            gate.put(0, run_of(1, 2))
        assert gate.put(0, data(1)) == []

    @pytest.mark.parametrize(
        "parts",
        [(run_of(1, 3), run_of(5)), (run_of(1), run_of(2, 5)), (run_of(1, 2), run_of(3, 4))],
        ids=["too much", "too little", "something lost"],
    )
    def test_a_split_that_cuts_elsewhere_is_noticed(self, parts: tuple[Data[str], Data[str]]) -> None:
        """The danger: a wrong function of a user puts rows into the wrong place, silently."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2, split=lambda _event, _timestamp: parts)
        gate.put(0, run_of(1, 2, 3, 5))

        with pytest.raises(InternalError, match="split"):
            gate.put(1, Tick(2))


class TestBrokenReaders:
    """What a reader must not do is refused, and changes nothing."""

    @pytest.mark.parametrize("channel_count", [1, 2])
    def test_data_that_is_not_later_than_its_inputs_last_word_is_refused(self, channel_count: int) -> None:
        """The danger: a message behind the checkpoint, which the filter of replayed rows would drop as a row seen before."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(channel_count)
        gate.put(0, data(5))
        with pytest.raises(InputOutOfOrderError, match="timestamps must rise"):
            gate.put(0, data(5))
        gate.put(0, Tick(9))
        with pytest.raises(InputOutOfOrderError) as refused:
            gate.put(0, data(9))
        with pytest.raises(InputOutOfOrderError):
            gate.put(0, Data("backwards", 12, 1, first_timestamp=13))

        assert refused.value.metadata == {"input": "0", "first_timestamp": "9", "timestamp": "9", "watermark": "9"}
        last = channel_count - 1
        outputs = put_all(gate, (0, data(10)), *((last, Tick(10)),))
        assert "at 10" in short(outputs)
        assert gate.waiting_bytes == 0

    @pytest.mark.parametrize("order", MergeOrder)
    def test_data_after_the_end_of_its_input_is_refused(self, order: MergeOrder) -> None:
        """The danger: the merge has gone on without the input, perhaps past the message."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2, order=order)
        gate.put(0, END)

        with pytest.raises(InputEndedError, match="after its end"):
            gate.put(0, data(7))
        assert gate.waiting_bytes == 0

    @pytest.mark.parametrize("order", MergeOrder)
    def test_ticks_and_ends_after_the_end_say_nothing(self, order: MergeOrder) -> None:
        """The danger: an input that ended is announced twice, or its tick passes for the stream's."""
        gate: CheckpointedInputGate[str] = CheckpointedInputGate(2, order=order)

        assert put_all(gate, (0, END), (0, Tick(5)), (0, END)) == [END]

    @pytest.mark.parametrize("error_type", [InputOutOfOrderError, InputEndedError])
    def test_refusals_have_a_reason_of_the_project(self, error_type: type[DatacoordError]) -> None:
        """The danger: an error that no page documents and no caller can sort."""
        assert error_type.reason is Reason.SOURCE_INVALID


def _rising(runs: list[set[int]]) -> list[list[int]]:
    """Runs of one input: each begins after the one before has ended."""
    rising: list[list[int]] = []
    last = 0
    for run in runs:
        timestamps = sorted(timestamp for timestamp in run if timestamp > last)
        if timestamps:
            rising.append(timestamps)
            last = timestamps[-1]
    return rising


def _messages(outputs: list[Output]) -> list[str]:
    return [message for output in outputs if isinstance(output, Data) for message in output.payload.split(",")]
