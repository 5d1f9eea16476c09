"""What a save costs when there are 10 thousand binlogs, and when there are a million (with --long also ten million).

make bench NAME=scale [ARGS=--long]
"""

import contextlib
from pathlib import Path

from benchmarks.harness import fill, workload
from benchmarks.harness.command import Options, main
from benchmarks.harness.load import RawClient
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, interleave, ratios, spread
from benchmarks.harness.servers import (
    CoordinatorProcess,
    postgres_coordinators,
    postgres_server,
    scratch,
    sqlite_coordinator,
)
from benchmarks.harness.workload import Lane, Load

CHANNELS = 2_000
CALLERS = 8
PER_CALL = 32
CALLS_PER_CALLER = 30
SMALL, LARGE, HUGE = 10_000, 1_000_000, 10_000_000

METHOD = (
    f"{CALLERS} callers, {PER_CALL} lanes per call with three objects and a checkpoint each, over {CHANNELS:,} channels; the same "
    "load in turns on databases that differ in how many binlogs are registered already, in segments that are sealed."
)


def _side(
    name: str, process: CoordinatorProcess, lanes: list[Lane], calls: int, pids: list[int]
) -> tuple[Side, RawClient]:
    load = Load(lanes, callers=CALLERS, per_call=PER_CALL)
    client = RawClient([process.address], workload.SAVE_BINLOG_PATHS, [process.pid, *pids])

    async def run() -> Sample:
        sample, replies = await client.drive(load.saves(calls), PER_CALL)
        workload.check_saves(replies, PER_CALL)
        return sample

    return Side(name, run), client


async def measure(options: Options) -> Report:
    """Runs all sizes in turns, on both databases."""
    sizes = [options.scaled(size) for size in (SMALL, LARGE, *([HUGE] if options.long else []))]
    calls, channels = options.calls(CALLS_PER_CALLER), options.scaled(CHANNELS, CALLERS * PER_CALL)
    sides: list[Side] = []
    async with contextlib.AsyncExitStack() as stack:
        directory: Path = stack.enter_context(scratch())
        postgres = stack.enter_context(postgres_server())
        for size in sizes:
            process = stack.enter_context(sqlite_coordinator(directory / f"sqlite-{size}"))
            lanes = workload.claimed_lanes(process.address, channels)
            fill.sealed(process.database_url, lanes, size)
            side, client = _side(f"SQLite, {size:,}", process, lanes, calls, [])
            stack.push_async_callback(client.close)
            sides.append(side)
        for size in sizes:
            url = postgres.database(f"with_{size}")
            (process,) = stack.enter_context(postgres_coordinators(directory / f"postgres-{size}", url, 1))
            lanes = workload.claimed_lanes(process.address, channels)
            fill.sealed(url, lanes, size)
            side, client = _side(f"PostgreSQL, {size:,}", process, lanes, calls, [postgres.pid])
            stack.push_async_callback(client.close)
            sides.append(side)
        samples = await interleave(sides, options.rounds)
    report = Report("scale", METHOD, ("database, binlogs", "µs/lane", "× the smallest", "CPU µs/lane"))
    report.versions = {"postgresql": postgres.version}
    for name, of in samples.items():
        database = name.split(",", maxsplit=1)[0]
        smallest = samples[f"{database}, {sizes[0]:,}"]
        cost, to_smallest = spread(of, _cost), ratios(of, smallest, _cost)
        cpu = spread(of, lambda sample: sample.cpu_us_per_item)
        report.rows.append([name, cost.shown(0), to_smallest.shown(), cpu.shown(0)])
        report.figures[name] = {
            "us_per_lane": cost.as_json(),
            "to_smallest": to_smallest.as_json(),
            "cpu_us_per_lane": cpu.as_json(),
        }
        if of is not smallest:
            report.bars.append(Bar(f"{name} to {sizes[0]:,}", to_smallest.median, 1.25, 1.1, at_most=True))
    return report


def _cost(sample: Sample) -> float:
    return sample.seconds * 1e6 / sample.items


if __name__ == "__main__":
    main(measure, __doc__)
