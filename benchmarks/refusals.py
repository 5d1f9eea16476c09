"""What refusing costs: callers who gather nothing ask three times too much of a coordinator whose queue is much too short.

make bench NAME=refusals [ARGS="--rounds 3 --work 0.6"]; 25 minutes at most.

No datanode does this, and no coordinator has such a queue unless somebody asks for it: `benchmarks/overload.py` has both as they
are.

Each database is driven to its peak and beyond `--rounds` times with calls of each size; `--work` is a share of the 20 s of overload
(3 s at least) and of the calls of a peak, `--scale` of the channels.
"""

import asyncio
import contextlib
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import grpc

from benchmarks.harness import workload
from benchmarks.harness.against_etcd import WITH_GRPC_PROCESS
from benchmarks.harness.command import Options, main
from benchmarks.harness.load import RawClient
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, Spread, interleave, median_and_largest
from benchmarks.harness.servers import (
    DATABASES,
    CoordinatorProcess,
    coordinator_on,
    postgres_server,
    resident_sizes,
    scratch,
)
from benchmarks.harness.workload import Load
from datacoord.failures import retry_delay_seconds, status_of
from datanode_client.calls import Backoff
from datanode_client.client_config import RetryConfig

QUEUE_ITEMS = 4096
LANES, LANES_MIN = 32_768, 16_384
"""Of all senders together; the fewest that can fill the queue."""
PEAK_LANES = 24_576
CONNECTIONS = 64
FACTOR = 3
OVERLOAD_SECONDS, SECONDS_MIN = 20.0, 3.0
PATIENCE_SECONDS = 5.0
_LOG_IDS_EACH = 1 << 40
_PEAK_CALLS_MIN = 4
_TIME_IS_OVER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""The second where the server was the quicker one to notice."""
_OFFERED_MIN = 1.5


@dataclass(frozen=True)
class Size:
    """How large calls are.

    Attributes:
        lanes: of a call.
        peak_callers: the better of these numbers at once drives the coordinator to its peak.
    """

    lanes: int
    peak_callers: tuple[int, int]


SIZES = (Size(32, (16, 64)), Size(256, (6, 12)))
"""A small datanode's, and one's that is behind: what waits to be saved shares its next call."""

_HOW = (("", "false"), (WITH_GRPC_PROCESS, "true"))
"""Calls are accepted by the coordinator itself, or by a process of their own: endings of names, and the setting."""

_PEAKS = " or ".join(" and ".join(map(str, size.peak_callers)) for size in SIZES)


def method(seconds: float) -> str:
    """How it is measured, with so many seconds of overload."""
    return (
        f"Saves of lanes with three objects each, over {CONNECTIONS} connections; the queue holds {QUEUE_ITEMS:,} lanes. "
        f"The peak: the better of {_PEAKS} callers, each the mean of a run right before and one right after the overload, "
        "because this machine's speed changes from second to second; they do the next calls of all senders in turn, "
        f"because a few lanes that are written over and over cost a database less than many. The overload: for {seconds:g}"
        f" s calls begin at {FACTOR} times the rate of the peak before it, where a sender is free. A call that is refused "
        "comes back when a datanode would (not before the time that the refusal says), and is given up if that is later "
        f"than {PATIENCE_SECONDS:g} s after it began, or than the load lasts; its sender begins the next one not before "
        "that time either. What is left of that time is the deadline of each attempt. Offered: calls that really began, "
        "to the peak: as senders wait for as long as refusals say, fewer of them are free. Goodput: those that were done "
        "while the load lasted. Memory: the largest resident size of the coordinator in all rounds."
    )


@dataclass
class Overload:
    """One run beyond the peak.

    Attributes:
        backoffs: of each sender: how a datanode waits between repetitions.
        begun: calls.
        replies: of those that were done.
        done: how many those are.
        done_in_time: how many of them before the load ended.
        retry_delays: that refusals asked for, in seconds.
        given_up: calls that ended without having been done.
    """

    backoffs: dict[int, Backoff]
    begun: int = 0
    replies: list[bytes] = field(default_factory=list)
    done: int = 0
    done_in_time: int = 0
    retry_delays: list[float] = field(default_factory=list)
    given_up: int = 0


@dataclass
class Target:
    """A coordinator that is driven to its peak and beyond.

    Attributes:
        name: of its database and the size.
        size: of its calls.
        process: the coordinator.
        client: of it.
        load: of all senders.
        senders: how many.
        peak_lanes: of a peak, all callers together.
        seconds: of an overload.
        bodies: calls of each sender, in the order in which they must be done; the first stays until it is.
        turns: senders, round and round: whose call a peak takes next.
        resident_at_peak: bytes.
        resident_at_overload: bytes.
        overloads: that were run.
        peaks: by the number of callers: calls per second, the mean of before and after each of them.
    """

    name: str
    size: Size
    process: CoordinatorProcess
    client: RawClient
    load: Load
    senders: int
    peak_lanes: int
    seconds: float
    bodies: dict[int, deque[bytes]] = field(default_factory=dict)
    turns: Iterator[int] = field(init=False)
    resident_at_peak: int = 0
    resident_at_overload: int = 0
    overloads: list[Overload] = field(default_factory=list)
    peaks: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = itertools.cycle(range(self.senders))

    def to_peak(self, calls: Callable[[Overload], int]) -> Spread:
        """What an overload counted, per second and to its peak, of all runs but the first, which warms up.

        One number of callers for all runs: the larger of two peaks in each of them would be the luckier one.
        """
        peaks = max((peaks[1:] for peaks in self.peaks.values()), key=statistics.median)
        runs = self.overloads[1:]
        return Spread([calls(run) / self.seconds / peak for run, peak in zip(runs, peaks, strict=True)])

    async def run(self) -> Sample:
        """The overload between two peaks, one right after the other."""
        if not self.overloads:
            # The first save of a lane makes its segment, and costs more.
            await self._drive(self.size.peak_callers[0], self.senders)
        async with resident_sizes(self.process.pid) as resident:
            before = [await self._peak(callers) for callers in self.size.peak_callers]
        self.resident_at_peak = max(self.resident_at_peak, *resident)
        # More than can be done: senders do not all get the same number of calls done.
        self._encode(range(self.senders), round(2 * max(before) * self.seconds / self.senders) + 2)
        async with resident_sizes(self.process.pid) as resident:
            overload = await self._overload(FACTOR * max(before))
        self.resident_at_overload = max(self.resident_at_overload, *resident)
        after = [await self._peak(callers) for callers in self.size.peak_callers]
        for callers, *peaks in zip(self.size.peak_callers, before, after, strict=True):
            self.peaks.setdefault(callers, []).append(statistics.mean(peaks))
        workload.check_saves(overload.replies, self.size.lanes, repeated=True)
        overload.replies.clear()
        self.overloads.append(overload)
        return Sample(max(1, overload.done_in_time) * self.size.lanes, self.seconds)

    async def _peak(self, callers: int) -> float:
        """As many calls as are answered; per second."""
        sample = await self._drive(callers, max(_PEAK_CALLS_MIN * callers, self.peak_lanes // self.size.lanes))
        return sample.per_second / self.size.lanes

    async def _drive(self, callers: int, calls: int) -> Sample:
        """The next calls of the next senders, at most one of each, by so many callers at once."""
        whose = list(itertools.islice(self.turns, min(calls, self.senders)))
        self._encode(whose, 1)
        bodies = [self.bodies[sender].popleft() for sender in whose]
        sample, replies = await self.client.drive([bodies[n::callers] for n in range(callers)], self.size.lanes)
        # What was given up in an overload was perhaps done.
        workload.check_saves(replies, self.size.lanes, repeated=True)
        return sample

    def _encode(self, senders: Iterable[int], wanted: int) -> None:
        """Makes so many calls of each of them, before the clock starts."""
        for sender in senders:
            mine = self.bodies.setdefault(sender, deque())
            mine.extend(self.load.saves_of(sender, max(0, wanted - len(mine))))

    async def _overload(self, rate: float) -> Overload:
        """Begins so many calls per second, each with a sender that has none."""
        run, idle = Overload({sender: Backoff(RetryConfig()) for sender in self.bodies}), deque(self.bodies)
        started = time.perf_counter()
        ending = started + self.seconds
        number = 0
        async with asyncio.TaskGroup() as running:
            while (next_at := started + number / rate) < ending and time.perf_counter() < ending:
                number += 1
                await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
                if idle:
                    running.create_task(self._persist(idle.popleft(), idle, ending, run))
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
        backoff = run.backoffs[sender]
        give_up = time.perf_counter() + PATIENCE_SECONDS
        wait_seconds = 0.0
        while (left := give_up - time.perf_counter()) > 0:
            try:
                run.replies.append(await self.client.call(mine[0], left))
            except grpc.aio.AioRpcError as error:
                if error.code() in _TIME_IS_OVER:
                    break
                asked = retry_delay_seconds(status_of(error))
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or asked is None:
                    raise
                run.retry_delays.append(asked)
                wait_seconds = backoff.next_delay_seconds(asked)
                if time.perf_counter() + wait_seconds >= min(give_up, ending):
                    break
                await asyncio.sleep(wait_seconds)
                wait_seconds = 0.0
            else:
                run.done += 1
                run.done_in_time += time.perf_counter() <= ending
                backoff.reset()
                mine.popleft()
                idle.append(sender)
                return
        # Perhaps it was done: the sender's next call is the same one, and then nothing is left to do.
        run.given_up += 1
        await asyncio.sleep(min(wait_seconds, max(0.0, ending - time.perf_counter())))
        idle.append(sender)


async def measure(options: Options) -> Report:
    """Overloads both databases in turns."""
    settings = {"write_queue_items_max": str(QUEUE_ITEMS)}
    seconds = max(SECONDS_MIN, OVERLOAD_SECONDS * options.work)
    lanes_each = options.scaled(LANES, LANES_MIN)
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch())
        postgres = stack.enter_context(postgres_server())
        targets = []
        for database, ending, apart in [(database, *how) for database in DATABASES for how in _HOW]:
            where = directory / f"{database}-{apart}"
            process = stack.enter_context(coordinator_on(database, where, postgres, grpc_process=apart, **settings))
            client = RawClient([process.address] * CONNECTIONS, workload.SAVE_BINLOG_PATHS)
            stack.push_async_callback(client.close)
            lanes = workload.claimed_lanes(process.address, lanes_each * len(SIZES))
            for number, size in enumerate(SIZES):
                senders = lanes_each // size.lanes
                mine = lanes[number * lanes_each : (number + 1) * lanes_each]
                load = Load(mine, callers=senders, per_call=size.lanes, first_log_id=number * _LOG_IDS_EACH)
                name = f"{database}{ending}, {size.lanes} per call"
                targets.append(Target(name, size, process, client, load, senders, options.calls(PEAK_LANES), seconds))
        await interleave([Side(target.name, target.run) for target in targets], options.rounds)
    report = Report("refusals", method(seconds), _COLUMNS, versions={"postgresql": postgres.version})
    for target in targets:
        _add(report, target)
    return report


_COLUMNS = (
    "database, lanes",
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
    runs = target.overloads[1:]
    offered, goodput = target.to_peak(lambda run: run.begun), target.to_peak(lambda run: run.done_in_time)
    delays_ms = [delay * 1000 for run in runs for delay in run.retry_delays]
    done, given_up = sum(run.done for run in runs), sum(run.given_up for run in runs)
    counts = [f"{count:,}" for count in (done, given_up, len(delays_ms))]
    memory = [f"{size / 2**20:,.0f}" for size in (target.resident_at_peak, target.resident_at_overload)]
    report.rows.append([target.name, offered.shown(), goodput.shown(), *counts, median_and_largest(delays_ms), *memory])
    report.figures[target.name] = {
        "offered_to_peak": offered.as_json(),
        "goodput_to_peak": goodput.as_json(),
        "calls_done": done,
        "given_up": given_up,
        "refusals": len(delays_ms),
        "retry_delay_ms": Spread(delays_ms).as_json() if delays_ms else None,
        "resident_bytes_at_peak": target.resident_at_peak,
        "resident_bytes_at_overload": target.resident_at_overload,
    }
    report.bars.append(Bar(f"{target.name}, goodput to peak", goodput.median, 0.9, 1.0))
    if offered.median < _OFFERED_MIN:
        report.remarks.append(
            f"{target.name} was offered {offered.median:.1f} times its peak only: too few senders are free."
        )
    if not delays_ms:
        why = (
            "they waited in front of its queue, not in it"
            if given_up
            else "it was not overloaded, and this run says nothing"
        )
        report.remarks.append(f"{target.name} refused no call: {why}.")


if __name__ == "__main__":
    main(measure, __doc__)
