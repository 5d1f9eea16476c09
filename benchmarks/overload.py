"""What is left of the peak when datanodes have three times as much to save as can be saved, and how much memory that takes.

make bench NAME=overload [ARGS="--rounds 3 --work 0.6"]; 25 minutes at most.

The datanodes have their default settings, and so has the coordinator, but for a queue that so few of them can fill;
`benchmarks/refusals.py` has callers who gather nothing before one that is much too short. `--work` is a share of the 30 s of
overload (3 s at least), `--scale` of the datanodes.
"""

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc
import structlog

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
from datanode_client.batching import BatchLimits, CallBatcher
from datanode_client.calls import CallFailedError
from datanode_client.client_config import BrokerConfig

DATANODES, DATANODES_MIN = 96, 36
"""The fewest with whose queue no peak is refused."""
DATANODE_CHANNELS = 256
COLLECTIONS = 2
PART_LANES = 32
DATANODE_PARTS = DATANODE_CHANNELS // PART_LANES
"""What falls due at once, and is encoded at once: an item of a datanode's batcher."""
QUEUE_OF_ALL = 1 / 3
"""The lanes for which the queue has room, to all that can wait."""
PEAKS = ((1, 64), (DATANODE_PARTS, 6), (DATANODE_PARTS, 12))
"""Parts in a call, and callers at once: the best of them is the peak."""
PEAK_SAVES = 3
"""Of every lane: several seconds, as a moment at which this machine is fast is no peak."""
CONNECTIONS = 64
FACTOR = 3
OVERLOAD_SECONDS, SECONDS_MIN = 30.0, 3.0
_TICK_SECONDS = 0.005
_AHEAD = 1.3
_METHOD = "SaveBinlogPaths"
_BROKER = BrokerConfig("the coordinator")
_TIME_IS_OVER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""The second where the server was the quicker one to notice."""


@dataclass(frozen=True)
class _Part:
    number: int
    body: bytes


@dataclass
class Overload:
    """One run beyond the peak.

    Attributes:
        due: lanes that fell due.
        done: lanes that were saved.
        done_in_time: those that were before the load ended.
        attempt_lanes: lanes of each attempt.
        retry_delays: that refusals asked for, in seconds.
        late: attempts whose time was over before they were answered.
        replies: with their lanes.
    """

    due: int = 0
    done: int = 0
    done_in_time: int = 0
    attempt_lanes: list[int] = field(default_factory=list)
    retry_delays: list[float] = field(default_factory=list)
    late: int = 0
    replies: list[tuple[bytes, int]] = field(default_factory=list)


@dataclass
class Target:
    """A coordinator that is driven to its peak and beyond.

    Attributes:
        name: of its database, and how calls are accepted.
        process: the coordinator.
        client: of it.
        load: a caller of it is a part.
        datanodes: how many.
        seconds: of an overload.
        bodies: saves of each part, in the order in which they must be done.
        peaks: by parts in a call and callers: lanes per second, the mean of before and after each overload.
        resident_at_peak: bytes, the largest before the first overload.
        resident_at_overload: bytes, the largest of all.
        overloads: that were run.
    """

    name: str
    process: CoordinatorProcess
    client: RawClient
    load: Load
    datanodes: int
    seconds: float
    bodies: list[deque[bytes]] = field(init=False)
    peaks: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    resident_at_peak: int = 0
    resident_at_overload: int = 0
    overloads: list[Overload] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bodies = [deque() for _ in range(self.datanodes * DATANODE_PARTS)]

    def best_peaks(self) -> list[float]:
        """Of all runs but the first, which warms up; one way for all of them: the best in each would be the luckier one."""
        return max((peaks[1:] for peaks in self.peaks.values()), key=statistics.median)

    def to_peak(self, lanes: Callable[[Overload], int]) -> Spread:
        """What an overload counted, per second and to its peak, of all runs but the first."""
        runs = self.overloads[1:]
        return Spread([lanes(run) / self.seconds / peak for run, peak in zip(runs, self.best_peaks(), strict=True)])

    async def run(self) -> Sample:
        """The overload between two peaks, one right after the other."""
        if not self.overloads:
            # The first save of a lane makes its segment, and costs more.
            await self._drive(*PEAKS[-1], saves=1)
        async with resident_sizes(self.process.pid) as resident:
            before = [await self._peak(*how) for how in PEAKS]
        if not self.overloads:
            self.resident_at_peak = max(resident)
        peak = max(before)
        self._encode(range(len(self.bodies)), round(_AHEAD * peak * self.seconds / PART_LANES / len(self.bodies)) + 2)
        async with resident_sizes(self.process.pid) as resident:
            overload = await self._overload(FACTOR * peak)
        self.resident_at_overload = max(self.resident_at_overload, *resident)
        after = [await self._peak(*how) for how in PEAKS]
        for how, *found in zip(PEAKS, before, after, strict=True):
            self.peaks.setdefault(how, []).append(statistics.mean(found))
        for reply, lanes in overload.replies:
            workload.check_saves([reply], lanes, repeated=bool(overload.late))
        overload.replies.clear()
        self.overloads.append(overload)
        return Sample(max(1, overload.done_in_time), self.seconds)

    async def _peak(self, parts: int, callers: int) -> float:
        """Lanes per second that are answered for."""
        return (await self._drive(parts, callers, PEAK_SAVES)).per_second

    async def _drive(self, parts: int, callers: int, saves: int) -> Sample:
        """Saves all lanes so many times, by so many callers at once, each with parts of its own, so many in a call."""
        self._encode(range(len(self.bodies)), saves)
        calls: list[list[bytes]] = [[] for _ in range(callers)]
        for _ in range(saves):
            for number, start in enumerate(range(0, len(self.bodies), parts)):
                bodies = [self.bodies[part].popleft() for part in range(start, start + parts)]
                calls[number % callers].append(b"".join(bodies))
        lanes = parts * PART_LANES
        sample, replies = await self.client.drive(calls, lanes)
        workload.check_saves(replies, lanes)
        return sample

    def _encode(self, parts: Iterable[int], wanted: int) -> None:
        """Makes so many saves of each of them, before the clock starts."""
        for part in parts:
            mine = self.bodies[part]
            mine.extend(self.load.saves_of(part, max(0, wanted - len(mine))))

    async def _overload(self, lanes_per_second: float) -> Overload:
        """Lets so many lanes fall due per second, evenly, and waits at the end until the last is saved."""
        run = Overload()
        datanodes = [self._datanode(run) for _ in range(self.datanodes)]
        idle = set(range(len(self.bodies)))
        started = time.perf_counter()
        ending = started + self.seconds

        async def save(number: int) -> None:
            self._encode([number], 1)
            await datanodes[number // DATANODE_PARTS].submit(_Part(number, self.bodies[number].popleft()))
            run.done += PART_LANES
            run.done_in_time += PART_LANES * (time.perf_counter() <= ending)
            idle.add(number)

        # One part of every datanode after the other.
        in_turn = itertools.cycle(sorted(idle, key=lambda number: (number % DATANODE_PARTS, number)))
        with structlog.testing.capture_logs():
            async with asyncio.TaskGroup() as saves:
                while (now := time.perf_counter()) < ending:
                    while run.due < lanes_per_second * (now - started):
                        run.due += PART_LANES
                        number = next(in_turn)
                        if number in idle:
                            idle.remove(number)
                            saves.create_task(save(number))
                    await asyncio.sleep(_TICK_SECONDS)
            for datanode in datanodes:
                await datanode.close()
        return run

    def _datanode(self, run: Overload) -> CallBatcher[_Part, None]:
        """The batcher of a datanode's broker, with its defaults."""
        batch = _BROKER.save_batch

        async def send(parts: Sequence[_Part]) -> Sequence[None]:
            lanes = len(parts) * PART_LANES
            run.attempt_lanes.append(lanes)
            try:
                # Messages one after the other are one message with the lists of all.
                reply = await self.client.call(b"".join(part.body for part in parts), _BROKER.call_timeout_seconds)
            except grpc.aio.AioRpcError as error:
                failure = CallFailedError.of(error, _METHOD, _BROKER.target)
                if failure.code in _TIME_IS_OVER:
                    run.late += 1
                else:
                    assert failure.delay_seconds is not None, "refused without a time to come back"
                    run.retry_delays.append(failure.delay_seconds)
                raise failure from error
            run.replies.append((reply, lanes))
            return [None] * len(parts)

        return CallBatcher(
            method=_METHOD,
            send=send,
            channel_of=lambda part: str(part.number),
            weigh=lambda _: (PART_LANES,),
            limits=BatchLimits(
                (batch.channels_max,),
                batch.linger_seconds,
                batch.calls_in_flight_max,
                batch.another_call_after_seconds,
            ),
            retry=_BROKER.retry,
        )


