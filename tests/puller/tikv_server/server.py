"""The sockets: one server per store and per member of PD, on loopback."""

import asyncio
from typing import Self

import grpc

from .cluster import TiKVCluster
from .services import PDService, StoreService

_OPTIONS = [
    ("grpc.so_reuseport", 0),
    # Clients of TiKV ping every 10 s while a stream is open.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


class TiKVServer:
    """Serves a cluster. Its sockets live as long as it does; the cluster behind them may be replaced.

    Args:
        cluster: the first cluster.
        pd_members: members of PD.
    """

    def __init__(self, cluster: TiKVCluster, pd_members: int = 2) -> None:
        self.cluster = cluster
        self._pd_members = pd_members
        self._servers: dict[int | str, grpc.aio.Server] = {}
        self.pd_addresses: list[str] = []
        self.store_addresses: dict[int, str] = {}

    async def __aenter__(self) -> Self:
        for store_id in self.cluster.feeds:
            await self.start_store(store_id)
        for member in range(self._pd_members):
            server = grpc.aio.server(options=_OPTIONS)
            service = PDService(lambda: self.cluster, member, lambda: (self.pd_addresses, self.store_addresses))
            server.add_generic_rpc_handlers(service.handlers())
            self.pd_addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            self._servers[f"pd-{member}"] = server
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await asyncio.gather(*(server.stop(None) for server in self._servers.values()))

    async def start_store(self, store_id: int, address: str = "127.0.0.1:0") -> None:
        """Opens the socket of a store."""
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(StoreService(lambda: self.cluster, store_id).handlers())
        port = server.add_insecure_port(address)
        await server.start()
        self.store_addresses[store_id] = f"127.0.0.1:{port}"
        self._servers[store_id] = server

    async def stop_store(self, store_id: int) -> None:
        """Closes the socket of a store, in the middle of whatever it does."""
        await self._servers.pop(store_id).stop(None)
