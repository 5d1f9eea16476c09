"""A coordinator on SQLite, coordinators on PostgreSQL, and etcd, under the same load: what three of the benchmarks measure."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import workload
from benchmarks.harness.load import RawClient
from benchmarks.harness.rounds import Sample, Side
from benchmarks.harness.servers import (
    EtcdServer,
    Postgres,
    etcd_server,
    postgres_coordinators,
    postgres_server,
    scratch,
    sqlite_coordinator,
)
from benchmarks.harness.workload import Lane, Load

POSTGRES_PROCESSES = 2
WITH_GRPC_PROCESS = ", gRPC process"
"""Ending of the names of sides whose calls another process accepts."""


@dataclass(frozen=True)
class Kind:
    """What is called, and what says the same to etcd.

    Attributes:
        method: of the coordinator.
        bodies: its requests, of a load.
        check: raises unless everything was done.
        etcd_method: of etcd.
        etcd_bodies: its requests.
    """

    method: str
    bodies: Callable[[Load, int], list[list[bytes]]]
    check: Callable[[Sequence[bytes], int], None]
    etcd_method: str
    etcd_bodies: Callable[[Load, int], list[list[bytes]]]


CHECKPOINTS = Kind(
    workload.UPDATE_CHECKPOINT, Load.checkpoints, workload.check_checkpoints, workload.ETCD_TXN, Load.etcd_checkpoints
)
SINGLE_CHECKPOINTS = dataclasses.replace(CHECKPOINTS, etcd_method=workload.ETCD_PUT, etcd_bodies=Load.etcd_single_puts)
SAVES = Kind(workload.SAVE_BINLOG_PATHS, Load.saves, workload.check_saves, workload.ETCD_TXN, Load.etcd_saves)


@dataclass(frozen=True)
class Shape:
    """A load on all of them.

    Attributes:
        kind: of its calls.
        callers: at once.
        per_call: items in a call.
        calls_per_caller: in a run.
        channels: there are.
    """

    kind: Kind
    callers: int
    per_call: int
    calls_per_caller: int
    channels: int


@dataclass
class Remote:
    """A side behind gRPC."""

    client: RawClient
    bodies: Callable[[int], list[list[bytes]]]
    check: Callable[[Sequence[bytes]], None]
    shape: Shape

    async def run(self) -> Sample:
        """Sends one round of calls, and looks whether all were done."""
        sample, replies = await self.client.drive(self.bodies(self.shape.calls_per_caller), self.shape.per_call)
        self.check(replies)
        return sample


@dataclass
class Field:
    """Everything that runs.

    Attributes:
        directory: for files.
        postgres: the server.
        sides: that are measured.
        versions: of the servers.
    """

    directory: Path
    postgres: Postgres
    sides: list[Side] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def field_of(shape: Shape, processes: Sequence[int] = (1, POSTGRES_PROCESSES)) -> AsyncIterator[Field]:
    """Starts all servers.

    Args:
        shape: the load.
        processes: numbers of coordinators on PostgreSQL, a side each.
    """
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch())
        etcd = stack.enter_context(etcd_server(directory / "etcd"))
        postgres = stack.enter_context(postgres_server())
        made = Field(directory, postgres, versions={"etcd": etcd.version, "postgresql": postgres.version})

        def add(name: str, remote: Remote) -> None:
            stack.push_async_callback(remote.client.close)
            made.sides.append(Side(name, remote.run))

        for name, apart in (("SQLite", "false"), (f"SQLite{WITH_GRPC_PROCESS}", "true")):
            embedded = stack.enter_context(sqlite_coordinator(directory / f"sqlite-{apart}", grpc_process=apart))
            lanes = workload.claimed_lanes(embedded.address, shape.channels)
            add(name, _coordinators(shape, [embedded.address], [embedded.pid], lanes))
        for count in processes:
            url = postgres.database(f"of_{count}")
            running = stack.enter_context(postgres_coordinators(directory / f"postgres-{count}", url, count))
            lanes = workload.claimed_lanes(running[0].address, shape.channels)
            pids = [*(process.pid for process in running), postgres.pid]
            addresses = [process.address for process in running]
            add(postgres_name(count), _coordinators(shape, addresses, pids, lanes))
        add("etcd", _etcd(shape, etcd))
        yield made


def postgres_name(processes: int) -> str:
    """What a side on PostgreSQL is called."""
    return "PostgreSQL, 1 process" if processes == 1 else f"PostgreSQL, {processes} processes"


def _coordinators(shape: Shape, addresses: Sequence[str], pids: Sequence[int], lanes: Sequence[Lane]) -> Remote:
    load = Load(lanes, callers=shape.callers, per_call=shape.per_call)
    client = RawClient(addresses, shape.kind.method, pids)
    return Remote(
        client,
        lambda calls: shape.kind.bodies(load, calls),
        lambda replies: shape.kind.check(replies, shape.per_call),
        shape,
    )


def _etcd(shape: Shape, server: EtcdServer) -> Remote:
    load = Load(workload.named_lanes(shape.channels), callers=shape.callers, per_call=shape.per_call)
    client = RawClient([server.address] * min(shape.callers, POSTGRES_PROCESSES), shape.kind.etcd_method, [server.pid])
    check = workload.check_transactions if shape.kind.etcd_method == workload.ETCD_TXN else lambda _: None
    return Remote(client, lambda calls: shape.kind.etcd_bodies(load, calls), check, shape)