def method(seconds: float, datanodes: int) -> str:
    """How it is measured, with so many seconds of overload and datanodes."""
    ways = ", ".join(f"{callers} callers with {parts * PART_LANES} lanes per call" for parts, callers in PEAKS)
    return (
        f"Saves of lanes with three objects each, over {CONNECTIONS} connections. {datanodes} datanodes with "
        f"{DATANODE_CHANNELS} channels each save as datanodes do, by the same code and with the default settings: what falls due "
        f"while a call is unanswered shares the next one, which begins beside it after "
        f"{_BROKER.save_batch.another_call_after_seconds:g} s; an attempt may take {_BROKER.call_timeout_seconds:g} s, and whoever "
        "is refused waits as long as it is asked to, and gathers. The coordinator's settings are the defaults, except that its "
        f"queue is so small that it overflows with so few datanodes: {queue_items(datanodes):,} lanes, a third of all. Only the "
        f"saves themselves are encoded before the clock starts, {PART_LANES} channels at a time. The peak: the best of {ways}, "
        "each the mean of a run right before and one right after the overload, because this machine's speed changes from second "
        f"to second; {PEAK_SAVES} saves of every lane each. Which lanes share a call says nothing of where their rows lie. The "
        f"overload: for {seconds:g} s lanes fall due at {FACTOR} times the best peak before it, evenly over all datanodes; a "
        "channel whose save is not answered yet saves what falls due meanwhile with the next one that falls due, as rows gather "
        "in a buffer. Goodput: lanes that were saved while the load lasted; every save that began then is done at the end. Lanes "
        "per attempt and attempts: those that were refused, and those after the load, included. Memory: the largest resident size "
        "of the coordinator, before the first overload and in all of them."
    )


