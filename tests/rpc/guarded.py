"""A server with one guarded service, for tests that speak to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from coordinator.rpc.guard import Guard
from datacoord.transport import server_options


@asynccontextmanager
async def channel_to(guard: Guard, service: ServiceDescriptor, servicer: object) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a service that is served on loopback. Without the client's own limits: a hostile client has none."""
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers([guard.handlers(service, servicer)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)
