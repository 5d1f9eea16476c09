"""Any doubt deletes nothing: listings that break off, databases that do not answer or are not the newest, deletions that fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.jobs.garbage_objects import Objects
from coordinator.store import garbage_rows
from coordinator.store.database_kind import DatabaseKind
from datacoord.errors import StoreUnavailableError
from datacoord.paths import BinlogKind
from garbage.rig import Rig, execute


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