def queue_items(datanodes: int) -> int:
    """Lanes that may wait."""
    return round(QUEUE_OF_ALL * datanodes * DATANODE_CHANNELS)


async def measure(options: Options) -> Report:
    """Overloads both databases in turns."""
    seconds = max(SECONDS_MIN, OVERLOAD_SECONDS * options.work)
    datanodes = options.scaled(DATANODES, DATANODES_MIN)
    settings = {"write_queue_items_max": str(queue_items(datanodes))}
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch())
        postgres = stack.enter_context(postgres_server())
        targets = []
        for database, (ending, apart) in itertools.product(DATABASES, (("", "false"), (WITH_GRPC_PROCESS, "true"))):
            where = directory / f"{database}-{apart}"
            process = stack.enter_context(coordinator_on(database, where, postgres, grpc_process=apart, **settings))
            client = RawClient([process.address] * CONNECTIONS, workload.SAVE_BINLOG_PATHS)
            stack.push_async_callback(client.close)
            channels = datanodes * DATANODE_CHANNELS // COLLECTIONS
            lanes = [
                lane
                for number in range(COLLECTIONS)
                for lane in workload.claimed_lanes(process.address, channels, f"{workload.COLLECTION}{number}")
            ]
            random.Random(1).shuffle(lanes)
            load = Load(lanes, callers=datanodes * DATANODE_PARTS, per_call=PART_LANES)
            targets.append(Target(database + ending, process, client, load, datanodes, seconds))
        await interleave([Side(target.name, target.run) for target in targets], options.rounds)
    report = Report("overload", method(seconds, datanodes), _COLUMNS, versions={"postgresql": postgres.version})
    for target in targets:
        _add(report, target)
    return report


_COLUMNS = (
    "coordinator",
    "lanes/s at peak",
    "due × peak",
    "goodput × peak",
    "lanes per attempt",
    "attempts",
    "refused",
    "retry delay ms, median (largest)",
    "too late",
    "MiB at peak",
    "MiB at overload",
)


def _add(report: Report, target: Target) -> None:
    """A row and a bar; the first run is that which warms up."""
    runs = target.overloads[1:]
    peak, due = Spread(target.best_peaks()), target.to_peak(lambda run: run.due)
    goodput = target.to_peak(lambda run: run.done_in_time)
    delays_ms = [delay * 1000 for run in runs for delay in run.retry_delays]
    lanes = [lanes for run in runs for lanes in run.attempt_lanes]
    late = sum(run.late for run in runs)
    report.rows.append(
        [
            target.name,
            peak.shown(0),
            due.shown(),
            goodput.shown(),
            f"{statistics.mean(lanes):,.0f}",
            f"{len(lanes):,}",
            f"{len(delays_ms):,}",
            median_and_largest(delays_ms),
            f"{late:,}",
            f"{target.resident_at_peak / 2**20:,.0f}",
            f"{target.resident_at_overload / 2**20:,.0f}",
        ]
    )
    report.figures[target.name] = {
        "lanes_per_second_at_peak": peak.as_json(),
        "due_to_peak": due.as_json(),
        "goodput_to_peak": goodput.as_json(),
        "lanes_per_attempt": round(statistics.mean(lanes), 1),
        "attempts": len(lanes),
        "refused": len(delays_ms),
        "retry_delay_ms": Spread(delays_ms).as_json() if delays_ms else None,
        "too_late": late,
        "resident_bytes_at_peak": target.resident_at_peak,
        "resident_bytes_at_overload": target.resident_at_overload,
    }
    memory = target.resident_at_overload / target.resident_at_peak
    report.bars.append(Bar(f"{target.name}, goodput to peak", goodput.median, 0.9, 1.0))
    report.bars.append(Bar(f"{target.name}, memory at overload to at peak", memory, 2.0, 1.5, at_most=True))
    if not delays_ms:
        report.remarks.append(f"{target.name} refused no call: it was not overloaded, and this run says nothing.")


if __name__ == "__main__":
    main(measure, __doc__)
