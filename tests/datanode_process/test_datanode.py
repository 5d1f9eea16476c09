"""How a datanode holds channels: desired states, epochs, failures, lost sessions, outages."""

import asyncio
import os
import random
from typing import Any, cast

import grpc
import pytest
from broker.contract_server import ContractServer, Fault
from support.waiting import WAIT_SECONDS_MAX

from datacoord.errors import DatacoordError, InternalError, InvalidFieldError, ObjectStoreError, SourceInvalidError
from datacoord.v1 import data_coord_pb2
from datanode_client.channel_hold import ChannelHold, HoldContext, Restarts
from datanode_client.client_config import SessionConfig
from datanode_client.clock import SystemClock
from datanode_client.datasync import EndReason
from datanode_client.faults import kind_of_graph_failure
from datanode_client.session import SessionEnd
from datanode_process.running import CHANNELS, Running, desired


async def test_channels_are_held_at_their_epochs_and_reported_with_the_process_that_holds_them(
    server: ContractServer, running: Running
) -> None:
    """An operator, and a test that kills, must find the process that holds a channel."""
    node_id = await running.session()

    server.assign(node_id, *CHANNELS)
    await running.log.until(lambda: running.log.running() == desired(server, node_id))
    await server.until(lambda: all(server.channels[name].report is not None for name in CHANNELS))

    register = server.calls["RegisterDataNode"][0]
    assert (register.job, register.slot, register.pid) == ("j", 0, os.getpid())
    assert register.host
    assert list(register.collection_names) == ["t"]
    report = server.channels["c003"].report
    assert report is not None
    assert report.epoch == server.channels["c003"].epoch
    assert sum(len(request.channel_names) for request in server.calls["GetRecoveryInfo"]) == 16
    assert len(server.calls["GetRecoveryInfo"]) < 16


async def test_a_desired_state_that_is_not_newer_is_ignored(server: ContractServer, running: Running) -> None:
    """A state that was overtaken on its way would close channels that were given since."""
    node_id = await running.session()
    server.assign(node_id, "c000", "c001")
    await running.log.until(lambda: len(running.log.running()) == 2)
    session = server.sessions[node_id]
    kept = dict(session.desired)
    revision = session.revision

    session.desired = {}
    session.changed.set()
    await server.until(lambda: not session.changed.is_set())
    session.desired = kept
    server.assign(node_id, "c002")
    await running.log.until(lambda: len(running.log.running()) == 3)

    assert session.revision > revision
    assert not any(graph.closed for graph in running.log.graphs)


async def test_dropped_partitions_reach_graphs_that_run_and_those_that_start(
    server: ContractServer, running: Running
) -> None:
    """A graph that is not told goes on writing objects that nobody will read."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)
    server.sessions[node_id].dropped_partition_ids += [5, 6]
    server.assign(node_id, "c001")
    await running.log.until(lambda: len(running.log.running()) == 2)
    await running.log.until(lambda: running.log.of("c000").dropped_partitions == {5, 6})
    server.sessions[node_id].dropped_partition_ids += [7]
    server.publish(node_id)

    await running.log.until(lambda: running.log.of("c001").dropped_partitions == {5, 6, 7})
    assert running.log.of("c000").dropped_partitions == {5, 6, 7}


async def test_a_flush_reaches_the_graph_however_often_it_is_said(server: ContractServer, running: Running) -> None:
    """A flush that is lost with one message waits until the next policy, which may be ten minutes."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    server.sessions[node_id].desired["c000"].flush_timestamp = 7
    await running.log.until(lambda: running.log.graphs and 7 in running.log.of("c000").flush_timestamps)

    server.sessions[node_id].desired["c000"].flush_timestamp = 9
    server.publish(node_id)

    await running.log.until(lambda: running.log.of("c000").flush_timestamps[-1] == 9)


async def test_a_channel_asked_for_is_drained_and_handed_back_with_its_final_position(
    server: ContractServer, running: Running
) -> None:
    """Handed back without its position, everything since the last checkpoint is read again."""
    node_id = await running.session()
    server.assign(node_id, "c000", "c001")
    await running.log.until(lambda: len(running.log.running()) == 2)
    first = running.log.of("c000")
    server.fail("ReleaseChannels", Fault(grpc.StatusCode.UNKNOWN, applied=True))

    server.ask_release(node_id, "c000")
    await server.until(lambda: bool(server.channels["c000"].releases))
    server.assign(node_id, "c000")
    await running.log.until(lambda: running.log.running().get("c000", 0) > first.epoch)

    assert server.channels["c000"].releases == [(first.epoch, 10)]
    assert first.closed
    assert running.log.of("c000").consumed == 20
    assert not running.log.of("c001").closed


