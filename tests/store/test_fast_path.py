"""The guarded statement of UpdateChannelCheckpoint answers and stores what core decides: proven by running both."""

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.model import ChannelMode
from coordinator.store import ChannelIdentity, CheckpointMove, WriteAnswer, checkpoints
from coordinator.store.database_kind import DoneAtOnce
from coordinator.store.engine import Database
from coordinator.store.transaction import Memory

from .databases import Databases
from .support import CALLER, LEASE_MS, Clock, ScriptedFaults, World, dump, lane, position, reasons, save

CHANNELS = 3
FLUSH = 6
Entry = tuple[int, int, int]
"""Channel (CHANNELS = unknown), how far from its epoch, how far beyond the largest timestamp sent for it."""

Group = tuple[int, list[list[Entry]]]
"""How much time passes before the calls of entries that wait at once."""

CORNERS: dict[str, list[list[list[Entry]]]] = {
    "plain": [[[(0, 0, 1), (1, 0, 1)]]],
    "an older epoch": [[[(0, -1, 1)]]],
    "a newer epoch": [[[(0, 1, 1)]]],
    "a tombstone": [[[(2, 0, 1)]]],
    "an unknown channel": [[[(0, 0, 1), (CHANNELS, 0, 1)]]],
    "equal": [[[(0, 0, 1)]], [[(0, 0, 0)]]],
    "smaller": [[[(0, 0, 2)]], [[(0, 0, -1)]]],
    "equal, then greater": [[[(0, 0, 1)]], [[(0, 0, 0), (0, 0, 1)]]],
    "greater, then smaller": [[[(0, 0, 3), (0, 0, -1)]]],
    "one after the other": [[[(0, 0, 1), (0, 0, 1)], [(0, 0, 1)]]],
    "two epochs of one channel": [[[(0, 0, 1), (0, -1, 1)], [(0, 0, 1)]]],
    "just before the flush target": [[[(1, 0, FLUSH - 1)]]],
    "the flush target": [[[(1, 0, FLUSH)]]],
    "beyond the flush target": [[[(1, 0, FLUSH + 1)]], [[(1, 0, 1)]]],
    "the flush target on the way": [[[(1, 0, FLUSH - 1), (1, 0, 3)]]],
}
"""Every condition of the statement at its edge: groups of calls of entries."""


