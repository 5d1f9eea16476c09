"""The coordinator as a process: it says where it listens, ends in order, and after SIGKILL still knows what it acknowledged."""

import contextlib
import os
import random
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import event
from sqlalchemy.engine import Engine

from coordinator.server import SERVICES
from datacoord.client import CoordinatorClient
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.v1 import common_pb2
from server.running_coordinator import (
    QUICK,
    CoordinatorProcess,
    claim,
    command,
    definition,
    environment,
    eventually,
    running,
    save_part,
)

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY_APPLIED = common_pb2.OUTCOME_ALREADY_APPLIED
SECONDS_MAX = 60


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        command(*arguments),
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def refused(reason: str, *arguments: str, **variables: str) -> str:
    """Runs a command that must fail with one sentence of this reason; the sentence."""
    done = run(*arguments, **variables)
    assert done.returncode in {1, 2}, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("datacoord: ")
    assert line.endswith(f"({reason})")
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order(tmp_path: Path, number: int) -> None:
    """An orchestrator sends SIGTERM and people press Ctrl-C: both must leave nothing half done, and exit status 0."""
    with CoordinatorProcess(tmp_path / "data") as process:
        with CoordinatorClient(process.address) as client:
            client.create_collection(definition())
        assert process.terminate(number) == 0
        assert not process.ready_path.exists(), "who waits for the next start must not find the last one"
        output = process.output()
        assert '"event": "listening"' in output
        assert '"event": "stopped"' in output
        assert "Traceback" not in output


def test_a_call_in_progress_is_finished_and_new_ones_are_refused(tmp_path: Path) -> None:
    """A caller whose save is committed while the process ends should learn it, not guess."""
    points = tmp_path / "points"
    points.mkdir()
    with CoordinatorProcess(tmp_path / "data", environment={ENVIRONMENT_VARIABLE: str(points)}) as process:
        with CoordinatorClient(process.address) as client:
            client.create_collection(definition())
            info = claim(client)[0]
            (points / "coordinator.before_commit.hold").touch()
            results: list[Any] = []
            saving = threading.Thread(
                target=lambda: results.extend(client.save_binlog_paths([save_part(info, 0, 5, 1)]))
            )
            saving.start()
            eventually(lambda: any(points.glob("coordinator.before_commit.held.*")))
            process.process.send_signal(signal.SIGTERM)
            (points / "coordinator.before_commit.hold").unlink()
            saving.join(SECONDS_MAX)
            assert [result.outcome for result in results] == [APPLIED]
        assert process.process.wait(SECONDS_MAX) == 0
        process.start()
        with CoordinatorClient(process.address) as client:
            assert client.save_binlog_paths([save_part(info, 0, 5, 1)])[0].outcome == ALREADY_APPLIED


def test_open_streams_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """Datanodes watch forever; waiting for them would use up the grace of every restart."""
    with CoordinatorProcess(tmp_path / "data", "--shutdown-grace-seconds", "30") as process:
        channel = grpc.insecure_channel(process.address)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        health = stub.Watch(health_pb2.HealthCheckRequest())
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
        started = time.monotonic()
        assert process.terminate() == 0
        assert time.monotonic() - started < 10
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        channel.close()


