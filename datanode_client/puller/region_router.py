"""The region router: a limit per store on regions that are not initialized yet, so that initial scans do not overrun a store."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from datanode_client.puller.admission import AdmissionController, Lease, ScanPriority

T = TypeVar("T")

REGION_SCAN_LIMIT = 40
"""Tokens per store, TiCDC's `region-scan-limit`: it keeps a store's scan threads busy without filling its memory."""


class RegionRouter(Generic[T]):
    """Hands regions out, per store no more than its tokens allow. One router serves all subscriptions of a client.

    A token is reserved when a region is handed out and not only when its request has been sent, so the limit is never overshot;
    it is held until the region is initialized, or fails.

    Args:
        limit: tokens per store.
        multiplier: how many times the limit high priority may use.
    """

    def __init__(self, limit: int = REGION_SCAN_LIMIT, multiplier: int = 1) -> None:
        self._limit = limit
        self._multiplier = multiplier
        self._stores: dict[Hashable, AdmissionController[T]] = {}
        self._sequence = 0
        self._pending = 0

    def add_region(self, store: Hashable, item: T, priority: ScanPriority = ScanPriority.LOW) -> None:
        """Queues a region for a store."""
        controller = self._stores.get(store)
        if controller is None:
            controller = self._stores[store] = AdmissionController(self._limit, self._multiplier)
        self._sequence += 1
        self._pending += 1
        controller.submit(item, priority, self._sequence)

    def take(self) -> tuple[Hashable, Lease[T]] | None:
        """The next region that may be sent, over all stores; a full store does not hold the others up.

        Returns:
            its store, and the lease of its token, to be finished when the region is initialized or has failed; None if nothing may
            be sent now.
        """
        if not self._pending:
            return None
        ready = [(head, store) for store, controller in self._stores.items() if (head := controller.head()) is not None]
        if not ready:
            return None
        _, store = min(ready, key=lambda pair: pair[0])
        self._pending -= 1
        lease = self._stores[store].pop()
        assert lease is not None, "its head may go"  # noqa: S101
        return store, lease

    def tokens(self, store: Hashable) -> int:
        """Tokens of a store in use."""
        controller = self._stores.get(store)
        return controller.inflight if controller else 0

    def pending(self, store: Hashable) -> int:
        """Regions queued for a store."""
        controller = self._stores.get(store)
        return controller.pending if controller else 0
