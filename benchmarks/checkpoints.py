"""Durable checkpoint updates per second over gRPC, 128 per call, 16 callers: against etcd, and against the bare database.

make bench NAME=checkpoints
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.harness import bare, workload
from benchmarks.harness.command import Options, main
from benchmarks.harness.load import RawClient
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, interleave, ratios, spread
from benchmarks.harness.servers import (
    etcd_server,
    make_database,
    postgres_coordinators,
    postgres_server,
    postgres_version,
    scratch,
    sqlite_coordinator,
)
from benchmarks.harness.workload import Lane, Load

CHANNELS = 10_000
CALLERS = 16
PER_CALL = 128
CALLS_PER_CALLER = 60
POSTGRES_PROCESSES = 2

METHOD = (
    f"{CALLERS} callers in one Python process, {PER_CALL} positions per call, channels in shuffled order; requests are encoded "
    "before the clock starts, on every side; every write is on disk before its answer. Bare: the database alone, without gRPC, "
    f"in groups of {bare.GROUP}."
)


@dataclass
class Remote:
    """A side behind gRPC."""

    client: RawClient
    bodies: Callable[[int], list[list[bytes]]]
    check: Callable[[Sequence[bytes]], None]
    calls_per_caller: int

    async def run(self) -> Sample:
        """Sends one round of calls, and looks whether all were done."""
        sample, replies = await self.client.drive(self.bodies(self.calls_per_caller), PER_CALL)
        self.check(replies)
        return sample


def coordinator_side(addresses: Sequence[str], lanes: Sequence[Lane], calls_per_caller: int) -> Remote:
    """A side of coordinators."""
    load = Load(lanes, callers=CALLERS, per_call=PER_CALL)
    client = RawClient(addresses, workload.UPDATE_CHECKPOINT)
    return Remote(
        client, load.checkpoints, lambda replies: workload.check_checkpoints(replies, PER_CALL), calls_per_caller
    )


async def measure(options: Options) -> Report:
    """Runs all sides."""
    channels = options.scaled(CHANNELS, CALLERS * PER_CALL)
    calls = options.scaled(CALLS_PER_CALLER)
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch())
        etcd = stack.enter_context(etcd_server(directory / "etcd"))
        server_url = stack.enter_context(postgres_server())
        sides: dict[str, Remote] = {}

        embedded = stack.enter_context(sqlite_coordinator(directory / "sqlite"))
        sides["SQLite"] = coordinator_side(
            [embedded.address], workload.claimed_lanes(embedded.address, channels), calls
        )
        for count in range(1, POSTGRES_PROCESSES + 1):
            url = make_database(server_url, f"of_{count}")
            processes = stack.enter_context(postgres_coordinators(directory / f"postgres-{count}", url, count))
            lanes = workload.claimed_lanes(processes[0].address, channels)
            name = "PostgreSQL, 1 process" if count == 1 else f"PostgreSQL, {count} processes"
            sides[name] = coordinator_side([process.address for process in processes], lanes, calls)
        load = Load(workload.named_lanes(channels), callers=CALLERS, per_call=PER_CALL)
        client = RawClient([etcd.address] * POSTGRES_PROCESSES, workload.ETCD_TXN)
        sides["etcd"] = Remote(client, load.etcd_checkpoints, workload.check_transactions, calls)
        for side in sides.values():
            stack.push_async_callback(side.client.close)

        items = calls * CALLERS * PER_CALL
        measured = [Side(name, side.run) for name, side in sides.items()]
        measured.append(Side("bare SQLite", bare.SqliteCheckpoints(directory, channels, items).run))
        for count in range(1, POSTGRES_PROCESSES + 1):
            url = make_database(server_url, f"bare_{count}", migrated=False)
            alone = stack.enter_context(bare.PostgresCheckpoints(url, channels, items, connections=count))
            name = "bare PostgreSQL, 1 connection" if count == 1 else f"bare PostgreSQL, {count} connections"
            measured.append(Side(name, alone.run))
        samples = await interleave(measured, options.rounds)
        versions = {"etcd": etcd.version, "postgresql": postgres_version(server_url)}
    return report(samples, versions)


def _rate(sample: Sample) -> float:
    return sample.per_second


def report(samples: dict[str, list[Sample]], versions: dict[str, str]) -> Report:
    """Table and bars."""
    made = Report("checkpoints", METHOD, ("side", "positions/s", "× etcd", "× its bare database"), versions=versions)
    for name, of in samples.items():
        rate, to_etcd = spread(of, _rate), ratios(of, samples["etcd"], _rate)
        bare_name = _bare_of(name)
        to_bare = ratios(of, samples[bare_name], _rate) if bare_name else None
        row = [name, rate.shown(0), "1" if name == "etcd" else to_etcd.shown(), to_bare.shown() if to_bare else ""]
        made.rows.append(row)
        figures = {"positions_per_second": rate.as_json(), "to_etcd": to_etcd.as_json()}
        made.figures[name] = {**figures, "to_bare": to_bare.as_json()} if to_bare else figures
    best = max(
        (name for name in samples if name.startswith("PostgreSQL")), key=lambda n: spread(samples[n], _rate).median
    )
    made.bars = [
        Bar("SQLite to etcd", ratios(samples["SQLite"], samples["etcd"], _rate).median, 1.3, 2.5),
        Bar(f"{best} to etcd", ratios(samples[best], samples["etcd"], _rate).median, 1.2, 1.5),
        Bar(f"{best} to its bare database", ratios(samples[best], samples[_bare_of(best)], _rate).median, 0.7, 0.8),
    ]
    return made


def _bare_of(name: str) -> str:
    if name == "SQLite":
        return "bare SQLite"
    if name.startswith("PostgreSQL"):
        return "bare " + name.replace("processes", "connections").replace("process", "connection")
    return ""


if __name__ == "__main__":
    main(measure, __doc__)