def test_health_names_every_service(tmp_path: Path) -> None:
    """Load balancers ask per service."""
    with running(tmp_path / "data") as thread, grpc.insecure_channel(thread.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ["", *(service.full_name for service in SERVICES.values())]:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="another"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_is_off_unless_asked_for(tmp_path: Path) -> None:
    """It tells strangers the contract; developers may switch it on."""
    from grpc_reflection.v1alpha import (  # type: ignore[import-untyped] # it ships no types
        reflection_pb2,
        reflection_pb2_grpc,
    )

    def services(address: str) -> set[str]:
        with grpc.insecure_channel(address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            answers = list(stub.ServerReflectionInfo(iter([request])))
            return {service.name for service in answers[0].list_services_response.service}

    with running(tmp_path / "off") as thread, pytest.raises(grpc.RpcError) as caught:
        services(thread.address)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with running(tmp_path / "on", grpc_reflection=True) as thread:
        assert services(thread.address) >= {service.full_name for service in SERVICES.values()}


@pytest.mark.parametrize("flag", ["--port", "--web-port"])
def test_a_port_in_use_is_said_and_nothing_is_touched(tmp_path: Path, flag: str) -> None:
    """Two coordinators on one port would share its calls at random; a second one must not even open a database."""
    with running(tmp_path / "first") as first:
        address = first.address if flag == "--port" else first.web_address
        port = address.rpartition(":")[2]
        arguments = ["serve", "--data-dir", str(tmp_path / "second"), "--port", "0", "--web-port", "0", flag, port]
        assert port in refused("PORT_IN_USE", *arguments)
        assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("flag", ["--port", "--web-port"])
def test_a_port_that_another_program_is_willing_to_share_is_in_use(tmp_path: Path, flag: str) -> None:
    """With SO_REUSEPORT on both sides the kernel would let us in, and give us every second connection."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        arguments = ["serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--web-port", "0", flag, port]
        assert port in refused("PORT_IN_USE", *arguments)


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    """The sentence must not say that the port is in use: it is not."""
    assert "192.0.2.1" in refused(
        "CONFIG_INVALID", "serve", "--data-dir", str(tmp_path), "--host", "192.0.2.1", "--port", "0", "--web-port", "0"
    )


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """An older version that writes into a newer schema destroys it."""
    data = tmp_path / "data"
    with running(data) as thread, CoordinatorClient(thread.address) as client:
        client.create_collection(definition())
    database = sqlite3.connect(data / "datacoord.db")
    database.execute("UPDATE alembic_version SET version_num = 'of_tomorrow'")
    database.commit()
    before = list(database.iterdump())
    for name in ("serve", "migrate"):
        assert "of_tomorrow" in refused(
            "DATABASE_TOO_NEW", name, "--data-dir", str(data), "--port", "0", "--web-port", "0"
        )
    assert list(database.iterdump()) == before
    database.close()


def test_a_shared_database_is_migrated_as_a_separate_step(tmp_path: Path) -> None:
    """Of eight replicas that start at once none may migrate on its own."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    flags = ["--database-url", url, "--storage-root", str(tmp_path / "objects"), "--port", "0", "--web-port", "0"]
    assert "datacoord migrate" in refused("DATABASE_NOT_MIGRATED", "serve", *flags)
    assert run("migrate", "--database-url", url).returncode == 0
    assert "already" in run("migrate", "--database-url", url).stdout
    with CoordinatorProcess(tmp_path / "unused", *flags) as process, CoordinatorClient(process.address) as client:
        created = client.create_collection(definition())
        assert created.storage_root.startswith(str(tmp_path / "objects"))
        assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("content", [b"this is no database, not at all, by no means" * 50])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    """A wrong path must not be overwritten."""
    (tmp_path / "datacoord.db").write_bytes(content)
    refused("STORE_UNAVAILABLE", "serve", "--data-dir", str(tmp_path), "--port", "0", "--web-port", "0")
    assert (tmp_path / "datacoord.db").read_bytes() == content


def test_a_full_disk_refuses_writes_and_loses_nothing(tmp_path: Path) -> None:
    """Whatever was acknowledged stays, whatever was refused can be repeated, reads go on, and so do writes once there is room."""
    with (
        CoordinatorProcess(tmp_path / "data") as process,
        CoordinatorClient(process.address, timeout_seconds=10) as client,
    ):
        client.create_collection(definition())
        info = claim(client)[0]
        assert client.save_binlog_paths([save_part(info, 0, 1, 1)])[0].outcome == APPLIED
        # The kernel refuses every byte beyond this size of any file, as a full disk does; the limit can be lifted again.
        sizes = [path.stat().st_size for path in (tmp_path / "data").iterdir()]
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (max(sizes), resource.RLIM_INFINITY))
        with CoordinatorClient(process.address, timeout_seconds=1) as impatient:
            landed, failure = land_until_refused(impatient, info)
        assert failure in {"STORE_UNAVAILABLE", "COMMIT_OUTCOME_UNKNOWN"}
        (listed, _) = client.list_binlogs("files")
        assert listed.checkpoint.timestamp >= landed
        assert process.process.poll() is None
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for step in range(landed, landed + 5):
            assert client.save_binlog_paths([save_part(info, step, step + 1, step + 1)])[0].outcome in {
                APPLIED,
                ALREADY_APPLIED,
            }
        (listed, _) = client.list_binlogs("files")
        assert [binlog.range_to for binlog in listed.binlogs] == list(range(1, landed + 6))


def test_sqlite_full_is_a_typed_refusal(tmp_path: Path) -> None:
    """SQLite's own "database or disk is full" is certainly not committed: the caller must be told that, and may repeat."""
    connections: list[sqlite3.Connection] = []
    pages_max = 1_000_000

    def remember(connection: sqlite3.Connection, _record: object) -> None:
        connections.append(connection)
        connection.execute(f"PRAGMA max_page_count = {pages_max}")

    async def limit_pages(pages: int) -> None:
        nonlocal pages_max
        pages_max = pages
        for connection in connections:
            with contextlib.suppress(sqlite3.ProgrammingError):  # some are closed already
                connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Engine, "connect", remember)
    try:
        with running(tmp_path / "data") as thread, CoordinatorClient(thread.address) as client:
            client.create_collection(definition())
            info = claim(client)[0]
            client.save_binlog_paths([save_part(info, 0, 1, 1)])
            thread.run(limit_pages(1))  # SQLite takes it as: not one page more than there are
            with CoordinatorClient(thread.address, timeout_seconds=2) as impatient:
                landed, failure = land_until_refused(impatient, info)
            assert failure == "STORE_UNAVAILABLE"
            assert next(client.list_binlogs("files")).checkpoint.timestamp == landed
            thread.run(limit_pages(1_000_000))
            assert client.save_binlog_paths([save_part(info, landed, landed + 1, landed + 1)])[0].outcome == APPLIED
            assert [b.range_to for b in next(client.list_binlogs("files")).binlogs] == list(range(1, landed + 2))
    finally:
        event.remove(Engine, "connect", remember)


