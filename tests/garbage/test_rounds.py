"""Rounds over real objects and both databases: what goes, what stays, and what ends a round early."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from store.support import CALLER, dump

from coordinator.core.garbage import Verdict
from coordinator.core.model import Outcome
from coordinator.jobs.garbage import PLAN_MARGIN_SECONDS
from coordinator.jobs.garbage_objects import Objects
from coordinator.store import garbage_rows
from coordinator.store.dialects import DatabaseKind
from coordinator.store.garbage import hold
from datacoord.errors import CommitOutcomeUnknownError, GcPausedError, StoreUnavailableError
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogKind
from garbage.rig import Rig

BOTH = (BinlogKind.INSERT, BinlogKind.DELTA)


def execute(rig: Rig, statement: str) -> None:
    """One statement, by somebody else."""
    engine = create_engine(rig.world.url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


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
    assert not [path for path in old_root.rglob("*") if path.is_file()]
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


# ---- fail closed -----------------------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, directory: Path, after: int) -> None:
    """Listings of a directory break off after so many entries."""
    real = Objects._scan

    def scan(base: str) -> Iterator[Any]:
        for index, entry in enumerate(real(base)):
            if base == str(directory) and index >= after:
                raise OSError(5, "Input/output error")
            yield entry

    monkeypatch.setattr(Objects, "_scan", staticmethod(scan))


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_a_listing_that_breaks_off_lets_nothing_of_its_directory_go(
    sqlite_rig: Rig, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """And the other directories are swept all the same: one broken disk must not keep all garbage."""
    rig = sqlite_rig
    (first, second), world = rig.world.channels, rig.world
    broken = rig.write(first, await world.epoch(first), 0, 10, kinds=(BinlogKind.INSERT,) * 3)
    swept = rig.write(second, await world.epoch(second), 0, 10)
    await rig.change_owner()
    failing(monkeypatch, (rig.root / broken.paths[0]).parent, after)

    done = await rig.collect()

    assert set(broken.paths) <= rig.files()
    assert not set(swept.paths) & rig.files()
    assert "Input/output error" in done.error
    assert rig.metrics.gc_errors._value.get() == 1
    assert rig.metrics.gc_rounds.labels("failed")._value.get() == 1
    monkeypatch.undo()
    assert (await rig.collect()).error == ""
    assert not rig.files()


async def test_a_database_that_does_not_answer_lets_nothing_go(
    sqlite_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No facts, no deletion."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    rig.write(channel, await rig.world.epoch(channel), 0, 10)
    await rig.change_owner()
    before = rig.files()

    def fail(*_arguments: object) -> None:
        raise StoreUnavailableError("the database is away")

    monkeypatch.setattr(garbage_rows, "read_lane", fail)
    done = await rig.collect()

    assert rig.files() == before
    assert done.error == "the database is away"


async def test_a_read_replica_is_never_believed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not have heard of the save that registered the object."""
    channel = rig.world.channels[0]
    rig.write(channel, await rig.world.epoch(channel), 0, 10)
    await rig.change_owner()
    before = rig.files()
    kind: type[DatabaseKind] = type(rig.world.store._database.kind)
    monkeypatch.setattr(kind, "is_replica", lambda _kind, _connection: True)

    done = await rig.collect()

    assert rig.files() == before
    assert "replica" in done.error


