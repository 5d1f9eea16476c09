"""Explain reads the facts right, on both databases: who owns what, who was heard, what was asked for and when."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from coordinator.core.findings import LATE_MS, UNANSWERED_MS, Problem, Severity
from coordinator.core.jobs import Job
from coordinator.core.model import ChannelMode
from coordinator.core.retention import RetentionPolicy
from coordinator.jobs.loop import RanElsewhereError
from coordinator.jobs.rounds import FINDINGS_SECONDS, AssignmentRounds
from coordinator.store import ChannelRelease, Store, findings
from coordinator.web.metrics import Metrics
from coordinator.web.reported import ReportedMetrics
from datacoord.errors import ChannelNotFoundError, CollectionNotFoundError
from datacoord.v1 import data_coord_pb2

from .support import CALLER, LEASE_MS, World, lane, settings


async def problems(store: Store) -> dict[str, Problem]:
    """Problem by channel."""
    found = await store.explain()
    assert found.total == len(found.items)
    return {finding.channel_name: finding.problem for finding in found.items}


async def say(world: World, node_id: int, *channels: str) -> None:
    """A heartbeat as a datanode sends it, with epochs."""
    messages = [
        data_coord_pb2.DataNodeTtMsg(channel_name=name, epoch=await world.epoch(name), timestamp=10, lag=0)
        for name in channels
    ]
    report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, msgs=messages)
    await world.store.report_datanode(report, caller=CALLER)


async def test_a_channel_is_followed_from_nobody_to_well_to_silent(world: World) -> None:
    """Each step of a channel's life has its own next step for the person who asks."""
    first, second = world.channels
    assert await problems(world.store) == dict.fromkeys(world.channels, Problem.NO_DATANODE)

    session = await world.store.register_datanode("job", 0, [world.collection.name], host="h", pid=1, caller=CALLER)
    assert await problems(world.store) == dict.fromkeys(world.channels, Problem.NO_OWNER)

    await world.store.watch_datanode(session.node_id)
    await world.store.run_assignment_job()
    await say(world, session.node_id, first, second)
    assert await problems(world.store) == {}

    world.clock.advance(LEASE_MS + 1)
    found = await problems(world.store)
    assert found.pop("", Problem.JOBS_STAND) is Problem.JOBS_STAND
    assert found == dict.fromkeys(world.channels, Problem.OWNER_SILENT)


async def test_only_jobs_that_should_never_pause_stand(world: World) -> None:
    """A mark of alarm on a job that rests between two rounds is there all day, and then nobody looks when one really stands."""
    store = world.store
    await store.run_lease_job()
    await store.run_assignment_job()
    await store.run_seal_job()
    await store.run_retention_job(RetentionPolicy(event_ms=1, event_rows_max=1, session_ms=1, flush_ms=1))
    assert await standing(store) == set()

    world.clock.advance(settings().job_lease_ms + UNANSWERED_MS)
    assert await standing(store) == {Job.LEASE, Job.ASSIGNMENT}
    (found,) = [finding for finding in (await store.explain()).items if finding.problem is Problem.JOBS_STAND]
    assert "assignment and lease" in found.explanation

    await store.run_assignment_job()
    assert await standing(store) == {Job.LEASE}
    (found,) = [finding for finding in (await store.explain()).items if finding.problem is Problem.JOBS_STAND]
    assert "the background job lease" in found.explanation

    await store.run_lease_job()
    assert await standing(store) == set()
    assert Problem.JOBS_STAND not in (await problems(store)).values()


async def standing(store: Store) -> set[str]:
    """The jobs that the status page marks."""
    return {job.name for job in (await store.overview()).jobs if job.stands}


async def test_a_report_of_another_epoch_is_no_report(world: World) -> None:
    """What was said by an earlier flow graph must not hide that the new one does not read."""
    node_id = await world.start_datanode()
    stale = data_coord_pb2.DataNodeTtMsg(channel_name=world.channels[0], epoch=1, timestamp=5)
    await world.store.run_assignment_job()
    for _ in range(4):
        world.clock.advance(LEASE_MS // 2)
        report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, msgs=[stale])
        await world.store.report_datanode(report, caller=CALLER)
        await world.store.run_assignment_job()
        await world.store.run_lease_job()
    assert await problems(world.store) == dict.fromkeys(world.channels, Problem.NOT_READING)


