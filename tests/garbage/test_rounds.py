"""Rounds over real objects and both databases: what goes, what stays, and that a plan says the same before."""

import asyncio
from pathlib import Path

import pytest
from store.support import CALLER, dump

from coordinator.core.garbage import Verdict
from coordinator.core.model import Outcome
from coordinator.jobs.garbage import PLAN_MARGIN_SECONDS
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.objectstore import OWNER_MARK, ObjectStore
from garbage.rig import BOTH, Rig

# ---- what goes and what stays ---------------------------------------------------------------------------------------------------


async def test_registered_objects_stay_through_every_change_of_owner(rig: Rig) -> None:
    """Their epochs are over and their ranges taken: only their rows hold them."""
    (first, second), world = rig.world.channels, rig.world
    for start in (0, 10, 20):
        await rig.land(first, start, start + 10, kinds=BOTH)
    await rig.land(second, 0, 10, partition=world.other)
    await rig.change_owner()
    await rig.land(first, 30, 40)
    before = rig.files()

    done = await rig.collect()

    assert rig.files() == before == await rig.referenced()
    assert (done.objects_listed, done.objects_deleted, done.error) == (len(before), 0, "")


async def test_what_a_valid_owner_has_written_and_not_saved_stays(rig: Rig) -> None:
    """It may be slow for any time: it writes, stalls for a day, and saves."""
    channel = rig.world.channels[0]
    await rig.land(channel, 0, 10)
    late = rig.write(channel, await rig.world.epoch(channel), 10, 20, kinds=BOTH)
    for _ in range(3):
        rig.world.clock.advance(86_400_000)
        done = await rig.collect()
        assert done.objects_deleted == 0
    answer = await rig.save(late)

    assert answer.outcome is Outcome.APPLIED
    await rig.collect()
    assert set(late.paths) <= rig.files()


async def test_orphans_of_a_former_owner_go(rig: Rig) -> None:
    """A zombie may go on writing for hours: none of it can be registered."""
    channel = rig.world.channels[0]
    await rig.land(channel, 0, 10)
    zombie = rig.write(channel, await rig.world.epoch(channel), 10, 20, kinds=BOTH)
    await rig.change_owner()
    kept = await rig.referenced()

    done = await rig.collect()

    assert rig.files() == kept
    assert (done.objects_deleted, done.bytes_deleted) == (2, 20)
    answer = await rig.save(zombie)
    assert answer.refusal is not None
    assert rig.metrics.gc_objects_deleted.labels(Verdict.EPOCH_OVER.name)._value.get() == 2


async def test_what_lost_against_a_registered_range_goes(rig: Rig) -> None:
    """Under one epoch: a speculative task of a sink, or the files of a sync that was written twice."""
    channel = rig.world.channels[0]
    epoch = await rig.world.epoch(channel)
    loser = rig.write(channel, epoch, 0, 10)
    winner = await rig.land(channel, 0, 10)

    await rig.collect()

    assert rig.files() == set(winner.paths)
    assert (await rig.save(loser, checkpoint=False)).outcome is Outcome.ALREADY_APPLIED


