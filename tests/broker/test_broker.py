"""The broker against a server that speaks the contract over a real socket and misbehaves on request."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.waiting import WAIT_SECONDS_MAX

from broker.contract_server import ContractServer, Fault
from broker.parts import part, quick_config
from datacoord.errors import (
    BatchTooLargeError,
    ChannelNotFoundError,
    CoordinatorUnreachableError,
    FencedError,
    GapError,
    InvalidFieldError,
    OverloadedError,
    SessionNotFoundError,
)
from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import SaveBatchConfig
from datanode_client.ports import CheckpointUpdate

CHANNELS = [f"c{index:03}" for index in range(64)]


@pytest.fixture
async def server() -> AsyncIterator[ContractServer]:
    """A coordinator with 64 channels."""
    async with ContractServer(CHANNELS) as running:
        yield running


@pytest.fixture
async def broker(server: ContractServer) -> AsyncIterator[Broker]:
    """A broker of the server."""
    made = Broker(quick_config(server.target))
    yield made
    await made.close()


async def test_a_save_whose_answer_was_lost_is_repeated_unchanged_until_it_is_known(
    server: ContractServer, broker: Broker
) -> None:
    """A datanode that guesses after a timeout loses rows or writes them twice."""
    server.fail(
        "SaveBinlogPaths",
        Fault(grpc.StatusCode.UNKNOWN, applied=True),
        Fault(grpc.StatusCode.UNAVAILABLE),
        Fault(grpc.StatusCode.DEADLINE_EXCEEDED, applied=True),
    )

    result = await broker.save_binlog_paths(part("c000", 0, 5))

    assert result.outcome == common_pb2.OUTCOME_ALREADY_APPLIED
    assert server.channels["c000"].objects == ["c000/0-5/0"]
    sent = server.calls["SaveBinlogPaths"]
    assert len(sent) == 4
    assert all(request == sent[0] for request in sent)
    assert server.callers == {"datanode"}


async def test_a_call_that_hangs_is_given_up_at_its_deadline_and_repeated(server: ContractServer) -> None:
    """A coordinator that stops without breaking its connections would hold every channel for ever."""
    broker = Broker(quick_config(server.target, call_timeout_seconds=0.2))
    never = asyncio.Event()
    server.fail("SaveBinlogPaths", Fault(hang=never))

    await broker.save_binlog_paths(part("c000", 0, 5))

    assert server.channels["c000"].objects == ["c000/0-5/0"]
    assert len(server.calls["SaveBinlogPaths"]) >= 2  # more, where the machine is slower than the deadline
    never.set()
    await broker.close()


async def test_parts_that_gather_while_a_call_is_under_way_share_the_next_one(server: ContractServer) -> None:
    """One call per channel would make the coordinator's transactions as many as its channels."""
    broker = Broker(quick_config(server.target, save_batch=SaveBatchConfig(linger_seconds=0, calls_in_flight_max=1)))
    go_on = asyncio.Event()
    server.fail("SaveBinlogPaths", Fault(hang=go_on))
    first = asyncio.create_task(broker.save_binlog_paths(part("c000", 0, 5)))
    await server.until(lambda: len(server.calls["SaveBinlogPaths"]) == 1)

    rest = [asyncio.create_task(broker.save_binlog_paths(part(name, 0, 5))) for name in CHANNELS[1:]]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, *rest)

    assert [len(request.channels) for request in server.calls["SaveBinlogPaths"]] == [1, 63]
    await broker.close()


async def test_a_call_refused_as_a_whole_is_cut_until_the_guilty_part_stands_alone(
    server: ContractServer, broker: Broker
) -> None:
    """One malformed part must not stop the channels that happened to travel with it."""
    server.poisoned = {"c017", "c040"}

    outcomes = await asyncio.gather(
        *(broker.save_binlog_paths(part(name, 0, 5)) for name in CHANNELS), return_exceptions=True
    )

    refused = {name for name, outcome in zip(CHANNELS, outcomes, strict=True) if isinstance(outcome, BaseException)}
    assert refused == {"c017", "c040"}
    assert all(isinstance(outcomes[CHANNELS.index(name)], InvalidFieldError) for name in refused)
    assert all(server.channels[name].objects for name in CHANNELS if name not in refused)


