"""What a save costs when there are 10 thousand binlogs, and when there are a million (with --long also ten million).

make bench NAME=scale [ARGS="--long --rounds 5 --scale 1 --work 1"]; 10 minutes at most, with --long 20 minutes at most.

`--scale` is a share of the binlogs, `--work` of the calls. Beside other work 100,000 binlogs a second were filled in on SQLite
and 60,000 on PostgreSQL; ten million of them take 0.7 GB on the one and 1.7 GB on the other.
"""

import contextlib
import itertools

from benchmarks.harness import fill, workload
from benchmarks.harness.command import Options, main
from benchmarks.harness.load import RawClient
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, cpu_us_per_item, interleave, ratios, spread
from benchmarks.harness.servers import DATABASES, CoordinatorProcess, coordinator_on, postgres_server, scratch
from benchmarks.harness.workload import Lane, Load

CHANNELS = 2_000
CALLERS = 8
PER_CALL = 32
CALLS_PER_CALLER = 30
SMALL, LARGE, HUGE = 10_000, 1_000_000, 10_000_000

METHOD = (
    f"{CALLERS} callers, {PER_CALL} lanes per call with three objects and a checkpoint each, over {CHANNELS:,} channels; the same "
    "load in turns on databases that differ in how many binlogs are registered already, in segments that are sealed. Each run "
    f"registers {CALLERS * CALLS_PER_CALLER * PER_CALL * 3:,} more."
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
        directory = stack.enter_context(scratch())
        postgres = stack.enter_context(postgres_server())
        for database, size in itertools.product(DATABASES, sizes):
            process = stack.enter_context(coordinator_on(database, directory / f"{database}-{size}", postgres))
            lanes = workload.claimed_lanes(process.address, channels)
            fill.sealed(process.database_url, lanes, segment_count=-(-size // fill.PER_SEGMENT))
            pids = [postgres.pid] if database == "PostgreSQL" else []
            side, client = _side(f"{database}, {size:,}", process, lanes, calls, pids)
            stack.push_async_callback(client.close)
            sides.append(side)
        samples = await interleave(sides, options.rounds)
    report = Report("scale", METHOD, ("database, binlogs", "µs/lane", "× the smallest", "CPU µs/lane"))
    report.versions = {"postgresql": postgres.version}
    for name, of in samples.items():
        database = name.split(",", maxsplit=1)[0]
        smallest = samples[f"{database}, {sizes[0]:,}"]
        cost, to_smallest = spread(of, _cost), ratios(of, smallest, _cost)
        cpu = spread(of, cpu_us_per_item)
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