async def test_objects_of_an_epoch_that_is_yet_to_come_end_the_round(sqlite_rig: Rig) -> None:
    """The database is older than the objects: restored by hand, or the one of somebody else."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    epoch = await rig.world.epoch(channel)
    await rig.land(channel, 0, 10)
    future = rig.write(channel, epoch + 100, 0, 10)
    before = rig.files()

    done = await rig.collect()

    assert rig.files() == before
    assert future.paths[0].rsplit("/", 1)[0] in done.error
    assert "has not reached" in done.error


async def test_an_object_that_cannot_be_deleted_is_said_and_tried_again(
    sqlite_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights that are missing must be seen, and must not stop the rest."""
    rig = sqlite_rig
    (first, second), world = rig.world.channels, rig.world
    stuck = rig.write(first, await world.epoch(first), 0, 10)
    rig.write(second, await world.epoch(second), 0, 10)
    await rig.change_owner()
    real = Objects._delete_one

    def refuse(objects: Objects, path: str) -> str | None:
        return f"cannot delete {path!r}: permission" if path in stuck.paths else real(objects, path)

    monkeypatch.setattr(Objects, "_delete_one", refuse)
    done = await rig.collect()

    assert rig.files() == set(stuck.paths)
    assert done.objects_deleted == 1
    assert "permission" in done.error
    monkeypatch.undo()
    await rig.collect()
    assert not rig.files()


