"""Background loops: they outlive every error, do not step on each other's feet, and end when they are told."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from coordinator.core.jobs import Job
from coordinator.jobs.loop import JITTER, JobLoop, RanElsewhereError, pause
from coordinator.web.metrics import Metrics
from datacoord.errors import StoreUnavailableError

SOON = 5.0


class Waits:
    """Waiting that a test lets through, one at a time; remembers how long each should have been."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[float] = asyncio.Queue()
        self._go = asyncio.Semaphore(0)

    async def __call__(self, event: asyncio.Event, seconds: float) -> None:
        self.asked.put_nowait(seconds)
        waiting = [asyncio.ensure_future(self._go.acquire()), asyncio.ensure_future(event.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    def let_through(self) -> None:
        self._go.release()


class Rounds:
    """Counts rounds; fails where a test says so."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.count = 0
        self.failures: Mapping[int, BaseException] = {}
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def __call__(self) -> None:
        self.count += 1
        self.begun.put_nowait(self.count)
        await self.proceed.wait()
        if self.count in self.failures:
            raise self.failures[self.count]


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    """A value as Prometheus would scrape it."""
    return metrics.registry.get_sample_value(name, labels)


async def test_a_loop_outlives_every_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A lease loop that died of one lost database connection would never free a dead datanode's channels again."""
    waits, rounds, metrics = Waits(), Rounds(), Metrics()
    rounds.failures = {1: StoreUnavailableError("away"), 2: ZeroDivisionError("bug")}
    job = JobLoop(Job.LEASE, rounds, 10.0, metrics, wait=waits, clock=lambda: 1234.0)
    job.start()
    for expected in (1, 2, 3):
        assert await asyncio.wait_for(rounds.begun.get(), SOON) == expected
        await asyncio.wait_for(waits.asked.get(), SOON)
        waits.let_through()
    await job.stop()
    assert sample(metrics, "datacoord_job_runs_total", job="lease", result="failed") == 2
    assert (sample(metrics, "datacoord_job_runs_total", job="lease", result="ok") or 0) >= 1
    assert sample(metrics, "datacoord_job_last_success_timestamp_seconds", job="lease") == 1234.0
    assert "STORE_UNAVAILABLE" in capsys.readouterr().out


async def test_a_round_that_another_process_runs_is_no_success_of_this_one() -> None:
    """A standby would otherwise call the job well while every round of the one that holds it fails."""
    waits, rounds, metrics = Waits(), Rounds(), Metrics()
    rounds.failures = {1: RanElsewhereError()}
    job = JobLoop(Job.LEASE, rounds, 10.0, metrics, wait=waits)
    job.start()
    await asyncio.wait_for(waits.asked.get(), SOON)
    assert sample(metrics, "datacoord_job_runs_total", job="lease", result="elsewhere") == 1
    assert not sample(metrics, "datacoord_job_runs_total", job="lease", result="ok")
    assert not sample(metrics, "datacoord_job_last_success_timestamp_seconds", job="lease")
    await job.stop()


async def test_intervals_are_jittered() -> None:
    """Replicas that were started together would otherwise hit the database together, forever."""
    waits, rounds = Waits(), Rounds()
    job = JobLoop(Job.SEAL, rounds, 10.0, Metrics(), wait=waits, rng=random.Random(7))
    job.start()
    asked = []
    for _ in range(20):
        asked.append(await asyncio.wait_for(waits.asked.get(), SOON))
        waits.let_through()
    await job.stop()
    assert len(set(asked)) > 10
    assert all(10.0 * (1 - JITTER) <= seconds <= 10.0 * (1 + JITTER) for seconds in asked)


async def test_a_kick_brings_the_next_round_and_many_kicks_only_one() -> None:
    """A hundred datanodes that register at once must not cause a hundred assignment transactions."""
    waits, rounds = Waits(), Rounds()
    job = JobLoop(Job.ASSIGNMENT, rounds, 1e6, Metrics(), wait=waits)
    job.start()
    await asyncio.wait_for(rounds.begun.get(), SOON)
    await asyncio.wait_for(waits.asked.get(), SOON)
    for _ in range(100):
        job.kick()
    await asyncio.wait_for(rounds.begun.get(), SOON)
    await asyncio.wait_for(waits.asked.get(), SOON)
    assert rounds.count == 2
    await job.stop()


async def test_a_kick_during_a_round_is_not_lost() -> None:
    """What asked for a round may have happened after the round had read."""
    waits, rounds = Waits(), Rounds()
    rounds.proceed.clear()
    job = JobLoop(Job.ASSIGNMENT, rounds, 1e6, Metrics(), wait=waits)
    job.start()
    await asyncio.wait_for(rounds.begun.get(), SOON)
    job.kick()
    rounds.proceed.set()
    assert await asyncio.wait_for(rounds.begun.get(), SOON) == 2
    await job.stop()


async def test_stop_lets_a_round_end_and_begins_no_other() -> None:
    """A round that is cut off in its COMMIT has an outcome nobody knows."""
    waits, rounds = Waits(), Rounds()
    rounds.proceed.clear()
    job = JobLoop(Job.ASSIGNMENT, rounds, 0.0, Metrics(), wait=waits)
    job.start()
    await asyncio.wait_for(rounds.begun.get(), SOON)
    stopping = asyncio.ensure_future(job.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    rounds.proceed.set()
    await asyncio.wait_for(stopping, SOON)
    assert rounds.count == 1


async def test_the_real_wait_ends_with_the_event_or_the_time() -> None:
    """The loops' only source of time."""
    event = asyncio.Event()
    await asyncio.wait_for(pause(event, 0.001), SOON)
    event.set()
    await asyncio.wait_for(pause(event, 1e6), SOON)
