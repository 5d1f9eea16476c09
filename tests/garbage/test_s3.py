"""The collector on an S3 API server over a socket."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from store.databases import Databases, Templates
from support.s3 import S3Server, s3_server

from coordinator.core.model import Outcome
from datacoord.paths import BinlogKind
from garbage.rig import Rig

BOTH = (BinlogKind.INSERT, BinlogKind.DELTA)
_buckets = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """One server for the module."""
    with s3_server() as running:
        yield running


@pytest.fixture
async def rig(server: S3Server, sqlite_templates: Templates, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A store whose collection keeps its objects in a bucket of its own: a storage root belongs to one database."""
    monkeypatch.setenv("DATACOORD_S3_ATTEMPTS", "1")
    taken = Databases(sqlite_templates)
    root = server.make_bucket(f"garbage{next(_buckets)}")
    made = await Rig(taken.migrated(), root).open()
    yield made
    server.heal()
    await made.world.store.close()
    taken.close()


def objects(rig: Rig) -> set[str]:
    """What the bucket holds."""
    return {info.path for info in rig.objects.list_objects()}


async def test_orphans_go_from_a_bucket_and_what_is_or_may_be_registered_stays(rig: Rig) -> None:
    """Directories there are but beginnings of names, and pyarrow's deletions have ideas of their own about them."""
    channel, world = rig.world.channels[0], rig.world
    await rig.land(channel, 0, 10, kinds=BOTH)
    rig.write(channel, await world.epoch(channel), 10, 20)
    rig.write(channel, await world.epoch(channel), 0, 10)
    await rig.change_owner()
    late = rig.write(channel, await world.epoch(channel), 10, 20)
    expected = await rig.referenced() | set(late.paths)
    plan = await rig.plan()

    done = await rig.collect()

    assert done.error == plan.round.error == ""
    assert (done.objects_deleted, plan.round.objects_deleted) == (2, 2)
    assert objects(rig) == expected
    assert (await rig.save(late, checkpoint=False)).outcome is Outcome.APPLIED
    assert (await rig.collect()).objects_deleted == 0
    assert objects(rig) == expected


async def test_a_bucket_that_cannot_be_listed_or_deleted_from_keeps_everything_and_says_so(
    rig: Rig, server: S3Server
) -> None:
    """Errors of the store are no sign that nothing is there."""
    channel = rig.world.channels[1]
    orphan = rig.write(channel, await rig.world.epoch(channel), 0, 10)
    await rig.change_owner()
    for method in ("GET", "DELETE"):
        server.fail(100, "500", method)
        done = await rig.collect()
        assert done.error
        assert done.objects_deleted == 0
        server.heal()
        assert set(orphan.paths) <= objects(rig)

    assert (await rig.collect()).objects_deleted == 1
    assert not set(orphan.paths) & objects(rig)
