"""How long one durable position takes, alone in its call, with one caller: against a put of etcd, and the bare databases.

make bench NAME=latency [ARGS="--rounds 5 --work 1"]; 5 minutes at most. `--work` is a share of the calls.
"""

from benchmarks.harness import bare
from benchmarks.harness.against_etcd import SINGLE_CHECKPOINTS, Shape, field_of
from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, interleave, ratios, spread
from benchmarks.harness.servers import DATABASES

CHANNELS = 1_000
CALLS = 400

METHOD = (
    "One caller in a Python process, one position per call, sent when the one before is on disk. etcd: a put. Bare: one position "
    "per transaction of the database alone, by its driver, without gRPC, history and leases."
)


async def measure(options: Options) -> Report:
    """Runs all sides."""
    shape = Shape(SINGLE_CHECKPOINTS, 1, 1, calls_per_caller=options.calls(CALLS), channels=CHANNELS)
    async with field_of(shape, processes=(1,)) as field:
        calls = shape.calls_per_caller
        sqlite = bare.SqliteCheckpoints(field.directory, CHANNELS, calls, group=1)
        url = field.postgres.database("bare", migrated=False)
        postgres = bare.PostgresCheckpoints(url, CHANNELS, calls, connections=1, group=1)
        alone = [Side("bare SQLite", sqlite.run), Side("bare PostgreSQL", postgres.run)]
        samples = await interleave([*field.sides, *alone], options.rounds)
    report = Report("latency", METHOD, ("side", "p50 ms", "p99 ms", "p50 × etcd"), versions=field.versions)
    for name, of in samples.items():
        half, most, to_etcd = spread(of, _p50), spread(of, _p99), ratios(of, samples["etcd"], _p50)
        report.rows.append([name, half.shown(), most.shown(), "1" if name == "etcd" else to_etcd.shown()])
        report.figures[name] = {"p50_ms": half.as_json(), "p99_ms": most.as_json(), "to_etcd": to_etcd.as_json()}
    for database in DATABASES:
        name = min(
            (name for name in samples if name.startswith(database)), key=lambda n: spread(samples[n], _p50).median
        )
        to_etcd = ratios(samples[name], samples["etcd"], _p50)
        report.bars.append(Bar(f"{name} to etcd, p50", to_etcd.median, 2.0, 1.5, at_most=True))
    return report


def _p50(sample: Sample) -> float:
    return sample.percentile_ms(50)


def _p99(sample: Sample) -> float:
    return sample.percentile_ms(99)


if __name__ == "__main__":
    main(measure, __doc__)
