"""Drops of collections and partitions: what is gone with them, who is told, and what must not come back."""

import asyncio

import pytest

from coordinator.core.model import ChannelMode, ChannelState, LaneSave, Outcome, SegmentLevel, SegmentState
from coordinator.store import CheckpointMove, Drop, NewCollection, Store, TimestampKind
from datacoord.errors import (
    ChannelDroppedError,
    CollectionNotFoundError,
    InvalidFieldError,
    PartitionNotFoundError,
    Reason,
)
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.paths import BinlogKind

from .support import CALLER, World, binlog, dump, lane, position, reason_of, reasons, save, settings


async def drop(world: World, number: int = 0) -> Drop:
    """Drops the collection of the world."""
    return await world.store.drop_collection(world.collection.name, number, caller=CALLER)


async def drop_other(world: World, number: int = 0) -> Drop:
    """Drops the partition `other`."""
    return await world.store.drop_partition(world.collection.name, "other", number, caller=CALLER)


# ---- collections ------------------------------------------------------------------------------------------------------------


async def test_with_a_collection_everything_of_it_is_gone_at_once(world: World) -> None:
    """A channel, lane, segment or partition that is forgotten lives on without anybody who could drop it."""
    first, second = world.channels
    node_id = await world.start_datanode()
    revision = (await world.store.desired_state(node_id)).revision
    await world.save(first, lane(world.default, 0, 5), lane(world.other, 0, 5, seal=True), checkpoint=5)
    await world.save(second, lane(world.default, 0, 7))
    await world.store.flush(world.collection.name, 99, caller=CALLER)

    assert await drop(world) == Drop(world.collection.collection_id, Outcome.APPLIED)
    rows = (await world.store.list_channels()).items
    assert {(row.state, row.owner, row.flush_timestamp) for row in rows} == {(ChannelState.DROPPED, "", 0)}
    assert {s.state for s in (await world.store.list_segments()).items} == {SegmentState.DROPPED}
    desired = await world.store.desired_state(node_id)
    assert (desired.channels, desired.revision > revision) == ((), True)
    tables = dump(world.url)
    assert all(row[3] is None for row in tables["lanes"])
    assert {row[3] for row in tables["partitions"]} == {2}
    assert (await world.store.list_collections()).items == ()
    for gone in (
        world.store.describe_collection(world.collection.name),
        world.store.list_binlogs(world.collection.name),
        world.store.flush(world.collection.name, caller=CALLER),
        world.store.create_partition(world.collection.name, "p", caller=CALLER),
        world.store.recovery_info(collection_name=world.collection.name),
        drop_other(world),
    ):
        with pytest.raises(CollectionNotFoundError):
            await gone


async def test_every_dropped_channel_has_an_epoch_of_its_own_that_was_never_there(world: World) -> None:
    """An epoch that comes back lets a zombie write."""
    before = {row.epoch for row in (await world.store.list_channels()).items}
    await drop(world)
    at_drop = [row.epoch for row in (await world.store.list_channels()).items]
    await world.create()
    after = {row.epoch for row in (await world.store.list_channels(collection_name=world.collection.name)).items}

    assert len(set(at_drop)) == len(at_drop)
    assert min(at_drop) > max(before)
    assert min(after) > max(at_drop)


async def test_late_writers_are_told_that_the_channel_is_dropped(world: World) -> None:
    """Anything else makes them try for ever, or believe that their rows are there."""
    channel = world.channels[0]
    await world.start_datanode()
    epoch = (await world.info(channel)).epoch
    await drop(world)
    late = save(channel, epoch, lane(world.default, 0, 5), checkpoint=5)

    (saved,) = await world.store.save_binlog_paths([late], caller=CALLER)
    (moved,) = await world.store.update_channel_checkpoints(
        [CheckpointMove(channel, epoch, position(5))], caller=CALLER
    )
    assert (reason_of(saved), reason_of(moved)) == (Reason.CHANNEL_DROPPED, Reason.CHANNEL_DROPPED)
    assert reasons([await world.store.drop_virtual_channel(late, caller=CALLER)]) == ["ALREADY_APPLIED"]
    with pytest.raises(ChannelDroppedError):
        await world.info(channel)
    claims = await world.store.claim_channels("q", [channel], caller=CALLER)
    assert [c.refusal.reason for c in claims if c.refusal] == [Reason.CHANNEL_DROPPED]


