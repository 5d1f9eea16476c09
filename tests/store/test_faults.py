"""The database fails at every statement, before COMMIT and after it: nothing is half done, and a retry settles everything."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import apsw
import pytest

from coordinator.core.model import ChannelMode
from coordinator.store import ChannelRelease, CheckpointMove, NewCollection, Store, TimestampKind, WriteAnswer
from datacoord import failpoints
from datacoord.errors import CommitOutcomeUnknownError, StoreUnavailableError
from datacoord.v1 import data_coord_pb2

from .databases import Databases
from .support import CALLER, LEASE_MS, Clock, ScriptedFaults, World, dump, lane, position, reasons, save, sqlite_error


def outcome_of(answer: WriteAnswer) -> str:
    """What became of a write."""
    return reasons([answer])[0]


Operation = Callable[[World, dict[str, Any]], Awaitable[object]]


async def _prepare(world: World) -> dict[str, Any]:
    """A world in which every operation has something to do; what the operations need to know of it."""
    await world.create("claimed", ChannelMode.CLAIMED)
    claimed = world.channels
    await world.create("managed", channels=3)
    node_id = await world.start_datanode()
    first, second, third = world.channels
    await world.report(node_id, **{first: 40, second: 40, third: 40})
    for channel in world.channels:
        await world.save(channel, lane(world.default, 0, 10), lane(world.other, 0, 10), checkpoint=5)
    await world.store.flush(world.collection.name, caller=CALLER)
    epochs = {channel: await world.epoch(channel) for channel in world.channels}
    return {
        "claimed": claimed,
        "node_id": node_id,
        "epochs": epochs,
        "save": [
            save(
                first, epochs[first], lane(world.default, 10, 40, seal=True), lane(world.other, 10, 20), checkpoint=40
            ),
            save(second, epochs[second], lane(world.default, 10, 30)),
            save(third, 1, lane(world.default, 10, 30)),
        ],
        "last": save(third, epochs[third], lane(world.default, 10, 50), checkpoint=50),
    }


async def _save(world: World, facts: dict[str, Any]) -> object:
    return await world.store.save_binlog_paths(facts["save"], caller=CALLER)


async def _move_fast(world: World, facts: dict[str, Any]) -> object:
    moves = [CheckpointMove(channel, epoch, position(30)) for channel, epoch in facts["epochs"].items()]
    return await world.store.update_channel_checkpoints(moves, caller=CALLER)


async def _move_slow(world: World, facts: dict[str, Any]) -> object:
    moves = [CheckpointMove(channel, epoch, position(45)) for channel, epoch in facts["epochs"].items()]
    return await world.store.update_channel_checkpoints(
        [*moves, CheckpointMove("nobody", 1, position(1))], caller=CALLER
    )


async def _release(world: World, facts: dict[str, Any]) -> object:
    releases = [ChannelRelease(channel, epoch, position(45)) for channel, epoch in facts["epochs"].items()]
    return await world.store.release_channels(releases, caller=CALLER)


async def _drop(world: World, facts: dict[str, Any]) -> object:
    return await world.store.drop_virtual_channel(facts["last"], caller=CALLER)


async def _claim(world: World, facts: dict[str, Any]) -> object:
    return await world.store.claim_channels("q", facts["claimed"], caller=CALLER)


async def _flush(world: World, _facts: dict[str, Any]) -> object:
    return await world.store.flush(world.collection.name, 5, caller=CALLER)


async def _register(world: World, _facts: dict[str, Any]) -> object:
    return await world.store.register_datanode("job", 0, [world.collection.name], host="h", pid=2, caller=CALLER)


async def _end(world: World, facts: dict[str, Any]) -> object:
    report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=facts["node_id"], ended=True)
    return await world.store.report_datanode(report, caller=CALLER)


async def _lose(world: World, _facts: dict[str, Any]) -> object:
    world.clock.now_ms = 1_000_000 + 2 * LEASE_MS
    return await world.store.run_lease_job()


async def _assign(world: World, _facts: dict[str, Any]) -> object:
    return await world.store.run_assignment_job()


async def _create(world: World, _facts: dict[str, Any]) -> object:
    new = NewCollection("new", b"schema", (), 3, ChannelMode.MANAGED, TimestampKind.TSO)
    return await world.store.create_collection(new, caller=CALLER)


async def _create_partition(world: World, _facts: dict[str, Any]) -> object:
    return await world.store.create_partition(world.collection.name, "new", caller=CALLER)


async def _drop_partition(world: World, _facts: dict[str, Any]) -> object:
    await world.store.drop_partition(world.collection.name, "other", caller=CALLER)
    return None


async def _drop_collection(world: World, _facts: dict[str, Any]) -> object:
    await world.store.drop_collection(world.collection.name, world.collection.collection_id, caller=CALLER)
    return None


async def _mark_dropped(world: World, _facts: dict[str, Any]) -> object:
    numbers = [segment.segment_id for segment in await world.segments()]
    await world.store.mark_segments_dropped(numbers, caller=CALLER)
    return None


OPERATIONS: dict[str, Operation] = {
    operation.__name__.removeprefix("_"): operation
    for operation in (
        *(_save, _move_fast, _move_slow, _release, _drop, _claim, _flush),
        *(_register, _end, _lose, _assign, _create, _create_partition, _drop_partition),
        *(_drop_collection, _mark_dropped),
    )
}
ENDS_DIFFERENTLY = {"register", "end", "flush"}
"""Calls whose repetition is a new one (a session, a flush), or finds the session over."""


async def _open(url: str) -> World:
    return await World(url, Clock(), ScriptedFaults()).open()


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_that_fails_anywhere_before_commit_leaves_nothing_and_can_be_repeated(
    databases: Databases, name: str
) -> None:
    """Half of a save is a lost row; half of a change of owner is a channel nobody can write."""
    operation = OPERATIONS[name]
    world = await _open(databases.migrated())
    facts = await _prepare(world)
    if name == "assign":
        await _release(world, facts)
    before = dump(world.url)
    failed = 0
    while True:
        world.faults.fail_statement = failed + 1
        try:
            await operation(world, facts)
        except StoreUnavailableError:
            failed += 1
            assert dump(world.url) == before, f"statement {failed} left something"
        else:
            break
    assert failed >= 2  # the fastest one: its guarded statement, and the history
    assert world.faults.fail_statement > 0, "the operation has no such statement: every one has failed once"
    after = dump(world.url)
    await world.store.close()

    # The same without faults: what failed and was repeated is not told apart from what never failed.
    world = await _open(databases.migrated())
    facts = await _prepare(world)
    if name == "assign":
        await _release(world, facts)
    await operation(world, facts)
    assert _comparable(dump(world.url)) == _comparable(after)
    await world.store.close()


def _comparable(tables: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    # Identities of objects are drawn anew for every world; and PostgreSQL's sequences do not go back with a transaction.
    return {**tables, "binlogs": [(*row[1:4], *row[5:]) for row in tables["binlogs"]]}


@pytest.mark.parametrize("when", ["before COMMIT", "after COMMIT"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_unknown_outcome_is_settled_by_repeating_the_call(databases: Databases, name: str, when: str) -> None:
    """The reply of COMMIT is lost: the call was done or it was not, and repeating it has the effect of one."""
    operation = OPERATIONS[name]
    world = await _open(databases.migrated())
    facts = await _prepare(world)
    if name == "assign":
        await _release(world, facts)
    before = dump(world.url)
    world.faults.fail_commit = when == "before COMMIT"
    world.faults.lose_reply = when == "after COMMIT"

    with pytest.raises(CommitOutcomeUnknownError):
        await operation(world, facts)

    after_loss = dump(world.url)
    assert (after_loss == before) == (when == "before COMMIT")
    if when == "after COMMIT" and name in ENDS_DIFFERENTLY:
        await world.store.close()
        return
    await operation(world, facts)
    if when == "after COMMIT":
        # The repetition found everything done; only the history knows of it, and numbers may have been taken in vain.
        ignored = {"events", "epochs", "job_leases"}
        settled = dump(world.url)
        assert {t: rows for t, rows in settled.items() if t not in ignored} == {
            t: rows for t, rows in after_loss.items() if t not in ignored
        }
    await world.store.close()


async def test_every_caller_of_a_lost_group_is_told_that_its_outcome_is_unknown(world: World) -> None:
    """One who is told "not done" would do something else instead."""
    first, second = world.channels
    parts = [save(c, await world.epoch(c), lane(world.default, 0, 5), checkpoint=5) for c in (first, second)]
    world.faults.lose_reply = True
    calls = [world.store.save_binlog_paths([part], caller=CALLER) for part in parts]

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(answer) for answer in answers} == {CommitOutcomeUnknownError}
    assert world.store.statistics.unknown_outcomes == 1
    assert await world.registered(first) == await world.registered(second) == {world.default: [(1, 5)]}


async def test_nothing_of_a_lost_transaction_is_remembered(world: World) -> None:
    """A cache filled by a transaction that was rolled back would fence the true owner."""
    channel = world.channels[0]
    world.faults.fail_commit = True
    with pytest.raises(CommitOutcomeUnknownError):
        await world.start_datanode()
    node_id = await world.start_datanode()
    epoch = await world.epoch(channel)

    assert outcome_of(await world.move(channel, 5, epoch=epoch)) == "APPLIED"
    assert (await world.info(channel)).owner == f"job/0#{node_id}"
    world.clock.advance(LEASE_MS - 1)
    await world.move(channel, 6)
    world.clock.advance(LEASE_MS - 1)
    assert (await world.store.run_lease_job()).ended == ()


async def test_a_full_disk_is_certainly_not_done_before_commit_and_unknown_at_commit(world: World) -> None:
    """After a failed write the frame that commits may be in the log already, and count after a crash."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    world.faults.error = partial(sqlite_error, apsw.SQLITE_FULL)
    world.faults.fail_statement = 1
    with pytest.raises(StoreUnavailableError, match="SQLITE_FULL"):
        await world.move(channel, 5, epoch=epoch)
    world.faults.fail_commit = True
    with pytest.raises(CommitOutcomeUnknownError, match="SQLITE_FULL"):
        await world.move(channel, 5, epoch=epoch)

    assert outcome_of(await world.move(channel, 5, epoch=epoch)) == "APPLIED"


