"""Deletes what is kept long enough: history, sessions that are over, flushes that are done."""

from collections import Counter
from typing import Final

from coordinator.core.retention import RetentionPolicy
from coordinator.jobs.loop import RanElsewhereError
from coordinator.store import Store
from coordinator.web.metrics import Metrics

ROUNDS_MAX: Final = 200
"""Rounds of one run. Others write in between; a million entries of the history go in one run."""


class RetentionRounds:
    """Rounds of the retention job, as many as there is something to delete for.

    Args:
        store: the state.
        metrics: where what was deleted is counted.
        policy: what is kept for how long.
    """

    def __init__(self, store: Store, metrics: Metrics, policy: RetentionPolicy) -> None:
        self._store = store
        self._metrics = metrics
        self._policy = policy
        self._stopping = False

    def stop(self) -> None:
        """Lets a run end with the round in progress."""
        self._stopping = True

    async def __call__(self) -> dict[str, object]:
        """One run."""
        deleted: Counter[str] = Counter()
        for rounds in range(ROUNDS_MAX):
            done = await self._store.run_retention_job(self._policy)
            if not done.ran and not rounds:
                raise RanElsewhereError
            deleted.update(done.deleted)
            for kind, count in done.deleted.items():
                self._metrics.retention_deleted.labels(kind).inc(count)
            if not done.more or self._stopping:
                break
        return {"deleted": {kind: count for kind, count in deleted.items() if count}} if deleted.total() else {}
