"""The gate under random input: the same answers as a slow and obvious one, and the laws that hold for any gate.

The laws (`reference_gate.Trace`): nothing lost or doubled; order of each input kept; a snapshot cut exactly at the barriers
(exactly once) or never before them (at least once); decisions rise; a merged timeline that never goes back.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from datanode_client.flowgraph.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    Data,
    EndOfPartition,
    EndPolicy,
    Tick,
    Trigger,
)
from datanode_client.flowgraph.input_gate import (
    CheckpointedInputGate,
    CheckpointingMode,
    MergeOrder,
)

from .reference_gate import Event, Output, ReferenceGate, Trace

KINDS = ("data", "data", "data", "data", "tick", "barrier", "barrier", "cancel", "cancel_checkpoint", "end")

Step = tuple[int, str, int, int]
"""Input, kind, and two small numbers that the kind interprets."""


@pytest.fixture(autouse=True, scope="module")
def _quiet_log() -> Iterator[None]:
    """Thousands of aborts are wanted here; their log lines are not."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    yield
    structlog.reset_defaults()


@dataclass
class Script:
    """Turns arbitrary steps into legal input: rising timestamps, no data after the end; ids as wild as they come."""

    channels: int
    timestamps: dict[int, int] = field(default_factory=dict)
    barrier_ids: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    labels: int = 0

    def event(self, step: Step) -> tuple[int | None, Event] | None:
        """The event of a step and its input; None as input stands for a cancellation that comes from outside."""
        channel, kind, small, number = step
        channel %= self.channels
        made: Event | None = None
        if kind == "data" and channel not in self.ended:
            self.labels += 1
            self.timestamps[channel] = self._said(channel) + 1 + small % 3
            made = Data(f"x{self.labels}", self.timestamps[channel], size_bytes=number)
        elif kind == "tick":
            # Also one that says nothing new, and one that goes back.
            made = Tick(max(0, self._said(channel) + small - 1))
            self.timestamps[channel] = max(self._said(channel), made.timestamp)
        elif kind == "barrier":
            # Mostly the next one, sometimes the newest of all, one with a gap, the same again, or an older one.
            last = self.barrier_ids.get(channel, 0)
            newest = max(self.barrier_ids.values(), default=1)
            made = CheckpointBarrier(max(1, (last + 1, last + 1, last + 1, newest, last + 2, last, last - 1)[number]))
            self.barrier_ids[channel] = max(last, made.id)
        elif kind in {"cancel", "cancel_checkpoint"}:
            newest = max(self.barrier_ids.values(), default=1)
            made = CancelCheckpointMarker(max(1, newest + (0, -1, 0, -1, 0, 1, 2)[number]))
        elif kind == "end" and small == 0:  # Ends are final: more of them, and most scripts would be about them.
            self.ended.add(channel)
            made = EndOfPartition()
        if made is None:
            return None
        return None if kind == "cancel_checkpoint" else channel, made

    def _said(self, channel: int) -> int:
        return self.timestamps.get(channel, 0)

    def ends(self) -> list[tuple[int, Event]]:
        return [(channel, EndOfPartition()) for channel in range(self.channels) if channel not in self.ended]


@dataclass(frozen=True)
class Setting:
    """One way to set up a gate."""

    channels: int
    mode: CheckpointingMode
    order: MergeOrder
    end_policy: EndPolicy
    max_held_bytes: int | None

    def gate(self, clock: Callable[[], int]) -> CheckpointedInputGate[str]:
        return CheckpointedInputGate(
            self.channels,
            mode=self.mode,
            order=self.order,
            end_policy=self.end_policy,
            max_held_bytes=self.max_held_bytes,
            clock=clock,
        )

    def reference(self) -> ReferenceGate:
        return ReferenceGate(
            self.channels,
            exactly_once=self.mode is CheckpointingMode.EXACTLY_ONCE,
            by_timestamp=self.order is MergeOrder.TIMESTAMP,
            end_policy=self.end_policy,
            max_held_bytes=self.max_held_bytes,
        )


SETTINGS = st.builds(
    Setting,
    channels=st.integers(1, 4),
    mode=st.sampled_from(CheckpointingMode),
    order=st.sampled_from(MergeOrder),
    end_policy=st.sampled_from(EndPolicy),
    max_held_bytes=st.sampled_from([None, 0, 5, 20]),
)
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 6)),
    max_size=60,
)