async def test_channels_of_a_dropped_collection_are_assigned_to_nobody(world: World) -> None:
    """The job would hand out tombstones, and datanodes would come back with errors for ever."""
    await drop(world)
    await world.create("second")
    session = await world.store.register_datanode("job", 0, ["second"], host="h", pid=1, caller=CALLER)
    await world.store.watch_datanode(session.node_id)
    done = await world.store.run_assignment_job()

    assert (done.assigned, done.unassigned) == (2, 0)
    held = {w.channel_name for w in (await world.store.desired_state(session.node_id)).channels}
    assert held == set(world.channels)


async def test_a_recreated_collection_is_another_one(world: World) -> None:
    """A repetition of the drop, late by a day, must not drop what somebody has made since."""
    old = world.collection
    await world.save(world.channels[0], lane(world.default, 0, 5), checkpoint=5)
    await drop(world, old.collection_id)
    await world.create()

    assert world.collection.collection_id != old.collection_id
    assert not set(world.channels) & set(old.channel_names)
    assert world.collection.storage_root != old.storage_root
    assert {(await world.info(c)).checkpoint.timestamp for c in world.channels} == {0}
    assert await drop(world, old.collection_id) == Drop(old.collection_id, Outcome.ALREADY_APPLIED)
    assert (await world.store.describe_collection("t")).collection_id == world.collection.collection_id
    assert (await world.save(world.channels[0], lane(world.default, 0, 5))).outcome is Outcome.APPLIED


async def test_a_collection_that_is_not_there_cannot_be_dropped(world: World) -> None:
    """A typo that looks like success leaves the data and the belief that it is gone; nor may a number drop another's."""
    await world.create("second")
    second = world.collection.collection_id
    for name, number in (("typo", 0), ("t", second), ("second", 10**9)):
        with pytest.raises(CollectionNotFoundError):
            await world.store.drop_collection(name, number, caller=CALLER)
    await drop(world)
    with pytest.raises(CollectionNotFoundError):
        await drop(world)
    assert [c.name for c in (await world.store.list_collections()).items] == ["t"]


async def test_a_drop_leaves_other_collections_alone(world: World) -> None:
    """One condition too few in a bulk statement, and everything is gone."""
    kept = world.collection
    await world.save(world.channels[0], lane(world.default, 0, 5), lane(world.other, 0, 5), checkpoint=5)
    before = {name: rows for name, rows in dump(world.url).items() if name not in {"epochs", "events"}}
    await world.create("second", ChannelMode.CLAIMED)
    await drop_other(world)
    await drop(world)
    after = dump(world.url)

    for name, rows in before.items():
        assert set(rows) <= set(after[name]), name
    assert (await world.store.describe_collection("t")) == kept


async def test_writes_of_owners_and_a_drop_meet_without_harm(world: World) -> None:
    """A save is in before the drop, and its segment is dropped with it, or it is refused; nothing in between."""
    first, second = world.channels
    epochs = {channel: await world.epoch(channel) for channel in world.channels}
    calls = [
        world.store.save_binlog_paths([save(channel, epochs[channel], lane(world.default, 0, 5))], caller=CALLER)
        for channel in (first, second)
    ]
    saved = await asyncio.gather(calls[0], drop(world), calls[1])

    for answers in (saved[0], saved[2]):
        assert set(reasons(answers)) <= {"APPLIED", "CHANNEL_DROPPED"}
    assert {s.state for s in (await world.store.list_segments()).items} <= {SegmentState.DROPPED}


