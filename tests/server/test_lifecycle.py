"""The coordinator as a process: it ends in order, and after SIGKILL still knows what it acknowledged."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.waiting import eventually

from datacoord.client import CoordinatorClient
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.v1 import common_pb2
from server.running_coordinator import (
    QUICK,
    CoordinatorProcess,
    claim,
    definition,
    environment,
    grpc_process_of,
    grpc_processes_of,
    in_flight,
    metric,
    save_part,
)

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY_APPLIED = common_pb2.OUTCOME_ALREADY_APPLIED
SECONDS_MAX = 60


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


@pytest.mark.parametrize("flags", [(), ("--grpc-process",)], ids=["one process", "gRPC process"])
def test_a_call_in_progress_is_finished_and_new_ones_are_refused(tmp_path: Path, flags: Sequence[str]) -> None:
    """A caller whose save is committed while the process ends should learn it, not guess."""
    points = tmp_path / "points"
    points.mkdir()
    with CoordinatorProcess(tmp_path / "data", *flags, environment={ENVIRONMENT_VARIABLE: str(points)}) as process:
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
            # The commit that is held may be a background job's: the save itself must have come, too.
            eventually(lambda: in_flight(process, "SaveBinlogPaths") == 1)
            # Some that manage services tell all processes of one at once.
            for pid in (*grpc_processes_of(process.process.pid), process.process.pid):
                os.kill(pid, signal.SIGTERM)
            (points / "coordinator.before_commit.hold").unlink()
            saving.join(SECONDS_MAX)
            assert [result.outcome for result in results] == [APPLIED]
        assert process.process.wait(SECONDS_MAX) == 0
        process.start()
        with CoordinatorClient(process.address) as client:
            assert client.save_binlog_paths([save_part(info, 0, 5, 1)])[0].outcome == ALREADY_APPLIED


def test_open_streams_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """Datanodes watch forever; waiting for them would use up the grace of every restart."""
    with CoordinatorProcess(tmp_path / "data", "--shutdown-grace-seconds", str(2 * SECONDS_MAX)) as process:
        channel = grpc.insecure_channel(process.address)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        health = stub.Watch(health_pb2.HealthCheckRequest())
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
        # Long before the grace is over.
        assert process.terminate(timeout_seconds=SECONDS_MAX) == 0
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        channel.close()


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


def restart(process: CoordinatorProcess) -> None:
    """Kills a coordinator, and starts it again."""
    process.kill()
    process.start()


def replace_grpc_process(process: CoordinatorProcess) -> None:
    """Kills the gRPC process of a coordinator, and waits until another one has taken its place."""
    restarts = metric(process.web_address, "grpc_process_restarts_total")
    os.kill(grpc_process_of(process), signal.SIGKILL)
    eventually(lambda: metric(process.web_address, "grpc_process_restarts_total") > restarts, SECONDS_MAX)


def survive(
    tmp_path: Path,
    *more_flags: str,
    kill: Callable[[CoordinatorProcess], None] = restart,
    kills: int,
    channels: int,
    ranges: int,
    seed: int,
) -> None:
    """Kills a coordinator, or a part of it, under load again and again; nothing acknowledged is lost, nothing is doubled."""
    rng = random.Random(seed)
    flags = [part for name in QUICK if "port" not in name for part in (f"--{name.replace('_', '-')}", str(QUICK[name]))]
    with CoordinatorProcess(tmp_path / "data", *flags, *more_flags) as process:
        with CoordinatorClient(process.address) as client:
            client.create_collection(definition(channel_count=channels))
            landers = [Lander(process.address, info, ranges) for info in claim(client)]
        for lander in landers:
            lander.start()
        total = channels * ranges
        for target in sorted(rng.sample(range(1, total), kills)):
            eventually(lambda target=target: acknowledged(landers) >= target, SECONDS_MAX)  # type: ignore[misc]
            before = [(lander, list(lander.acknowledged)) for lander in landers]
            kill(process)
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


def test_acknowledged_saves_survive_sigkill_of_the_grpc_process(tmp_path: Path) -> None:
    """The kernel kills what takes too much memory: callers must find a server where it was, and what they were told is true."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    survive(tmp_path, "--grpc-process", kill=replace_grpc_process, kills=2, channels=4, ranges=100, seed=seed)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_acknowledged_saves_survive_many_sigkills(tmp_path: Path) -> None:
    """The same, many times."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    survive(tmp_path, kills=40, channels=8, ranges=1500, seed=seed)


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
