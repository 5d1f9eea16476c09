"""What is left of the peak when three times as much is asked for, and how much memory that takes.

make bench NAME=overload
"""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

import grpc

from benchmarks.harness import workload
from benchmarks.harness.command import Options, main
from benchmarks.harness.load import RawClient
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Spread, interleave
from benchmarks.harness.rounds import Side as Measured
from benchmarks.harness.servers import (
    CoordinatorProcess,
    postgres_coordinators,
    postgres_server,
    resident_bytes,
    scratch,
    sqlite_coordinator,
)
from benchmarks.harness.workload import Lane, Load
from datacoord.failures import retry_delay_seconds, status_of

CHANNELS = 32_768
PEAK_CALLERS = 16
PER_CALL = 32
CALLS_PER_CALLER = 40
FACTOR = 3
PATIENCE_SECONDS = 4.0
SECONDS_MAX = 4.0
QUEUE_ITEMS = 2048

METHOD = (
    f"Saves of {PER_CALL} lanes with three objects each. The peak: {PEAK_CALLERS} callers, one call after the other. The overload: "
    f"calls begin at {FACTOR} times the rate of that peak, whatever becomes of those before them; each waits as long as the "
    f"refusal says and comes back, for {PATIENCE_SECONDS:g} s at most, as our client does. Goodput: lanes that were registered "
    f"per second until the last call was done or given up. The queue holds {QUEUE_ITEMS} lanes."
)


@dataclass
class Overload:
    """One run.

    Attributes:
        lanes: registered.
        refusals: answers that said to come back later.
        given_up: calls that ended without having been done.
        resident: of the coordinator, at its largest.
    """

    lanes: int = 0
    refusals: int = 0
    given_up: int = 0
    resident: int = 0


@dataclass
class Target:
    """A coordinator that is measured at its peak and beyond."""

    name: str
    process: CoordinatorProcess
    client: RawClient
    load: Load
    calls_per_caller: int
    senders: int
    calls_per_second: float = 0.0
    resident_at_peak: int = 0
    overloads: list[Overload] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)
    pending: dict[int, bytes] = field(default_factory=dict)

    async def peak(self) -> Sample:
        """As many calls as are answered."""
        bodies = [self.load.saves_of(caller, self.calls_per_caller) for caller in range(PEAK_CALLERS)]
        sample, replies = await self.client.drive(bodies, PER_CALL)
        workload.check_saves(replies, PER_CALL)
        self.calls_per_second = sample.per_second / PER_CALL
        self.resident_at_peak = resident_bytes(self.process.pid)
        return sample

    async def overload(self) -> Sample:
        """Three times as many, right after a peak."""
        peak = await self.peak()
        run = Overload()
        rate = FACTOR * self.calls_per_second
        # Every call has lanes of its own, so that one that is given up stands in nobody's way; it is sent again in the next run.
        senders = range(PEAK_CALLERS, self.senders)
        seconds = min(SECONDS_MAX, len(senders) / rate)
        wanted = int(rate * seconds)
        for sender in senders[:wanted]:
            if sender not in self.pending:
                (self.pending[sender],) = self.load.saves_of(sender, 1)
        started = time.perf_counter()
        ending = started + seconds
        waiting: set[asyncio.Task[None]] = set()
        for number, sender in enumerate(senders[:wanted]):
            delay = started + number * seconds / wanted - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            task = asyncio.create_task(self._persist(sender, run))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            if number % 50 == 0:
                run.resident = max(run.resident, resident_bytes(self.process.pid))
            if time.perf_counter() > ending:
                break
        run.resident = max(run.resident, resident_bytes(self.process.pid))
        await asyncio.gather(*waiting)
        elapsed = time.perf_counter() - started
        self.overloads.append(run)
        sample = Sample(max(1, run.lanes), elapsed)
        self.goodput.append(sample.per_second / peak.per_second)
        return sample

    async def _persist(self, sender: int, run: Overload) -> None:
        give_up = time.perf_counter() + PATIENCE_SECONDS
        while (left := give_up - time.perf_counter()) > 0:
            try:
                reply = await self.client.call(self.pending[sender], left)
            except grpc.aio.AioRpcError as error:
                asked = retry_delay_seconds(status_of(error))
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or asked is None:
                    break
                run.refusals += 1
                await asyncio.sleep(asked * random.uniform(1.0, 1.25))
            else:
                workload.check_saves([reply], PER_CALL, repeated=True)
                run.lanes += PER_CALL
                del self.pending[sender]
                return
        run.given_up += 1


def _target(name: str, process: CoordinatorProcess, lanes: list[Lane], calls: int) -> Target:
    load = Load(lanes, callers=len(lanes) // PER_CALL, per_call=PER_CALL)
    return Target(
        name, process, RawClient([process.address] * 4, workload.SAVE_BINLOG_PATHS), load, calls, len(lanes) // PER_CALL
    )


async def measure(options: Options) -> Report:
    """Overloads both databases in turns."""
    channels, calls = options.scaled(CHANNELS, 4 * PEAK_CALLERS * PER_CALL), options.calls(CALLS_PER_CALLER)
    settings = {"write_queue_items_max": str(QUEUE_ITEMS)}
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch())
        postgres = stack.enter_context(postgres_server())
        embedded = stack.enter_context(sqlite_coordinator(directory / "sqlite", **settings))
        url = postgres.database("overload")
        (shared,) = stack.enter_context(postgres_coordinators(directory / "postgres", url, 1, **settings))
        targets = [
            _target(name, process, workload.claimed_lanes(process.address, channels), calls)
            for name, process in (("SQLite", embedded), ("PostgreSQL", shared))
        ]
        for target in targets:
            stack.push_async_callback(target.client.close)
        await interleave([Measured(target.name, target.overload) for target in targets], options.rounds)
    columns = (
        "database",
        "goodput × peak",
        "refusals per call done",
        "given up",
        "memory MiB, peak",
        "memory MiB, overload",
    )
    report = Report("overload", METHOD, columns, versions={"postgresql": postgres.version})
    for target in targets:
        runs, goodput = target.overloads[1:], Spread(target.goodput[1:])
        refusals = sum(run.refusals for run in runs) / max(1, sum(run.lanes for run in runs) // PER_CALL)
        given_up = sum(run.given_up for run in runs)
        resident = max(run.resident for run in runs)
        memory = [f"{size / 2**20:,.0f}" for size in (target.resident_at_peak, resident)]
        report.rows.append([target.name, goodput.shown(), f"{refusals:.1f}", str(given_up), *memory])
        report.figures[target.name] = {
            "goodput_to_peak": goodput.as_json(),
            "refusals_per_call_done": round(refusals, 2),
            "given_up": given_up,
            "resident_bytes_at_peak": target.resident_at_peak,
            "resident_bytes_at_overload": resident,
        }
        report.bars.append(Bar(f"{target.name}, goodput to peak", goodput.median, 0.9, 1.0))
    return report


if __name__ == "__main__":
    main(measure, __doc__)