async def test_what_is_repeated_after_a_lost_reply_is_not_garbage(sqlite_rig: Rig) -> None:
    """The save was applied, nobody knows, the client repeats it: its objects are the registered ones."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    sent = rig.write(channel, await rig.world.epoch(channel), 0, 10, kinds=BOTH)
    rig.world.faults.lose_reply = True
    with pytest.raises(Exception, match="perhaps done"):
        await rig.save(sent)
    await rig.collect()

    assert (await rig.save(sent)).outcome is Outcome.ALREADY_APPLIED
    assert rig.files() == set(sent.paths) == await rig.referenced()


async def test_a_dropped_channel_takes_its_objects_rows_segments_and_lanes_along(rig: Rig) -> None:
    """What stays is the tombstone: by it late objects of its zombies are judged."""
    (first, second), world = rig.world.channels, rig.world
    for start in (0, 10, 20):
        await rig.land(first, start, start + 10, kinds=BOTH)
    await rig.land(first, 0, 10, partition=world.other)
    kept = await rig.land(second, 0, 10)
    epoch = await world.epoch(first)
    await rig.drop_channel(first)

    done = await rig.collect()

    assert done.binlog_rows_deleted == 7
    assert done.objects_deleted == 7
    assert rig.files() == set(kept.paths)
    tables = dump(world.url)
    of_first = rig.channel_ids[first]
    assert [row[1] for row in tables["segments"]] == [rig.channel_ids[second]]
    assert {row[0] for row in tables["lanes"]} == {rig.channel_ids[second]}
    assert of_first in {row[0] for row in tables["channel_state"]}

    # A zombie in another process writes on, days later.
    rig.objects = ObjectStore.from_uri(world.collection.storage_root)
    rig.write(first, epoch, 30, 40)
    assert (await rig.collect()).objects_deleted == 1
    assert rig.files() == set(kept.paths)
    assert not any(f"/{of_first}" in name for name in rig.directories())


async def test_a_dropped_partition_goes_and_its_lane_keeps_its_progress(rig: Rig) -> None:
    """Other lanes of the channel live on, and deletes that name no partition."""
    channel, world = rig.world.channels[0], rig.world
    dropped = await rig.land(channel, 0, 10, partition=world.other)
    unsaved = rig.write(channel, await world.epoch(channel), 10, 20, partition=world.other)
    kept = [await rig.land(channel, 0, 10), await rig.land(channel, 0, 10, partition=ALL_PARTITIONS_ID)]
    await world.store.drop_partition(world.collection.name, "other", caller=CALLER)

    done = await rig.collect()

    assert (done.objects_deleted, done.binlog_rows_deleted) == (2, 1)
    assert rig.files() == {path for written in kept for path in written.paths}
    assert not set(dropped.paths) & rig.files()
    answer = await rig.save(unsaved)
    assert [lane.outcome for lane in answer.lanes] == [Outcome.DISCARDED]
    lanes = {row[1]: row[2] for row in dump(world.url)["lanes"]}
    assert lanes[world.other] == 10


async def test_a_dropped_collection_goes_as_a_whole(rig: Rig) -> None:
    """And one of the same name that comes after it is not touched."""
    world = rig.world
    for channel in world.channels:
        await rig.land(channel, 0, 10, kinds=BOTH)
    old_root = rig.root
    await world.store.drop_collection(world.collection.name, caller=CALLER)
    await world.create()
    rig.objects = ObjectStore.from_uri(world.collection.storage_root)
    identities = await world.store.channel_identities(world.channels)
    rig.channel_ids = {name: identity.channel_id for name, identity in identities.items()}
    kept = await rig.land(world.channels[0], 0, 10)

    done = await rig.collect()

    assert done.objects_deleted == done.binlog_rows_deleted == 4
    assert [path.name for path in old_root.rglob("*") if path.is_file()] == [OWNER_MARK]
    assert rig.files() == set(kept.paths)


async def test_a_segment_that_was_dropped_alone_stays_as_a_tombstone(rig: Rig) -> None:
    """It says why a range of the lane has no binlogs, and what a repeated drop is told."""
    first, second = rig.world.channels
    gone = await rig.land(first, 0, 10)
    kept = await rig.land(second, 0, 10)
    of_first = rig.channel_ids[first]
    (segment,) = [row[0] for row in dump(rig.world.url)["segments"] if row[1] == of_first]
    await rig.world.store.mark_segments_dropped([segment], caller=CALLER)

    done = await rig.collect()

    assert (done.objects_deleted, done.binlog_rows_deleted) == (1, 1)
    assert rig.files() == set(kept.paths)
    assert not set(gone.paths) & rig.files()
    (again,) = await rig.world.store.mark_segments_dropped([segment], caller=CALLER)
    assert again.outcome is Outcome.ALREADY_APPLIED
    assert (await rig.collect()).binlog_rows_deleted == 0


async def test_names_that_are_none_of_ours_are_reported_and_never_deleted(sqlite_rig: Rig) -> None:
    """The bucket is shared with others' data, and a name nobody can read may be anything."""
    rig = sqlite_rig
    world = rig.world
    channel_id = rig.channel_ids[world.channels[0]]
    await rig.drop_channel(world.channels[0])
    strange = [
        rig.put("README.txt"),
        rig.put("backup/2026/everything.tar"),
        rig.put("insert_log/readme"),
        rig.put(f"insert_log/0{channel_id}/1/1/0-10-0-5.parquet"),
        rig.put("insert_log/99999999999999999999/1/1/0-10-0-5.parquet"),
        rig.put("insert_log/9223372036854775807/1/1/0-10-0-5.parquet"),
        rig.put(f"insert_log/{channel_id}/ALL/1/0-10-0-5.parquet"),
        rig.put(f"insert_log/{channel_id}/1/1/0-10-0-05.parquet"),
        rig.put(f"insert_log/{channel_id}/1/1/0-10-0-5.parquet.gz"),
        rig.put(f"insert_log/{channel_id}/1/1/deeper/0-10-0-5.parquet"),
        rig.put(f"insert_log/{channel_id}/1/1/.0-10-0-x.parquet.abcd.tmp"),
        rig.put(f"insert_log/{channel_id}/1/1/\udcff"),
        rig.put("stats_log/7777/1/1/0-10-0-5.parquet"),
    ]

    done = await rig.collect()
    plan = await rig.plan()

    assert rig.files() == set(strange)
    assert (done.objects_deleted, done.unknown_names) == (0, len(strange))
    named = {candidate.path for candidate in plan.candidates}
    assert {candidate.verdict for candidate in plan.candidates} == {Verdict.UNKNOWN_NAME}
    assert {"README.txt", "backup/", "stats_log/7777/1/1/0-10-0-5.parquet"} < named
    assert len(named) == plan.round.unknown_names == len(strange)
    assert rig.metrics.gc_unknown_names._value.get() == len(strange)


