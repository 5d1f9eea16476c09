"""Owners, zombies, drops, crashes and collectors, interleaved between any two of a collector's statements and deletions.

After every step: what is registered, and what may still be registered, is there. When the faults stop, all the rest goes.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from store.databases import Databases
from store.support import CALLER
from support.engines import engine_of

from coordinator.core.model import ChannelState
from coordinator.core.segments import SealPolicy
from coordinator.jobs.garbage import GarbageJob
from coordinator.jobs.garbage_sweep import GarbageSettings
from coordinator.web.metrics import Metrics
from datacoord.errors import DatacoordError
from datacoord.paths import BinlogKind, BinlogPath
from garbage.rig import Rig, Written

OFTEN_SEALED = SealPolicy(binlogs_max=2)
COLLECTORS = 2
BOTH = (BinlogKind.INSERT, BinlogKind.DELTA)
KINDS = {1: BinlogKind.INSERT, 2: BinlogKind.DELTA}


class Gate:
    """Where a collector waits before each of its statements, listings and deletions until it is let through."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self._go = asyncio.Semaphore(0)

    async def __call__(self) -> None:
        """Waits."""
        self.waiting.set()
        await self._go.acquire()
        self.waiting.clear()

    def let_through(self) -> None:
        """One step."""
        self.waiting.clear()
        self._go.release()


class GatedGarbage:
    """The collector's way into the database, with the gate before every call."""

    def __init__(self, real: Any, gate: Gate) -> None:
        self._real, self._gate = real, gate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            await self._gate()
            return await getattr(self._real, name)(*arguments, **named)

        return call


class GatedStore:
    """A store that has nothing but that."""

    def __init__(self, real: Any, gate: Gate) -> None:
        self.garbage = GatedGarbage(real.garbage, gate)


