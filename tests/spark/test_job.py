"""The datanode job on a real local Spark: slots, kills, stops."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker.contract_server import Fault
from pyspark.sql import SparkSession
from server.running_coordinator import ROOT
from support.waiting import WAIT_SECONDS_MAX, eventually

from datacoord.errors import (
    CollectionNotFoundError,
    ConfigInvalidError,
    DatacoordError,
    StoreUnavailableError,
    UnauthenticatedError,
)
from datacoord.v1 import data_coord_pb2
from datanode_client.client_config import BrokerConfig, RetryConfig, SessionConfig
from datanode_client.spark import DataNodeJob, DataNodeJobListener, JobConfig
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
        "session_config": SessionConfig(farewell_seconds=20.0, stop_timeout_seconds=20.0),
        "job_config": JobConfig(description_interval_seconds=0),
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
        coordinator.until(lambda: len(living(coordinator)) == 2 and living(coordinator)[0] != before[0])

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
    quick = SessionConfig(farewell_seconds=1.0, stop_timeout_seconds=5.0)
    running = job(spark, coordinator, heard, datanodes=1, session_config=quick)
    running.start()
    coordinator.until(lambda: len(living(coordinator)) == 1)
    coordinator.run(coordinator.server.vanish())
    started = time.monotonic()

    running.stop(timeout_seconds=1)

    assert time.monotonic() - started < WAIT_SECONDS_MAX
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


@pytest.mark.timeout(400)
def test_whoever_waits_hears_that_spark_is_gone(coordinator: ServerThread) -> None:
    """Its slots would be submitted to nothing again and again, and the program that waits for its rows would wait for ever."""
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("stopped_spark.py")), coordinator.server.target],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        capture_output=True,
        text=True,
        check=False,
        timeout=360,
    )

    ways = ("stop_in_python", "stop_in_java", "kill_java")
    heard = [line for line in run.stdout.splitlines() if line.startswith(ways)]
    assert heard == [f"{way} SparkStoppedError" for way in ways], run.stderr[-4000:]


@pytest.mark.parametrize(
    "error",
    [
        CollectionNotFoundError("there is no collection t", collection_name="t"),
        UnauthenticatedError("the token does not count any more"),
    ],
)
def test_waiting_ends_with_what_does_not_pass(
    spark: SparkSession, coordinator: ServerThread, error: DatacoordError
) -> None:
    """A collection that was dropped under the job has no rows to wait for, and a refused token does not become good."""
    with job(spark, coordinator, Heard(), datanodes=1) as running:
        coordinator.until(lambda: len(living(coordinator)) == 1)
        coordinator.server.fail("ListChannels", Fault(error=error))
        with pytest.raises(type(error), match=error.message):
            running.await_finished(timeout_seconds=WAIT_SECONDS_MAX)


def test_waiting_goes_on_through_what_passes(spark: SparkSession, coordinator: ServerThread) -> None:
    """A database that is away for a moment is no reason to give up what the datanodes do not give up."""
    # The client repeats by itself for five seconds: the failure is seen beyond it only if it lasts.
    away = StoreUnavailableError("the database does not answer", retry_delay_ms=10_000)
    coordinator.server.fail("ListChannels", Fault(error=away))
    with (
        job(spark, coordinator, Heard(), datanodes=1) as running,
        pytest.raises(TimeoutError, match="has not finished within"),
    ):
        running.await_finished(timeout_seconds=0.5)

    assert not coordinator.server.faults["ListChannels"]


def test_a_listener_that_fails_ends_no_slot(spark: SparkSession, coordinator: ServerThread) -> None:
    """The thread that keeps a slot running would be gone, and nobody would know."""

    class Failing(DataNodeJobListener):
        def slot_submitted(self, slot: int, attempt: int) -> None:
            raise RuntimeError(f"{slot} {attempt}")

    with job(spark, coordinator, Failing(), datanodes=1):
        coordinator.until(lambda: len(living(coordinator)) == 1)


def test_spark_shows_how_far_the_job_is(spark: SparkSession, coordinator: ServerThread) -> None:
    """Who looks at Spark's page or its history sees tasks that run for ever, and not what they have done."""
    store = spark.sparkContext._jsc.sc().statusStore()
    config = JobConfig(description_interval_seconds=0.05)

    def said() -> list[str]:
        ids = spark.sparkContext.statusTracker().getJobIdsForGroup("datacoord-shown-progress")
        return [store.job(number).description().get() for number in sorted(ids)]

    with job(spark, coordinator, Heard(), datanodes=1, job_config=config, job_name="shown"):
        eventually(lambda: said()[-1:] == ["datacoord landing t: 0/2 channels done, 0 rows read"], WAIT_SECONDS_MAX)
        for name, channel in coordinator.server.channels.items():
            channel.report = data_coord_pb2.DataNodeTtMsg(
                channel_name=name, epoch=channel.epoch, timestamp=5, lag=int(name[-1]) * 7
            )
        eventually(lambda: said()[-1] == "datacoord landing t: 0/2 channels done, lag 7", WAIT_SECONDS_MAX)
        for channel in coordinator.server.channels.values():
            assert channel.report is not None
            channel.report.finished = True
            channel.checkpoint.timestamp = 5
        eventually(lambda: said()[-1] == "datacoord landing t: 2/2 channels done, lag 0", WAIT_SECONDS_MAX)
        shown = said()

        # A job for every look would push those of queries out of Spark's memory of them.
        asked = len(coordinator.server.calls["ListChannels"])
        coordinator.until(lambda: len(coordinator.server.calls["ListChannels"]) > asked + 3)
        assert said() == shown
        assert len(set(shown)) == len(shown)


@pytest.mark.parametrize(
    ("changes", "named"), [({"datanodes": 0}, "datanodes is 0"), ({"collections": []}, "collections is empty")]
)
def test_a_job_of_nothing_is_refused(spark: SparkSession, changes: dict[str, Any], named: str) -> None:
    """Without datanodes it would wait for ever, silently; without collections it would have finished at once."""
    with pytest.raises(ConfigInvalidError, match=named):
        DataNodeJob(
            spark,
            lambda context: None,  # type: ignore[arg-type, return-value]
            **{"collections": ["t"], "coordinator": "127.0.0.1:1"} | changes,
        )


def test_a_java_that_starts_quickly_still_logs_as_it_is_told(spark: SparkSession) -> None:
    """Where its options took the place of those of the log, every command would be buried in the chatter of Spark."""
    jvm: Any = spark.sparkContext._jvm
    options = [str(word) for word in jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()]

    assert "-XX:TieredStopAtLevel=1" in options
    assert any(word.startswith("-Dlog4j2.configurationFile=") for word in options)