async def test_a_channel_that_is_named_no_more_is_dropped_at_once(server: ContractServer, running: Running) -> None:
    """It is somebody else's: draining it would only collect fences."""
    node_id = await running.session()
    server.assign(node_id, "c000", "c001")
    await running.log.until(lambda: len(running.log.running()) == 2)

    del server.sessions[node_id].desired["c000"]
    server.publish(node_id)
    await running.log.until(lambda: running.log.of("c000").closed)

    assert running.log.running().keys() == {"c001"}
    assert not server.calls["ReleaseChannels"]


async def test_a_channel_that_comes_back_under_another_epoch_gets_another_graph(
    server: ContractServer, running: Running
) -> None:
    """A graph that goes on under an epoch it did not start with counts on a progress that others have moved."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)
    first = running.log.of("c000")

    server.assign(node_id, "c000")
    await running.log.until(lambda: running.log.running().get("c000", 0) > first.epoch)

    assert first.closed
    assert [graph.epoch for graph in running.log.graphs] == sorted({graph.epoch for graph in running.log.graphs})


async def test_recovery_info_of_another_epoch_starts_nothing(server: ContractServer, running: Running) -> None:
    """The channel moved on between the two messages: a graph started with that info would run under a fenced epoch."""
    node_id = await running.session()
    never = asyncio.Event()
    server.fail("GetRecoveryInfo", Fault(hang=never))
    server.assign(node_id, "c000")
    await server.until(lambda: bool(server.calls["GetRecoveryInfo"]))
    channel = server.channels["c000"]
    wanted, channel.epoch = channel.epoch, channel.epoch + 50

    never.set()
    server.assign(node_id, "c001")
    await running.log.until(lambda: running.log.running().keys() == {"c001"})

    assert wanted not in [graph.epoch for graph in running.log.graphs]
    assert not server.channels["c000"].releases


@pytest.mark.parametrize("reason", [EndReason.FENCED, EndReason.DROPPED])
async def test_a_graph_that_was_fenced_or_dropped_is_not_handed_back(
    server: ContractServer, running: Running, reason: EndReason
) -> None:
    """There is nothing to hand back: the epoch is gone."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)

    running.log.of("c000").end(reason)
    await running.log.until(lambda: running.log.of("c000").closed)

    assert not server.calls["ReleaseChannels"]


async def test_a_graph_that_failed_comes_back_under_a_new_epoch_with_growing_patience(
    server: ContractServer, running: Running
) -> None:
    """A channel whose graph died must not stay dead, nor keep the coordinator busy with restarts."""
    node_id = await running.session()
    epochs = []
    for failures in range(1, 4):
        server.assign(node_id, "c000")
        await running.log.until(lambda: "c000" in running.log.running())
        graph = running.log.of("c000")
        epochs.append(graph.epoch)
        graph.end(EndReason.FAILED, ObjectStoreError("disk full"))
        await server.until(lambda count=failures: len(server.channels["c000"].releases) == count)

    assert server.channels["c000"].releases == [(epoch, 0) for epoch in epochs]
    assert epochs == sorted(set(epochs))
    assert running.node._memory.restarts("c000").failures == 3


def test_what_failed_here_long_ago_says_nothing_of_a_channel_that_comes_back() -> None:
    """Meanwhile it may have run elsewhere for days: a channel that is well would be called stuck the moment it returns."""
    config, clock, nothing = SessionConfig(), SystemClock(), cast("Any", None)
    restarts = Restarts(config)
    failed = kind_of_graph_failure(ObjectStoreError("disk full")), ObjectStoreError("disk full")

    def again() -> ChannelHold:
        return ChannelHold("c000", 7, HoldContext(nothing, nothing, config, clock), restarts, lambda _: None)

    restarts.lasting.failed(*failed, read_to=0, now=clock.monotonic())
    said = again().report()
    assert said is not None
    assert (said.fault, said.fault_kind) == ("ObjectStoreError: disk full", data_coord_pb2.CHANNEL_FAULT_GRAPH)

    restarts.reset()
    restarts.lasting.failed(*failed, read_to=0, now=clock.monotonic() - 86_400)
    assert again().report() is None


async def test_a_reader_that_cannot_be_made_hands_its_channel_back(server: ContractServer, running: Running) -> None:
    """An exception in a factory must not leave a channel owned by a datanode that does nothing for it."""
    running.log.make_error = SourceInvalidError("not a repository")
    node_id = await running.session()

    server.assign(node_id, "c000")

    await server.until(lambda: bool(server.channels["c000"].releases))


