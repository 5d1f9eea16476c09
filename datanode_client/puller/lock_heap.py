"""Regions that stand still, the furthest behind first."""

import heapq
from collections.abc import Iterator, Set
from dataclasses import dataclass


@dataclass(slots=True)
class RegionTs:
    """A region and how far it is stuck.

    Attributes:
        region_id: the region.
        ts: the highest timestamp it reported.
        event_time_ms: when it last reported.
        penalty: how often it has reported since without raising it.
    """

    region_id: int
    ts: int
    event_time_ms: int
    penalty: int = 0


class RegionTsHeap:
    """Regions by timestamp. A heap with entries that go stale: raising a timestamp is O(log n), stale entries are skipped."""

    def __init__(self) -> None:
        self._regions: dict[int, RegionTs] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Number of regions."""
        return len(self._regions)

    def upsert(self, region_id: int, ts: int, time_ms: int) -> None:
        """A region reports. A higher timestamp clears its penalty; the same or a lower one adds to it and changes nothing else."""
        known = self._regions.get(region_id)
        if known is not None and ts <= known.ts:
            known.penalty += 1
            known.event_time_ms = time_ms
            return
        self._regions[region_id] = RegionTs(region_id, ts, time_ms)
        heapq.heappush(self._heap, (ts, region_id))

    def put_back(self, region: RegionTs) -> None:
        """Takes a region that was taken out back in, its penalty unchanged."""
        self._regions[region.region_id] = region
        heapq.heappush(self._heap, (region.ts, region.region_id))

    def keep_only(self, region_ids: Set[int]) -> None:
        """Forgets all other regions."""
        self._regions = {region_id: item for region_id, item in self._regions.items() if region_id in region_ids}
        self._heap = [(item.ts, item.region_id) for item in self._regions.values()]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[RegionTs]:
        """All regions, in no order."""
        return iter(self._regions.values())

    def pop(self) -> RegionTs | None:
        """Takes out the region with the smallest timestamp; None if there is none."""
        while self._heap:
            ts, region_id = heapq.heappop(self._heap)
            known = self._regions.get(region_id)
            if known is not None and known.ts == ts:
                del self._regions[region_id]
                return known
        return None
