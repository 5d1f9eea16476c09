"""Durable checkpoint updates per second over gRPC, 128 per call, 16 callers: against etcd, and against the bare databases.

make bench NAME=checkpoints [ARGS="--rounds 5 --scale 1 --work 1"]; 10 minutes at most. `--scale` is a share of the
channels, `--work` of the calls.
"""

from benchmarks.harness import bare
from benchmarks.harness.against_etcd import (
    CHECKPOINTS,
    POSTGRES_PROCESSES,
    WITH_GRPC_PROCESS,
    Shape,
    field_of,
    postgres_name,
)
from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Bar, Report, throughput_report
from benchmarks.harness.rounds import Side, interleave, per_second, ratios

CHANNELS = 10_000
CALLERS = 16
PER_CALL = 128
CALLS_PER_CALLER = 60

METHOD = (
    f"{CALLERS} callers in one Python process, {PER_CALL} positions per call, channels in shuffled order; requests are encoded "
    "before the clock starts, on every side; every write is on disk before its answer. etcd: a transaction of as many puts. "
    f"Bare: the database alone, by its driver, without gRPC, history and leases, in groups of {bare.GROUP}. The bars are "
    "for the better way to run each database."
)


async def measure(options: Options) -> Report:
    """Runs all sides."""
    shape = Shape(
        CHECKPOINTS,
        CALLERS,
        PER_CALL,
        calls_per_caller=options.calls(CALLS_PER_CALLER),
        channels=options.scaled(CHANNELS, CALLERS * PER_CALL),
    )
    items = shape.calls_per_caller * CALLERS * PER_CALL
    async with field_of(shape) as field:
        sides = [*field.sides, Side("bare SQLite", bare.SqliteCheckpoints(field.directory, shape.channels, items).run)]
        for count in (1, POSTGRES_PROCESSES):
            url = field.postgres.database(f"bare_{count}", migrated=False)
            alone = bare.PostgresCheckpoints(url, shape.channels, items, connections=count)
            sides.append(Side(_bare_of(postgres_name(count)), alone.run))
        samples = await interleave(sides, options.rounds)
    compared = {name: _bare_of(name) for name in samples if name.startswith(("SQLite", "PostgreSQL"))}
    report = throughput_report("checkpoints", METHOD, "positions", samples, versions=field.versions, bare=compared)
    best = report.best(samples, "PostgreSQL")
    to_bare = ratios(samples[best], samples[_bare_of(best)], per_second)
    report.bars = [
        report.bar_to_etcd(samples, report.best(samples, "SQLite"), 1.3, 2.5),
        report.bar_to_etcd(samples, best, 1.2, 1.5),
        Bar(f"{best} to its bare database", to_bare.median, 0.7, 0.8),
    ]
    return report


def _bare_of(name: str) -> str:
    alone = name.removesuffix(WITH_GRPC_PROCESS)
    return "bare " + alone.replace("processes", "connections").replace("process", "connection")


if __name__ == "__main__":
    main(measure, __doc__)
