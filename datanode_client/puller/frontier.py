"""The frontier: the smallest timestamp over a set of key ranges."""

import heapq
from collections.abc import Sequence

from datanode_client.puller.range_map import RangeMap
from datanode_client.puller.span import UPPER_BOUND_KEY, Span

TS_MAX = 2**64 - 1
"""The largest timestamp: what is not tracked has it, so that it never holds the minimum back."""

_STALE_ENTRIES_MIN = 64


class Frontier:
    """Keeps a timestamp per key range and knows the smallest.

    A region's range is forwarded whenever the region reports; ranges split, merge and change their region freely, since only
    keys count. TiCDC's frontier found a range by its region id first and stuck when an id came back with another range
    (tiflow #10488); here there is nothing to go stale.

    A range may be forwarded to a lower timestamp, and the frontier then goes back: after a merge the range is read again from the
    lower of both timestamps. Who announces the frontier must hold on to the highest (`PullerCore` does).

    Args:
        ts: where all ranges start.
        spans: the ranges.
    """

    def __init__(self, ts: int, spans: Sequence[Span]) -> None:
        self._map: RangeMap[int] = RangeMap(TS_MAX)
        self._heap: list[tuple[int, bytes]] = []
        for span in spans:
            self.forward(span, ts)

    def forward(self, span: Span, ts: int) -> None:
        """Sets the timestamp of a range, whatever it had before.

        Raises:
            InvalidFieldError: the span is empty.
        """
        for start, value in self._map.assign(span, ts):
            heapq.heappush(self._heap, (value, start))
        if len(self._heap) > 2 * len(self._map) + _STALE_ENTRIES_MIN:
            self._heap = [(value, start) for start, value in self._map.boundaries()]
            heapq.heapify(self._heap)

    def frontier(self) -> int:
        """The smallest timestamp; TS_MAX if nothing is tracked."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else TS_MAX

    def slowest(self) -> tuple[Span, int]:
        """The first range in key order that has the smallest timestamp, and that timestamp."""
        self._drop_stale()
        if not self._heap:
            return Span(), TS_MAX
        ts, start = self._heap[0]
        return self._map.piece_at(start), ts

    def entries(self) -> list[tuple[bytes, int]]:
        """`(start key, ts)` in key order, each valid up to the next key; the last one is not tracked.

        An unbounded end shows as UPPER_BOUND_KEY.
        """
        entries = self._map.boundaries()
        if entries and entries[-1][1] != TS_MAX:
            entries.append((max(UPPER_BOUND_KEY, entries[-1][0]), TS_MAX))
        return entries

    def _drop_stale(self) -> None:
        """Pops heap entries whose boundary is gone or has another timestamp by now; the rest of the heap is looked at later."""
        while self._heap and not self._map.holds(self._heap[0][1], self._heap[0][0]):
            heapq.heappop(self._heap)
