"""How a datanode ends: drained, in time, and heard of by the coordinator."""

import asyncio

import pytest
from broker.contract_server import ContractServer, Fault
from broker.parts import quick_config
from support.waiting import WAIT_SECONDS_MAX

from datacoord.errors import CollectionNotFoundError, FencedError
from datacoord.v1 import data_coord_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import SessionConfig
from datanode_client.datasync import EndReason
from datanode_client.session import SessionEnd
from datanode_process.running import CHANNELS, Running


async def test_stopping_hands_every_channel_back_and_then_says_farewell(
    server: ContractServer, running: Running
) -> None:
    """A datanode that leaves without handing back costs its channels a lease time and a replay."""
    node_id = await running.session()
    server.assign(node_id, *CHANNELS)
    await running.log.until(lambda: len(running.log.running()) == 16)

    running.log.may_drain.clear()
    stopping = asyncio.create_task(running.node.stop())
    reports = server.calls["ReportDataNodeTtMsgs"]
    await server.until(lambda: any(report.stopping for report in reports))
    assert not any(report.ended for report in reports)
    running.log.may_drain.set()
    await asyncio.wait_for(stopping, WAIT_SECONDS_MAX)

    assert await running.ended is SessionEnd.STOPPED
    assert all(len(server.channels[name].releases) == 1 for name in CHANNELS)
    assert all(server.channels[name].checkpoint.timestamp == 10 for name in CHANNELS)
    assert len(server.calls["ReleaseChannels"]) < 16
    assert reports[-1].ended
    assert server.sessions[node_id].ended


async def test_a_datanode_is_stopped_through_the_coordinator(server: ContractServer, running: Running) -> None:
    """A Spark driver cannot reach into its tasks; the coordinator can, at the next heartbeat."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)

    driver = Broker(quick_config(server.target))
    await driver.heartbeat(data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, stopping=True))

    assert await asyncio.wait_for(running.ended, WAIT_SECONDS_MAX) is SessionEnd.STOPPED
    assert server.channels["c000"].releases == [(running.log.of("c000").epoch, 10)]
    await driver.close()


async def test_a_drain_that_does_not_end_is_given_up(server: ContractServer) -> None:
    """Handing back late is worse than a replay: an object store that hangs must not keep a channel."""
    quick = SessionConfig(drain_timeout_seconds=0.05, stop_timeout_seconds=5.0, farewell_seconds=1.0)
    running = Running(server, session_config=quick)
    running.log.may_drain.clear()
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)

    server.ask_release(node_id, "c000")
    await server.until(lambda: bool(server.channels["c000"].releases))

    assert server.channels["c000"].releases == [(running.log.of("c000").epoch, 0)]
    await running.close()


async def test_a_graph_that_is_fenced_while_it_drains_is_let_go(server: ContractServer, running: Running) -> None:
    """The channel moved in the meantime; there is nothing left to hand back."""
    node_id = await running.session()
    server.assign(node_id, "c000")
    await running.log.until(lambda: len(running.log.running()) == 1)
    running.log.drain_error = FencedError("fenced")
    running.log.of("c000")._on_end(running.log.of("c000"), EndReason.FENCED, None)

    await asyncio.wait_for(running.node.stop(), WAIT_SECONDS_MAX)

    assert not server.calls["ReleaseChannels"]


async def test_stopping_ends_in_time_though_the_coordinator_is_away(server: ContractServer) -> None:
    """A datanode that cannot say goodbye must still go; its lease says it for it."""
    quick = SessionConfig(drain_timeout_seconds=5.0, stop_timeout_seconds=0.1, farewell_seconds=0.1)
    running = Running(server, session_config=quick)
    node_id = await running.session()
    server.assign(node_id, "c000", "c001")
    await running.log.until(lambda: len(running.log.running()) == 2)
    await server.vanish()

    await asyncio.wait_for(running.node.stop(), WAIT_SECONDS_MAX)

    assert await running.ended is SessionEnd.STOPPED
    assert all(graph.closed for graph in running.log.graphs)
    await running.close()


async def test_a_datanode_that_never_registered_can_be_stopped(server: ContractServer) -> None:
    """A coordinator that was never there must not keep a process from ending."""
    await server.vanish()
    running = Running(server)
    await asyncio.sleep(0)

    await asyncio.wait_for(running.node.stop(), WAIT_SECONDS_MAX)

    assert await running.ended is SessionEnd.STOPPED
    await running.close()


async def test_a_refused_registration_is_said(server: ContractServer) -> None:
    """A job for a collection that does not exist would otherwise wait for ever, without a word."""
    server.fail("RegisterDataNode", Fault(error=CollectionNotFoundError("no collection t", collection_name="t")))
    running = Running(server)

    with pytest.raises(CollectionNotFoundError):
        await asyncio.wait_for(running.ended, WAIT_SECONDS_MAX)
    await running.close()