class Collector:
    """A round in progress. Two of them hold the same lease here: as if one had lost it and did not know."""

    def __init__(self, rig: Rig) -> None:
        self.gate = Gate()
        # Whatever it deletes goes one object at a time, and it judges two at a time.
        # A permit that time asks for, on a slow machine, would stand at the gate beside what it is for, and wait there for ever.
        settings = GarbageSettings(
            interval_ms=0, batch_objects_max=2, delete_objects_max=1, delete_rows_max=1, permit_seconds=86_400
        )
        store: Any = GatedStore(rig.world.store, self.gate)
        self.job = GarbageJob(store, Metrics(), settings, blocking=self._blocking, rest=rig.rest)
        self.task = asyncio.get_running_loop().create_task(self.job())

    async def _blocking(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await self.gate()
        return work(*arguments)

    async def step(self) -> None:
        """To the next gate, or to its end."""
        self.gate.let_through()
        waiting = asyncio.ensure_future(self.gate.waiting.wait())
        await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def crash(self) -> None:
        """Its process dies where it is."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Races(RuleBasedStateMachine):
    """Everybody who touches objects."""

    databases: Databases

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory(prefix="garbage-races-")
        self.rig = Rig(self.databases.migrated(), Path(self.directory.name))
        self.written: list[Written] = []
        self.epochs: dict[str, list[int]] = {}
        self.collectors: list[Collector] = []
        self.dropped = False
        self.engine = engine_of(self.rig.world.url)

    def run(self, coroutine: Any) -> Any:
        """Runs on the one loop of this machine."""
        return self.runner.run(coroutine)

    @initialize()
    def begin(self) -> None:
        """Two channels, two partitions, an owner."""

        async def begin() -> None:
            await self.rig.open(seal_policy=OFTEN_SEALED)
            await self.rig.change_owner()

        self.run(begin())
        self._note_epochs()

    def _note_epochs(self) -> None:
        for row in self.run(self.rig.world.store.list_channels()).items:
            if row.state is ChannelState.ACTIVE:
                seen = self.epochs.setdefault(row.channel_name, [])
                if row.epoch not in seen:
                    seen.append(row.epoch)

    # ---- writers ------------------------------------------------------------------------------------------------------------

    @rule(data=st.data(), more=st.integers(1, 3))
    def write(self, data: st.DataObject, more: int) -> None:
        """Owners and zombies put objects there; what they do next, and when, is another matter."""
        lanes = self._lanes()
        for _ in range(more):
            channel = data.draw(st.sampled_from(self.rig.world.channels), label="channel")
            partition = data.draw(st.sampled_from([self.rig.world.default, self.rig.world.other]), label="partition")
            seen = self.epochs[channel]
            epoch = data.draw(st.sampled_from([*seen, *seen[-1:] * 4]), label="epoch")
            progress = lanes.get((self.rig.channel_ids[channel], partition), 0)
            start = data.draw(st.sampled_from([progress] * 4 + [max(0, progress - 1), progress + 2]), label="from")
            end = start + data.draw(st.integers(1, 3), label="length")
            kinds = data.draw(st.sampled_from([BOTH, BOTH[:1]]), label="kinds")
            self.written.append(
                self.rig.write(channel, epoch, start, end, partition=partition, kinds=kinds, durable=False)
            )

    @precondition(lambda self: self.written)
    @rule(data=st.data(), lost=st.sampled_from([False, False, False, True]))
    def send(self, data: st.DataObject, lost: bool) -> None:
        """A save arrives: soon, late, again; its reply may be lost."""
        sent = data.draw(st.sampled_from(self.written[-8:]), label="save")
        self.rig.world.faults.lose_reply = lost
        try:
            self.run(self.rig.save(sent, checkpoint=False))
        except DatacoordError:
            assert lost
        finally:
            self.rig.world.faults.lose_reply = False

    @rule(slot=st.integers(0, 1))
    def change_owner(self, slot: int) -> None:
        """The owner is a zombie from now on, with whatever it has in its hands."""
        self.run(self.rig.change_owner(slot))
        self._note_epochs()

    # ---- drops --------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.written) > 3 and not self.dropped)
    @rule(what=st.sampled_from(["channel", "partition", "partition", "segment", "segment", "segment"]), data=st.data())
    def drop(self, what: str, data: st.DataObject) -> None:
        """A channel, a partition, or a segment alone."""
        world = self.rig.world
        if what == "channel":
            self.run(self.rig.drop_channel(world.channels[0]))
            self.dropped = True
        elif what == "partition":
            self.run(world.store.drop_partition(world.collection.name, "other", caller=CALLER))
        else:
            living = [row[0] for row in self._query("SELECT segment_id FROM segments WHERE state <> 4 ORDER BY 1")]
            if living:
                number = data.draw(st.sampled_from(living), label="segment")
                self.run(world.store.mark_segments_dropped([number], caller=CALLER))

    # ---- collectors ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.collectors) < COLLECTORS)
    @rule()
    def start_collector(self) -> None:
        """A round begins; perhaps beside one that has lost its lease."""

        async def start() -> None:
            self.rig.world.clock.advance(120_000)
            self.collectors.append(Collector(self.rig))

        self.run(start())

    @precondition(lambda self: self.collectors)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def step_collector(self, data: st.DataObject, steps: int) -> None:
        """So many of its statements, listings and deletions."""
        collector = data.draw(st.sampled_from(range(len(self.collectors))), label="collector")
        for _ in range(steps):
            if self.collectors[collector].task.done():
                self.collectors[collector].task.result()
                del self.collectors[collector]
                return
            self.run(self.collectors[collector].step())

    @precondition(lambda self: self.collectors)
    @rule()
    def crash_collector(self) -> None:
        """Anywhere."""
        self.run(self.collectors.pop().crash())

    # ---- what always holds --------------------------------------------------------------------------------------------------

    def _query(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(statement)))

    def _lanes(self) -> dict[tuple[int, int], int]:
        return {(row[0], row[1]): row[2] for row in self._query("SELECT channel_id, partition_id, progress FROM lanes")}

    def _registered(self) -> set[str]:
        """Objects that a row of a living segment names."""
        rows = self._query(
            "SELECT kind, channel_id, partition_id, epoch, range_from, range_to, field_id, log_id FROM binlogs JOIN segments "
            "ON segments.segment_id = binlogs.segment_id WHERE segments.state <> 4"
        )
        return {str(BinlogPath(KINDS[row[0]], *row[1:])) for row in rows}

    def _may_be_registered(self) -> set[str]:
        """Objects without a row that the next save of their writer would register, or a later one."""
        channels = {row[0]: row for row in self._query("SELECT channel_id, epoch, state FROM channel_state")}
        partitions = {row[0] for row in self._query("SELECT partition_id FROM partitions WHERE state = 1")}
        lanes = self._lanes()
        found = set()
        for one in self.written:
            _, epoch, state = channels[self.rig.channel_ids[one.channel]]
            lane = (self.rig.channel_ids[one.channel], one.lane.partition_id)
            alive = state == ChannelState.ACTIVE and one.lane.partition_id in partitions
            if alive and epoch == one.epoch and lanes.get(lane, 0) <= one.lane.timestamp_from:
                found |= set(one.paths)
        return found

    @invariant()
    def what_is_or_may_be_registered_is_there(self) -> None:
        """Rule 9 of the design."""
        if self.written:
            assert not (self._registered() | self._may_be_registered()) - self.rig.files()

    def teardown(self) -> None:
        """When the faults stop, every orphan of whoever is dead goes, in a round that nobody disturbs."""
        try:
            if self.written:
                for collector in self.collectors:
                    self.run(collector.crash())
                self.what_is_or_may_be_registered_is_there()
                done = self.run(self.rig.collect())
                assert done.error == ""
                assert self.rig.files() == self._registered() | self._may_be_registered()
                assert self._registered() == self.run(self.rig.referenced())
                over = "SELECT segment_id FROM segments JOIN channel_state USING (channel_id) WHERE channel_state.state = 2"
                assert not self._query(over)
        finally:
            if hasattr(self.rig.world, "store"):
                self.run(self.rig.world.store.close())
            self.engine.dispose()
            self.runner.close()
            self.directory.cleanup()
            self.databases.give_back(self.rig.world.url)


def run_machine(databases: Databases, examples: int) -> None:
    """Runs so many histories."""
    machine = type("Machine", (Races,), {"databases": databases})
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )


def test_nothing_that_is_or_may_be_registered_is_deleted_and_everything_else_goes(databases: Databases) -> None:
    """The races that nobody thought of: a collector may stand still for any time between any two things it does."""
    run_machine(databases, 12 if databases.kind == "sqlite" else 5)


@pytest.mark.long
def test_the_same_in_many_more_histories(databases: Databases) -> None:
    """Rare orders of events are found by numbers."""
    run_machine(databases, 400 if databases.kind == "sqlite" else 60)
