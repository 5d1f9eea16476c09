"""Keepalive over real connections: the server bears how often our clients ping, and they notice a server that stands still."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from server.running_coordinator import CoordinatorProcess, definition, running

from datacoord import transport
from datacoord.access import Access
from datacoord.credentials import Credentials
from datacoord.v1 import admin_pb2, admin_pb2_grpc, collection_pb2_grpc, data_coord_pb2, data_coord_pb2_grpc

PERIOD_MS = 1_000
"""gRPC pings no more often."""
TIMEOUT_MS = 6_000
"""Shorter than agreed, and long enough for a busy machine."""
PINGS = 3 + transport.KEEPALIVE_STRIKES_MAX
"""The first is never a strike; the one after the last strike ends the connection."""
WAIT_SECONDS_MAX = 30.0
"""Of what must happen; gRPC's own limits, where ours do not count, are above it."""
_PREFACE_BYTES = 24
_PING, _GOAWAY, _ACK = 6, 7, 1


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agreed period and floor in fewer milliseconds, at the agreed ratio."""
    floor_ms = transport.KEEPALIVE_FLOOR_MS * PERIOD_MS // transport.KEEPALIVE_PERIOD_MS
    monkeypatch.setattr(transport, "KEEPALIVE_PERIOD_MS", PERIOD_MS)
    monkeypatch.setattr(transport, "KEEPALIVE_FLOOR_MS", floor_ms)
    monkeypatch.setattr(transport, "KEEPALIVE_TIMEOUT_MS", TIMEOUT_MS)


class Tap:
    """A relay before a server, for one client.

    Attributes:
        address: where the client connects.
        pings: how often the client has pinged.
        goaway: why the server has ended the connection; empty = it has not.
    """

    def __init__(self) -> None:
        self.address = ""
        self.pings = 0
        self.goaway = b""
        self._heard = asyncio.Condition()

    async def until_judged(self) -> None:
        """Waits until the client has pinged often enough, or was sent away."""
        async with asyncio.timeout(WAIT_SECONDS_MAX), self._heard:
            await self._heard.wait_for(lambda: self.pings >= PINGS or self.goaway)

    async def relay(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, of_client: bool) -> None:
        """Hands on frame by frame, until either side is gone."""
        try:
            if of_client:
                target.write(await source.readexactly(_PREFACE_BYTES))
            while True:
                head = await source.readexactly(9)
                payload = await source.readexactly(int.from_bytes(head[:3]))
                target.write(head + payload)
                async with self._heard:
                    self.pings += of_client and head[3] == _PING and not head[4] & _ACK
                    self.goaway += payload if head[3] == _GOAWAY and not of_client else b""
                    self._heard.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            target.close()


@asynccontextmanager
async def tapped(address: str) -> AsyncIterator[Tap]:
    """A tap before the server of an address."""
    tap = Tap()
    host, _, port = address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(
            tap.relay(reader, server_writer, of_client=True), tap.relay(server_reader, writer, of_client=False)
        )

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        tap.address = "{}:{}".format(*listening.sockets[0].getsockname())
        yield tap


def connect(address: str) -> grpc.aio.Channel:
    """A connection as our clients open it."""
    return Access(address, Credentials(), caller="cli", environment={}).open_aio_channel()


async def watch(channel: grpc.aio.Channel) -> Any:
    """A registered datanode's stream of desired states, whose first state has come."""
    collections: Any = collection_pb2_grpc.CollectionServiceStub(channel)  # type: ignore[no-untyped-call]
    await collections.CreateCollection(definition("files"), timeout=WAIT_SECONDS_MAX)
    stubs: Any = data_coord_pb2_grpc.DataCoordServiceStub(channel)  # type: ignore[no-untyped-call]
    registered = await stubs.RegisterDataNode(
        data_coord_pb2.RegisterDataNodeRequest(job="job", collection_names=["files"]), timeout=WAIT_SECONDS_MAX
    )
    stream = stubs.WatchDmChannels(data_coord_pb2.WatchDmChannelsRequest(node_id=registered.node_id))
    await asyncio.wait_for(stream.read(), WAIT_SECONDS_MAX)
    return stream


async def test_clients_that_are_idle_or_watch_are_never_sent_away(tmp_path: Path) -> None:
    """A floor of the server above the period of its clients ends every quiet connection with too_many_pings."""
    async with AsyncExitStack() as stack:
        thread = stack.enter_context(running(tmp_path / "data", datanode_lease_seconds=600.0))
        idle, watching = [await stack.enter_async_context(tapped(thread.address)) for _ in range(2)]
        channels = [await stack.enter_async_context(connect(tap.address)) for tap in (idle, watching)]
        admin: Any = admin_pb2_grpc.AdminServiceStub(channels[0])  # type: ignore[no-untyped-call]
        await admin.ListDataNodes(admin_pb2.ListDataNodesRequest(), timeout=WAIT_SECONDS_MAX)
        await watch(channels[1])
        await asyncio.gather(idle.until_judged(), watching.until_judged())
        assert (idle.goaway, watching.goaway) == (b"", b"")


async def test_a_client_notices_a_server_that_stands_still(tmp_path: Path) -> None:
    """Its kernel still acknowledges every byte: without pings a watching datanode would wait for ever."""
    with CoordinatorProcess(tmp_path / "data") as process:
        async with connect(process.address) as channel:
            stream = await watch(channel)
            os.kill(process.process.pid, signal.SIGSTOP)
            assert await asyncio.wait_for(stream.code(), WAIT_SECONDS_MAX) is grpc.StatusCode.UNAVAILABLE
