"""What becomes of leases when nobody was there to take heartbeats, and who runs the jobs afterwards."""

from collections.abc import AsyncIterator

import pytest

from coordinator.store import Store, StoreSettings, sessions

from .databases import Databases
from .support import LEASE_MS, Clock, ScriptedFaults, World, settings

JOB_LEASE_MS = 4_000
ROUND_MS = 1_000
AWAY_MS = 6 * LEASE_MS


@pytest.fixture
async def world(databases: Databases) -> AsyncIterator[World]:
    """A store whose job leases are short, with a collection."""
    made = await World(databases.migrated(), Clock(), ScriptedFaults()).open(job_lease_ms=JOB_LEASE_MS)
    await made.create()
    yield made
    await made.store.close()


async def serve(world: World, ms: int, *heartbeats: int) -> list[int]:
    """Time passes under a coordinator that runs the lease job, while some datanodes beat; the sessions that ended."""
    ended: list[int] = []
    for _ in range(0, ms, ROUND_MS):
        world.clock.advance(ROUND_MS)
        for node_id in heartbeats:
            await world.report(node_id)
        ended += (await world.store.run_lease_job()).ended
    return ended


async def restart(world: World, holder: str) -> None:
    """Another process takes the place of the one that died."""
    await world.store.abandon()
    await world.open(job_lease_ms=JOB_LEASE_MS, job_holder=holder)


@pytest.mark.parametrize("holder", ["this", "another"])
async def test_sessions_outlive_a_coordinator_that_was_away_for_longer_than_their_lease(
    world: World, holder: str
) -> None:
    """Ended in the first round, all datanodes would start anew at once, and every channel be read again from its checkpoint."""
    node_id = await world.start_datanode()
    epochs = [await world.epoch(channel) for channel in world.channels]
    assert await serve(world, 3 * LEASE_MS, node_id) == []
    world.clock.advance(AWAY_MS)
    await restart(world, holder)

    assert (await world.store.run_lease_job()).ended == ()
    assert await serve(world, 3 * LEASE_MS, node_id) == []
    assert [await world.epoch(channel) for channel in world.channels] == epochs


async def test_a_database_that_was_away_costs_no_session(world: World) -> None:
    """The same coordinator, but nothing could be written: it is the same to the datanodes."""
    node_id = await world.start_datanode()
    assert await serve(world, 3 * LEASE_MS, node_id) == []
    world.clock.advance(AWAY_MS)

    assert (await world.store.run_lease_job()).ended == ()
    assert await serve(world, LEASE_MS, node_id) == []


async def test_a_datanode_that_died_while_nobody_served_is_missed_within_a_lease(world: World) -> None:
    """What is given back is the time that stood still, not a life."""
    dead = await world.start_datanode()
    assert await serve(world, 2 * LEASE_MS, dead) == []
    world.clock.advance(AWAY_MS)
    await restart(world, "another")

    assert (await world.store.run_lease_job()).ended == ()
    assert await serve(world, LEASE_MS + ROUND_MS) == [dead]


async def test_a_datanode_that_was_silent_before_gets_only_the_standstill_back(world: World) -> None:
    """Each restart of the coordinator must not renew the lease of the dead."""
    silent = await world.start_datanode()
    assert await serve(world, LEASE_MS - 2 * ROUND_MS) == []
    for turn in range(2):
        world.clock.advance(AWAY_MS)
        await restart(world, f"holder {turn}")
        assert (await world.store.run_lease_job()).ended == ()

    assert await serve(world, 3 * ROUND_MS) == [silent]


async def test_a_session_that_was_over_before_the_standstill_stays_over(world: World) -> None:
    """Its lease had run out while somebody served."""
    over = await world.start_datanode()
    assert await serve(world, ROUND_MS) == []
    world.clock.advance(JOB_LEASE_MS)
    await world.store.run_lease_job()
    assert await serve(world, LEASE_MS + JOB_LEASE_MS) == [over]
    world.clock.advance(AWAY_MS)
    await restart(world, "another")

    assert (await world.store.run_lease_job()).ended == ()
    assert [row.node_id for row in (await world.store.list_datanodes()).items] == []


async def test_a_session_that_was_over_but_had_not_its_turn_yet_gets_nothing_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round ends a bounded number: what is left over was over all the same."""
    monkeypatch.setattr(sessions, "ENDED_PER_ROUND_MAX", 1)
    nodes = [await world.start_datanode(slot) for slot in range(3)]
    assert await serve(world, LEASE_MS, nodes[2]) == []
    first = await serve(world, ROUND_MS, nodes[2])
    world.clock.advance(AWAY_MS)
    await restart(world, "another")

    assert [*first, *(await world.store.run_lease_job()).ended] == nodes[:2]
    assert (await world.store.run_lease_job()).ended == ()


async def test_without_a_standstill_nothing_is_given(world: World) -> None:
    """Rounds that come as they should must not prolong anything: a hung datanode would keep its channels for ever."""
    node_id = await world.start_datanode()

    assert await serve(world, LEASE_MS) == []
    assert await serve(world, ROUND_MS) == [node_id]


async def test_a_replica_takes_the_jobs_over_when_their_lease_is_over_and_not_before(world: World) -> None:
    """Two processes that both run a job would undo each other's plans."""
    rival = await Store.open(world.url, settings(job_holder="rival", job_lease_ms=JOB_LEASE_MS), clock_ms=world.clock)
    assert (await world.store.run_lease_job()).ran
    assert (await world.store.run_assignment_job()).ran
    world.clock.advance(JOB_LEASE_MS - 1)
    assert not (await rival.run_lease_job()).ran
    assert not (await rival.run_assignment_job()).ran
    world.clock.advance(1)
    assert (await rival.run_lease_job()).ran
    assert (await rival.run_assignment_job()).ran
    assert not (await world.store.run_lease_job()).ran, "who lost the lease writes nothing for the job any more"
    assert not (await world.store.run_assignment_job()).ran
    await rival.close()


async def test_who_is_alone_takes_the_jobs_over_at_once(world: World) -> None:
    """A coordinator that is started again after SIGKILL would stand beside its channels for the rest of a dead man's lease."""
    node_id = await world.start_datanode()
    assert (await world.store.run_lease_job()).ran
    await world.store.abandon()
    await world.open(job_lease_ms=10**9, job_holder="another", alone=True)

    assert (await world.store.run_lease_job()).ran
    assert (await world.store.run_assignment_job()).ran
    # Away for less than the job's lease, but for longer than the datanodes'.
    await world.report(node_id)
    await world.store.run_lease_job()
    world.clock.advance(AWAY_MS)
    await world.store.abandon()
    await world.open(job_lease_ms=10**9, job_holder="a third", alone=True)
    assert (await world.store.run_lease_job()).ended == ()


async def test_processes_of_one_host_name_and_number_are_not_one_holder(world: World) -> None:
    """Containers may well share both: each would take the other's lease for its own, and both would run every job."""
    await restart(world, StoreSettings(storage_root="").job_holder)
    assert (await world.store.run_lease_job()).ran
    twin = settings(job_holder=StoreSettings(storage_root="").job_holder, job_lease_ms=JOB_LEASE_MS)
    rival = await Store.open(world.url, twin, clock_ms=world.clock)
    try:
        assert not (await rival.run_lease_job()).ran
    finally:
        await rival.close()
