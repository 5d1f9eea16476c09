"""Open WatchDmChannels streams of this process: woken at once by local changes, by polling for those of other replicas."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Gauge

from coordinator.store import DesiredState, Store
from datacoord.errors import OverloadedError, StoreUnavailableError
from datacoord.limits import WATCH_STREAMS_MAX

RETRY_DELAY_MS: Final = 1000


@dataclass(eq=False)
class _Stream:
    """One open stream: the last revision it was sent, and the event that wakes it."""

    revision: int = -1
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class WatchHub:
    """Level-triggered streams of desired states.

    A stream that is woken reads the whole state again, so that wakes may be merged, lost in a restart, or come for nothing.

    Args:
        store: where desired states come from.
        open_streams: gauge of open streams.
        streams_max: open streams at most; beyond it OVERLOADED.
    """

    def __init__(self, store: Store, open_streams: Gauge, streams_max: int = WATCH_STREAMS_MAX) -> None:
        self._store = store
        self._open_streams = open_streams
        self._streams_max = streams_max
        self._streams: defaultdict[int, set[_Stream]] = defaultdict(set)
        self._count = 0
        self._closed = False
        store.on_desired_change(self.wake)

    def wake(self, node_ids: frozenset[int]) -> None:
        """Wakes the streams of these sessions."""
        for node_id in node_ids & self._streams.keys():
            for stream in self._streams[node_id]:
                stream.wake.set()

    async def poll(self) -> None:
        """Wakes the streams whose state was changed by another process, and those whose session is over. One read for all."""
        node_ids = list(self._streams)
        if not node_ids:
            return
        revisions = await self._store.desired_revisions(node_ids)
        for node_id in node_ids:
            revision = revisions.get(node_id)
            for stream in self._streams.get(node_id, ()):
                if revision is None or revision > stream.revision:
                    stream.wake.set()

    def close(self) -> None:
        """Ends every stream; their datanodes find another coordinator, or this one again."""
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.wake.set()

    async def watch(self, node_id: int, deadline: float) -> AsyncGenerator[DesiredState, None]:
        """Yields the desired state of a session at once and after every change.

        Args:
            node_id: the session.
            deadline: of the first answer, in the time of the loop.

        Raises:
            SessionNotFoundError: the session is over.
            OverloadedError: too many streams are open.
            StoreUnavailableError: the coordinator is shutting down, or the database is away.
        """
        if self._count >= self._streams_max:
            raise OverloadedError(
                f"{self._streams_max} datanodes watch this coordinator, the most it takes; try again or another one",
                retry_delay_ms=RETRY_DELAY_MS,
            )
        stream = _Stream()
        self._streams[node_id].add(stream)
        self._count += 1
        self._open_streams.inc()
        try:
            state = await self._store.watch_datanode(node_id, deadline=deadline)
            while True:
                if state.revision > stream.revision:
                    stream.revision = state.revision
                    yield state
                await stream.wake.wait()
                if self._closed:
                    raise StoreUnavailableError("this coordinator is shutting down; reconnect")
                stream.wake.clear()
                state = await self._store.desired_state(node_id)
        finally:
            self._open_streams.dec()
            self._count -= 1
            self._streams[node_id].discard(stream)
            if not self._streams[node_id]:
                del self._streams[node_id]
