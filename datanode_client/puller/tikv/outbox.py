"""What waits for the consumer of a subscription."""

import asyncio
from collections import deque

from datanode_client.puller.events import EntryBatch, RegionFeedEvent
from datanode_client.puller.spill import entry_bytes

RESOLVED_BYTES = 128
"""What the resolved timestamp of one region weighs, roughly."""


class Outbox:
    """A queue of events, measured in bytes. Streams put and then wait for room, so that it holds one message too much at most.

    Args:
        bytes_max: above it, streams wait.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._events: deque[tuple[RegionFeedEvent, int]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._error: BaseException | None = None

    def put(self, event: RegionFeedEvent) -> None:
        """Adds an event."""
        size = (
            sum(map(entry_bytes, event.entries))
            if isinstance(event, EntryBatch)
            else RESOLVED_BYTES * len(event.regions)
        )
        self._events.append((event, size))
        self._bytes += size
        self._filled.set()
        if self._bytes > self._bytes_max:
            self._room.clear()

    def fail(self, error: BaseException) -> None:
        """Ends the queue: once it is empty, `get` raises the error. What comes later is of no use to anybody."""
        self._error = self._error or error
        self._filled.set()
        self._room.set()

    async def get(self) -> RegionFeedEvent:
        """The next event.

        Raises:
            BaseException: what the queue was ended with.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            self._filled.clear()
            await self._filled.wait()
        event, size = self._events.popleft()
        self._bytes -= size
        if self._bytes <= self._bytes_max:
            self._room.set()
        return event

    def close(self) -> None:
        """There is no consumer any more: nobody waits for it."""
        self._events.clear()
        self._bytes = 0
        self._room.set()

    async def wait_for_room(self) -> None:
        """Waits until the consumer has caught up."""
        await self._room.wait()
