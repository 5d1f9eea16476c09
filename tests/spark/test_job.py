"""The datanode job on a real local Spark: slots, kills, stops."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from broker.contract_server import Fault
from pyspark.sql import SparkSession

from datacoord.errors import CollectionNotFoundError, ConfigInvalidError
from datanode_client.client_config import BrokerConfig, RetryConfig, SessionConfig
from datanode_client.spark import DataNodeJob, DataNodeJobListener
from spark.conftest import ServerThread

pytestmark = pytest.mark.spark


class Heard(DataNodeJobListener):
    """Remembers what it hears."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.submitted: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int, Exception | None]] = []

    def slot_submitted(self, slot: int, attempt: int) -> None:
        with self._changed:
            self.submitted.append((slot, attempt))
            self._changed.notify_all()

    def slot_ended(self, slot: int, attempt: int, error: Exception | None) -> None:
        with self._changed:
            self.ended.append((slot, attempt, error))
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool], seconds: float = 40.0) -> None:
        """Waits until what was heard satisfies a condition."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds)


def job(spark: SparkSession, coordinator: ServerThread, listener: DataNodeJobListener, **changes: Any) -> DataNodeJob:
    """A job whose readers are never made: the coordinator gives no channels."""

    def no_reader(context: Any) -> Any:
        raise AssertionError(context)

    target = coordinator.server.target
    settings: dict[str, Any] = {
        "broker_config": BrokerConfig(target, retry=RetryConfig(0.02, 0.2)),
        "session_config": SessionConfig(farewell_seconds=1.0, stop_timeout_seconds=5.0),
    } | changes
    return DataNodeJob(spark, no_reader, collections=["t"], coordinator=target, listener=listener, **settings)


def living(coordinator: ServerThread) -> dict[int, int]:
    """Process ids of the living sessions by slot."""
    return {session.slot: session.pid for session in coordinator.server.sessions.values() if not session.ended}


def test_a_killed_worker_is_back_in_its_slot_within_seconds_and_the_others_go_on(
    spark: SparkSession, coordinator: ServerThread
) -> None:
    """A worker that stays away leaves its channels without an owner; one that takes others with it multiplies every kill."""
    heard = Heard()
    with job(spark, coordinator, heard) as running:
        coordinator.until(lambda: len(living(coordinator)) == 2)
        before = living(coordinator)
        assert os.getpid() not in before.values()
        assert {node.host for node in coordinator.server.calls["RegisterDataNode"]} == {socket.gethostname()}

        os.kill(before[0], signal.SIGKILL)
        coordinator.until(lambda: len(living(coordinator)) == 2 and living(coordinator)[0] != before[0], 15)

        assert living(coordinator)[1] == before[1]
        running.stop(timeout_seconds=30)

    assert living(coordinator) == {}
    assert [error for _, _, error in heard.ended if error is not None] == []
    assert sorted(heard.submitted) == [(0, 1), (1, 1)]
    reports = coordinator.server.calls["ReportDataNodeTtMsgs"]
    assert sum(1 for report in reports if report.ended) == 2


def test_a_slot_whose_session_is_lost_is_submitted_again(spark: SparkSession, coordinator: ServerThread) -> None:
    """Its task ends instead of registering again, so that two tasks of one slot never fight for it."""
    heard = Heard()
    with job(spark, coordinator, heard, datanodes=1):
        coordinator.until(lambda: len(living(coordinator)) == 1)

        async def lose() -> None:
            coordinator.server.end_session(max(coordinator.server.sessions))

        coordinator.run(lose())
        coordinator.until(lambda: len(coordinator.server.sessions) == 2)

        heard.until(lambda: (0, 1, None) in heard.ended and (0, 2) in heard.submitted)


def test_a_job_ends_though_nobody_answers(spark: SparkSession, coordinator: ServerThread) -> None:
    """A coordinator that is gone for good must not keep a driver from ending."""
    heard = Heard()
    running = job(spark, coordinator, heard, datanodes=1)
    running.start()
    coordinator.until(lambda: len(living(coordinator)) == 1)
    coordinator.run(coordinator.server.vanish())
    started = time.monotonic()

    running.stop(timeout_seconds=1)

    assert time.monotonic() - started < 25
    heard.until(lambda: len(heard.ended) == 1)


def test_a_refused_job_says_why(spark: SparkSession, coordinator: ServerThread) -> None:
    """Spark would try four times and answer with a page of traceback; the sentence of the coordinator would be lost in it."""
    refusal = CollectionNotFoundError("there is no collection t: create it first", collection_name="t")
    coordinator.server.fail("RegisterDataNode", Fault(error=refusal))
    with (
        job(spark, coordinator, Heard(), datanodes=1) as running,
        pytest.raises(CollectionNotFoundError, match="create it first"),
    ):
        running.await_finished(timeout_seconds=40)

    assert len(coordinator.server.calls["RegisterDataNode"]) == 1


def test_waiting_has_an_end(spark: SparkSession, coordinator: ServerThread) -> None:
    """A channel that never finishes must not hang whoever waits for it."""
    seen: list[int] = []
    with (
        job(spark, coordinator, Heard(), datanodes=1) as running,
        pytest.raises(TimeoutError, match="has not finished within"),
    ):
        running.await_finished(timeout_seconds=0.5, on_progress=lambda progress: seen.append(progress.channels))

    assert set(seen) == {2}


def test_a_job_without_datanodes_is_refused(spark: SparkSession) -> None:
    """It would wait for ever, silently."""
    with pytest.raises(ConfigInvalidError, match="datanodes is 0"):
        DataNodeJob(spark, lambda context: None, collections=["t"], coordinator="127.0.0.1:1", datanodes=0)  # type: ignore[arg-type, return-value]
