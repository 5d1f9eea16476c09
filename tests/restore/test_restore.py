"""R7: the database comes back older than the world around it, while its zombies live."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from store.support import CALLER, dump, settings
from support.engines import engine_of
from verify.stage import Stage, new_collection

from coordinator.core.verify import Kind
from coordinator.store import Store
from coordinator.store.restore import HOLD_REASON, JUMP, restore
from coordinator.store.verify import verify
from datacoord.errors import DatabaseInUseError, GcPausedError, SessionNotFoundError
from datacoord.v1 import data_coord_pb2

from .conftest import Backup
from .lander import Lander, landed, registered

END = 60


@asynccontextmanager
async def serving(stage: Stage, url: str) -> AsyncIterator[Store]:
    """A coordinator on a database, with a datanode that has its channels."""
    store = await Store.open(url, settings(storage_root=str(stage.objects)), clock_ms=stage.world.clock)
    try:
        session = await store.register_datanode("new", 0, ["managed"], host="h", pid=9, caller=CALLER)
        await store.watch_datanode(session.node_id)
        await store.run_assignment_job()
        yield store
    finally:
        await store.close()


def counters(url: str) -> dict[str, int]:
    """What was given out last."""
    return dict(dump(url)["epochs"])


@pytest.mark.parametrize("seed", range(2))
async def test_what_was_lost_lands_once_more_and_nothing_of_the_lost_time_ever_counts(
    stage: Stage, backup: Backup, seed: int
) -> None:
    """The whole of R7: a zombie fenced, a replay exactly once, leftovers that are listed and never registered."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    zombie = Lander(stage)
    await zombie.land(stage.world.store, rng.randint(1, 20), step=rng.randint(2, 7))
    restored = backup()
    before = await registered(stage.world.store)
    await zombie.land(stage.world.store, rng.randint(25, 40), step=rng.randint(2, 7))
    await stage.world.store.create_collection(new_collection("late"), caller=CALLER)
    late = await stage.world.store.describe_collection("late")
    (info,) = (await stage.world.store.recovery_info(collection_name="late")).items
    stage.create(late, stage.path(info.channel_id, late.partitions["_default"], info.epoch, 0, 3))
    lost = await registered(stage.world.store) - before
    await zombie.land(stage.world.store, 50, step=50, send=False)
    await stage.world.store.close()
    last = counters(stage.url)
    sessions = [row[0] for row in dump(stage.url)["datanodes"]]

    url = restored()
    done = restore(url)

    assert done.channels == 4
    assert counters(url)["epoch"] >= JUMP
    async with serving(stage, url) as store:
        for node_id in sessions:
            with pytest.raises(SessionNotFoundError):
                await store.report_datanode(data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id), caller=CALLER)
        assert await zombie.haunt(store) == {"FENCED"}
        assert await registered(store) == before

        await Lander(stage).land(store, END, step=rng.randint(2, 7))

        assert await zombie.haunt(store) == {"FENCED"}
        source = Counter(range(1, END + 1))
        assert await landed(store, stage) == dict.fromkeys(stage.world.channels, source)
        now = await registered(store)
    assert now & lost == set()
    report = verify(url, storage_root=str(stage.objects), deep=True)
    assert report.faults == 0, report.findings
    leftovers = {str(file.relative_to(stage.world.collection.storage_root)) for file in _files(stage)} - now
    assert lost < leftovers
    assert {finding.subject for finding in report.findings if finding.kind is Kind.ORPHAN} == leftovers
    rest = [(finding.kind, finding.subject) for finding in report.findings if finding.kind is not Kind.ORPHAN]
    assert rest == [(Kind.UNKNOWN_DIRECTORY, f"{stage.objects}/{late.collection_id}")]
    given = {name: value - last[name] for name, value in counters(url).items()}
    assert all(0 < more < 2 * JUMP for more in given.values())


def _files(stage: Stage) -> list[Path]:
    return list(Path(stage.world.collection.storage_root).rglob("*.parquet"))


async def test_without_restore_the_lost_time_is_found(stage: Stage, backup: Backup) -> None:
    """Who forgets the command is told: epochs of the lost time lie in the store, and the database has not given them out."""
    lander = Lander(stage)
    await lander.land(stage.world.store, 10, step=5)
    restored = backup()
    stage.world.clock.advance(10**6)
    await stage.world.store.run_lease_job()
    await stage.world.start_datanode(slot=1)
    await lander.land(stage.world.store, 20, step=5)
    await stage.world.store.close()

    report = verify(restored(), storage_root=str(stage.objects))

    assert {finding.kind for finding in report.findings if finding.fault} == {Kind.NEWER_THAN_DATABASE}