async def test_a_lock_in_the_middle_is_waited_for_and_not_shown(sqlite_world: World) -> None:
    """Certainly not committed, so tried again. With SQLite's error; PostgreSQL's deadlocks are sorted in test_engine."""
    channel = sqlite_world.channels[0]
    epoch = await sqlite_world.epoch(channel)
    sqlite_world.faults.error = partial(sqlite_error, apsw.SQLITE_BUSY)
    sqlite_world.faults.fail_statement = 2

    assert outcome_of(await sqlite_world.move(channel, 5, epoch=epoch)) == "APPLIED"
    assert sqlite_world.faults.fail_statement == 0


async def test_the_moments_around_commit_can_be_held(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo kills the coordinator exactly there."""
    passed: list[str] = []
    monkeypatch.setattr(failpoints, "hit", passed.append)
    await world.move(world.channels[0], 5)

    assert passed == ["coordinator.before_commit", "coordinator.after_commit"]


async def test_what_is_acknowledged_survives_a_crash_and_what_waits_may_not(databases: Databases) -> None:
    """The process dies with calls in its queue; another one opens the database."""
    world = await _open(databases.migrated())
    await world.create()
    channel = world.channels[0]
    part = save(channel, await world.epoch(channel), lane(world.default, 0, 5), checkpoint=5)
    await world.store.save_binlog_paths([part], caller=CALLER)
    next_part = save(channel, part.epoch, lane(world.default, 5, 9), checkpoint=9)
    store: Store = world.store
    waiting = asyncio.get_running_loop().create_task(store.save_binlog_paths([next_part], caller=CALLER))
    await world.crash()
    waiting.cancel()

    (first,) = await world.store.save_binlog_paths([part], caller=CALLER)
    (second,) = await world.store.save_binlog_paths([next_part], caller=CALLER)
    assert outcome_of(first) == "ALREADY_APPLIED"
    assert second.refusal is None
    assert await world.registered(channel) == {world.default: [(1, 5), (6, 9)]}
    await world.store.close()
