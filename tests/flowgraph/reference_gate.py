"""A slow and obvious input gate, and the laws that any gate must keep.

`ReferenceGate` keeps all that was ever put in, in one list, and looks for the next event from the start each time. It shares no
code and no data structure with the gate under test; its rules are written down from the tables of Flink's behaviour, situation by
situation. `Trace` records what went in and what came out and checks the laws without knowing how a gate works.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from datanode_client.flowgraph.buffer_storage import GateEvent
from datanode_client.flowgraph.events import (
    Abort,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointFailureReason,
    Data,
    Decision,
    EndOfPartition,
    EndPolicy,
    Tick,
    Trigger,
)
from datanode_client.flowgraph.input_gate import GateOutput

Event: TypeAlias = GateEvent[str]
Output: TypeAlias = GateOutput[str]

FOREVER = 10**30


@dataclass
class Item:
    """An event in the reference's history."""

    channel: int
    event: Event
    done: bool = False


@dataclass
class Checkpoint:
    """A checkpoint the reference knows of."""

    barrier: CheckpointBarrier
    waits_for: set[int]
    arrived: set[int]
    started_ns: int
    bytes_before: int


@dataclass
class ReferenceGate:
    """See the module's docstring."""

    channels: int
    exactly_once: bool
    by_timestamp: bool
    end_policy: EndPolicy
    max_held_bytes: int | None
    now_ns: int = 0
    history: list[Item] = field(default_factory=list)
    output: list[Output] = field(default_factory=list)
    pending: list[Checkpoint] = field(default_factory=list)
    highest_id: int = -1
    ended: set[int] = field(default_factory=set)

    def put(self, channel: int, event: Event) -> list[Output]:
        start = len(self.output)
        has_ended = any(i.channel == channel and isinstance(i.event, EndOfPartition) for i in self.history)
        if has_ended and isinstance(event, Tick | EndOfPartition):
            return []
        self.history.append(Item(channel, event))
        self._hand_out()
        return self.output[start:]

    def cancel_checkpoint(self, cancelled_id: int) -> list[Output]:
        start = len(self.output)
        self._cancel(cancelled_id)
        self._hand_out()
        return self.output[start:]

    def _hand_out(self) -> None:
        while self._step():
            pass
        if self.by_timestamp and self.channels > 1:
            self._tick()

    def blocked(self) -> set[int]:
        return (
            {channel for checkpoint in self.pending for channel in checkpoint.arrived} if self.exactly_once else set()
        )

    def held_bytes(self) -> int:
        return sum(
            item.event.size_bytes
            for item in self.history
            if not item.done and item.channel in self.blocked() and isinstance(item.event, Data)
        )

    # What comes next

    def _step(self) -> bool:
        fronts: dict[int, Item] = {}
        for item in self.history:
            if not item.done and item.channel not in self.blocked():
                fronts.setdefault(item.channel, item)
        ready = [item for item in self.history if item in fronts.values()]
        if self.by_timestamp:
            ready = [item for item in ready if not isinstance(item.event, Data)] or ready
        data = [item for item in ready if isinstance(item.event, Data)]
        if ready and not (self.by_timestamp and data):
            self._handle(ready[0])
            return True
        if data and self._earliest_message(data):
            return True
        if self.max_held_bytes is not None and self.held_bytes() > self.max_held_bytes:
            self._abort_all(CheckpointFailureReason.LIMIT_EXCEEDED)
            return True
        if data and self._cut_is_across(data):
            self._abort_all(CheckpointFailureReason.CUT_ACROSS_TIMELINE)
            return True
        return False

    def _earliest_message(self, fronts: list[Item]) -> bool:
        earliest = min(timestamp_of(item.event) for item in fronts)
        if any(self._has_said(channel) < earliest for channel in range(self.channels)):
            return False
        if any(timestamp_of(item.event) <= earliest for item in self._held_data()):
            return False
        for item in sorted(fronts, key=lambda item: item.channel):
            if timestamp_of(item.event) == earliest:
                self._handle(item)
        return True

    def _cut_is_across(self, fronts: list[Item]) -> bool:
        """Data before the cut waits, and the only thing in its way is older data behind the cut."""
        earliest_held = min((timestamp_of(item.event) for item in self._held_data()), default=FOREVER)
        if min(timestamp_of(item.event) for item in fronts) < earliest_held:
            return False
        return all(self._has_said(channel) >= earliest_held for channel in range(self.channels))

    def _held_data(self) -> list[Item]:
        return [
            item
            for item in self.history
            if not item.done and item.channel in self.blocked() and isinstance(item.event, Data)
        ]

    def _has_said(self, channel: int) -> int:
        events = [item.event for item in self.history if item.channel == channel]
        if any(isinstance(event, EndOfPartition) for event in events):
            return FOREVER
        return max((event.timestamp for event in events if isinstance(event, Data | Tick)), default=-1)

    def _tick(self) -> None:
        complete = FOREVER
        for channel in range(self.channels):
            undone = [
                timestamp_of(item.event)
                for item in self.history
                if item.channel == channel and not item.done and isinstance(item.event, Data)
            ]
            complete = min(complete, min(undone) - 1 if undone else self._has_said(channel))
        said = max((event.timestamp for event in self.output if isinstance(event, Data | Tick)), default=-1)
        if said < complete < FOREVER:
            self.output.append(Tick(complete))

    # What it does

    def _handle(self, item: Item) -> None:
        item.done = True
        event = item.event
        if isinstance(event, Data):
            self.output.append(event)
        elif isinstance(event, Tick):
            if self.channels == 1:
                self._pass_tick(event)
        elif isinstance(event, CheckpointBarrier):
            if item.channel not in self.ended:
                self._barrier(event, item.channel)
        elif isinstance(event, CancelCheckpointMarker):
            self._cancel(event.id)
        else:
            self._end(item.channel)
            self.output.append(event)

    def _pass_tick(self, tick: Tick[str]) -> None:
        said = [e.timestamp for e in self.output if isinstance(e, Data | Tick)] if self.by_timestamp else []
        if not said or tick.timestamp > max(said):
            self.output.append(tick)

    def _barrier(self, barrier: CheckpointBarrier, channel: int) -> None:
        if barrier.id > self.highest_id:
            if self.exactly_once:
                self._abort_all(CheckpointFailureReason.SUBSUMED)
            waits_for = set(range(self.channels)) - self.ended
            self.pending.append(Checkpoint(barrier, waits_for, set(), self.now_ns, self._bytes_out()))
            self.highest_id = barrier.id
        for checkpoint in self.pending:
            if checkpoint.barrier.id == barrier.id:
                held_bytes = self.held_bytes()
                checkpoint.arrived.add(channel)
                if checkpoint.waits_for <= checkpoint.arrived:
                    self._trigger(checkpoint, held_bytes)
                return

    def _cancel(self, cancelled_id: int) -> None:
        reason = CheckpointFailureReason.CANCELLED
        older = [c.barrier.id for c in self.pending if c.barrier.id < cancelled_id]
        known = [c.barrier.id for c in self.pending if c.barrier.id == cancelled_id]
        self.pending = [c for c in self.pending if c.barrier.id > cancelled_id]
        new = cancelled_id > self.highest_id
        self.highest_id = max(self.highest_id, cancelled_id)
        if not self.exactly_once:
            self.output.extend(Abort(checkpoint_id, reason) for checkpoint_id in older)
        if known or new:
            self.output.append(Abort(cancelled_id, reason))

    def _end(self, channel: int) -> None:
        self.ended.add(channel)
        if self.end_policy is EndPolicy.ABORT:
            self._abort_all(CheckpointFailureReason.END_OF_INPUT)
            return
        for checkpoint in self.pending:
            checkpoint.waits_for.discard(channel)
        complete = [c for c in self.pending if c.waits_for <= c.arrived]
        if complete:
            self._trigger(complete[-1], self.held_bytes())

    def _trigger(self, checkpoint: Checkpoint, held_bytes: int) -> None:
        self.pending = [c for c in self.pending if c.barrier.id > checkpoint.barrier.id]
        processed_bytes = self._bytes_out() - checkpoint.bytes_before
        self.output.append(
            Trigger(checkpoint.barrier, held_bytes, processed_bytes, self.now_ns - checkpoint.started_ns)
        )

    def _abort_all(self, reason: CheckpointFailureReason) -> None:
        self.output.extend(Abort(checkpoint.barrier.id, reason) for checkpoint in self.pending)
        self.pending = []

    def _bytes_out(self) -> int:
        return sum(event.size_bytes for event in self.output if isinstance(event, Data))


