"""Overload and deadlines, with a COMMIT held on purpose: refusals say when to come back, and nobody's time is wasted."""

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.waiting import eventually

from coordinator.core.jobs import Job
from datacoord.client import CoordinatorClient, error_of
from datacoord.errors import OverloadedError
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.failures import retry_delay_seconds, status_of
from datacoord.transport import client_options
from datacoord.v1 import common_pb2, data_coord_pb2, data_coord_pb2_grpc
from server.running_coordinator import CoordinatorThread, claim, definition, running, save_part

APPLIED = common_pb2.OUTCOME_APPLIED


class HeldCommit:
    """A coordinator whose next COMMIT waits until the test lets it go."""

    def __init__(self, points: Path, thread: CoordinatorThread) -> None:
        self._hold = points / "coordinator.before_commit.hold"
        self._points = points
        self.thread = thread
        self.client = CoordinatorClient(thread.address, timeout_seconds=20)
        self.client.create_collection(definition(channel_count=6))
        # Each has a round at the start, and assignment one for the new channels; then all of them rest.
        eventually(lambda: all(self._rounds(job) for job in Job) and self._rounds(Job.ASSIGNMENT) >= 2)
        self.infos = claim(self.client)
        self._channel = grpc.insecure_channel(thread.address, options=client_options())
        self._stub = data_coord_pb2_grpc.DataCoordServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._pool = futures.ThreadPoolExecutor(8)

    def save(self, *numbers: int, timeout_seconds: float = 20.0) -> "futures.Future[common_pb2.Outcome]":
        """Sends the first range of some channels, once, in the background; the outcome of the first."""
        parts = [save_part(self.infos[number], 0, 5, number + 1) for number in numbers]
        request = data_coord_pb2.SaveBinlogPathsRequest(channels=parts)
        return self._pool.submit(
            lambda: self._stub.SaveBinlogPaths(request, timeout=timeout_seconds).results[0].outcome
        )

    def malformed(self) -> "futures.Future[bytes]":
        """Sends a save that is no message at all."""
        call: Any = self._channel.unary_unary("/datacoord.v1.DataCoordService/SaveBinlogPaths")
        return self._pool.submit(lambda: call(b"\xff", timeout=20))

    def register(self) -> int:
        """A datanode's session."""
        request = data_coord_pb2.RegisterDataNodeRequest(
            job="idle", slot=0, collection_names=["files"], host="h", pid=1
        )
        return int(self._stub.RegisterDataNode(request, timeout=20).node_id)

    def heartbeat(self, node_id: int) -> "futures.Future[data_coord_pb2.ReportDataNodeTtMsgsResponse]":
        """Sends one, in the background."""
        request = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id)
        return self._pool.submit(lambda: self._stub.ReportDataNodeTtMsgs(request, timeout=20))

    def hold(self) -> None:
        """From now on a COMMIT waits."""
        self._hold.touch()

    def wait_held(self) -> None:
        """Waits until one does."""
        eventually(lambda: any(self._points.glob("coordinator.before_commit.held.*")))

    def let_go(self) -> None:
        """Lets it go."""
        self._hold.unlink(missing_ok=True)

    def queued(self) -> int:
        """Calls that wait for a transaction, but urgent ones."""
        return self.thread.coordinator._store.statistics.queued_items

    def waiting(self) -> int:
        """All calls that wait for a transaction."""
        return self.thread.coordinator._store.statistics.queued_calls

    def saving(self) -> float:
        """Saves that somebody waits for."""
        return self._value("datacoord_rpc_in_flight", method="SaveBinlogPaths")

    def _rounds(self, job: Job) -> float:
        return sum(self._value("datacoord_job_runs_total", job=job, result=result) for result in ("ok", "failed"))

    def _value(self, name: str, **labels: str) -> float:
        return self.thread.coordinator._metrics.registry.get_sample_value(name, labels) or 0.0

    def close(self) -> None:
        """Ends everything."""
        self.let_go()
        self._pool.shutdown()
        self._channel.close()
        self.client.close()


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldCommit]:
    """A coordinator with room for two items in its queue; its jobs rest, so that every write is the test's."""
    points = tmp_path / "points"
    points.mkdir()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(points))
    jobs = ("lease_job", "assignment_job", "seal_job", "retention_job", "gc")
    resting = {f"{job}_interval_seconds": 300.0 for job in jobs}
    with running(tmp_path / "data", write_queue_items_max=2, job_lease_seconds=3600.0, **resting) as thread:
        made = HeldCommit(points, thread)
        yield made
        made.close()


