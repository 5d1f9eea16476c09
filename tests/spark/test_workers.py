"""Python workers of Spark as datanodes: what a death or a freeze does to channels, bounded memory, use again and again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from server.running_coordinator import ROOT, CoordinatorProcess
from support.waiting import eventually

from datacoord.client import CoordinatorClient
from datacoord.demo.failpoint_files import OBJECTS_WRITTEN, FailpointFiles
from datacoord.demo.kills import HeadLimit
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2
from datanode_client.config import DataNodeConfig
from datanode_client.sources.base import ChannelContext, ReaderFactory
from datanode_client.sources.generator import (
    GENERATOR_PRIMARY_KEY,
    GENERATOR_SCHEMA,
    GeneratorChannelReader,
    GeneratorReaderFactory,
)
from datanode_client.spark import DataNodeJob

pytestmark = pytest.mark.spark

MIB = 1024 * 1024
WAIT_SECONDS_MAX = 100.0
QUICK = {
    "DATACOORD_HEARTBEAT_INTERVAL_SECONDS": "0.2",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_WATCH_POLL_SECONDS": "0.1",
    "DATACOORD_DATANODE_LEASE_SECONDS": "300",
}


class Stage:
    """A coordinator process with collections of the generator."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.coordinator = CoordinatorProcess(directory / "data", environment={**QUICK, **settings}).start()
        self.client = CoordinatorClient(self.coordinator.address, timeout_seconds=20)

    def create(self, name: str, channels: int) -> None:
        """Creates a collection."""
        self.client.create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name=name,
                arrow_schema=GENERATOR_SCHEMA.serialize().to_pybytes(),
                primary_key=GENERATOR_PRIMARY_KEY,
                channel_count=channels,
                channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
            )
        )

    def owners(self, name: str) -> dict[str, int]:
        """Which session owns which channel; 0 = none."""
        return {channel.channel_name: channel.node_id for channel in self.client.list_channels(name)}

    def nodes(self, job: str) -> list[admin_pb2.DataNodeInfo]:
        """The living sessions of a job that have reported their channels."""
        return [node for node in self.client.list_datanodes(job) if node.msgs]

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits."""
        eventually(condition, WAIT_SECONDS_MAX)

    def await_nodes(self, job: str, count: int) -> list[admin_pb2.DataNodeInfo]:
        """Waits until so many sessions of a job live and have channels; these sessions."""
        found: list[admin_pb2.DataNodeInfo] = []

        def look() -> bool:
            found[:] = self.nodes(job)
            return len(found) == count

        self.until(look)
        return found

    def close(self) -> None:
        self.client.close()
        self.coordinator.__exit__()


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The stage; its settings may be given as a parameter."""
    made = Stage(tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


@pytest.mark.timeout(300)
def test_channels_of_a_killed_worker_move_at_once_when_its_slot_registers_again(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    """Spark starts a dead worker again in a second: waiting for a lease of five minutes would be five minutes of lag."""
    stage.create("t", 4)
    HeadLimit(tmp_path / "limit", 10_000).set_share(0.1)
    source = GeneratorReaderFactory(1, 1000, 4, limit_path=tmp_path / "limit")
    with DataNodeJob(
        spark, source, collections=["t"], coordinator=stage.coordinator.address, datanodes=1, job_name="killed"
    ):
        stage.until(lambda: len(stage.nodes("killed")) == 1 and 0 not in stage.owners("t").values())
        (victim,) = stage.nodes("killed")
        os.kill(victim.pid, signal.SIGKILL)

        # The lease is longer than this waits.
        stage.until(lambda: not {0, victim.node_id} & set(stage.owners("t").values()))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [{"DATACOORD_DATANODE_LEASE_SECONDS": "2"}], indirect=True)
def test_channels_of_a_frozen_worker_move_with_its_lease_and_the_zombie_gives_up(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    """To Spark a frozen worker is a busy one: nobody starts another. When it wakes, it must see that it is nobody any more."""
    stage.create("t", 4)
    HeadLimit(tmp_path / "limit", 10_000).set_share(0.1)
    source = GeneratorReaderFactory(1, 1000, 4, limit_path=tmp_path / "limit")
    with DataNodeJob(
        spark, source, collections=["t"], coordinator=stage.coordinator.address, datanodes=2, job_name="frozen"
    ):
        victim, _ = stage.await_nodes("frozen", 2)
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            stage.until(lambda: not {0, victim.node_id} & set(stage.owners("t").values()))
        finally:
            os.kill(victim.pid, signal.SIGCONT)

        # Its slot comes back under a new session, and gets its share.
        stage.until(lambda: len({node.slot for node in stage.nodes("frozen")}) == 2)
        assert victim.node_id not in {node.node_id for node in stage.nodes("frozen")}


def memory_bytes(pid: int) -> int:
    """The largest resident memory a process has had since `forget_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def forget_peak(pid: int) -> None:
    """The peak is measured from here on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.timeout(300)
def test_memory_of_a_worker_stays_bounded_when_the_source_outruns_the_store(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    """A store that hangs for a minute must hold the source back, not fill the executor until the system kills it."""
    # Beside the rows: blocks that readers hold, objects that are encoded in 8 threads, libraries that are loaded with the first
    # object, and what the allocator keeps. The source is some 350 MiB.
    limit_bytes, beside_bytes = 24 * MIB, 256 * MIB
    rows, channels = 2_000_000, 16
    made = GeneratorReaderFactory(7, rows, channels, limit_path=tmp_path / "limit", limit_poll_seconds=0.05)
    limit = HeadLimit(tmp_path / "limit", made.log.last_timestamp)
    limit.set_share(0.0)
    failpoints = FailpointFiles(tmp_path / "failpoints")
    failpoints.hold(OBJECTS_WRITTEN)
    stage.create("t", channels)
    config = DataNodeConfig(memory_limit_bytes=limit_bytes, sync_policy_tick_seconds=0.1)
    with DataNodeJob(
        spark,
        watched(made, failpoints.directory),
        collections=["t"],
        coordinator=stage.coordinator.address,
        datanodes=1,
        job_name="slow",
        config=config,
    ):
        stage.until(lambda: [len(node.msgs) for node in stage.nodes("slow")] == [channels])
        (node,) = stage.nodes("slow")
        forget_peak(node.pid)
        base_bytes = memory_bytes(node.pid)
        limit.lift()
        await_stalled(stage, node.pid, failpoints)
        stalled_bytes = memory_bytes(node.pid)
        (stalled,) = stage.nodes("slow")
        limit.set_share(0.25)
        failpoints.release(OBJECTS_WRITTEN)
        stage.until(
            lambda: min(message.timestamp for message in stage.nodes("slow")[0].msgs) >= made.log.last_timestamp // 4
        )
        peak_bytes = memory_bytes(node.pid)
    print(
        f"base {base_bytes // MIB}, stalled {stalled_bytes // MIB}, peak {peak_bytes // MIB} MiB; {dict(stalled.metrics)}"
    )

    assert 0 < stalled.metrics["datanode_consumed_rows_total"] < rows / 4, "the source was not held back"
    held_bytes = stalled.metrics["datanode_buffered_bytes"] + stalled.metrics["datanode_syncing_bytes"]
    assert held_bytes <= 1.5 * limit_bytes, "a message is never split, so it may be a little more"
    assert peak_bytes - base_bytes <= limit_bytes + beside_bytes


def watched(made: GeneratorReaderFactory, directory: Path) -> ReaderFactory:
    """A factory whose process watches failpoints; Spark's workers are older than the test and know nothing of them."""

    def factory(context: ChannelContext) -> GeneratorChannelReader:
        os.environ[ENVIRONMENT_VARIABLE] = str(directory)
        return made(context)

    return factory


def await_stalled(stage: Stage, pid: int, failpoints: FailpointFiles) -> None:
    """Waits until the store holds the datanode, which has consumed nothing more for some of its reports."""
    seen: list[float] = []

    def look() -> bool:
        (node,) = stage.nodes("slow")
        seen.append(node.metrics.get("datanode_consumed_rows_total", 0.0))
        return seen[-1] > 0 and len(seen) > 30 and len(set(seen[-30:])) == 1 and pid in failpoints.held(OBJECTS_WRITTEN)

    def look_now_and_then() -> bool:
        time.sleep(0.05)
        return look()

    stage.until(look_now_and_then)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("reuse", [True, False])
def test_short_jobs_begin_and_end_whether_workers_are_used_again_or_not(stage: Stage, reuse: bool) -> None:
    """GRPC does not survive a fork, and a worker that hangs in one hangs its slot without a word."""
    run_short_jobs(stage, reuse, 4, 360)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("reuse", [True, False])
def test_hundreds_of_short_jobs_begin_and_end(stage: Stage, reuse: bool) -> None:
    """What leaks a thread, a channel or a descriptor per job shows after a hundred of them."""
    run_short_jobs(stage, reuse, 200, 2900)


def run_short_jobs(stage: Stage, reuse: bool, count: int, seconds: float) -> None:
    """Runs them in a driver of their own: how workers are used is settled when Spark starts."""
    script = str(Path(__file__).with_name("short_jobs.py"))
    run = subprocess.run(
        [sys.executable, script, stage.coordinator.address, str(reuse).lower(), str(count)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )

    assert run.returncode == 0, run.stderr[-4000:]
    pids = [line.split()[1:] for line in run.stdout.splitlines() if line.startswith("landed")]
    assert [len(of_one) for of_one in pids] == [1] * count, "a slot had to begin again"
    processes = {of_one[0] for of_one in pids}
    assert len(processes) < count if reuse else len(processes) == count