def timestamp_of(event: Event) -> int:
    """The timestamp of data."""
    assert isinstance(event, Data)
    return event.timestamp


@dataclass
class Trace:
    """What went into a gate and what came out of it.

    Each `check_…` states one law and fails with the first breach.
    """

    put: list[tuple[int, Event]] = field(default_factory=list)
    output: list[Output] = field(default_factory=list)

    def check_nothing_is_lost_or_doubled(self, *, finished: bool) -> None:
        """All that came out was put in, once; after the end all that was put in has come out."""
        put = [id(event) for _, event in self.put if isinstance(event, Data)]
        out = [id(event) for event in self.output if isinstance(event, Data)]
        assert len(out) == len(set(out)), "doubled"
        assert set(out) <= set(put), "invented"
        assert not finished or set(out) == set(put), "lost"

    def check_order_of_each_input(self) -> None:
        """What one input said leaves in the order in which it was said; its end comes last."""
        for channel in self._channels():
            said = [id(event) for c, event in self.put if c == channel and isinstance(event, Data | EndOfPartition)]
            out = [id(event) for event in self.output if id(event) in said]
            assert out == said[: len(out)], f"input {channel} out of order"

    def check_cuts(self, *, exactly_once: bool) -> None:
        """Before `Trigger` n stands, of every input, what it said before barrier n: exactly that, or at least that."""
        for position, trigger in enumerate(self.output):
            if isinstance(trigger, Trigger):
                before = {id(event) for event in self.output[:position] if isinstance(event, Data)}
                for channel in self._channels():
                    wanted, rest = self._cut(channel, trigger.barrier.id)
                    assert wanted <= before, f"input {channel}: cut {trigger.barrier.id} came too early"
                    assert not exactly_once or not rest & before, (
                        f"input {channel}: cut {trigger.barrier.id} came too late"
                    )

    def check_decisions_rise(self) -> None:
        """Every checkpoint is decided at most once, and never after a newer one."""
        ids = [checkpoint_id(event) for event in self.output if isinstance(event, Trigger | Abort)]
        assert ids == sorted(set(ids)), f"decisions {ids}"

    def check_timeline(self) -> None:
        """Timestamps never fall, ticks are true, and nothing stands between messages of one timestamp."""
        spoken, previous = -1, None
        for event in self.output:
            if isinstance(event, Data):
                side_by_side = isinstance(previous, Data) and previous.timestamp == event.timestamp
                assert event.timestamp > spoken or side_by_side, f"{event.timestamp} after {spoken}"
                spoken = event.timestamp
            elif isinstance(event, Tick):
                assert event.timestamp > spoken, f"tick {event.timestamp} after {spoken}"
                spoken = event.timestamp
            previous = event

    def _channels(self) -> set[int]:
        return {channel for channel, _ in self.put}

    def _cut(self, channel: int, barrier_id: int) -> tuple[set[int], set[int]]:
        before: set[int] = set()
        after: set[int] = set()
        passed = False
        for c, event in self.put:
            if c == channel and isinstance(event, Data):
                (after if passed else before).add(id(event))
            elif c == channel and not passed:
                is_the_barrier = isinstance(event, CheckpointBarrier) and event.id == barrier_id
                passed = is_the_barrier or isinstance(event, EndOfPartition)
        assert passed, f"input {channel}: cut {barrier_id} without its barrier"
        return before, after


def checkpoint_id(decision: Decision) -> int:
    """The checkpoint a decision is about."""
    return decision.barrier.id if isinstance(decision, Trigger) else decision.checkpoint_id
