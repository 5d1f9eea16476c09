"""What waits for a consumer: of a subscription, or of a puller."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from datanode_client.puller.events import EntryBatch, Resolved, ResolvedSpans
from datanode_client.puller.spill import entry_bytes

RESOLVED_BYTES = 128
"""What the resolved timestamp of one region weighs, roughly."""

EventT = TypeVar("EventT", bound=EntryBatch | ResolvedSpans | Resolved)


class Outbox(Generic[EventT]):
    """A queue of events, measured in bytes. Who puts then waits for room, so that it holds one event too much of each at most.

    Args:
        bytes_max: above it, there is no room.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._events: deque[tuple[EventT, int]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._error: BaseException | None = None

    def put(self, event: EventT) -> None:
        """Adds an event."""
        if isinstance(event, EntryBatch):
            size = sum(map(entry_bytes, event.entries))
        else:
            size = RESOLVED_BYTES * (len(event.regions) if isinstance(event, ResolvedSpans) else 1)
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

    async def get(self) -> EventT:
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