async def test_an_object_below_the_root_of_another_collection_is_not_judged_by_its_channel(sqlite_rig: Rig) -> None:
    """Its rows, if there are any, name objects below another root: somebody has put a copy there."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    orphan = rig.write(channel, await rig.world.epoch(channel), 0, 10)
    await rig.change_owner()
    await rig.world.create("u")
    copy = rig.put(orphan.paths[0])

    done = await rig.collect()

    assert (done.objects_deleted, done.unknown_names) == (1, 1)
    assert rig.files() == {copy}


async def test_temporary_files_go_with_the_last_chance_of_their_object(sqlite_rig: Rig) -> None:
    """They are no objects, but a valid writer may be in the middle of writing one."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    epoch = await rig.world.epoch(channel)
    place = f"insert_log/{rig.channel_ids[channel]}/{rig.world.default}/{epoch}"
    await rig.land(channel, 0, 10)
    dead = rig.put(f"{place}/.0-10-0-77.parquet.0a1b2c3d.tmp")
    alive = rig.put(f"{place}/.10-20-0-78.parquet.0a1b2c3d.tmp")

    assert (await rig.collect()).objects_deleted == 1
    assert dead not in rig.files()
    assert alive in rig.files()
    await rig.change_owner()
    await rig.collect()
    assert rig.files() == await rig.referenced()


async def test_directories_go_only_where_no_valid_writer_will_ever_write(sqlite_rig: Rig) -> None:
    """A writer makes and syncs a directory once and relies on it; taken away, its next object would not survive a power cut."""
    rig = sqlite_rig
    channel, world = rig.world.channels[0], rig.world
    channel_id = rig.channel_ids[channel]
    lane = f"insert_log/{channel_id}/{world.default}"
    old = rig.write(channel, await world.epoch(channel), 0, 10)
    (rig.root / f"insert_log/{channel_id}/{world.other}").mkdir()
    await rig.change_owner()
    now = await world.epoch(channel)
    (rig.root / lane / str(now)).mkdir()

    await rig.collect()

    assert f"{lane}/{old.epoch}" not in rig.directories()
    assert f"{lane}/{now}" in rig.directories()
    assert f"insert_log/{channel_id}/{world.other}" in rig.directories()
    await world.store.drop_partition(world.collection.name, "other", caller=CALLER)
    await rig.collect()
    assert f"insert_log/{channel_id}/{world.other}" not in rig.directories()
    await rig.drop_channel(channel)
    await rig.collect()
    assert rig.directories() == {"insert_log"}


