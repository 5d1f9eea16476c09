"""The servers that take part: coordinators, PostgreSQL, etcd. Each in processes of its own, on a disk and durable."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from coordinator.store.migrate import upgrade
from tools.debian_package import debian_program

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 60.0
RESIDENT_SECONDS = 0.05
ETCD_BACKEND_BYTES_MAX = 8 * 1024**3

sys.path.insert(0, str(ROOT / "tests"))  # the suite knows how to start a PostgreSQL server, as root or not

POSTGRES_SETTINGS = {"shared_buffers": "128MB", "max_wal_size": "4GB"}
"""Beyond its defaults, which are durable: without room for the log it would write its tables anew all the time."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one benchmark; set TMPDIR to choose the disk."""
    with tempfile.TemporaryDirectory(prefix="datacoord-bench-") as directory:
        yield Path(directory)


class CoordinatorProcess:
    """One `datacoord serve`.

    Attributes:
        address: host:port of gRPC.
        pid: of the process.
        database_url: of its database.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ready = directory / "ready.json"
        self._log = directory / "coordinator.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DATACOORD_")}
        ours = {
            "data_dir": str(directory / "data"),
            "grpc_port": "0",
            "web_port": "0",
            "log_level": "warning",
            "claim_lease_seconds": "3600",
            **settings,
        }
        self.database_url = settings.get("database_url", f"sqlite:///{directory / 'data' / 'datacoord.db'}")
        environment = {**kept, **{f"DATACOORD_{name.upper()}": value for name, value in ours.items()}}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "datacoord.cli", "serve", "--ready-file", str(self._ready)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment,
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the coordinator did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)
        ready = json.loads(self._ready.read_text())
        self.address: str = ready["address"]
        self.web_address: str = ready["web_address"]

    def stop(self) -> None:
        """Ends it."""
        _end(self._process)


@contextlib.contextmanager
def sqlite_coordinator(directory: Path, **settings: str) -> Iterator[CoordinatorProcess]:
    """A coordinator on its embedded database."""
    process = CoordinatorProcess(directory, settings)
    try:
        yield process
    finally:
        process.stop()


@dataclass(frozen=True)
class Postgres:
    """A running PostgreSQL server.

    Attributes:
        url: of its maintenance database.
        pid: of its first process.
        version: of the server.
    """

    url: str
    pid: int
    version: str

    def database(self, name: str, *, migrated: bool = True) -> str:
        """A new database; its URL."""
        with psycopg.connect(libpq(self.url), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        url = self.url.rsplit("/", 1)[0] + f"/{name}"
        if migrated:
            upgrade(url)
        return url


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server."""
    from support.postgres import PostgresServer

    server = PostgresServer(POSTGRES_SETTINGS)
    try:
        server.start()
        url = server.url("postgres")
        with psycopg.connect(libpq(url)) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        assert row is not None
        assert server._process is not None
        yield Postgres(url, server._process.pid, str(row[0]))
    finally:
        server.remove()


DATABASES = ("SQLite", "PostgreSQL")


@contextlib.contextmanager
def coordinator_on(database: str, directory: Path, postgres: Postgres, **settings: str) -> Iterator[CoordinatorProcess]:
    """A coordinator on a database of its own, named as its directory, of one of both kinds."""
    with contextlib.ExitStack() as running:
        if database == "SQLite":
            yield running.enter_context(sqlite_coordinator(directory, **settings))
        else:
            url = postgres.database(directory.name)
            yield running.enter_context(postgres_coordinators(directory, url, 1, **settings))[0]


def libpq(url: str) -> str:
    """A SQLAlchemy URL as libpq reads it."""
    return url.replace("postgresql+psycopg://", "postgresql://")


@contextlib.contextmanager
def postgres_coordinators(directory: Path, url: str, count: int, **settings: str) -> Iterator[list[CoordinatorProcess]]:
    """Coordinators on one PostgreSQL database."""
    with contextlib.ExitStack() as running:
        processes = []
        for number in range(count):
            shared = {"database_url": url, "storage_root": str(directory / "objects"), **settings}
            process = CoordinatorProcess(directory / f"coordinator-{number}", shared)
            running.callback(process.stop)
            processes.append(process)
        yield processes


class EtcdServer:
    """A single etcd, as durable as it is by default (it syncs its log before it answers).

    Attributes:
        address: host:port for clients.
        pid: of the process.
        version: of the program.
    """

    def __init__(self, directory: Path) -> None:
        program = debian_program("etcd-server", "usr/bin/etcd")
        directory.mkdir(parents=True, exist_ok=True)
        port, peer_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        peers = f"http://127.0.0.1:{peer_port}"
        self._log = directory / "etcd.log"
        environment = program.environment()
        first_line = subprocess.check_output([program.path, "--version"], env=environment, text=True).splitlines()[0]
        self.version = first_line.rsplit(" ", 1)[-1]
        arguments = [
            *("--data-dir", str(directory / "etcd")),
            *("--listen-client-urls", f"http://{self.address}", "--advertise-client-urls", f"http://{self.address}"),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}", "--quota-backend-bytes", str(ETCD_BACKEND_BYTES_MAX)),
            *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"),
            *("--log-level", "error"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program.path, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not _listens(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"etcd did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends it."""
        _end(self._process)


@contextlib.contextmanager
def etcd_server(directory: Path) -> Iterator[EtcdServer]:
    """A running etcd."""
    server = EtcdServer(directory)
    try:
        yield server
    finally:
        server.stop()


def free_ports(count: int) -> Sequence[int]:
    """Ports of loopback that nobody uses."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            free = held.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            ports.append(int(free.getsockname()[1]))
        return ports


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def resident_bytes(pid: int) -> int:
    """Memory of a process and its children now."""
    return _resident_bytes(pid) + sum(map(_resident_bytes, _children(pid)))


@contextlib.asynccontextmanager
async def resident_sizes(pid: int) -> AsyncIterator[list[int]]:
    """What `resident_bytes` says every `RESIDENT_SECONDS` while the context is open."""
    found = [resident_bytes(pid)]

    async def watch() -> None:
        while True:
            await asyncio.sleep(RESIDENT_SECONDS)
            found.append(resident_bytes(pid))

    watching = asyncio.create_task(watch())
    try:
        yield found
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no memory: it ended")


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time that processes and their children have used; what has ended meanwhile no longer counts."""
    ticks = 0
    for one in {*pids, *(child for pid in pids for child in _children(pid))}:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_children(int(child))]
    return found
