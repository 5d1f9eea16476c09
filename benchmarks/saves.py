"""Saves per second: lanes with a range, three objects and a checkpoint each, 32 per call, against the same facts in etcd.

make bench NAME=saves [ARGS="--rounds 5 --scale 1 --work 1"]; 10 minutes at most. `--scale` is a share of the
channels, `--work` of the calls.
"""

from benchmarks.harness.against_etcd import SAVES, Shape, field_of
from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Report, throughput_report
from benchmarks.harness.rounds import interleave

CHANNELS = 10_000
CALLERS = 16
PER_CALL = 32
CALLS_PER_CALLER = 40

METHOD = (
    f"{CALLERS} callers in one Python process, {PER_CALL} channels per call with one lane each: the next range, three objects (a "
    "row each) and the checkpoint; requests are encoded before the clock starts, on every side; every write is on disk before "
    "its answer. etcd: the same facts as four keys per lane, a transaction per call. The bars are for the better way to "
    "run each database."
)


async def measure(options: Options) -> Report:
    """Runs all sides."""
    shape = Shape(
        SAVES,
        CALLERS,
        PER_CALL,
        calls_per_caller=options.calls(CALLS_PER_CALLER),
        channels=options.scaled(CHANNELS, CALLERS * PER_CALL),
    )
    async with field_of(shape) as field:
        samples = await interleave(field.sides, options.rounds)
    report = throughput_report("saves", METHOD, "lanes", samples, versions=field.versions)
    report.bars = [
        report.bar_to_etcd(samples, report.best(samples, "SQLite"), 1.2, 1.5),
        report.bar_to_etcd(samples, report.best(samples, "PostgreSQL"), 0.7, 1.0),
    ]
    return report


if __name__ == "__main__":
    main(measure, __doc__)