async def test_a_channel_is_handed_back_though_that_was_refused_at_first(
    server: ContractServer, running: Running
) -> None:
    """Heartbeats keep the lease: a channel that is not handed back when its graph is over would stay dead for good."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)
    server.fail("ReleaseChannels", Fault(error=InvalidFieldError("bad position")), Fault(error=InternalError("a bug")))

    server.ask_release(node_id, "c000")
    await server.until(lambda: bool(server.channels["c000"].releases))

    assert server.channels["c000"].releases == [(running.log.of("c000").epoch, 0)]


async def test_a_wanted_epoch_whose_graph_is_over_is_handed_back(server: ContractServer, running: Running) -> None:
    """Whatever ended the graph, the channel is the datanode's as far as the coordinator knows, and nobody works on it."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)
    graph = running.log.of("c000")
    graph.end(EndReason.FENCED)
    await running.log.until(lambda: graph.closed)

    server.publish(node_id)

    await server.until(lambda: server.channels["c000"].releases == [(graph.epoch, 0)])


async def test_a_lost_session_closes_every_graph_and_registers_again(server: ContractServer, running: Running) -> None:
    """Its channels are others' by now; holding on would only be fenced, and not registering would leave the slot empty."""
    node_id = await running.session()
    server.assign(node_id, *CHANNELS)
    await running.log.until(lambda: len(running.log.running()) == 16)
    before = list(running.log.graphs)

    server.end_session(node_id)
    again = await running.session(2)
    server.assign(again, *CHANNELS)
    await running.log.until(lambda: running.log.running() == desired(server, again))

    assert again != node_id
    assert all(graph.closed for graph in before)
    assert not server.calls["ReleaseChannels"]


async def test_a_process_that_somebody_starts_again_ends_with_its_session(server: ContractServer) -> None:
    """A given-up task that registers again takes the slot from its successor, and that one from it, without end."""
    first = Running(server, register_again=False)
    await first.session()
    second = Running(server, register_again=False)

    assert await asyncio.wait_for(first.ended, WAIT_SECONDS_MAX) is SessionEnd.LOST
    node_id = await second.session(2)
    server.assign(node_id, "c000")
    await second.log.until(lambda: len(second.log.running()) == 1)

    assert len(server.calls["RegisterDataNode"]) == 2
    await first.close()
    await second.close()


async def test_graphs_go_on_while_the_coordinator_is_away_for_long(server: ContractServer, running: Running) -> None:
    """An absent coordinator is no reason to forget what was read: saves wait, and fences keep it safe."""
    node_id = await running.session()
    server.assign(node_id, *CHANNELS[:4])
    await running.log.until(lambda: len(running.log.running()) == 4)

    failed: list[DatacoordError] = []
    heartbeat = running.broker.heartbeat

    async def counted(request: Any, **options: Any) -> Any:
        try:
            return await heartbeat(request, **options)
        except DatacoordError as error:
            failed.append(error)
            running.log.changed()
            raise

    running.broker.heartbeat = counted  # type: ignore[method-assign]
    await server.vanish()
    await running.log.until(lambda: len(failed) >= 5)
    assert len(running.log.running()) == 4
    await server.listen()
    server.assign(node_id, "c010")
    await running.log.until(lambda: "c010" in running.log.running())

    assert len(server.calls["RegisterDataNode"]) == 1
    assert not any(graph.closed for graph in running.log.graphs)


@pytest.mark.parametrize("seed", range(4))
async def test_no_epoch_ever_gets_two_graphs_and_in_the_end_all_that_is_wanted_runs(
    server: ContractServer, seed: int
) -> None:
    """Assignments, releases, failures, lost sessions and outages in any order must neither double a graph nor lose a channel."""
    rng = random.Random(seed)
    running = Running(server)
    sessions = 1
    node_id = await running.session(sessions)
    for _ in range(60):
        for _ in range(rng.choice((0, 0, 1, 30))):
            await asyncio.sleep(0)
        names = rng.sample(CHANNELS, rng.randint(1, 6))
        held = [name for name in names if name in server.sessions[node_id].desired]
        match rng.randrange(6):
            case 0 | 1:
                server.assign(node_id, *names)
            case 2:
                server.ask_release(node_id, *held)
            case 3:
                for graph in [graph for graph in running.log.graphs if graph.running and graph.channel_name in names]:
                    graph.end(rng.choice((EndReason.FAILED, EndReason.FENCED)))
            case 4 if rng.random() < 0.3:
                sessions = len(server.calls["WatchDmChannels"])
                server.end_session(node_id)
                await server.until(lambda: not server.sessions[max(server.sessions)].ended)
                node_id = max(server.sessions)
            case 5 if rng.random() < 0.3:
                await server.vanish()
                await server.listen()
            case _:
                continue
    server.assign(node_id, *CHANNELS)

    def settled() -> bool:
        # A graph that was ended by the test a moment ago may still be handed back; it comes again like any other.
        free = [name for name in CHANNELS if name not in server.sessions[node_id].desired]
        if free:
            server.assign(node_id, *free)
        return running.log.running() == desired(server, node_id)

    await running.log.until(settled)

    starts = [(graph.channel_name, graph.epoch) for graph in running.log.graphs]
    assert len(starts) == len(set(starts))
    await running.close()
