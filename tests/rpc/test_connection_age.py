"""Connections end when they are old, and nothing that goes over them: no call fails, no state is missed, nothing is doubled."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest
from server.running_coordinator import claim, definition, running, save_part

from coordinator.config import specs
from datacoord import transport
from datacoord.client import CoordinatorClient
from datacoord.v1 import common_pb2, data_coord_pb2, data_coord_pb2_grpc
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig
from rpc.test_keepalive import WAIT_SECONDS_MAX, Tap, connect, tapped

AGE_MS = 100
REPLACED_MIN = 5
SENT_AWAY = b"max_age"


def replaced(tap: Tap) -> int:
    """How often the server has asked for another connection."""
    return tap.goaway.count(SENT_AWAY)


def age(monkeypatch: pytest.MonkeyPatch, grace_ms: int) -> None:
    """Makes connections old soon."""
    monkeypatch.setattr(transport, "CONNECTION_AGE_MS", AGE_MS)
    monkeypatch.setattr(transport, "CONNECTION_GRACE_MS", grace_ms)


def stubs(channel: grpc.aio.Channel) -> Any:
    """Its calls, bare: without the repetition of our clients."""
    return data_coord_pb2_grpc.DataCoordServiceStub(channel)  # type: ignore[no-untyped-call]


async def register(client: CoordinatorClient, channel: grpc.aio.Channel) -> int:
    """A datanode for the channels of a collection that it is given; its number."""
    client.create_collection(definition("files", channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
    request = data_coord_pb2.RegisterDataNodeRequest(job="job", collection_names=["files"])
    node_id: int = (await stubs(channel).RegisterDataNode(request, timeout=WAIT_SECONDS_MAX)).node_id
    return node_id


def watch(channel: grpc.aio.Channel, node_id: int) -> Any:
    """Its stream of desired states."""
    return stubs(channel).WatchDmChannels(data_coord_pb2.WatchDmChannelsRequest(node_id=node_id))


async def test_no_call_and_no_stream_fails_because_its_connection_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour after a deployment every client would see an error at the same time."""
    age(monkeypatch, 60_000)
    async with AsyncExitStack() as stack:
        thread = stack.enter_context(running(tmp_path / "data", datanode_lease_seconds=600.0))
        watching, saving = [await stack.enter_async_context(tapped(thread.address)) for _ in range(2)]
        watcher = await stack.enter_async_context(connect(watching.address))
        channel = await stack.enter_async_context(connect(saving.address))
        with CoordinatorClient(thread.address, timeout_seconds=WAIT_SECONDS_MAX) as client:
            stream = watch(watcher, await register(client, watcher))
            while len((await asyncio.wait_for(stream.read(), WAIT_SECONDS_MAX)).channels) < 2:
                pass
            client.create_collection(definition("saved"))
            lane = claim(client, "saved")[0]
            end = 0
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while min(replaced(watching), replaced(saving)) < 1 or replaced(saving) < REPLACED_MIN:
                    save = data_coord_pb2.SaveBinlogPathsRequest(channels=[save_part(lane, end, end + 1, end + 1)])
                    answer = await stubs(channel).SaveBinlogPaths(save, timeout=WAIT_SECONDS_MAX)
                    assert [result.outcome for result in answer.results] == [common_pb2.OUTCOME_APPLIED]
                    end += 1
            (row,) = client.list_channels(channel_name=lane.channel_name)
            assert row.checkpoint.timestamp == end
            client.drop_collection("files")
        while (await asyncio.wait_for(stream.read(), WAIT_SECONDS_MAX)).channels:
            pass  # the end of the stream has no channels, and would fail


async def test_a_watcher_whose_stream_is_ended_with_its_connection_opens_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A datanode that hears nothing any more keeps channels that others got."""
    age(monkeypatch, AGE_MS)
    async with AsyncExitStack() as stack:
        thread = stack.enter_context(running(tmp_path / "data", datanode_lease_seconds=600.0))
        tap = await stack.enter_async_context(tapped(thread.address))
        broker = Broker(BrokerConfig(tap.address))
        stack.push_async_callback(broker.close)
        with CoordinatorClient(thread.address, timeout_seconds=WAIT_SECONDS_MAX) as client:
            async with connect(thread.address) as channel:
                node_id = await register(client, channel)
            watched = await stack.enter_async_context(aclosing(broker.watch(node_id)))
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                async for state in watched:
                    if replaced(tap) >= REPLACED_MIN and state.channels:
                        break
                client.drop_collection("files")
                async for state in watched:
                    if not state.channels:
                        break


def test_old_connections_outlive_every_call() -> None:
    """A grace that is shorter than a call ends calls that were in order."""
    longest = specs()["rpc_deadline_seconds_max"].metadata["maximum"]
    assert longest * 1000 < transport.CONNECTION_GRACE_MS
    assert BrokerConfig("x").watch_stream_seconds * 1000 < transport.CONNECTION_GRACE_MS
