"""What is left of the peak when three times as much is asked for, what the refusals say, and how much memory that takes.

make bench NAME=overload [ARGS="--rounds 5 --work 1"]; 10 minutes at most.

Each database is driven to its peak and beyond `--rounds` times; `--work` is a share of the 10 s of overload (3 s at least) and of
the calls of a peak, `--scale` of the senders.
"""

import asyncio
import contextlib
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from benchmarks.harness import workload
from benchmarks.harness.command import Options, main
from benchmarks.harness.load import RawClient
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, Spread, interleave
from benchmarks.harness.servers import (
    DATABASES,
    CoordinatorProcess,
    coordinator_on,
    postgres_server,
    resident_bytes,
    scratch,
)
from benchmarks.harness.workload import Load
from datacoord.failures import retry_delay_seconds, status_of

PER_CALL = 32
PEAK_CALLERS = (16, 64)
PEAK_CALLS = 640
SENDERS, SENDERS_MIN = 1024, 384
"""Those of the peaks and those of the overload, each with channels of its own; the fewest that can fill the queue."""
CONNECTIONS = 4
FACTOR = 3
OVERLOAD_SECONDS, SECONDS_MIN = 10.0, 3.0
PATIENCE_SECONDS = 2.0
QUEUE_ITEMS = 2048
_MEMORY_SECONDS = 0.05

METHOD = (
    f"Saves of {PER_CALL} lanes with three objects each; the queue holds {QUEUE_ITEMS:,} lanes. The peak: the better of "
    f"{' and '.join(map(str, PEAK_CALLERS))} callers, one call after the other. Right after it the overload: for "
    f"{OVERLOAD_SECONDS:g} s calls begin at {FACTOR} times the rate of that peak, whatever becomes of those before them. One that "
    "is refused comes back when the refusal says, as our client does, and is given up if that is later than "
    f"{PATIENCE_SECONDS:g} s after it began. Offered: calls that really began, to the peak. Goodput: those that were done "
    "while the load lasted. Memory: the largest resident size of the coordinator in all rounds, looked at every "
    f"{_MEMORY_SECONDS * 1000:.0f} ms."
)


@dataclass
class Overload:
    """One run beyond the peak.

    Attributes:
        begun: calls.
        replies: of those that were done.
        done_in_time: how many of them before the load ended.
        retry_delays: that refusals asked for, in seconds.
        given_up: calls that ended without having been done.
    """

    begun: int = 0
    replies: list[bytes] = field(default_factory=list)
    done_in_time: int = 0
    retry_delays: list[float] = field(default_factory=list)
    given_up: int = 0