async def test_a_refused_channel_does_not_disturb_the_others_of_its_call(
    server: ContractServer, broker: Broker
) -> None:
    """Results are per channel: a fence of one channel is nobody else's news."""
    server.channels["c001"].epoch = 9

    fenced, gap, fine = await asyncio.gather(
        broker.save_binlog_paths(part("c001", 0, 5)),
        broker.save_binlog_paths(part("c002", 3, 5)),
        broker.save_binlog_paths(part("c003", 0, 5)),
        return_exceptions=True,
    )

    assert isinstance(fenced, FencedError)
    assert fenced.metadata["epoch"] == "9"
    assert isinstance(gap, GapError)
    assert isinstance(fine, data_coord_pb2.ChannelResult)


async def test_two_parts_of_one_channel_never_share_a_call(server: ContractServer, broker: Broker) -> None:
    """A channel twice in a call refuses the whole call; a graph and its successor may both have one part under way."""
    await asyncio.gather(broker.save_binlog_paths(part("c000", 0, 5)), broker.save_binlog_paths(part("c000", 0, 5)))

    assert [len(request.channels) for request in server.calls["SaveBinlogPaths"]] == [1, 1]


async def test_calls_stay_within_the_limits_and_a_part_that_cannot_is_refused_at_once(server: ContractServer) -> None:
    """Beyond the server's limits a call is refused for ever, and with it every channel in it."""
    limits = SaveBatchConfig(linger_seconds=0, channels_max=8, binlogs_max=20, message_bytes_max=4000)
    broker = Broker(quick_config(server.target, save_batch=limits))

    await asyncio.gather(*(broker.save_binlog_paths(part(name, 0, 5, binlogs=3)) for name in CHANNELS))

    calls = server.calls["SaveBinlogPaths"]
    assert all(len(request.channels) <= 6 for request in calls)  # 6 parts of 3 binlogs are 18
    assert all(request.ByteSize() <= 4000 for request in calls)
    with pytest.raises(BatchTooLargeError, match="cut smaller ranges"):
        await broker.save_binlog_paths(part("c000", 5, 6, binlogs=21))
    with pytest.raises(BatchTooLargeError):
        await broker.save_binlog_paths(part("c000", 5, 6, path="x" * 5000))
    await broker.close()


async def test_an_overloaded_coordinator_is_left_alone_for_as_long_as_it_asks(
    server: ContractServer, broker: Broker
) -> None:
    """Repeating at once what was refused for lack of room makes the lack permanent."""
    server.fail("SaveBinlogPaths", Fault(error=OverloadedError("full", retry_delay_ms=150)))
    started = time.monotonic()

    await broker.save_binlog_paths(part("c000", 0, 5))

    assert time.monotonic() - started >= 0.15
    assert len(server.calls["SaveBinlogPaths"]) == 2


async def test_a_coordinator_that_was_away_finds_every_part_sent_again(server: ContractServer, broker: Broker) -> None:
    """Nothing may be lost, doubled or left hanging by an outage, whichever side of the commit it falls on."""
    await broker.save_binlog_paths(part("c000", 0, 5))
    server.fail("SaveBinlogPaths", Fault(hang=asyncio.Event()), Fault(hang=asyncio.Event()))
    waiting = [asyncio.create_task(broker.save_binlog_paths(part(name, 0, 5))) for name in CHANNELS[1:]]
    await server.until(lambda: len(server.calls["SaveBinlogPaths"]) >= 2)

    await server.vanish()
    server.faults.clear()
    await server.listen()
    results = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_SECONDS_MAX)

    assert {result.channel_name for result in results} == set(CHANNELS[1:])
    assert all(len(server.channels[name].objects) == 1 for name in CHANNELS)


async def test_a_graph_that_is_gone_leaves_nothing_in_the_queue(server: ContractServer, broker: Broker) -> None:
    """A cancelled part that is still sent may land after its channel moved; it is fenced then, but need not be sent at all."""
    go_on = asyncio.Event()
    server.fail("SaveBinlogPaths", Fault(hang=go_on), Fault(hang=go_on))
    under_way = [asyncio.create_task(broker.save_binlog_paths(part(name, 0, 5))) for name in ("c000", "c001")]
    await server.until(lambda: sum(len(r.channels) for r in server.calls["SaveBinlogPaths"]) == 2)
    queued = asyncio.create_task(broker.save_binlog_paths(part("c002", 0, 5)))
    await asyncio.sleep(0)
    queued.cancel()
    go_on.set()
    await asyncio.gather(*under_way)
    await broker.save_binlog_paths(part("c003", 0, 5))

    assert server.channels["c002"].objects == []