async def test_no_number_of_the_lost_time_is_given_out_again(stage: Stage, backup: Backup) -> None:
    """A session, a flush, a segment, a channel: callers of the lost time still know their numbers."""
    restored = backup()
    await Lander(stage).land(stage.world.store, 20, step=5)
    await stage.world.store.create_collection(new_collection("late"), caller=CALLER)
    await stage.world.start_datanode(slot=1)
    await stage.world.store.flush("managed", caller=CALLER)
    await stage.world.store.close()
    url = restored()
    restore(url)
    async with serving(stage, url) as store:
        await Lander(stage).land(store, 20, step=5)
        await store.create_collection(new_collection("late"), caller=CALLER)
        await store.flush("managed", caller=CALLER)

    lost, now = dump(stage.url), dump(url)
    for table in ("collections", "partitions", "vchannels", "segments", "owners", "flushes"):
        ours = {row[0] for row in now[table]}
        theirs = {row[0] for row in lost[table]}
        assert all(number > JUMP for number in ours - theirs), table
        assert ours - theirs, table
    epochs = {row[1] for row in lost["channel_state"]}
    assert all(row[1] > JUMP and row[1] not in epochs for row in now["channel_state"])


async def test_a_restore_changes_nothing_that_has_landed_and_may_be_repeated(stage: Stage) -> None:
    """Whoever is not sure whether the command was run runs it again."""
    await stage.fill()
    await stage.world.store.close()
    kept = ["collections", "partitions", "lanes", "segments", "binlogs", "flushes", "flush_targets"]
    before = dump(stage.url)

    first = restore(stage.url)
    second = restore(stage.url)

    after = dump(stage.url)
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    columns = ("checkpoint_timestamp", "checkpoint_event_time_ms", "checkpoint_msg_id", "checkpoint_msg_group")
    assert _select(stage.url, "channel_state", *columns) == _positions(before["channel_state"])
    assert (first.sessions, second.sessions) == (1, 0)
    assert (first.channels, second.channels) == (4, 4)
    assert second.epoch >= first.epoch + JUMP
    assert second.number >= first.number + JUMP
    assert verify(stage.url).findings == []


def _select(url: str, table: str, *columns: str) -> list[tuple[object, ...]]:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2")).all()
    engine.dispose()
    return [tuple(row) for row in found]


def _positions(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(tuple(row[6:10]) for row in rows)


async def test_garbage_stays_until_an_operator_lets_it_go(stage: Stage) -> None:
    """The objects of the lost time may be all that is left of it."""
    await stage.world.store.close()
    restore(stage.url)
    async with serving(stage, stage.url) as store:
        assert await store.garbage.begin(0) is None
        with pytest.raises(GcPausedError, match="restored"):
            await store.garbage.request_run(caller=CALLER)
        assert (await store.garbage.status()).reason == HOLD_REASON

        await store.garbage.resume(caller=CALLER)

        stage.world.clock.advance(10**9)
        assert await store.garbage.begin(0) is not None


async def test_a_database_in_use_is_refused_unless_forced(stage: Stage) -> None:
    """A coordinator that lived through the restore remembers numbers of the lost time: it would take one channel for another."""
    await stage.world.store.list_channels()
    before = counters(stage.url)
    with pytest.raises(DatabaseInUseError, match="stop every coordinator"):
        restore(stage.url)
    assert counters(stage.url) == before

    assert restore(stage.url, force=True).channels == 4


async def test_a_lease_that_lives_is_refused_unless_forced(stage: Stage) -> None:
    """Where sessions cannot be seen (another name, a pooler), the lease of the jobs tells that somebody was there just now."""
    await stage.world.store.close()
    store = await Store.open(stage.url, settings(job_lease_ms=600_000))
    await store.run_seal_job()
    await store.close()

    with pytest.raises(DatabaseInUseError, match="holds the lease of the job 'seal'"):
        restore(stage.url)
    assert restore(stage.url, force=True).channels == 4
    # The lease ended with it: no job has to wait.
    assert restore(stage.url).channels == 4


async def test_an_owner_that_is_not_there_stops_nothing(stage: Stage) -> None:
    """What `verify` advises this command for must not stop it."""
    stage.execute(
        "UPDATE channel_state SET owner_id = 4711 WHERE channel_id = (SELECT max(channel_id) FROM channel_state)"
    )
    await stage.world.store.close()

    assert restore(stage.url).channels == 4

    assert verify(stage.url).faults == 0
