"""A background loop: runs a round, waits a jittered interval or until it is asked for, and never dies of an error."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from coordinator.core.jobs import Job
from coordinator.logging import get_logger
from coordinator.web.metrics import Metrics
from datacoord.errors import DatacoordError

JITTER: Final = 0.2
"""Share by which an interval is shortened or lengthened, so that replicas started together do not stay in step."""

KICK_DELAY_SECONDS: Final = 0.02
"""A round that was asked for begins this much later: what asks for one often comes in swarms."""

Pause = Callable[[asyncio.Event, float], Awaitable[None]]
"""Waits until an event is set or so many seconds have passed."""

_log = get_logger("jobs")


async def pause(event: asyncio.Event, seconds: float) -> None:
    """The real Pause."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


class RanElsewhereError(Exception):
    """Another process holds the job: this round did nothing, and says nothing of how the job is."""


class JobLoop:
    """Runs one background job.

    Args:
        name: of the job, for logs and metrics.
        run_round: one round; returns fields worth a log line, or nothing. Raises RanElsewhereError where another process holds
            the job.
        interval_seconds: mean time from the end of a round to the next.
        metrics: where rounds are counted.
        wait: replaces waiting, for tests.
        rng: source of the jitter.
        clock: wall clock in seconds, for `job_last_success_timestamp_seconds`.
    """

    def __init__(
        self,
        name: Job,
        run_round: Callable[[], Awaitable[dict[str, object] | None]],
        interval_seconds: float,
        metrics: Metrics,
        *,
        wait: Pause = pause,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._run_round = run_round
        self._interval_seconds = interval_seconds
        self._metrics = metrics
        self._wait = wait
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._clock = clock
        self._kicked = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the loop; its first round begins at once."""
        self._task = asyncio.create_task(self._loop(), name=f"job {self.name}")

    def kick(self) -> None:
        """Asks for a round soon."""
        self._kicked.set()

    async def stop(self) -> None:
        """Lets a round in progress end, and the loop with it."""
        self._stopping = True
        self._kicked.set()
        if self._task is not None:
            await self._task

    async def _loop(self) -> None:
        while not self._stopping:
            self._kicked.clear()
            await self._round()
            if not self._stopping:
                await self._wait(self._kicked, self._interval_seconds * self._rng.uniform(1 - JITTER, 1 + JITTER))
            if self._kicked.is_set() and not self._stopping:
                await asyncio.sleep(KICK_DELAY_SECONDS)

    async def _round(self) -> None:
        started = time.perf_counter()
        try:
            fields = await self._run_round()
        except RanElsewhereError:
            self._metrics.job_runs.labels(self.name, "elsewhere").inc()
        except Exception as error:  # noqa: BLE001 - a loop that dies of one error stops leases, assignment or sealing for good
            self._metrics.job_runs.labels(self.name, "failed").inc()
            expected = isinstance(error, DatacoordError)
            reason = error.reason.value if isinstance(error, DatacoordError) else type(error).__name__
            _log.warning("job_failed", job=self.name, reason=reason, exc_info=None if expected else error)
        else:
            self._metrics.job_runs.labels(self.name, "ok").inc()
            self._metrics.job_last_success.labels(self.name).set(self._clock())
            if fields:
                _log.info("job_did", job=self.name, **fields)
        finally:
            self._metrics.job_duration.labels(self.name).observe(time.perf_counter() - started)
