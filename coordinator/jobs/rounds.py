"""One round of each job. The store decides and writes; a round reports what it did and whom that concerns."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from coordinator.core.findings import Problem, Severity
from coordinator.jobs.loop import RanElsewhereError
from coordinator.logging import get_logger
from coordinator.store import DataNodeRow, Store
from coordinator.web.lag import lag_figures, show_lag
from coordinator.web.metrics import CHANNEL_STATES, COUNTED_PROBLEMS, COUNTED_SEVERITIES, SESSION_STATES, Metrics
from coordinator.web.reported import ReportedMetrics
from datacoord.errors import DatacoordError

FINDINGS_SECONDS: Final = 60.0

_log = get_logger("jobs")


class LeaseRounds:
    """Ends sessions whose lease ran out. Their channels want new owners at once.

    Args:
        store: the state.
        kick_assignment: called when channels became free.
    """

    def __init__(self, store: Store, kick_assignment: Callable[[], None]) -> None:
        self._store = store
        self._kick_assignment = kick_assignment

    async def __call__(self) -> dict[str, object]:
        """One round."""
        done = await self._store.run_lease_job()
        if not done.ran:
            raise RanElsewhereError
        if not done.ended:
            return {}
        self._kick_assignment()
        return {"ended_sessions": list(done.ended), "freed_channels": done.freed_channels}


class AssignmentRounds:
    """Assigns free channels and balances, and shows how that stands: gauges come from the one replica that runs the job.

    Args:
        store: the state.
        metrics: gauges of sessions and channels.
        reported: what datanodes report, for the metrics port.
        clock: elapsed time in seconds.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        reported: ReportedMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._reported = reported
        self._clock = clock
        self._examined = -FINDINGS_SECONDS

    async def __call__(self) -> dict[str, object]:
        """One round."""
        done = await self._store.run_assignment_job()
        sessions = dict.fromkeys(SESSION_STATES, 0)
        channels = dict.fromkeys(CHANNEL_STATES, 0)
        living: list[DataNodeRow] = []
        if done.ran:
            living = await self._store.living_datanodes()
            for node in living:
                sessions[node.state.name] = sessions.get(node.state.name, 0) + 1
            channels.update(await self._store.count_channels())
        for state, count in sessions.items():
            self._metrics.sessions.labels(state).set(count)
        for state, count in channels.items():
            self._metrics.channels.labels(state).set(count)
        self._reported.show(living)
        # Not on the loop: a hundred thousand channels take a while.
        show_lag(self._metrics, await asyncio.to_thread(lag_figures, living, time.time() * 1000))
        await self._show_findings(done.ran)
        if not done.ran:
            raise RanElsewhereError
        if not (done.assigned or done.asked_to_release):
            return {}
        return {
            "assigned": done.assigned,
            "asked_to_release": done.asked_to_release,
            "unassigned": done.unassigned,
        }

    async def _show_findings(self, ran: bool) -> None:
        """Counts what is wrong, once a minute: everything must be looked at for it."""
        now = self._clock()
        if ran and now < self._examined + FINDINGS_SECONDS:
            return
        self._examined = now if ran else -FINDINGS_SECONDS
        counts: Mapping[tuple[Severity, Problem], int] = {}
        if ran:
            try:
                counts = (await self._store.explain(findings_max=0)).counts
            except DatacoordError as error:
                # What was assigned is assigned: that the counts are old says nothing against the job.
                _log.warning("findings_not_counted", reason=error.reason.value)
                return
        for severity in COUNTED_SEVERITIES:
            for problem in COUNTED_PROBLEMS:
                self._metrics.findings.labels(severity.name, problem.value).set(counts.get((severity, problem), 0))


class SealRounds:
    """Seals growing segments by the policies that depend on time.

    Args:
        store: the state.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def __call__(self) -> dict[str, object]:
        """One round."""
        done = await self._store.run_seal_job()
        if not done.ran:
            raise RanElsewhereError
        return {"sealed": dict(done.sealed)} if done.sealed else {}