async def test_an_object_that_somebody_else_deleted_meanwhile_is_no_error(
    sqlite_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two collectors may run for a moment, when a lease was lost."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    orphan = rig.write(channel, await rig.world.epoch(channel), 0, 10)
    await rig.change_owner()
    real = Objects._delete_one

    def after_somebody(objects: Objects, path: str) -> str | None:
        (rig.root / path).unlink(missing_ok=True)
        return real(objects, path)

    monkeypatch.setattr(Objects, "_delete_one", after_somebody)
    done = await rig.collect()

    assert (done.objects_deleted, done.error) == (1, "")
    assert not set(orphan.paths) & rig.files()


async def test_a_storage_root_that_cannot_be_opened_does_not_keep_the_others(sqlite_rig: Rig) -> None:
    """A bucket that was deleted, of one collection of many."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    rig.write(channel, await rig.world.epoch(channel), 0, 10)
    await rig.change_owner()
    await rig.world.create("elsewhere")
    number = rig.world.collection.collection_id
    execute(rig, f"UPDATE collections SET storage_root = '!' WHERE collection_id = {number}")
    before = (await rig.world.store.garbage.status()).now_ms

    rig.world.clock.advance(120_000)
    await rig.job()()
    done = (await rig.world.store.garbage.status()).last_round

    assert done.start_time_ms > before
    assert done.objects_deleted == 1
    assert "storage root" in done.error


async def test_a_file_system_whose_root_is_missing_is_empty(sqlite_rig: Rig) -> None:
    """A collection that nothing was ever written to."""
    rig = sqlite_rig
    assert not rig.root.exists()
    done = await rig.collect()
    assert (done.objects_listed, done.error) == (0, "")
    assert not rig.root.exists()


# ---- pause, hold, lease ----------------------------------------------------------------------------------------------------------


async def _orphans(rig: Rig, count: int) -> set[str]:
    channel = rig.world.channels[0]
    written = rig.write(channel, await rig.world.epoch(channel), 0, 10, kinds=(BinlogKind.INSERT,) * count)
    await rig.change_owner()
    return set(written.paths)


async def test_a_pause_in_the_middle_of_a_round_stops_it_within_a_chunk(sqlite_rig: Rig) -> None:
    """Whoever pauses it has a reason that cannot wait for a round of an hour."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 9)
    deleted = 0

    async def blocking(work: Any, *arguments: Any) -> Any:
        nonlocal deleted
        if work.__name__ == "delete":
            deleted += 1
            if deleted == 2:
                await rig.world.store.garbage.pause(60_000, "an investigation", caller=CALLER)
        return await asyncio.to_thread(work, *arguments)

    await rig.job(blocking)()

    status = await rig.world.store.garbage.status()
    assert (status.paused, status.reason) == (True, "an investigation")
    assert "paused" in status.last_round.error
    assert len(orphans & rig.files()) == 5
    rig.world.clock.advance(60_000)
    await rig.collect()
    assert not orphans & rig.files()


async def test_nothing_begins_while_a_restore_holds_it_until_it_is_resumed(rig: Rig) -> None:
    """The lost time has left objects that only `datacoord verify` can tell; no pause that ends by itself may free them."""
    orphans = await _orphans(rig, 2)
    engine = create_engine(rig.world.url)
    with engine.begin() as connection:
        hold(connection, "restored from a backup")
    engine.dispose()
    garbage = rig.world.store.garbage
    await garbage.pause(1, "a short one", caller=CALLER)
    rig.world.clock.advance(86_400_000)

    await rig.job()()
    with pytest.raises(GcPausedError, match="restored from a backup"):
        await garbage.request_run(caller=CALLER)

    assert orphans <= rig.files()
    assert (await garbage.status()).reason == "restored from a backup"
    assert not (await garbage.resume(caller=CALLER)).paused
    await rig.collect()
    assert not orphans & rig.files()


async def test_without_its_control_row_nothing_goes_until_somebody_says_so(rig: Rig) -> None:
    """Whoever deleted it may have deleted a hold."""
    orphans = await _orphans(rig, 1)
    execute(rig, "DELETE FROM gc_control")

    await rig.job()()

    assert orphans <= rig.files()
    assert "missing" in (await rig.world.store.garbage.status()).reason
    await rig.world.store.garbage.resume(caller=CALLER)
    await rig.collect()
    assert not orphans & rig.files()


@pytest.mark.parametrize("gone", ["job_leases", "fence"])
async def test_a_holder_that_lost_its_lease_deletes_no_more_and_keeps_no_figures(rig: Rig, gone: str) -> None:
    """It may have slept for an hour, and the other one works now; what it does delete is garbage all the same."""
    orphans = await _orphans(rig, 9)

    async def blocking(work: Any, *arguments: Any) -> Any:
        result = await asyncio.to_thread(work, *arguments)
        if work.__name__ == "delete":
            other = "holder = 'other', lease_until_ms = 9000000000000," if gone == "job_leases" else ""
            execute(rig, f"UPDATE job_leases SET {other} fence = fence + 1 WHERE name = 'garbage'")
        return result

    await rig.job(blocking)()

    assert len(orphans & rig.files()) == 7
    assert (await rig.world.store.garbage.status()).last_round.start_time_ms == 0
    assert await rig.world.store.garbage.begin(0) is None if gone == "job_leases" else True


async def test_a_slow_listing_keeps_the_lease(sqlite_rig: Rig) -> None:
    """Hundreds of thousands of objects take longer to list than a lease lasts."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 3)
    release = asyncio.Event()
    renewed = 0
    real = rig.world.store.garbage.permit

    async def permit(fence: int) -> Any:
        nonlocal renewed
        renewed += 1
        if renewed == 3:
            release.set()
        return await real(fence)

    async def blocking(work: Any, *arguments: Any) -> Any:
        if work is next:
            await release.wait()
        return await asyncio.to_thread(work, *arguments)

    rig.world.store.garbage.permit = permit  # type: ignore[method-assign]
    await asyncio.wait_for(rig.job(blocking, permit_seconds=0.01)(), 60)

    assert not orphans & rig.files()
    assert renewed >= 3


async def test_a_process_that_stops_ends_its_round_at_the_next_object(sqlite_rig: Rig) -> None:
    """SIGTERM does not wait for an hour of deletions."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 9)
    job = rig.job()

    async def blocking(work: Any, *arguments: Any) -> Any:
        if work.__name__ == "delete":
            job.stop()
        return await asyncio.to_thread(work, *arguments)

    job._blocking = blocking
    await job()

    assert orphans <= rig.files()
    assert "stopped" in (await rig.world.store.garbage.status()).last_round.error
    assert await job() == {}


async def test_a_process_that_stops_deletes_no_more_rows_either(rig: Rig) -> None:
    """A collection of a million rows was dropped a moment ago."""
    first = rig.world.channels[0]
    await rig.land(first, 0, 10, kinds=(BinlogKind.INSERT,) * 12)
    await rig.drop_channel(first)
    job = rig.job(delete_rows_max=3)

    async def stop(_seconds: float) -> None:
        job.stop()

    job._rest = stop
    await job()

    done = (await rig.world.store.garbage.status()).last_round
    assert "stopped" in done.error
    assert done.binlog_rows_deleted == 6
    assert len(dump(rig.world.url)["binlogs"]) == 6


async def test_a_replica_where_it_is_switched_off_runs_no_round(sqlite_rig: Rig) -> None:
    """The setting says so."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 1)
    assert await rig.job(enabled=False)() == {}
    assert orphans <= rig.files()


async def test_a_round_is_asked_for_once_and_begins_once(rig: Rig) -> None:
    """A flag that stays would make one round after the other."""
    await rig.collect()
    garbage = rig.world.store.garbage
    assert await garbage.begin(3_600_000) is None
    assert (await garbage.request_run(caller=CALLER)).run_requested
    assert (await garbage.request_run(caller=CALLER)).run_requested
    assert await garbage.begin(3_600_000) is not None
    assert not (await garbage.status()).run_requested


# ---- rows take turns ------------------------------------------------------------------------------------------------------------


async def test_rows_go_in_short_transactions_between_which_others_write(rig: Rig) -> None:
    """A million rows in one statement would make every save wait."""
    (first, second), world = rig.world.channels, rig.world
    await rig.land(first, 0, 10, kinds=(BinlogKind.INSERT,) * 12)
    await rig.drop_channel(first)
    saved = 0
    at = 0

    async def write(_seconds: float) -> None:
        nonlocal saved, at
        await rig.land(second, at, at + 1)
        saved, at = saved + 1, at + 1

    job = rig.job(delete_rows_max=3)
    job._rest = write
    await job()

    assert saved >= 3
    assert (await world.store.garbage.status()).last_round.binlog_rows_deleted == 12


@pytest.mark.parametrize("moment", ["statement", "commit", "reply"])
async def test_a_round_may_fail_at_any_statement_and_be_repeated(rig: Rig, moment: str) -> None:
    """Rows half gone, a lost COMMIT, a lost reply: the next round finds what is left, and nothing that lives is touched."""
    (first, second), world = rig.world.channels, rig.world
    await rig.land(first, 0, 10, kinds=BOTH * 2)
    await rig.land(first, 0, 10, partition=world.other)
    kept = await rig.land(second, 0, 10, kinds=BOTH)
    rig.write(second, await world.epoch(second), 0, 10)
    await rig.drop_channel(first)
    failed = 0
    for number in range(1, 200):
        faults = world.faults
        if moment == "statement":
            faults.fail_statement = number
        else:
            faults.fail_commit, faults.lose_reply = moment == "commit", moment == "reply"
        world.clock.advance(120_000)
        with suppress(StoreUnavailableError, CommitOutcomeUnknownError):
            await rig.job()()
        fired = faults.fail_statement == 0 if moment == "statement" else True
        failed += fired
        faults.fail_statement, faults.fail_commit, faults.lose_reply = 0, False, False
        assert set(kept.paths) <= rig.files()
        if not fired or number > 25:
            break

    done = await rig.collect()

    assert failed >= 5
    assert done.error == ""
    assert rig.files() == set(kept.paths)
    assert [row[1] for row in dump(world.url)["segments"]] == [rig.channel_ids[second]]


async def test_the_window_of_a_segment_holds_the_ranges_of_its_binlogs(sqlite_rig: Rig) -> None:
    """The read that judges looks up rows by it: were it narrower, registered objects would seem to have no row."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    for start, end in ((0, 5), (5, 6), (6, 50), (50, 51)):
        await rig.land(channel, start, end, kinds=BOTH)
    tables = dump(rig.world.url)
    windows = {row[0]: (row[9], row[10]) for row in tables["segments"]}
    found = [(windows[row[1]], row[6], row[7]) for row in tables["binlogs"]]

    assert len(found) == 8
    assert all(window[0] <= start < end <= window[1] for window, start, end in found)


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
