"""Three coordinators on one PostgreSQL under load, while one is killed, one is stopped and wakes, and the server crashes."""

import itertools
import os
import random
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from google.rpc import error_details_pb2
from server.running_coordinator import CoordinatorProcess, definition, eventually, save_part
from support.postgres import PostgresServer

from datacoord.transport import client_options
from datacoord.v1 import collection_pb2_grpc, common_pb2, data_coord_pb2, data_coord_pb2_grpc

from .tiling import stored_log_ids

REPLICAS = 3
CLIENTS = 4
SAVES_BETWEEN_FAULTS = 15
ATTEMPT_SECONDS = 2.0
PATIENCE_SECONDS = 90.0
AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
}
"""What a client answers by repeating the call unchanged."""
REFUSALS = {"FENCED", "OWNED"}
"""What may be said to a client that does everything right while others take its channels."""
SETTINGS = {
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_JOB_LEASE_SECONDS": "1.5",
}


class Load:
    """Clients that call any replica, repeat unchanged what they do not know, and take channels from each other.

    Attributes:
        acknowledged: objects whose save was answered APPLIED or ALREADY_APPLIED.
        refused: objects whose save was refused at the first attempt.
        unknown: attempts without an answer.
        failures: what must not happen.
    """

    def __init__(self, addresses: list[str], channels: list[str], seed: int) -> None:
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.unknown = 0
        self.failures: list[BaseException] = []
        self._addresses = addresses
        self._channels = channels
        self._log_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n, seed), daemon=True) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets every client settle what it has in hand, and end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a client never got its answer"
        assert self.failures == []

    def goes_on(self) -> None:
        """Waits until so many more saves were acknowledged."""
        wanted = len(self.acknowledged) + SAVES_BETWEEN_FAULTS
        eventually(lambda: bool(self.failures) or len(self.acknowledged) >= wanted, PATIENCE_SECONDS)
        assert self.failures == []

    def _run(self, number: int, seed: int) -> None:
        rng = random.Random(f"{seed} {number}")
        with ExitStack() as closing:
            lines = [closing.enter_context(grpc.insecure_channel(a, options=client_options())) for a in self._addresses]
            stubs = [data_coord_pb2_grpc.DataCoordServiceStub(line) for line in lines]  # type: ignore[no-untyped-call]
            try:
                while not self._stop.is_set():
                    self._work(f"q{number}", rng, stubs)
            except BaseException as error:  # noqa: BLE001 - the test shows it
                self.failures.append(error)

    def _settled(self, rng: random.Random, stubs: list[Any], method: str, request: object) -> tuple[Any, int]:
        """Repeats a call unchanged, at any replica, until it is answered; (answer, attempts)."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for attempt in itertools.count(1):
            try:
                return getattr(rng.choice(stubs), method)(request, timeout=ATTEMPT_SECONDS), attempt
            except grpc.RpcError as error:
                if error.code() not in AGAIN or time.monotonic() > deadline:
                    raise
                with self._lock:
                    self.unknown += 1
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    # A replica that is away answers at once: do not spin.
                    time.sleep(rng.uniform(0.02, 0.1))
        raise AssertionError

    def _work(self, name: str, rng: random.Random, stubs: list[Any]) -> None:
        """Takes a channel, saves to it for a while, and loses it to another client or leaves it."""
        claim = data_coord_pb2.ClaimChannelsRequest(
            owner_name=name, channel_names=[rng.choice(self._channels)], force=True
        )
        response, _ = self._settled(rng, stubs, "ClaimChannels", claim)
        (claimed,) = response.results
        if claimed.HasField("error"):
            assert _reason(claimed.error) in REFUSALS
            return
        info = claimed.info
        reached = next((lane.timestamp for lane in info.lanes), 0)
        for _ in range(rng.randint(1, 12)):
            if self._stop.is_set():
                return
            with self._lock:
                log_id = next(self._log_ids)
            end = reached + rng.randint(1, 3)
            request = data_coord_pb2.SaveBinlogPathsRequest(channels=[save_part(info, reached, end, log_id)])
            response, attempts = self._settled(rng, stubs, "SaveBinlogPaths", request)
            (result,) = response.results
            if result.HasField("error"):
                assert _reason(result.error) in REFUSALS
                if attempts == 1:
                    self.refused.add(log_id)
                return
            assert result.outcome in {common_pb2.OUTCOME_APPLIED, common_pb2.OUTCOME_ALREADY_APPLIED}
            self.acknowledged.add(log_id)
            reached = end


def _reason(status: Any) -> str:
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return str(info.reason)
    return ""


def job_holder(url: str) -> tuple[int, int]:
    """Process that holds the lease of the assignment job, and its fence; (0, 0) = nobody."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT holder, fence FROM job_leases WHERE name = 'assignment'").fetchone()
    return (int(row[0].rsplit(":", 1)[1]), int(row[1])) if row is not None else (0, 0)


def passes_on(url: str, pid: int, fence: int) -> None:
    """Waits until another process has the background jobs."""
    eventually(lambda: job_holder(url)[0] != pid and job_holder(url)[1] > fence, PATIENCE_SECONDS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 10))])
def test_nothing_acknowledged_is_lost_and_nothing_doubled_whoever_dies(
    crashing_server: PostgresServer, database_url: str, tmp_path: Path, seed: int
) -> None:
    """A replica is killed, one sleeps through its lease and wakes with calls in its hands, the database crashes under all."""
    flags = ("--database-url", database_url, "--storage-root", str(tmp_path / "objects"))
    with ExitStack() as closing:
        replicas = [CoordinatorProcess(tmp_path / f"r{n}", *flags, environment=SETTINGS) for n in range(REPLICAS)]
        for replica in replicas:
            closing.enter_context(replica)
        channels = create_collection(replicas[0].address)
        load = Load([replica.address for replica in replicas], channels, seed)
        closing.callback(load._stop.set)
        load.goes_on()

        eventually(lambda: job_holder(database_url)[0] != 0)
        pid, fence = job_holder(database_url)
        killed = next(replica for replica in replicas if replica.process.pid == pid)
        killed.kill()
        passes_on(database_url, pid, fence)
        load.goes_on()
        killed.start()

        pid, fence = job_holder(database_url)
        os.kill(pid, signal.SIGSTOP)
        closing.callback(_wake, pid)
        unknown = load.unknown
        eventually(lambda: load.unknown > unknown, PATIENCE_SECONDS)
        passes_on(database_url, pid, fence)
        load.goes_on()
        os.kill(pid, signal.SIGCONT)
        load.goes_on()

        crashing_server.crash()
        crashing_server.start()
        load.goes_on()
        load.stop()

        outputs = [replica.output() for replica in replicas]
        assert [replica.terminate() for replica in replicas] == [0] * REPLICAS
    stored = stored_log_ids(database_url)
    assert load.acknowledged <= stored, "an acknowledged save is lost"
    assert not load.refused & stored, "a refused save was done"
    for output in outputs:
        assert '"reason": "INTERNAL"' not in output
        assert "group_commit_failed" not in output


def _wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def create_collection(address: str) -> list[str]:
    """A collection of claimed channels; their names."""
    with grpc.insecure_channel(address, options=client_options()) as line:
        stub: Any = collection_pb2_grpc.CollectionServiceStub(line)  # type: ignore[no-untyped-call]
        created = stub.CreateCollection(definition(channel_count=3), timeout=10)
        return list(created.collection.channel_names)