@dataclass
class Target:
    """A coordinator that is driven to its peak and beyond.

    Attributes:
        name: of its database.
        process: the coordinator.
        client: of it.
        load: of all senders.
        senders: how many.
        peak_calls: of a peak, all callers together.
        seconds: of an overload.
        bodies: calls of each sender, in the order in which they must be done; the first stays until it is.
        resident_at_peak: bytes.
        resident_at_overload: bytes.
        overloads: that were run.
        offered: to the peak, of each of them.
        goodput: likewise.
    """

    name: str
    process: CoordinatorProcess
    client: RawClient
    load: Load
    senders: int
    peak_calls: int
    seconds: float
    bodies: dict[int, deque[bytes]] = field(default_factory=dict)
    resident_at_peak: int = 0
    resident_at_overload: int = 0
    overloads: list[Overload] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)

    async def run(self) -> Sample:
        """Both, one right after the other."""
        async with _memory(self.process.pid) as resident:
            peak_per_second = max([await self._peak(callers) for callers in PEAK_CALLERS]) / PER_CALL
        self.resident_at_peak = max(self.resident_at_peak, *resident)
        self._encode(peak_per_second)
        async with _memory(self.process.pid) as resident:
            overload = await self._overload(FACTOR * peak_per_second)
        self.resident_at_overload = max(self.resident_at_overload, *resident)
        workload.check_saves(overload.replies, PER_CALL, repeated=True)
        overload.replies.clear()
        self.overloads.append(overload)
        self.offered.append(overload.begun / self.seconds / peak_per_second)
        self.goodput.append(overload.done_in_time / self.seconds / peak_per_second)
        return Sample(max(1, overload.done_in_time) * PER_CALL, self.seconds)

    async def _peak(self, callers: int) -> float:
        """As many calls as are answered; lanes per second."""
        calls = max(1, self.peak_calls // callers)
        sample, replies = await self.client.drive([self.load.saves_of(n, calls) for n in range(callers)], PER_CALL)
        workload.check_saves(replies, PER_CALL)
        return sample.per_second

    def _encode(self, calls_per_second: float) -> None:
        """Makes what can be done, and a bit more, before the clock starts."""
        senders = range(max(PEAK_CALLERS), self.senders)
        wanted = round(1.5 * calls_per_second * self.seconds / len(senders)) + 1
        for sender in senders:
            mine = self.bodies.setdefault(sender, deque())
            mine.extend(self.load.saves_of(sender, max(0, wanted - len(mine))))

    async def _overload(self, rate: float) -> Overload:
        """Begins so many calls per second, each with a sender that has none."""
        run, idle, waiting = Overload(), deque(self.bodies), set[asyncio.Task[None]]()
        started = time.perf_counter()
        ending = started + self.seconds
        number = 0
        while (next_at := started + number / rate) < ending and time.perf_counter() < ending:
            number += 1
            await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
            if idle:
                task = asyncio.create_task(self._persist(idle.popleft(), idle, ending, run))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
        return run

    async def _persist(self, sender: int, idle: deque[int], ending: float, run: Overload) -> None:
        """One call, repeated as the refusals say.

        Raises:
            grpc.RpcError: it failed otherwise.
        """
        mine = self.bodies[sender]
        if not mine:
            mine.extend(self.load.saves_of(sender, 1))
        run.begun += 1
        give_up = time.perf_counter() + PATIENCE_SECONDS
        while (left := give_up - time.perf_counter()) > 0:
            try:
                run.replies.append(await self.client.call(mine[0], left))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    break
                asked = retry_delay_seconds(status_of(error))
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or asked is None:
                    raise
                run.retry_delays.append(asked)
                if time.perf_counter() + asked >= give_up:
                    break
                await asyncio.sleep(asked)
            else:
                run.done_in_time += time.perf_counter() <= ending
                mine.popleft()
                idle.append(sender)
                return
        # Perhaps it was done: the sender's next call is the same one, and then nothing is left to do.
        run.given_up += 1
        idle.append(sender)


@contextlib.asynccontextmanager
async def _memory(pid: int) -> AsyncIterator[list[int]]:
    """Resident sizes of a process, in bytes, while the context is open."""
    found = [resident_bytes(pid)]

    async def watch() -> None:
        while True:
            await asyncio.sleep(_MEMORY_SECONDS)
            found.append(resident_bytes(pid))

    watching = asyncio.create_task(watch())
    try:
        yield found
    finally:
        watching.cancel()


async def measure(options: Options) -> Report:
    """Overloads both databases in turns."""
    settings = {"write_queue_items_max": str(QUEUE_ITEMS)}
    seconds, peak_calls = max(SECONDS_MIN, OVERLOAD_SECONDS * options.work), options.calls(PEAK_CALLS)
    senders = options.scaled(SENDERS, SENDERS_MIN)
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch())
        postgres = stack.enter_context(postgres_server())
        targets = []
        for database in DATABASES:
            process = stack.enter_context(coordinator_on(database, directory / database, postgres, **settings))
            lanes = workload.claimed_lanes(process.address, senders * PER_CALL)
            load = Load(lanes, callers=senders, per_call=PER_CALL)
            client = RawClient([process.address] * CONNECTIONS, workload.SAVE_BINLOG_PATHS)
            stack.push_async_callback(client.close)
            targets.append(Target(database, process, client, load, senders, peak_calls, seconds))
        await interleave([Side(target.name, target.run) for target in targets], options.rounds)
    report = Report("overload", METHOD, _COLUMNS, versions={"postgresql": postgres.version})
    for target in targets:
        _add(report, target)
    return report


_COLUMNS = (
    "database",
    "offered × peak",
    "goodput × peak",
    "calls done",
    "given up",
    "refusals",
    "retry delay ms, median (largest)",
    "MiB at peak",
    "MiB at overload",
)


def _add(report: Report, target: Target) -> None:
    """A row and a bar; the first run is that which warms up."""
    runs, offered, goodput = target.overloads[1:], Spread(target.offered[1:]), Spread(target.goodput[1:])
    delays_ms = [delay * 1000 for run in runs for delay in run.retry_delays]
    asked = f"{statistics.median(delays_ms):,.0f} ({max(delays_ms):,.0f})" if delays_ms else "none"
    begun, given_up = sum(run.begun for run in runs), sum(run.given_up for run in runs)
    counts = [f"{count:,}" for count in (begun - given_up, given_up, len(delays_ms))]
    memory = [f"{size / 2**20:,.0f}" for size in (target.resident_at_peak, target.resident_at_overload)]
    report.rows.append([target.name, offered.shown(), goodput.shown(), *counts, asked, *memory])
    report.figures[target.name] = {
        "offered_to_peak": offered.as_json(),
        "goodput_to_peak": goodput.as_json(),
        "calls_done": begun - given_up,
        "given_up": given_up,
        "refusals": len(delays_ms),
        "retry_delay_ms": Spread(delays_ms).as_json() if delays_ms else None,
        "resident_bytes_at_peak": target.resident_at_peak,
        "resident_bytes_at_overload": target.resident_at_overload,
    }
    report.bars.append(Bar(f"{target.name}, goodput to peak", goodput.median, 0.9, 1.0))
    if not delays_ms:
        why = (
            "they waited in front of its queue, not in it"
            if given_up
            else "it was not overloaded, and this run says nothing"
        )
        report.remarks.append(f"{target.name} refused no call: {why}.")


if __name__ == "__main__":
    main(measure, __doc__)
