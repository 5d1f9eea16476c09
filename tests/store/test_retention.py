"""What is kept long enough goes, in parts; what is still referenced stays."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.postgres import PostgresServer

from coordinator.core.model import ChannelMode
from coordinator.core.retention import RetentionPolicy, end_of_old_events
from coordinator.store import Store, retention
from coordinator.store.engine import Faults
from coordinator.store.retention import RetentionRound
from datacoord.errors import FlushNotFoundError, SessionNotFoundError

from .databases import Databases, Templates
from .support import CALLER, Clock, ScriptedFaults, World, dump, settings

DAY_MS = 86_400_000
POLICY = RetentionPolicy(event_ms=7 * DAY_MS, event_rows_max=10**9, session_ms=DAY_MS, flush_ms=DAY_MS)


async def run(world: World, **changes: Any) -> RetentionRound:
    """One round."""
    fields = {name: getattr(POLICY, name) for name in POLICY.__slots__}
    return await world.store.run_retention_job(RetentionPolicy(**{**fields, **changes}))


def numbers(world: World, table: str) -> list[int]:
    """First column of a table."""
    return [row[0] for row in dump(world.url)[table]]


# ---- the history ------------------------------------------------------------------------------------------------------------


@given(
    times=st.lists(st.integers(0, 100), max_size=30),
    event_ms=st.integers(0, 100),
    rows_max=st.integers(1, 40),
)
def test_only_a_beginning_of_the_history_goes(times: list[int], event_ms: int, rows_max: int) -> None:
    """A history with a hole proves nothing, and clocks of replicas may disagree."""
    oldest = list(enumerate(times, start=11))
    last_id = 10 + len(times)
    end = end_of_old_events(oldest, last_id, 100, RetentionPolicy(event_ms, rows_max, 0, 0))

    gone = [time for event_id, time in oldest if event_id <= end]
    left = [time for event_id, time in oldest if event_id > end]
    assert all(time < 100 - event_ms or event_id <= last_id - rows_max for event_id, time in oldest[: len(gone)])
    assert bool(left) == bool(times), "numbers would begin again"
    assert len(left) <= 1 or (left[0] >= 100 - event_ms and len(left) <= rows_max)


async def test_old_entries_of_the_history_go_in_parts_and_young_ones_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction that deletes a week would hold up every save behind it."""
    monkeypatch.setattr(retention, "EVENTS_PER_ROUND", 4)
    for _ in range(6):
        await world.start_datanode()
    old = numbers(world, "events")
    world.clock.advance(7 * DAY_MS + 1)
    await world.start_datanode()
    young = [event_id for event_id in numbers(world, "events") if event_id > old[-1]]

    rounds: list[RetentionRound] = []
    while not rounds or rounds[-1].more:
        rounds.append(await run(world))

    assert [done.deleted["events"] for done in rounds] == [4] * (len(old) // 4) + [len(old) % 4]
    assert numbers(world, "events") == young


async def test_a_history_that_is_too_long_goes_however_young(world: World) -> None:
    """A disk fills up by rows, not by days."""
    for _ in range(6):
        await world.start_datanode()
    before = numbers(world, "events")

    await run(world, event_rows_max=3)

    assert numbers(world, "events") == before[-3:]


# ---- owners -----------------------------------------------------------------------------------------------------------------


async def test_a_session_goes_with_its_owner_once_it_was_over_long_enough(world: World) -> None:
    """A job that restarts its tasks every minute leaves half a million sessions a year."""
    over = await world.start_datanode()
    alive = await world.start_datanode()
    world.clock.advance(DAY_MS - 1)
    await world.report(alive)
    assert (await run(world)).deleted["sessions"] == 0
    world.clock.advance(2)

    assert (await run(world)).deleted["sessions"] == 1

    for table in ("datanodes", "datanode_reports", "owners"):
        assert numbers(world, table) == [alive]
    with pytest.raises(SessionNotFoundError):
        await world.report(over)
    assert len((await world.store.list_datanodes(include_ended=True)).items) == 1


async def test_an_owner_that_a_channel_names_stays(claimed_world: World) -> None:
    """Its row is who the channel says it belongs to: a reader of channels, or a fence, would find nobody."""
    world = claimed_world
    first, second = world.channels
    await world.store.claim_channels("stays", [first], caller=CALLER)
    await world.store.claim_channels("goes", [second], caller=CALLER)
    world.clock.advance(DAY_MS)
    await world.store.claim_channels("new", [second], caller=CALLER)
    world.clock.advance(DAY_MS)

    done = await run(world)

    assert done.deleted["claimants"] == 1
    owners = {row.channel_name: row.owner for row in (await world.store.list_channels()).items}
    assert owners == {first: "stays", second: "new"}
    (again,) = await world.store.claim_channels("goes", [first], force=True, caller=CALLER)
    assert again.info is not None
    assert again.info.owner == "goes"


# ---- flushes ----------------------------------------------------------------------------------------------------------------


async def test_a_flush_can_be_asked_about_for_its_time_after_it_was_done(world: World) -> None:
    """Who polls for a flush that took a day must hear that it is done, not that there is none."""
    channel = world.channels[0]
    await world.start_datanode()
    flush = await world.store.flush("t", 10, caller=CALLER)
    world.clock.advance(30 * DAY_MS)
    await run(world)
    assert not (await world.store.get_flush_state(flush.flush_id)).flushed
    for name in world.channels:
        await world.move(name, 10)
    await run(world)
    world.clock.advance(DAY_MS)
    await run(world)
    assert (await world.store.get_flush_state(flush.flush_id)).flushed
    world.clock.advance(1)

    assert (await run(world)).deleted["flushes"] == 1

    with pytest.raises(FlushNotFoundError):
        await world.store.get_flush_state(flush.flush_id)
    assert numbers(world, "flush_targets") == []
    assert (await world.info(channel)).checkpoint.timestamp == 10


async def test_a_flush_of_many_channels_goes_in_parts_and_is_done_all_the_while(
    empty_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of 65,536 channels is as many rows; and half a flush must not look as if it waited for the rest."""
    world = empty_world
    await world.create(channels=7)
    monkeypatch.setattr(retention, "TARGETS_PER_ROUND", 3)
    flush = await world.store.flush("t", caller=CALLER)
    await run(world)
    world.clock.advance(DAY_MS + 1)

    left = []
    while numbers(world, "flushes"):
        assert (await world.store.get_flush_state(flush.flush_id)).flushed
        done = await run(world)
        left.append(len(numbers(world, "flush_targets")))
        assert done.more == bool(numbers(world, "flushes"))
    assert left == [4, 1, 0]


# ---- the lease, and races ---------------------------------------------------------------------------------------------------


async def test_only_the_holder_of_the_lease_deletes(world: World) -> None:
    """Two replicas that delete the same wait for each other."""
    other = await Store.open(world.url, settings(job_holder="other"), clock_ms=world.clock)
    assert (await run(world)).ran

    assert not (await other.run_retention_job(POLICY)).ran

    world.clock.advance(settings().job_lease_ms + 1)
    assert (await other.run_retention_job(POLICY)).ran
    await other.close()


class AfterLookup(Faults):
    """Lets something happen right after a transaction has looked up a claimant, and before anything else."""

    def __init__(self) -> None:
        self.happen: Callable[[], None] | None = None
        self._looked_up = False

    def statement(self, statement: str) -> None:
        """See the base class."""
        if self._looked_up and self.happen is not None:
            happen, self.happen = self.happen, None
            happen()
        self._looked_up = "WHERE owners.name =" in " ".join(statement.split())


async def test_a_claimant_that_is_claiming_is_not_deleted(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Between the look-up of its row and COMMIT the claim would name an owner that is gone. SQLite has one writer."""
    databases = Databases(Templates("postgresql", tmp_path, postgres_server))
    faults = AfterLookup()
    world = await World(databases.migrated(), Clock(), ScriptedFaults()).open()
    await world.create(mode=ChannelMode.CLAIMED)
    await world.store.claim_channels("query", world.channels, caller=CALLER)
    await world.store.claim_channels("other", world.channels, force=True, caller=CALLER)
    world.clock.advance(2 * DAY_MS)
    claiming = await Store.open(world.url, settings(), clock_ms=world.clock, faults=faults)
    loop = asyncio.get_running_loop()
    rounds: list[RetentionRound] = []

    def delete_meanwhile() -> None:
        work = asyncio.run_coroutine_threadsafe(run(world), loop)
        rounds.append(work.result(30))

    faults.happen = delete_meanwhile
    answers = await claiming.claim_channels("query", world.channels[:1], force=True, caller=CALLER)

    assert answers[0].info is not None
    assert answers[0].info.owner == "query"
    assert rounds[0].deleted["claimants"] == 0
    owners = {row.channel_name: row.owner for row in (await world.store.list_channels()).items}
    assert owners == {world.channels[0]: "query", world.channels[1]: "other"}
    await claiming.close()
    await world.store.close()
    databases.close()