def run(setting: Setting, steps: list[Step]) -> None:
    """Feeds both gates, compares every answer, and checks the laws at the end, after all inputs have ended."""
    reference = setting.reference()
    gate = setting.gate(lambda: reference.now_ns)
    script, trace = Script(setting.channels), Trace()
    events = [made for step in steps if (made := script.event(step)) is not None]
    for channel, event in [*events, *script.ends()]:
        reference.now_ns += 7
        if channel is None:
            assert isinstance(event, CancelCheckpointMarker)
            expected = reference.cancel_checkpoint(event.id)
            actual = gate.cancel_checkpoint(event.id)
        else:
            expected = reference.put(channel, event)
            actual = gate.put(channel, event)
            trace.put.append((channel, event))
        trace.output += actual

        assert actual == expected, f"after {event} on input {channel}"
        assert gate.blocked_channels == reference.blocked()
        assert gate.held_bytes == reference.held_bytes()
    assert gate.is_finished
    assert not gate.blocked_channels
    assert not gate.barrier_handler.pending_checkpoint_ids
    trace.check_nothing_is_lost_or_doubled(finished=True)
    trace.check_order_of_each_input()
    trace.check_cuts(exactly_once=setting.mode is CheckpointingMode.EXACTLY_ONCE)
    trace.check_decisions_rise()
    if setting.order is MergeOrder.TIMESTAMP:
        trace.check_timeline()


@settings(max_examples=400, deadline=None)
@given(setting=SETTINGS, steps=STEPS)
def test_the_gate_and_a_slow_and_obvious_one_give_the_same_answers(setting: Setting, steps: list[Step]) -> None:
    """The danger: an interleaving nobody thought of. Hypothesis shrinks the ones it finds."""
    run(setting, steps)


@pytest.mark.parametrize("order", MergeOrder)
@pytest.mark.parametrize("mode", CheckpointingMode)
@pytest.mark.parametrize("seed", range(6))
def test_long_runs_of_very_unaligned_inputs_keep_the_laws(
    seed: int, mode: CheckpointingMode, order: MergeOrder
) -> None:
    """The danger: states that only long histories reach (Flink's massive random test has the idea)."""
    rng = random.Random(seed)
    setting = Setting(
        channels=rng.randint(2, 6),
        mode=mode,
        order=order,
        end_policy=rng.choice(list(EndPolicy)),
        max_held_bytes=rng.choice([None, 40]),
    )
    kinds = ("data",) * 30 + ("tick",) * 6 + ("cancel",)
    steps: list[Step] = []
    barriers = [0] * setting.channels
    for _ in range(300):
        if rng.random() < 0.2:
            # Usually the input that is behind, or the inputs would never meet at a barrier.
            channel = barriers.index(min(barriers)) if rng.random() < 0.9 else rng.randrange(setting.channels)
            barriers[channel] += 1
            steps.append((channel, "barrier", 0, 0))
        else:
            steps.append((rng.randrange(setting.channels), rng.choice(kinds), rng.randrange(8), rng.randrange(7)))
    run(setting, steps)


@settings(max_examples=200, deadline=None)
@given(setting=SETTINGS, steps=STEPS, max_waiting_bytes=st.integers(1, 10), random=st.randoms(use_true_random=False))
def test_readers_that_ask_first_stay_within_the_limit_and_never_stand_still(
    setting: Setting, steps: list[Step], max_waiting_bytes: int, random: random.Random
) -> None:
    """The danger: a full gate that wants nobody, or wants everybody.

    Each reader puts what it has, in its own order, whenever the gate wants more of it. There is always one to go on, and what is
    inside exceeds the limit by at most one message of each input.
    """
    gate: CheckpointedInputGate[str] = CheckpointedInputGate(
        setting.channels,
        mode=setting.mode,
        order=setting.order,
        end_policy=setting.end_policy,
        max_held_bytes=None,
        max_waiting_bytes=max_waiting_bytes,
    )
    script = Script(setting.channels)
    made = [event for step in steps if (event := script.event(step)) is not None]
    readers = {
        channel: [event for c, event in [*made, *script.ends()] if c == channel] for channel in range(setting.channels)
    }
    most = max((event.size_bytes for _, event in made if isinstance(event, Data)), default=0)
    while any(readers.values()):
        wanted = [channel for channel, events in readers.items() if events and gate.wants_more(channel)]
        assert wanted, f"nobody may go on: {readers}"
        gate.put(channel := random.choice(wanted), readers[channel].pop(0))
        assert gate.waiting_bytes < max_waiting_bytes + (most + 1) * setting.channels
    assert gate.is_finished


