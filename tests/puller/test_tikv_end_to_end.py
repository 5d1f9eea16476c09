"""A key range of a TiKV cluster landed into a collection: every part real but the cluster, and kills where they hurt."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from datanode_process.coordinator_process import ROOT, CoordinatorProcess

from datacoord.client import CoordinatorClient
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.reading import to_arrow
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2
from datanode_client.broker import Broker
from datanode_client.datanode import DataNode
from datanode_client.sources.tikv import TIKV_PRIMARY_KEY, TIKV_SCHEMA

from .tikv_datanode import make_datanode
from .tikv_server.adversity import Adversity
from .tikv_server.living import LivingCluster, living_cluster, until
from .tikv_server.mvcc import PUT
from .tikv_server.workload import Workload

KEYS = [b"k%02d" % number for number in range(60)]
SPLIT_KEY = b"k30"
SEED = 20261121
STEP_SECONDS = 60.0


class Stage:
    """The cluster, the coordinator, the datanodes, and what happens meanwhile in the cluster."""

    def __init__(self, living: LivingCluster, directory: Path) -> None:
        self.living = living
        self._directory = directory
        self.coordinator = CoordinatorProcess(directory)
        self.failpoints = {name: directory / f"{name}-failpoints" for name in ("coordinator", "datanode")}
        for path in self.failpoints.values():
            path.mkdir()
        self.client = CoordinatorClient("")
        self._workload = Workload(living.cluster, random.Random(SEED), KEYS, deaths=0)
        self._adversity = Adversity(living.cluster, random.Random(SEED), KEYS)
        self._busy: asyncio.Task[None] | None = None
        self._own: tuple[DataNode, asyncio.Task[object], Broker] | None = None
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the coordinator, creates the collection, and lets the cluster live."""
        await self.start_coordinator()
        self.client = CoordinatorClient(self.coordinator.target, timeout_seconds=20)
        request = collection_pb2.CreateCollectionRequest(
            collection_name="t",
            arrow_schema=TIKV_SCHEMA.serialize().to_pybytes(),
            primary_key=TIKV_PRIMARY_KEY,
            channel_count=2,
            channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
            timestamp_kind=common_pb2.TIMESTAMP_KIND_TSO,
        )
        await asyncio.to_thread(self.client.create_collection, request)
        self._busy = asyncio.create_task(self._be_busy())

    async def start_coordinator(self) -> None:
        """Starts the coordinator, where it was before."""
        os.environ[ENVIRONMENT_VARIABLE] = str(self.failpoints["coordinator"])
        try:
            await self.coordinator.start()
        finally:
            del os.environ[ENVIRONMENT_VARIABLE]

    async def start_process(self) -> None:
        """Starts a datanode in a process of its own, in slot 1."""
        pd_addresses = self.living.server.pd_addresses
        with (self._directory / "datanode.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "puller.tikv_datanode", self.coordinator.target, ",".join(pd_addresses)),
                *(SPLIT_KEY.hex(), "1"),
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
                    ENVIRONMENT_VARIABLE: str(self.failpoints["datanode"]),
                },
                stdout=log,
                stderr=log,
            )

    def start_own(self) -> None:
        """Starts a datanode in this process, in slot 0."""
        pd_addresses = tuple(self.living.server.pd_addresses)
        datanode, broker = make_datanode(self.coordinator.target, pd_addresses, SPLIT_KEY, 0)
        self._own = datanode, asyncio.create_task(datanode.run()), broker

    async def tear_down_own(self) -> None:
        """Ends it without any goodbye, as far as the coordinator can tell."""
        assert self._own is not None
        _, task, broker = self._own
        self._own = None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await broker.close()

    async def stop_datanodes(self) -> None:
        """Both hand back what they have, in order."""
        assert self._own is not None
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        datanode, task, broker = self._own
        self._own = None
        await asyncio.wait_for(asyncio.gather(datanode.stop(), self.process.wait()), STEP_SECONDS)
        await task
        await broker.close()

    async def close(self) -> None:
        """Ends whatever still runs."""
        if self._busy is not None:
            self._busy.cancel()
        if self._own is not None:
            await self.tear_down_own()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self.client.close()
        await self.coordinator.kill()

    # ── the cluster meanwhile ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _be_busy(self) -> None:
        """Transactions and faults without end; history is removed as soon as nobody needs it."""
        rng, cluster = random.Random(SEED), self.living.cluster
        self._adversity.begin()
        while True:
            for _ in range(4):
                self._workload.step()
            if rng.random() < 0.05:
                self._adversity.strike()
            if rng.random() < 0.05:
                cluster.gc(cluster.tso())
            await asyncio.sleep(0.005)

    async def calm_down(self) -> int:
        """No more transactions and faults; returns a timestamp after everything."""
        assert self._busy is not None
        self._busy.cancel()
        self._adversity.end()
        self._workload.finish()
        return self.living.cluster.tso()

    # ── what the coordinator sees ───────────────────────────────────────────────────────────────────────────────────────────

    async def until_seen(self, condition: Callable[[list[admin_pb2.ChannelInfo]], bool]) -> None:
        """Waits until what the coordinator, another process, says of the channels satisfies a condition."""
        async with asyncio.timeout(STEP_SECONDS):
            while not condition(await asyncio.to_thread(lambda: list(self.client.list_channels("t")))):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def until_landed_further(self) -> None:
        """Waits until every channel's checkpoint has passed the present of now."""
        now_ts = self.living.cluster.tso()
        await self.until_seen(lambda channels: all(each.checkpoint.timestamp > now_ts for each in channels))

    def upserts(self, after_ts: int = 0) -> set[tuple[int, bytes]]:
        """Timestamp and key of everything that was written in the cluster after a timestamp."""
        history = self.living.cluster.mvcc.history
        return {(each.commit_ts, each.key) for each in history if each.op_type == PUT and each.commit_ts > after_ts}

    def registered(self) -> Counter[tuple[int, bytes]]:
        """How often every (timestamp, key) stands in a registered insert log."""
        root = Path(self.client.describe_collection("t").storage_root.removeprefix("file://"))
        found = Counter[tuple[int, bytes]]()
        for channel in self.client.list_binlogs("t"):
            for log in channel.binlogs:
                if log.kind == common_pb2.BINLOG_KIND_INSERT:
                    rows = pq.read_table(root / log.binlog.log_path, columns=["_timestamp", "key"]).to_pylist()
                    found.update((row["_timestamp"], row["key"]) for row in rows)
        return found


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A cluster that is busy, and a coordinator with a collection of two channels."""
    async with living_cluster(SEED) as living:
        made = Stage(living, tmp_path)
        try:
            await made.start()
            yield made
        finally:
            await made.close()


async def test_a_key_range_of_tikv_lands_exactly_once_whatever_is_killed(stage: Stage) -> None:
    """Rows are buffered, objects written and not registered, a commit made and not answered: each when somebody dies."""
    stage.start_own()
    await stage.start_process()
    await stage.until_seen(lambda channels: len({each.node_id for each in channels if each.node_id}) == 2)
    await stage.until_landed_further()
    landing_ts = stage.living.cluster.tso()

    # The process dies between writing objects and registering them.
    kill_datanode = stage.failpoints["datanode"] / "datanode.objects_written.kill"
    kill_datanode.touch()
    assert stage.process is not None
    assert await asyncio.wait_for(stage.process.wait(), STEP_SECONDS) == -signal.SIGKILL
    kill_datanode.unlink()
    await stage.start_process()

    # The coordinator dies between a commit and its answer.
    kill_coordinator = stage.failpoints["coordinator"] / "coordinator.after_commit.kill"
    kill_coordinator.touch()
    killed = stage.coordinator._process
    assert killed is not None
    assert await asyncio.wait_for(killed.wait(), STEP_SECONDS) == -signal.SIGKILL
    kill_coordinator.unlink()
    await stage.start_coordinator()
    await stage.until_landed_further()

    # The other datanode goes without a goodbye, with rows in its buffers.
    await stage.tear_down_own()
    stage.start_own()
    await stage.until_landed_further()

    # A fast machine is through all this before much has happened.
    await until(lambda: len(stage.upserts(landing_ts)) > 500, STEP_SECONDS)
    end_ts = await stage.calm_down()
    await stage.until_seen(lambda channels: all(each.report.timestamp >= end_ts for each in channels))
    await stage.stop_datanodes()

    mvcc = stage.living.cluster.mvcc
    rows = await asyncio.to_thread(lambda: to_arrow(stage.client, "t").to_pylist())
    assert {row["key"]: row["value"] for row in rows} == mvcc.state()
    assert len(rows) == len(mvcc.state())
    registered = await asyncio.to_thread(stage.registered)
    assert set(registered.values()) == {1}
    assert registered.keys() <= stage.upserts()
    # What was overwritten before the first scan may be gone; what happened since then may not.
    assert stage.upserts(landing_ts) <= registered.keys()