class Pair:
    """Two worlds with the same history: one may use the fast path, the other never does."""

    def __init__(self, fast: World, slow: World) -> None:
        self.worlds = (fast, slow)
        self.epochs: dict[str, int] = {}
        self._collections = 0
        self._largest: dict[tuple[str, str], int] = {}

    @classmethod
    async def open(cls, databases: Databases) -> "Pair":
        """Opens both."""
        fast, slow = [await World(databases.migrated(), Clock(), ScriptedFaults()).open() for _ in range(2)]
        return cls(fast, slow)

    async def begin(self) -> None:
        """A new collection in both. Channel 1 waits for a flush; channel 2 is dropped."""
        self._collections += 1
        for world in self.worlds:
            await world.create(f"t{self._collections}", channels=CHANNELS)
            await world.start_datanode(self._collections)
            epochs = {channel: await world.epoch(channel) for channel in world.channels}
            for channel in world.channels:
                # Also lets both know the channels: one that is not known never takes the fast path.
                await world.save(channel, lane(world.default, 0, 1), epoch=epochs[channel])
            await world.save(world.channels[0], epoch=epochs[world.channels[0]], checkpoint=FLUSH)
            self._largest[world.url, world.channels[0]] = FLUSH
            await world.store.flush(world.collection.name, FLUSH, caller=CALLER)
            dropped = world.channels[2]
            await world.store.drop_virtual_channel(save(dropped, epochs[dropped]), caller=CALLER)
            # The tombstone's own epoch: nobody was told, but a guess must not pass either.
            self.epochs = {**epochs, dropped: await world.epoch(dropped)}

    async def compare(self, groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
        """Sends the same to both."""
        await self.begin()
        for lapse_ms, calls in groups:
            for world in self.worlds:
                world.clock.advance(lapse_ms)
            fast, slow = await self.send(calls, monkeypatch)
            assert fast == slow
        stored, expected = self.dumps(["binlogs", "events"])
        assert stored == expected

    async def send(self, calls: Sequence[Sequence[Entry]], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
        """Sends the calls of a group at once to both; what each answered."""
        answers = []
        for world, use_core in zip(self.worlds, (False, True), strict=True):
            with monkeypatch.context() as patch:
                if use_core:
                    patch.setattr(checkpoints, "at_once", lambda *_, **__: None)
                    patch.setattr(checkpoints, "try_fast", lambda _transaction, _calls: None)
                moves = [[self._move(world, entry) for entry in call] for call in calls]
                sent = (world.store.update_channel_checkpoints(call, caller=CALLER) for call in moves)
                answers.append([described(call) for call in await asyncio.gather(*sent)])
        return answers[0], answers[1]

    def _move(self, world: World, entry: Entry) -> CheckpointMove:
        index, off, beyond = entry
        name = world.channels[index] if index < CHANNELS else "nobody"
        largest = self._largest.get((world.url, name), 0)
        timestamp = max(0, largest + beyond)
        self._largest[world.url, name] = max(largest, timestamp)
        return CheckpointMove(name, self.epochs.get(name, 1) + off, position(timestamp))

    def dumps(self, leave_out: Sequence[str]) -> list[dict[str, list[tuple[Any, ...]]]]:
        """What is stored, on both sides."""
        return [dump(world.url, leave_out=leave_out) for world in self.worlds]

    async def close(self) -> None:
        """Closes both."""
        for world in self.worlds:
            await world.store.close()


def described(answers: list[WriteAnswer]) -> list[tuple[str, Any]]:
    """Answers without what the fast path need not say: the facts of an entry that was applied."""
    named = reasons(answers)
    return [(name, None if name == "APPLIED" else answer.facts) for name, answer in zip(named, answers, strict=True)]


def count_at_once(monkeypatch: pytest.MonkeyPatch) -> list[DoneAtOnce]:
    """What was done by a statement that is a transaction of its own, as it grows."""
    done: list[DoneAtOnce] = []
    original = Database.write_at_once

    async def write_at_once(*arguments: Any) -> DoneAtOnce | None:
        answer = await original(*arguments)
        done.extend([answer] if answer is not None else [])
        return answer

    monkeypatch.setattr(Database, "write_at_once", write_at_once)
    return done


ENTRIES = st.tuples(
    st.sampled_from([0] * 6 + [1] * 6 + [2, CHANNELS]),
    st.sampled_from([0] * 12 + [-1, 1]),
    st.sampled_from([1] * 6 + [2] * 3 + [3, 0, -1]),
)
CALLS = st.lists(st.lists(ENTRIES, min_size=1, max_size=4), min_size=1, max_size=3)
# A lease is written anew after a sixteenth of it.
GROUPS = st.lists(st.tuples(st.sampled_from([0, 1, LEASE_MS // 16 - 1, LEASE_MS // 16]), CALLS), max_size=6)


def test_the_fast_path_and_core_answer_and_store_the_same(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard in SQL that differs from the rules in one corner moves a checkpoint that must stay, or seals nothing at a flush."""
    with asyncio.Runner() as runner:
        pair = runner.run(Pair.open(databases))

        # Each statement is a round trip to the server there.
        @settings(max_examples=25 if databases.kind == "sqlite" else 10, deadline=None)
        @given(groups=GROUPS)
        def compare(groups: list[Group]) -> None:
            runner.run(pair.compare(groups, monkeypatch))

        at_once = count_at_once(monkeypatch)
        for groups in CORNERS.values():
            runner.run(pair.compare([(0, calls) for calls in groups], monkeypatch))
        # Where nothing else is to be written; otherwise this compares the usual transaction only.
        assert (len(at_once) > 5) == (databases.kind == "postgresql")
        compare()
        assert pair.worlds[0].store.statistics.fast_items > 0
        assert pair.worlds[1].store.statistics.fast_items == 0
        # The history too, whole.
        stored, expected = pair.dumps(["binlogs"])
        assert stored == expected
        runner.run(pair.close())


async def test_the_fast_path_is_taken_where_everything_is_plain(world: World) -> None:
    """Otherwise the test above compares core with core."""
    await world.start_datanode()
    epochs = [await world.epoch(channel) for channel in world.channels]
    for timestamp in (5, 6):
        moves = [CheckpointMove(c, e, position(timestamp)) for c, e in zip(world.channels, epochs, strict=True)]
        await world.store.update_channel_checkpoints(moves, caller=CALLER)
    assert world.store.statistics.fast_items == 4

    refused = CheckpointMove(world.channels[0], epochs[0] + 1, position(9))
    await world.store.update_channel_checkpoints([refused], caller=CALLER)
    assert world.store.statistics.fast_items == 4


async def test_a_refused_entry_sends_the_group_to_core_and_leaves_nothing_of_the_attempt(world: World) -> None:
    """The bulk statement has moved the neighbours already when it turns out that one does not count."""
    await world.start_datanode()
    first, second = world.channels
    epoch = await world.epoch(first)
    await world.move(first, 5)
    await world.move(second, 20)
    moves = [
        CheckpointMove(first, epoch, position(9)),
        CheckpointMove(second, await world.epoch(second), position(10)),
    ]

    answers = await world.store.update_channel_checkpoints(moves, caller=CALLER)

    assert reasons(answers) == ["APPLIED", "ALREADY_APPLIED"]
    assert (await world.info(first)).checkpoint == position(9)
    assert (await world.info(second)).checkpoint == position(20)


def test_an_owner_that_becomes_known_while_its_call_waits_is_renewed_all_the_same() -> None:
    """Its accepted write would not lengthen its lease, and somebody else could take its channel while it writes."""
    memory = Memory(channels={"c": ChannelIdentity(7, 1, ChannelMode.CLAIMED)})
    call = checkpoints.CheckpointCall([("c", 5, 10, 0, b"", "")], CALLER, memory)
    memory.owner_of_epoch[5] = 42
    transaction = Mock(memory=memory)
    transaction.kind.rows_per_statement = 100

    checkpoints._renew_owners(transaction, [call])
    transaction.renew.assert_called_with(42)
    transaction.connection.execute.assert_not_called()
