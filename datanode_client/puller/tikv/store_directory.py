"""Where stores are, and the connections to them."""

import asyncio
from typing import Final

import grpc

from datacoord.errors import SourceUnavailableError
from datanode_client.clock import Clock
from datanode_client.puller.tikv.calls import open_channel
from datanode_client.puller.tikv.pd_client import PDClient
from datanode_client.puller.wire import metapb_pb2

REFRESH_SECONDS_MIN: Final = 1.0
"""Between two questions to PD: a store that is down fails every request for it, and its address seldom changes."""


class StoreUnknownError(SourceUnavailableError):
    """PD does not know a store, or it is gone for good."""


class StoreDirectory:
    """Stores by id. Connections are kept until the directory is closed; gRPC mends them by itself.

    Args:
        pd: knows the addresses.
        clock: elapsed time.
    """

    def __init__(self, pd: PDClient, clock: Clock) -> None:
        self._pd = pd
        self._clock = clock
        self._addresses: dict[int, str] = {}
        self._suspects: set[int] = set()
        self._refreshed_at: float | None = None
        self._refreshing = asyncio.Lock()
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def channel(self, store_id: int) -> grpc.aio.Channel:
        """A connection to a store.

        Raises:
            StoreUnknownError: there is no such store.
            PDUnavailableError: its address is not known, and PD does not answer.
        """
        async with self._refreshing:
            if (store_id not in self._addresses or store_id in self._suspects) and self._may_refresh():
                await self._refresh()
        address = self._addresses.get(store_id)
        if address is None:
            raise StoreUnknownError(
                f"PD does not know store {store_id}; its regions are looked up again", store_id=store_id
            )
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        return self._channels[address]

    def suspect(self, store_id: int) -> None:
        """A store could not be reached: its address is asked for again before the next connection."""
        self._suspects.add(store_id)

    async def close(self) -> None:
        """Closes the connections."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    def _may_refresh(self) -> bool:
        return self._refreshed_at is None or self._clock.monotonic() - self._refreshed_at >= REFRESH_SECONDS_MIN

    async def _refresh(self) -> None:
        stores = await self._pd.stores()
        self._refreshed_at = self._clock.monotonic()
        self._suspects.clear()
        self._addresses = {store.id: store.address for store in stores if store.state != metapb_pb2.Tombstone}
