"""Admission: how many regions may be under initial scan at once, and in which order they go."""

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class ScanPriority(IntEnum):
    """Urgency of an initial scan; smaller goes first."""

    HIGH = 0
    """The region is close to the present, so its scan is short and its users are waiting."""
    LOW = 1


SCAN_HIGH_PRIORITY_LAG_MS = 10 * 60 * 1000
"""A region that is no further behind than this is urgent (TiCDC's `old-start-ts-scan-low-priority-threshold`)."""


def scan_priority(resolved_ms: int, pd_now_ms: int, *, was_initialized: bool) -> ScanPriority:
    """Urgency of a region's scan.

    Args:
        resolved_ms: how far the region has come; 0 = from the beginning of time.
        pd_now_ms: the time by the same clock; 0 = not known.
        was_initialized: whether the whole span has been initialized before: then its users follow the present already.
    """
    if was_initialized or (resolved_ms and pd_now_ms and pd_now_ms - resolved_ms <= SCAN_HIGH_PRIORITY_LAG_MS):
        return ScanPriority.HIGH
    return ScanPriority.LOW


@dataclass(eq=False, slots=True)
class Lease(Generic[T]):
    """A place under the limit.

    Attributes:
        item: what was admitted.
    """

    item: T
    _controller: "AdmissionController[T] | None"

    def finish(self) -> bool:
        """The scan is over.

        Returns:
            whether this call gave the place back; it is given back once, whatever comes together.
        """
        if self._controller is None:
            return False
        self._controller.inflight -= 1
        self._controller = None
        return True

    def abort(self) -> bool:
        """The scan failed, or never began; see `finish`."""
        return self.finish()


class AdmissionController(Generic[T]):
    """A queue with a limit. High priority goes before low and may use more places; within a class, order of submission.

    Args:
        window: places for low priority: it goes while fewer than `window` are under way.
        multiplier: high priority goes while fewer than `window * multiplier` are under way.
    """

    def __init__(self, window: int, multiplier: int = 1) -> None:
        self._limits = {ScanPriority.HIGH: window * multiplier, ScanPriority.LOW: window}
        self._queue: list[tuple[ScanPriority, int, T]] = []
        self._closed = False
        self.inflight = 0

    @property
    def pending(self) -> int:
        """Number of items in the queue."""
        return len(self._queue)

    def submit(self, item: T, priority: ScanPriority, sequence: int) -> bool:
        """Queues an item.

        Args:
            item: what to admit.
            priority: its class.
            sequence: its place in the order of submission; unique, rising.

        Returns:
            False once the controller is closed.
        """
        if self._closed:
            return False
        heapq.heappush(self._queue, (priority, sequence, item))
        return True

    def head(self) -> tuple[ScanPriority, int] | None:
        """Priority and sequence of the item that would go now; None if nobody may."""
        if not self._queue or self.inflight >= self._limits[self._queue[0][0]]:
            return None
        return self._queue[0][:2]

    def pop(self) -> Lease[T] | None:
        """Admits the next item; None if nobody may go now."""
        if self.head() is None:
            return None
        _, _, item = heapq.heappop(self._queue)
        self.inflight += 1
        return Lease(item, self)

    def drain(self) -> list[T]:
        """Empties the queue.

        Returns:
            what was in it, in the order in which it would have gone.
        """
        items = [item for _, _, item in sorted(self._queue, key=lambda entry: entry[:2])]
        self._queue.clear()
        return items

    def close(self) -> list[T]:
        """Refuses and forgets all; who holds a lease keeps it.

        Returns:
            what was in the queue.
        """
        self._closed = True
        return self.drain()
