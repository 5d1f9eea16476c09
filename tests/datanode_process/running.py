"""A datanode that runs against a coordinator over a real socket, with graphs that only record."""

import asyncio
from typing import Any

from broker.contract_server import ContractServer
from broker.parts import quick_config

from datanode_client.broker import Broker
from datanode_client.client_config import RetryConfig, SessionConfig
from datanode_client.datanode import DataNode
from datanode_client.session import SessionEnd
from datanode_process.graphs import GraphLog

CHANNELS = [f"c{index:03}" for index in range(16)]
QUICK = SessionConfig(
    drain_timeout_seconds=20.0,
    stop_timeout_seconds=20.0,
    farewell_seconds=20.0,
    restart=RetryConfig(0.005, 0.05),
    restart_reset_seconds=60.0,
)


class Running:
    """A datanode that runs against a server."""

    def __init__(self, server: ContractServer, slot: int = 0, **changes: Any) -> None:
        self.server = server
        self.log = GraphLog()
        self.broker = Broker(quick_config(server.target))
        settings: dict[str, Any] = {"session_config": QUICK} | changes
        self.node = DataNode(
            job="j",
            slot=slot,
            collection_names=["t"],
            reader_factory=lambda context: None,  # type: ignore[arg-type, return-value]
            broker=self.broker,
            make_graph=self.log.make,
            **settings,
        )
        self.ended: asyncio.Task[SessionEnd] = asyncio.create_task(self.node.run())

    async def session(self, number: int = 1) -> int:
        """Waits for its n-th session to watch; its number."""
        await self.server.until(lambda: len(self.server.calls["WatchDmChannels"]) >= number)
        return max(self.server.sessions)

    async def close(self) -> None:
        self.ended.cancel()
        await asyncio.gather(self.ended, return_exceptions=True)
        await self.broker.close()


def desired(server: ContractServer, node_id: int) -> dict[str, int]:
    """The desired state of a session as epochs by channel."""
    return {name: watch.epoch for name, watch in server.sessions[node_id].desired.items()}