@dataclass(frozen=True)
class Timeline:
    """Inputs of one timeline whose barriers stand at common places, and an order in which they speak."""

    inputs: list[list[Event]]
    turns: list[int]


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draws a timeline with up to six cuts, the last behind everything."""
    cuts = sorted(draw(st.sets(st.integers(1, 60), max_size=5)))
    inputs: list[list[Event]] = []
    for channel in range(draw(st.integers(1, 4))):
        events: list[Event] = []
        timestamps = sorted(draw(st.sets(st.integers(1, 60), max_size=12)))
        for number, cut in enumerate([*cuts, 60], start=1):
            done = [event.timestamp for event in events if isinstance(event, Data)]
            events += [Data(f"{channel}:{t}", t, 1) for t in timestamps if t <= cut and t not in done]
            events += [Tick(cut), CheckpointBarrier(number)]
        inputs.append([*events, EndOfPartition()])
    turns = [channel for channel, events in enumerate(inputs) for _ in events]
    return Timeline(inputs, draw(st.permutations(turns)))


@settings(max_examples=200, deadline=None)
@given(timeline=timelines(), mode=st.sampled_from(CheckpointingMode))
def test_barriers_at_one_place_of_the_timeline_all_trigger_at_once_and_in_order(
    timeline: Timeline, mode: CheckpointingMode
) -> None:
    """The danger: blocking and merging wait for each other, or a cut is given up though it fits the timeline.

    As soon as every input has said barrier n, n is triggered, whatever else has been said; before it stands exactly what is at
    or before its place, in the order of the timeline.
    """
    gate: CheckpointedInputGate[str] = CheckpointedInputGate(len(timeline.inputs), mode=mode)
    remaining = [iter(events) for events in timeline.inputs]
    barriers_said = [0] * len(timeline.inputs)
    output: list[Output] = []
    for channel in timeline.turns:
        event = next(remaining[channel])
        output += gate.put(channel, event)
        barriers_said[channel] += isinstance(event, CheckpointBarrier)
        triggered = [out.barrier.id for out in output if isinstance(out, Trigger)]

        assert triggered == list(range(1, min(barriers_said) + 1))
    assert gate.is_finished
    messages = sorted(
        (event.timestamp, channel, event.payload)
        for channel, events in enumerate(timeline.inputs)
        for event in events
        if isinstance(event, Data)
    )
    assert [out.payload for out in output if isinstance(out, Data)] == [payload for _, _, payload in messages]
    for position, trigger in enumerate(output):
        if isinstance(trigger, Trigger):
            place = next(
                event.timestamp
                for event, barrier in zip(timeline.inputs[0], timeline.inputs[0][1:], strict=False)
                if isinstance(event, Tick) and barrier == trigger.barrier
            )
            before = [out.payload for out in output[:position] if isinstance(out, Data)]
            assert before == [payload for timestamp, _, payload in messages if timestamp <= place]


def test_the_laws_catch_gates_that_break_them() -> None:
    """The danger: laws that nothing can break. Each breach here is one a broken gate would commit."""
    a, b = Data("a", 1, 1), Data("b", 2, 1)
    end, barrier = EndOfPartition(), CheckpointBarrier(1)
    trigger = Trigger(barrier, 0, 0, 0)
    one_input: list[tuple[int, Event]] = [(0, a), (0, barrier), (0, b), (0, end)]
    breaches: list[tuple[list[Output], Callable[[Trace], None]]] = [
        ([a, trigger, end], lambda trace: trace.check_nothing_is_lost_or_doubled(finished=True)),
        ([a, a, trigger, b, end], lambda trace: trace.check_nothing_is_lost_or_doubled(finished=False)),
        ([Data("c", 3, 1)], lambda trace: trace.check_nothing_is_lost_or_doubled(finished=False)),
        ([b, a, trigger, end], Trace.check_order_of_each_input),
        ([end, a, b], Trace.check_order_of_each_input),
        ([a, b, trigger, end], lambda trace: trace.check_cuts(exactly_once=True)),
        ([trigger, a, b, end], lambda trace: trace.check_cuts(exactly_once=False)),
        ([a, Trigger(CheckpointBarrier(2), 0, 0, 0)], lambda trace: trace.check_cuts(exactly_once=False)),
        ([trigger, trigger], Trace.check_decisions_rise),
        ([Trigger(CheckpointBarrier(2), 0, 0, 0), trigger], Trace.check_decisions_rise),
        ([b, a], Trace.check_timeline),
        ([Tick(1), a], Trace.check_timeline),
        ([a, trigger, Data("same time", 1, 1)], Trace.check_timeline),
    ]
    for output, check in breaches:
        with pytest.raises(AssertionError):
            check(Trace(one_input, output))
    good = Trace(one_input, [a, trigger, b, end])
    good.check_nothing_is_lost_or_doubled(finished=True)
    good.check_order_of_each_input()
    good.check_cuts(exactly_once=True)
    good.check_decisions_rise()
    good.check_timeline()


def test_a_gate_that_does_not_block_is_caught_as_not_exactly_once() -> None:
    """The danger: a law about cuts that an at-least-once gate would pass too, so that nobody sees blocking break."""
    gate: CheckpointedInputGate[str] = CheckpointedInputGate(
        2, mode=CheckpointingMode.AT_LEAST_ONCE, order=MergeOrder.ARRIVAL
    )
    trace = Trace()
    events: list[tuple[int, Event]] = [
        (0, CheckpointBarrier(1)), (0, Data("after the cut", 1, 1)), (1, CheckpointBarrier(1)),
    ]  # fmt: skip
    for channel, event in events:
        trace.put.append((channel, event))
        trace.output += gate.put(channel, event)

    trace.check_cuts(exactly_once=False)
    with pytest.raises(AssertionError, match="too late"):
        trace.check_cuts(exactly_once=True)