async def test_closing_the_broker_tells_everybody_who_waits(server: ContractServer) -> None:
    """A graph that waits for an answer nobody will bring never ends, and with it its process."""
    broker = Broker(quick_config(server.target))
    server.fail("SaveBinlogPaths", Fault(hang=asyncio.Event()), Fault(hang=asyncio.Event()))
    waiting = [asyncio.create_task(broker.save_binlog_paths(part(name, 0, 5))) for name in CHANNELS[:3]]
    await server.until(lambda: bool(server.calls["SaveBinlogPaths"]))

    await broker.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_SECONDS_MAX)

    assert all(isinstance(outcome, CoordinatorUnreachableError) for outcome in outcomes)


async def test_a_checkpoint_call_is_sent_once_and_answers_each_entry(server: ContractServer, broker: Broker) -> None:
    """The updater coalesces and repeats; a broker that repeats too would send positions that are long overtaken."""
    server.channels["c001"].epoch = 9
    server.channels["c002"].checkpoint.timestamp = 50
    updates = [CheckpointUpdate(name, 1, Position(10, b"seek")) for name in ("c000", "c001", "c002", "none")]

    moved, fenced, behind, unknown = await broker.update_channel_checkpoints(updates, 5.0)

    assert moved.persisted == Position(10, b"seek")
    assert moved.outcome == common_pb2.OUTCOME_APPLIED
    assert isinstance(fenced.error, FencedError)
    assert fenced.persisted is None
    assert behind.outcome == common_pb2.OUTCOME_ALREADY_APPLIED
    assert behind.persisted is not None
    assert behind.persisted.timestamp == 50
    assert isinstance(unknown.error, ChannelNotFoundError)

    server.fail("UpdateChannelCheckpoint", Fault(grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(CoordinatorUnreachableError):
        await broker.update_channel_checkpoints(updates[:1], 5.0)
    assert len(server.calls["UpdateChannelCheckpoint"]) == 2


async def test_the_broker_knows_how_long_checkpoints_are_to_wait(server: ContractServer, broker: Broker) -> None:
    """The updater repeats what is urgent by delays of its own, which know nothing of how long the queue is."""
    assert broker.checkpoint_delay_seconds() == 0.0
    updates = [CheckpointUpdate("c000", 1, Position(10, b"seek"))]
    asked_seconds = []
    for delay_ms in (30_000, 10):
        server.fail("UpdateChannelCheckpoint", Fault(error=OverloadedError("full", retry_delay_ms=delay_ms)))
        with pytest.raises(OverloadedError):
            await broker.update_channel_checkpoints(updates, 5.0)
        asked_seconds.append(broker.checkpoint_delay_seconds())

    assert 0.0 < asked_seconds[0] <= 1.25 * 30
    assert 10.0 < asked_seconds[1] <= asked_seconds[0], "the longest that was asked for counts"


async def test_recovery_info_of_many_channels_shares_calls_and_a_lost_channel_fails_alone(
    server: ContractServer, broker: Broker
) -> None:
    """A datanode is given a hundred channels at once; one that was dropped meanwhile must not keep the others waiting."""
    server.recovery_page = 10
    names = [*CHANNELS, "never-created"]

    infos = await asyncio.gather(*(broker.get_recovery_info(name) for name in names), return_exceptions=True)

    assert [info.channel_name for info in infos[:-1] if not isinstance(info, BaseException)] == CHANNELS
    assert isinstance(infos[-1], ChannelNotFoundError)
    assert len(server.calls["GetRecoveryInfo"]) < 30  # 7 pages, and what isolating one of 65 costs


async def test_a_release_that_is_answered_by_a_fence_is_done(server: ContractServer, broker: Broker) -> None:
    """Its first answer may have been lost: the epoch it named is gone either way."""
    server.fail("ReleaseChannels", Fault(grpc.StatusCode.UNKNOWN, applied=True))

    await broker.release_channel("c000", 1, Position(7))
    await broker.release_channel("never-created", 1, None)

    assert server.channels["c000"].releases == [(1, 7)]
    assert server.channels["c000"].checkpoint.timestamp == 7


async def test_a_claim_answers_each_channel_and_gives_up_when_told(server: ContractServer, broker: Broker) -> None:
    """A Spark batch cannot wait for ever; a datanode can."""
    claims = await broker.claim_channels("query-1", ["c000", "never-created"])

    assert claims[0].info is not None
    assert claims[0].info.epoch == 1
    assert isinstance(claims[1].error, ChannelNotFoundError)

    await server.vanish()
    with pytest.raises(CoordinatorUnreachableError, match="did not answer ClaimChannels"):
        await broker.claim_channels("query-1", ["c000"], give_up_seconds=0.2)


async def test_a_broken_watch_is_opened_again_and_says_the_whole_state(server: ContractServer, broker: Broker) -> None:
    """The stream is how a datanode learns what it owns: if it stays broken, the datanode is deaf."""
    node_id = (await broker.register(data_coord_pb2.RegisterDataNodeRequest(job="j", slot=0))).node_id
    server.fail("WatchDmChannels", Fault(grpc.StatusCode.UNAVAILABLE), Fault(grpc.StatusCode.UNKNOWN))

    async with contextlib.aclosing(broker.watch(node_id)) as states:
        assert not (await anext(states)).channels
        server.assign(node_id, "c000", "c001")
        names = {watch.channel_name for watch in (await anext(states)).channels}
        while names != {"c000", "c001"}:
            names = {watch.channel_name for watch in (await anext(states)).channels}
        await server.vanish()
        await server.listen()
        assert {watch.channel_name for watch in (await anext(states)).channels} == {"c000", "c001"}
        server.end_session(node_id)
        with pytest.raises(SessionNotFoundError):
            await anext(states)


async def test_a_watch_stream_is_renewed_after_its_time(server: ContractServer) -> None:
    """A stream that a proxy swallowed looks like a coordinator with nothing to say."""
    broker = Broker(quick_config(server.target, watch_stream_seconds=0.1))
    node_id = (await broker.register(data_coord_pb2.RegisterDataNodeRequest(job="j", slot=0))).node_id

    async with contextlib.aclosing(broker.watch(node_id)) as states:
        revisions = [(await anext(states)).revision for _ in range(3)]

    assert revisions == [0, 0, 0]
    assert len(server.calls["WatchDmChannels"]) >= 3  # more, where the machine is slower than the stream is long
    await broker.close()


async def test_a_heartbeat_is_sent_once(server: ContractServer, broker: Broker) -> None:
    """The next heartbeat is its repetition: a late one would overwrite a newer report."""
    server.fail("ReportDataNodeTtMsgs", Fault(grpc.StatusCode.UNAVAILABLE))
    node_id = (await broker.register(data_coord_pb2.RegisterDataNodeRequest(job="j", slot=0))).node_id

    with pytest.raises(CoordinatorUnreachableError):
        await broker.heartbeat(data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id))
    with pytest.raises(SessionNotFoundError):
        await broker.heartbeat(data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=99))

    assert len(server.calls["ReportDataNodeTtMsgs"]) == 2


def test_each_event_loop_gets_its_own_channel() -> None:
    """An asyncio channel of gRPC belongs to the loop it was made in; used in another one it hangs."""
    server = ContractServer(["c000"])
    brokers: list[Broker] = []

    async def save_in_this_loop() -> data_coord_pb2.ChannelResult:
        async with server:
            brokers[:] = brokers or [Broker(quick_config(server.target))]
            return await brokers[0].save_binlog_paths(part("c000", 0, 5))

    outcomes = [asyncio.run(save_in_this_loop()).outcome for _ in range(2)]

    assert outcomes == [common_pb2.OUTCOME_APPLIED, common_pb2.OUTCOME_ALREADY_APPLIED]


async def test_a_fork_before_the_first_call_is_harmless_and_one_after_it_is_told_so(server: ContractServer) -> None:
    """Spark forks its workers. A child of a process that has called already would hang, for ever and without a word."""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(root / "tests" / "broker" / "fork_script.py"),
        server.target,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 60)

    assert printed.decode().splitlines() == ["c000 saved", "c001 saved", "c002 COORDINATOR_UNREACHABLE", "c003 saved"]