async def test_replicas_that_drop_and_write_at_once_agree_on_an_order(world: World) -> None:
    """Rows locked by one and not by the other: a segment that grows in a collection that nobody can reach any more."""
    rival = await Store.open(world.url, settings(job_holder="rival"), clock_ms=world.clock)
    for attempt in range(4):
        await world.create(f"race{attempt}", channels=6)
        name, number = world.collection.name, world.collection.collection_id
        epochs = {info.channel_name: info.epoch for info in (await rival.recovery_info(collection_name=name)).items}
        parts = [save(channel, epoch, lane(world.default, 0, 5)) for channel, epoch in epochs.items()]
        moves = [CheckpointMove(channel, epoch, position(3)) for channel, epoch in epochs.items()]
        saved, first, moved, second = await asyncio.gather(
            world.store.save_binlog_paths(parts, caller=CALLER),
            rival.drop_collection(name, number, caller=CALLER),
            rival.update_channel_checkpoints(moves, caller=CALLER),
            world.store.drop_collection(name, number, caller=CALLER),
        )
        assert {first.outcome, second.outcome} == {Outcome.APPLIED, Outcome.ALREADY_APPLIED}
        assert set(reasons(saved)) <= {"APPLIED", "CHANNEL_DROPPED"}
        assert set(reasons(moved)) <= {"APPLIED", "CHANNEL_DROPPED"}
    tables = dump(world.url)
    assert all(row[3] is None for row in tables["lanes"])
    assert {s.state for s in (await world.store.list_segments()).items} <= {SegmentState.DROPPED}
    await rival.close()


# ---- partitions -------------------------------------------------------------------------------------------------------------


async def test_a_dropped_partition_is_gone_in_every_channel_and_only_it(world: World) -> None:
    """Growing and sealed segments alike, in the transaction that makes its saves DISCARDED."""
    first, second = world.channels
    await world.save(first, lane(world.default, 0, 5), lane(world.other, 0, 5, seal=True))
    await world.save(first, lane(world.other, 5, 6))
    await world.save(second, lane(world.other, 0, 7), checkpoint=7)

    assert await drop_other(world) == Drop(world.other, Outcome.APPLIED)
    states = [(s.partition_id == world.other, s.state) for s in await world.segments()]
    assert sorted(states) == [(False, SegmentState.GROWING), *[(True, SegmentState.DROPPED)] * 3]
    assert {p for c in world.channels for p in await world.registered(c)} == {world.default}
    late = await world.save(first, lane(world.default, 5, 9), lane(world.other, 6, 9), checkpoint=9)
    assert [one.outcome for one in late.lanes] == [Outcome.APPLIED, Outcome.DISCARDED]
    assert {one.partition_id for one in (await world.info(second)).lanes if one.dropped} == {world.other}
    assert dict((await world.store.describe_collection(world.collection.name)).partitions) == {
        "_default": world.default
    }


async def test_deletes_that_name_no_partition_outlive_every_partition(world: World) -> None:
    """Level zero: they still hide rows of the others; and with the collection they are gone too."""
    channel = world.channels[0]
    deletes = LaneSave(ALL_PARTITIONS_ID, 0, 9, (binlog(3, 9, kind=BinlogKind.DELTA),))
    await world.save(channel, lane(world.default, 0, 5), lane(world.other, 0, 5), deletes, checkpoint=9)
    await drop_other(world)

    assert await world.registered(channel) == {world.default: [(1, 5)], ALL_PARTITIONS_ID: [(3, 9)]}
    (level_zero,) = [s for s in await world.segments() if s.partition_id == ALL_PARTITIONS_ID]
    assert (level_zero.level, level_zero.state) == (SegmentLevel.L0, SegmentState.GROWING)
    assert (level_zero.rows, level_zero.delete_rows) == (0, 1)
    assert ALL_PARTITIONS_ID in {one.partition_id for one in (await world.info(channel)).lanes if not one.dropped}
    await drop(world)
    assert {s.state for s in (await world.store.list_segments()).items} == {SegmentState.DROPPED}