def land_until_refused(client: CoordinatorClient, info: Any) -> tuple[int, str]:
    """Saves range after range until one is refused; the last that was acknowledged, and the reason."""
    from datacoord.errors import DatacoordError

    for step in range(1, 100_000):
        try:
            client.save_binlog_paths([save_part(info, step, step + 1, step + 1)])
        except DatacoordError as error:
            return step, error.reason.value
    raise AssertionError("the disk never became full")


class Lander(threading.Thread):
    """Lands ranges of one channel, each repeated until it is acknowledged: the protocol of a datanode."""

    def __init__(self, address: str, info: Any, ranges: int) -> None:
        super().__init__(daemon=True)
        self._client = CoordinatorClient(address, timeout_seconds=SECONDS_MAX)
        self._ranges = ranges
        self.info = info
        self.acknowledged: list[Any] = []
        self.outcomes: list[int] = []

    def run(self) -> None:
        """Lands everything."""
        for step in range(self._ranges):
            part = save_part(self.info, step, step + 1, self.info.channel_index * 10_000 + step + 1)
            (result,) = self._client.save_binlog_paths([part])
            self.outcomes.append(result.outcome)
            self.acknowledged.append(part)
        self._client.close()


def survive(tmp_path: Path, *, kills: int, channels: int, ranges: int, seed: int) -> None:
    """Kills a coordinator under load again and again; nothing acknowledged is lost, nothing is doubled."""
    rng = random.Random(seed)
    flags = [part for name in QUICK if "port" not in name for part in (f"--{name.replace('_', '-')}", str(QUICK[name]))]
    with CoordinatorProcess(tmp_path / "data", *flags) as process:
        with CoordinatorClient(process.address) as client:
            client.create_collection(definition(channel_count=channels))
            landers = [Lander(process.address, info, ranges) for info in claim(client)]
        for lander in landers:
            lander.start()
        total = channels * ranges
        for target in sorted(rng.sample(range(1, total), kills)):
            eventually(lambda target=target: acknowledged(landers) >= target, SECONDS_MAX)  # type: ignore[misc]
            before = [(lander, list(lander.acknowledged)) for lander in landers]
            process.kill()
            process.start()
            with CoordinatorClient(process.address) as client:
                for _, parts in before:
                    if parts:
                        (again,) = client.save_binlog_paths([parts[-1]])
                        assert again.outcome == ALREADY_APPLIED, f"seed {seed}: an acknowledged save was lost"
        for lander in landers:
            lander.join(SECONDS_MAX)
            assert lander.outcomes == [*lander.outcomes][:ranges]
            assert len(lander.outcomes) == ranges
            assert set(lander.outcomes) <= {APPLIED, ALREADY_APPLIED}
        with CoordinatorClient(process.address) as client:
            for lander in landers:
                for result in client.save_binlog_paths(lander.acknowledged[-1:]):
                    assert result.outcome == ALREADY_APPLIED
            listed = {row.channel_name: row for row in client.list_binlogs("files")}
            for lander in landers:
                row = listed[lander.info.channel_name]
                assert [binlog.range_to for binlog in row.binlogs] == list(range(1, ranges + 1)), f"seed {seed}"
                assert row.checkpoint.timestamp == ranges


def acknowledged(landers: Sequence[Lander]) -> int:
    """Ranges that were acknowledged so far."""
    return sum(len(lander.acknowledged) for lander in landers)


def test_acknowledged_saves_survive_sigkill(tmp_path: Path) -> None:
    """The one promise: what was answered APPLIED is there, once, whatever happens to the process."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    survive(tmp_path, kills=2, channels=4, ranges=100, seed=seed)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_acknowledged_saves_survive_many_sigkills(tmp_path: Path) -> None:
    """The same, many times."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    survive(tmp_path, kills=40, channels=8, ranges=1500, seed=seed)


def test_a_ready_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Who starts the process waits for that file; a process that serves without it would be waited for in vain."""
    missing = str(tmp_path / "missing" / "ready.json")
    arguments = [
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "0",
        "--web-port",
        "0",
        "--log-level",
        "error",
    ]
    assert "ready.json" in refused("CONFIG_INVALID", *arguments, "--ready-file", missing)


def test_a_client_may_be_used_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    """Spark forks its workers; a channel of gRPC that crosses a fork hangs."""
    with (
        CoordinatorProcess(tmp_path / "data") as process,
        CoordinatorClient(process.address, timeout_seconds=20) as client,
    ):
        program = (
            "import os, sys\n"
            "from datacoord.client import CoordinatorClient\n"
            f"client = CoordinatorClient({process.address!r}, timeout_seconds=20)\n"
            "pid = os.fork()\n"
            "list(client.list_collections())\n"
            "if pid == 0: os._exit(0)\n"
            "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        )
        done = subprocess.run([sys.executable, "-c", program], env=environment(), timeout=SECONDS_MAX, check=False)
        assert done.returncode == 0
        assert list(client.list_collections()) == []
