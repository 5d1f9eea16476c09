"""Two databases on one storage root: they number alike, so each would take the other's objects for its own orphans."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store.databases import Databases, Templates

from coordinator.store import verify
from datacoord.objectstore import OWNER_MARK
from garbage.rig import Rig


@pytest.fixture
async def two(sqlite_templates: Templates, tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """Two databases that nobody told of each other, with a collection of one number in one directory."""
    made, taken = [], []
    for number in range(2):
        databases = Databases(sqlite_templates)
        rig = Rig(databases.migrated(), tmp_path)
        rig.world.clock.advance(number)
        made.append(await rig.open())
        taken.append(databases)
    assert made[0].root == made[1].root
    assert made[0].channel_ids == made[1].channel_ids
    yield made[0], made[1]
    for rig, databases in zip(made, taken, strict=True):
        await rig.world.store.close()
        databases.close()


async def test_a_new_database_deletes_nothing_of_the_one_that_was_lost(two: tuple[Rig, Rig]) -> None:
    """Somebody deletes the database and starts anew: the objects are all that is left, and a rebuild needs them."""
    old, new = two
    channel = old.world.channels[0]
    await old.land(channel, 0, 10)
    assert (await old.collect()).error == ""
    for slot in range(3):
        await new.change_owner(slot)
    before = old.files()

    plan = await new.plan()
    done = await new.collect()

    assert old.files() == before
    assert done.objects_deleted == plan.round.objects_deleted == 0
    for said in (done.error, plan.round.error):
        assert "belongs to another database" in said
    (old.root / OWNER_MARK).unlink()
    assert (await new.collect()).error == ""
    assert old.files() == set(), "the operator said that this database has taken its place"


async def test_the_owner_of_a_root_goes_on_when_another_database_turns_up(two: tuple[Rig, Rig]) -> None:
    """The newcomer is the mistake; it must not stop the service that was there."""
    ours, theirs = two
    channel = ours.world.channels[0]
    kept = await ours.land(channel, 0, 10)
    await ours.collect()
    ours.write(channel, await ours.world.epoch(channel), 0, 10)
    assert "another database" in (await theirs.collect()).error

    done = await ours.collect()

    assert (done.objects_deleted, done.error) == (1, "")
    assert ours.files() == set(kept.paths)


async def test_a_plan_marks_nothing(two: tuple[Rig, Rig]) -> None:
    """It changes nothing, and whoever only looks must not take a root from its owner."""
    first, second = two
    await first.land(first.world.channels[0], 0, 10)
    await second.plan()

    assert not (first.root / OWNER_MARK).exists()


@pytest.mark.parametrize(
    "mark", [b"", b"{}", b"[1]", b"null", b'{"first_collection_id": "x", "created_ms": 1}', b"\xff"]
)
async def test_a_mark_that_nobody_can_read_lets_nothing_go(sqlite_rig: Rig, mark: bytes) -> None:
    """Any doubt deletes nothing."""
    rig = sqlite_rig
    rig.write(rig.world.channels[0], await rig.world.epoch(rig.world.channels[0]), 0, 10)
    await rig.change_owner()
    before = rig.files()
    (rig.root / OWNER_MARK).write_bytes(mark)

    assert "another database" in (await rig.collect()).error
    assert rig.files() == before


async def test_a_root_that_cannot_be_marked_lets_nothing_go(sqlite_rig: Rig) -> None:
    """Where the mark should stand is something else: whose the root is cannot be said."""
    rig = sqlite_rig
    rig.write(rig.world.channels[0], await rig.world.epoch(rig.world.channels[0]), 0, 10)
    await rig.change_owner()
    before = rig.files()
    (rig.root / OWNER_MARK).mkdir()

    assert (await rig.collect()).error
    assert rig.files() == before


async def test_the_mark_is_no_object(sqlite_rig: Rig) -> None:
    """Neither a round nor `datacoord verify` may report it, however often it is seen."""
    rig = sqlite_rig
    await rig.land(rig.world.channels[0], 0, 10)
    for _ in range(2):
        assert (await rig.collect()).unknown_names == 0

    mark = json.loads((rig.root / OWNER_MARK).read_bytes())
    assert mark["first_collection_id"] == rig.world.collection.collection_id
    found = verify.verify(rig.world.url, storage_root=str(rig.directory)).findings
    assert not [finding for finding in found if OWNER_MARK in finding.subject]