async def test_graphs_that_run_are_told_of_a_dropped_partition(world: World) -> None:
    """They would go on writing objects that nobody will ever read."""
    node_id = await world.start_datanode()
    before = await world.store.desired_state(node_id)
    await drop_other(world)
    after = await world.store.desired_state(node_id)

    assert before.dropped_partitions == ()
    assert after.dropped_partitions == (world.other,)
    assert after.revision > before.revision
    await drop_other(world)
    assert (await world.store.desired_state(node_id)).revision == after.revision


async def test_a_partition_that_comes_back_is_another_one(world: World) -> None:
    """A repetition of the drop must not reach it; rows for the old number must not land in the new one."""
    old = world.other
    await world.save(world.channels[0], lane(old, 0, 5))
    await drop_other(world, old)
    new = await world.store.create_partition(world.collection.name, "other", caller=CALLER)

    assert new != old
    assert await drop_other(world, old) == Drop(old, Outcome.ALREADY_APPLIED)
    saved = await world.save(world.channels[0], lane(old, 5, 6), lane(new, 0, 6))
    assert [one.outcome for one in saved.lanes] == [Outcome.DISCARDED, Outcome.APPLIED]
    assert await drop_other(world) == Drop(new, Outcome.APPLIED)
    assert await drop_other(world) == Drop(new, Outcome.ALREADY_APPLIED)


async def test_a_partition_may_be_named_by_its_number_alone(world: World) -> None:
    """A message of the log knows no other name."""
    name = world.collection.name
    with pytest.raises(PartitionNotFoundError):
        await world.store.drop_partition(name, "", 10**9, caller=CALLER)
    with pytest.raises(PartitionNotFoundError):
        await world.store.drop_partition(name, "typo", world.other, caller=CALLER)
    dropped = await world.store.drop_partition(name, "", world.other, caller=CALLER)
    assert dropped == Drop(world.other, Outcome.APPLIED)


async def test_the_default_partition_cannot_be_dropped(world: World) -> None:
    """Every row that names no partition would be thrown away from then on, without a word."""
    name = world.collection.name
    for partition_name, number in (("_default", 0), ("_default", world.default), ("", world.default)):
        with pytest.raises(InvalidFieldError, match="cannot be dropped"):
            await world.store.drop_partition(name, partition_name, number, caller=CALLER)


async def test_many_channels_are_dropped_in_few_statements(empty_world: World) -> None:
    """Statements per channel would keep everybody else waiting for seconds; also counts that the bulk leaves no channel out."""
    new = NewCollection("wide", b"schema", ("k",), 3000, ChannelMode.MANAGED, TimestampKind.ORDINAL)
    collection, _ = await empty_world.store.create_collection(new, caller=CALLER)
    empty_world.collection = collection
    other = await empty_world.store.create_partition("wide", "other", caller=CALLER)
    some = [collection.channel_names[index] for index in (0, 1234, 2999)]
    infos = (await empty_world.store.recovery_info(channel_names=some)).items
    parts = [save(info.channel_name, info.epoch, lane(other, 0, 5)) for info in infos]
    await empty_world.store.save_binlog_paths(parts, caller=CALLER)

    empty_world.faults.statements = 0
    await drop_other(empty_world)
    assert empty_world.faults.statements < 20
    assert {s.state for s in await empty_world.segments()} == {SegmentState.DROPPED}
    empty_world.faults.statements = 0
    await drop(empty_world)
    assert empty_world.faults.statements < 20
    assert sum(row[2] == ChannelState.DROPPED for row in dump(empty_world.url)["channel_state"]) == 3000