async def test_a_writer_whose_directory_is_not_removed_goes_on_without_looking(sqlite_rig: Rig) -> None:
    """The writer's memory of directories and the collector's removal meet in the epoch of now: nothing may go wrong there."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    epoch = await rig.world.epoch(channel)
    for start in range(0, 50, 10):
        written = rig.write(channel, epoch, start, start + 10)
        (rig.root / written.paths[0]).unlink()  # the directory is empty, and the writer remembers it
        await rig.collect()
    rig.write(channel, epoch, 50, 60)


async def test_objects_of_one_range_in_many_directories_and_parts_are_each_judged_by_their_own_lane(
    sqlite_rig: Rig,
) -> None:
    """Parts of a listing are judged by windows of ranges: one that is too narrow would delete what is registered."""
    rig = sqlite_rig
    channel, world = rig.world.channels[0], rig.world
    orphans: set[str] = set()
    at = 0
    for turn in range(3):
        epoch = await world.epoch(channel)
        for length in (1, 7, 30, 2):
            for partition in (world.default, ALL_PARTITIONS_ID):
                orphans |= set(rig.write(channel, epoch, at, at + length, partition=partition).paths)
                await rig.land(channel, at, at + length, partition=partition, kinds=BOTH)
                orphans |= set(rig.write(channel, epoch, max(0, at - 1), at + length, partition=partition).paths)
            at += length
        await rig.change_owner(turn)
    kept = await rig.referenced()
    plan = await rig.plan()

    done = await rig.collect(batch_objects_max=1 + len(orphans) % 3)

    assert {candidate.path for candidate in plan.candidates} == orphans
    assert rig.files() == kept
    assert done.objects_deleted == len(orphans) == plan.round.objects_deleted


# ---- the plan --------------------------------------------------------------------------------------------------------------------


async def test_a_plan_is_what_the_next_round_does_and_deletes_nothing(rig: Rig) -> None:
    """An operator looks at the plan before letting it go: it must be the truth, dropped segments included."""
    (first, second), world = rig.world.channels, rig.world
    await rig.land(first, 0, 10, kinds=BOTH)
    await rig.land(second, 0, 10)
    await rig.land(second, 0, 10, partition=world.other)
    rig.write(second, await world.epoch(second), 0, 10)
    await rig.drop_channel(first)
    await world.store.drop_partition(world.collection.name, "other", caller=CALLER)
    rig.put("strange")
    await world.store.garbage.pause(0, "looking first", caller=CALLER)
    before, rows = rig.files(), dump(world.url)

    plan = await rig.plan()
    of_collection = await rig.plan(world.collection.name)

    assert rig.files() == before
    assert dump(world.url) == rows
    assert plan.round.error == ""
    assert of_collection.candidates == plan.candidates
    await world.store.garbage.resume(caller=CALLER)
    done = await rig.collect()
    going = {candidate.path for candidate in plan.candidates if candidate.verdict is not Verdict.UNKNOWN_NAME}
    assert before - rig.files() == going
    for name in ("objects_listed", "objects_deleted", "bytes_deleted", "binlog_rows_deleted", "unknown_names"):
        assert getattr(done, name) == getattr(plan.round, name), name


async def test_a_plan_of_one_collection_says_nothing_of_others(sqlite_rig: Rig) -> None:
    """Even where they share a storage root."""
    rig = sqlite_rig
    world = rig.world
    first = world.collection
    rig.write(world.channels[0], await world.epoch(world.channels[0]), 0, 10)
    await rig.change_owner()
    await world.create("u")

    assert (await rig.plan("u")).round.objects_deleted == 0
    assert (await rig.plan(first.name)).round.objects_deleted == 1


async def test_a_plan_that_runs_out_of_time_says_so(sqlite_rig: Rig) -> None:
    """Half a plan that looks whole is worse than none."""
    rig = sqlite_rig
    rig.write(rig.world.channels[0], 1, 0, 10)
    plan = await rig.job().plan("", asyncio.get_running_loop().time() + PLAN_MARGIN_SECONDS)

    assert "time of the call was over" in plan.round.error


def test_only_the_collector_deletes_objects() -> None:
    """S1. Whoever else deletes can delete what a lost reply had registered."""
    root = Path(__file__).parents[2]
    calls = ("delete_file(", "delete_dir(", "delete_dir_contents(", "os.remove(", "rmtree(", "delete_object")
    found = {
        str(path.relative_to(root))
        for package in ("datacoord", "coordinator", "datanode_client")
        for path in (root / package).rglob("*.py")
        if any(call in path.read_text() for call in calls) and "demo" not in path.parts
    }

    assert "coordinator/jobs/garbage_objects.py" in found
    assert not {name for name in found if name.startswith("datanode_client/") and "spark" not in name}
