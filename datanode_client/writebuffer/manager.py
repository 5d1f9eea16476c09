"""The write buffer manager: the channels of a process, the memory they share, and the ticking of time-based policies."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from datacoord.errors import InternalError
from datanode_client.clock import Clock
from datanode_client.config import DataNodeConfig
from datanode_client.writebuffer.policies import SyncReason, oldest_buffer
from datanode_client.writebuffer.write_buffer import WriteBuffer


class ManagedChannel(Protocol):
    """What the manager asks of a channel's graph."""

    @property
    def write_buffer(self) -> WriteBuffer:
        """Its buffers."""
        ...

    def sync(self, partition_id: int, reason: SyncReason) -> None:
        """Cuts a lane and submits the sync."""
        ...

    def on_clock(self) -> None:
        """Looks at what depends on time."""
        ...


@dataclass(slots=True)
class MemoryLedger:
    """Bytes of rows the process holds.

    Attributes:
        buffered_bytes: in write buffers.
        syncing_bytes: in syncs whose objects are not written yet.
    """

    buffered_bytes: int = 0
    syncing_bytes: int = 0


class WriteBufferManager:
    """All channels of a process. Used on the event loop's thread only.

    Args:
        config: memory limit and watermark, tick.
        clock: elapsed time.
    """

    def __init__(self, config: DataNodeConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._channels: dict[tuple[str, int], ManagedChannel] = {}
        self._room = asyncio.Event()
        self._room.set()
        self.memory = MemoryLedger()

    @property
    def channels(self) -> int:
        """How many channels are registered."""
        return len(self._channels)

    @property
    def rows(self) -> int:
        """Rows in all write buffers."""
        return sum(channel.write_buffer.rows for channel in self._channels.values())

    def register(self, channel_name: str, epoch: int, channel: ManagedChannel) -> None:
        """Takes a channel in.

        Raises:
            InternalError: the channel is registered at this epoch already: one epoch, one flow graph (PROTOCOL S3).
        """
        if (channel_name, epoch) in self._channels:
            raise InternalError(f"channel {channel_name} already has a flow graph at epoch {epoch}")
        self._channels[channel_name, epoch] = channel

    def remove(self, channel_name: str, epoch: int) -> None:
        """Lets a channel go with everything it has buffered; one that is not registered is no error."""
        channel = self._channels.pop((channel_name, epoch), None)
        if channel is not None:
            self.add_buffered(-channel.write_buffer.size_bytes)

    def add_buffered(self, size_bytes: int) -> None:
        """Accounts for rows that came into write buffers (or left them, if negative)."""
        self.memory.buffered_bytes += size_bytes
        self._update_room()

    def add_syncing(self, size_bytes: int) -> None:
        """Accounts for rows that wait to be written (or were, if negative)."""
        self.memory.syncing_bytes += size_bytes
        self._update_room()

    def check_memory(self) -> None:
        """Evicts the oldest lane of the largest channel, again and again, until buffers are below the watermark."""
        if not self._config.memory_force_sync_enable:
            return
        while self.memory.buffered_bytes >= self._config.memory_force_sync_bytes:
            largest = max(self._channels.values(), key=lambda channel: channel.write_buffer.size_bytes, default=None)
            lane = oldest_buffer(largest.write_buffer.lanes.values()) if largest is not None else None
            if largest is None or lane is None:
                return
            largest.sync(lane.partition_id, SyncReason.MEMORY)

    async def wait_for_room(self) -> None:
        """Waits until rows take less memory than the limit. Readers wait here before they take in more."""
        await self._room.wait()

    async def run(self) -> None:
        """Ticks all channels, for ever."""
        while True:
            await self._clock.sleep(self._config.sync_policy_tick_seconds)
            for channel in list(self._channels.values()):
                channel.on_clock()

    def _update_room(self) -> None:
        # Without eviction buffers may rightly fill the memory until they are stale; only what is being written counts then.
        buffered = self.memory.buffered_bytes if self._config.memory_force_sync_enable else 0
        if buffered + self.memory.syncing_bytes < self._config.memory_limit_bytes:
            self._room.set()
        else:
            self._room.clear()