def test_a_full_queue_refuses_with_a_time_to_come_back(held: HeldCommit) -> None:
    """Without a bound the queue, the memory and everybody's waiting grow together until the process dies."""
    held.hold()
    committing = held.save(0)
    held.wait_held()
    waiting = [held.save(1), held.save(2)]
    eventually(lambda: held.queued() == 2)
    with pytest.raises(grpc.RpcError) as caught:
        held.save(3).result(20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(error_of(caught.value, ""), OverloadedError)
    assert (retry_delay_seconds(status_of(caught.value)) or 0) > 0
    # Our client comes back, and lands in the end; that it waits as long as it is told stands in test_client_waits.
    patient = futures.ThreadPoolExecutor(1)
    coming_back = patient.submit(held.client.save_binlog_paths, [save_part(held.infos[3], 0, 5, 4)])
    held.let_go()
    assert [future.result(20) for future in (committing, *waiting)] == [APPLIED] * 3
    assert coming_back.result(20)[0].outcome == APPLIED
    patient.shutdown()


def test_a_call_that_was_taken_is_not_refused_for_what_is_found_in_it(held: HeldCommit) -> None:
    """It is taken for as large as the others; an overloaded server has no time to read large ones only to refuse them."""
    held.hold()
    committing = held.save(0)
    held.wait_held()
    waiting = held.save(1)
    eventually(lambda: held.queued() == 1)
    large = held.save(2, 3)
    eventually(lambda: held.queued() == 3)
    with pytest.raises(grpc.RpcError) as caught:
        held.save(4).result(20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    held.let_go()
    assert [future.result(20) for future in (committing, waiting, large)] == [APPLIED] * 3
    eventually(lambda: held.waiting() == 0)


def test_a_call_that_nobody_waits_for_any_more_is_not_written(held: HeldCommit) -> None:
    """Work for callers that are gone is what keeps an overloaded server overloaded."""
    held.hold()
    committing = held.save(0)
    held.wait_held()
    # Long enough not to be refused at once after a COMMIT of a slow disk.
    impatient = held.save(1, timeout_seconds=2.0)
    with pytest.raises(grpc.RpcError) as caught:
        impatient.result(20)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # The coordinator hears of it a moment later.
    eventually(lambda: held.saving() == 1)
    held.let_go()
    assert committing.result(20) == APPLIED
    assert held.save(2).result(20) == APPLIED
    by_name = {row.channel_name: row for row in held.client.list_binlogs("files")}
    assert by_name[held.infos[1].channel_name].checkpoint.timestamp == 0
    assert by_name[held.infos[2].channel_name].checkpoint.timestamp == 5


def test_reads_and_health_do_not_wait_for_a_commit(held: HeldCommit) -> None:
    """A slow disk must not make the coordinator look dead, or blind its operators."""
    held.hold()
    committing = held.save(0)
    held.wait_held()
    assert len(list(held.client.list_channels("files"))) == 6
    held.let_go()
    assert committing.result(20) == APPLIED


def test_an_idle_datanode_keeps_its_session_while_the_queue_is_full(held: HeldCommit) -> None:
    """Under lasting overload its lease would end, and its channels would move, because of calls that are not its own."""
    node_id = held.register()
    held.hold()
    committing = held.save(0)
    held.wait_held()
    waiting = [held.save(1), held.save(2)]
    eventually(lambda: held.queued() == 2)
    with pytest.raises(grpc.RpcError) as caught:
        held.save(3).result(20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    heartbeat = held.heartbeat(node_id)
    eventually(lambda: held.waiting() == 3)
    held.let_go()
    assert heartbeat.result(20).lease_ms > 0
    assert [future.result(20) for future in (committing, *waiting)] == [APPLIED] * 3


def test_a_full_queue_refuses_a_write_before_it_is_read(held: HeldCommit) -> None:
    """Reading and checking calls only to refuse them is what an overloaded server has no time for."""
    held.hold()
    committing = held.save(0)
    held.wait_held()
    waiting = [held.save(1), held.save(2)]
    eventually(lambda: held.queued() == 2)
    with pytest.raises(grpc.RpcError) as caught:
        held.malformed().result(20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (retry_delay_seconds(status_of(caught.value)) or 0) > 0
    held.let_go()
    assert [future.result(20) for future in (committing, *waiting)] == [APPLIED] * 3
    with pytest.raises(grpc.RpcError) as caught:
        held.malformed().result(20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