async def test_a_channel_that_was_just_given_to_an_old_session_is_not_stuck(world: World) -> None:
    """Every hand-over to a datanode that runs for days would be an alarm, until its first report."""
    first, second = world.channels
    node_id = await world.start_datanode()
    for _ in range(200):
        world.clock.advance(LEASE_MS // 2)
        await say(world, node_id, first, second)
        await world.store.run_assignment_job()
        await world.store.run_lease_job()
    release = ChannelRelease(first, await world.epoch(first), None)
    await world.store.release_channels([release], caller=CALLER)
    await world.store.run_assignment_job()
    assert await problems(world.store) == {}

    given_ms = world.clock.now_ms
    for _ in range(4):
        world.clock.advance(LEASE_MS // 2)
        await say(world, node_id, second)
        await world.store.run_assignment_job()
        await world.store.run_lease_job()
    (found,) = (await world.store.explain()).items
    assert (found.channel_name, found.problem, found.since_ms) == (first, Problem.NOT_READING, given_ms)
    assert found.severity is Severity.LATE


async def test_a_flush_that_waits_is_told_with_its_age_until_it_is_done(claimed_world: World) -> None:
    """A flush of a channel that nobody writes waits for ever, and somebody waits for it."""
    world = claimed_world
    channel = world.channels[0]
    (claimed,) = await world.store.claim_channels("sink", [channel], caller=CALLER)
    assert claimed.info is not None
    await world.store.flush(world.collection.name, 50, caller=CALLER)
    assert await problems(world.store) == {}

    asked_ms = world.clock.now_ms
    world.clock.advance(LATE_MS + 1)
    found = await world.store.explain(channel_name=channel)
    assert [(f.problem, f.since_ms) for f in found.items] == [(Problem.FLUSH_LATE, asked_ms)]

    await world.save(channel, lane(world.default, 0, 50), checkpoint=50)
    found = await world.store.explain(channel_name=channel)
    assert [f.problem for f in found.items] == [Problem.NOTHING]


async def test_only_as_many_as_asked_for_are_given_and_all_are_counted(world: World) -> None:
    """With 100,000 channels in trouble, the answer must stay small and still say how many there are."""
    await world.create("more", ChannelMode.MANAGED, channels=5)
    found = await world.store.explain(findings_max=3)
    assert (len(found.items), found.total) == (3, 7)
    found = await world.store.explain(collection_name="more")
    assert {finding.collection_name for finding in found.items} == {"more"}


async def test_what_is_wrong_is_counted_for_alerts_once_a_minute_and_by_one_replica(world: World) -> None:
    """Without it nobody is called when channels stand; and two replicas that count would say different numbers."""
    metrics, now = Metrics(), 0.0
    rounds = AssignmentRounds(world.store, metrics, ReportedMetrics(metrics.registry), lambda: now)

    def stuck() -> float | None:
        labels = {"severity": "STUCK", "problem": "NO_DATANODE"}
        return metrics.registry.get_sample_value("datacoord_findings", labels)

    first = len(world.channels)
    await rounds()
    assert stuck() == first
    await world.create("more", ChannelMode.MANAGED, channels=5)
    now = FINDINGS_SECONDS - 1
    await rounds()
    assert stuck() == first
    now = FINDINGS_SECONDS
    await rounds()
    assert stuck() == first + 5

    other = await Store.open(world.url, settings(job_holder="another"), clock_ms=world.clock)
    try:
        with pytest.raises(RanElsewhereError):
            await AssignmentRounds(other, metrics, ReportedMetrics(CollectorRegistry()), lambda: now)()
    finally:
        await other.close()
    assert stuck() == 0


async def test_others_get_their_turns_while_many_channels_are_examined(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asks every few seconds: on SQLite nobody would be served while 100,000 channels are looked at."""
    monkeypatch.setattr(findings, "CHANNELS_PER_STEP", 10)
    await world.create("many", ChannelMode.MANAGED, channels=100)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await asyncio.sleep(0)
    found = await world.store.explain(findings_max=200)
    task.cancel()

    assert found.total == 102
    assert turns >= 10


async def test_what_does_not_exist_is_refused_by_name(world: World) -> None:
    """An empty answer about a misspelt channel reads as "all is well"."""
    with pytest.raises(ChannelNotFoundError):
        await world.store.explain(channel_name="nobody_1v0")
    with pytest.raises(CollectionNotFoundError):
        await world.store.explain(collection_name="nothing")


async def test_a_channel_whose_source_has_ended_is_missed_by_nobody_once_all_of_it_is_registered(world: World) -> None:
    """An alarm for every batch that is done, for ever, is an alarm that nobody hears when a stream stands."""
    first, second = world.channels
    node_id = await world.start_datanode()
    await world.save(first, lane(world.default, 0, 30), checkpoint=30)
    await world.save(second, lane(world.default, 0, 20), checkpoint=20)
    messages = [
        data_coord_pb2.DataNodeTtMsg(channel_name=name, epoch=await world.epoch(name), timestamp=at, finished=at == 30)
        for name, at in ((first, 30), (second, 20))
    ]
    report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, msgs=messages)
    await world.store.report_datanode(report, caller=CALLER)
    report.ended = True
    await world.store.report_datanode(report, caller=CALLER)
    assert await problems(world.store) == {second: Problem.NO_DATANODE}
    assert (await world.store.count_channels())["FINISHED"] == 1

    # The source has grown after all: whoever reads it next says so, and the channel counts again when that one is gone.
    node_id = await world.start_datanode(slot=1)
    await world.save(first, lane(world.default, 30, 40), checkpoint=40)
    await world.report(node_id, **{first: 40, second: 20})
    world.clock.advance(LEASE_MS + 1)
    await world.store.run_lease_job()
    assert await problems(world.store) == dict.fromkeys(world.channels, Problem.NO_DATANODE)
