"""The stage of the sources' end-to-end tests: a coordinator, a datanode process with failpoints, and what was registered."""

import asyncio
import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datanode_process.coordinator_process import ROOT, CoordinatorProcess

from datacoord.client import CoordinatorClient
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2
from datanode_client.sources.base import ChannelContext, ChannelReader, ReaderFactory

STEP_SECONDS = 60.0


@dataclass
class ByCollection:
    """One factory for collections of several sources."""

    factories: dict[str, ReaderFactory]

    def __call__(self, context: ChannelContext) -> ChannelReader:
        return self.factories[context.collection_name](context)


class LandingStage:
    """Coordinator and datanode as processes of their own.

    Args:
        directory: for everything.
        factories: of the collections, by name.
    """

    def __init__(self, directory: Path, factories: dict[str, ReaderFactory]) -> None:
        self._directory = directory
        self._collections = list(factories)
        self.coordinator = CoordinatorProcess(directory)
        self.client = CoordinatorClient("")
        self.failpoints = {name: directory / f"{name}-failpoints" for name in ("coordinator", "datanode")}
        for path in self.failpoints.values():
            path.mkdir()
        (directory / "factories").write_bytes(pickle.dumps(ByCollection(factories)))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the coordinator."""
        await self._start_coordinator()
        self.client = CoordinatorClient(self.coordinator.target, timeout_seconds=20)

    async def create(self, name: str, schema: pa.Schema, primary_key: list[str], channels: int) -> None:
        """Creates a collection."""
        request = collection_pb2.CreateCollectionRequest(
            collection_name=name,
            arrow_schema=schema.serialize().to_pybytes(),
            primary_key=primary_key,
            channel_count=channels,
            channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
            timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
        )
        await asyncio.to_thread(self.client.create_collection, request)

    async def start_datanode(self) -> None:
        """Starts the datanode."""
        with (self._directory / "datanode.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sources.source_datanode", self.coordinator.target),
                *(str(self._directory / "factories"), ",".join(self._collections)),
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
                    ENVIRONMENT_VARIABLE: str(self.failpoints["datanode"]),
                },
                stdout=log,
                stderr=log,
            )

    async def kill_datanode_at(self, point: str, occasion: Callable[[], object]) -> None:
        """The datanode dies when it comes to a failpoint, and is started again; the new one has taken over when this returns.

        Args:
            point: the failpoint.
            occasion: what makes it come there. It must not have been done before: the datanode could be past the point.
        """
        assert self._process is not None
        await self._die_at("datanode", point, self._process, occasion)
        dead = {channel.node_id for channel in await asyncio.to_thread(self.channels)}
        await self.start_datanode()
        # Until then the coordinator still shows what the dead one has said last.
        await self.until(
            lambda channels: all(
                each.node_id and each.node_id not in dead and each.report.epoch == each.epoch for each in channels
            )
        )

    async def kill_coordinator_at(self, point: str, occasion: Callable[[], object]) -> None:
        """The coordinator dies when an occasion brings it to a failpoint, and is started again where it was."""
        assert self.coordinator._process is not None
        await self._die_at("coordinator", point, self.coordinator._process, occasion)
        await self._start_coordinator()

    async def stop_datanode(self) -> None:
        """The datanode hands back its channels, in order."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(self._process.wait(), STEP_SECONDS) == 0, self.log()

    async def close(self) -> None:
        """Ends whatever still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self.client.close()
        await self.coordinator.kill()

    def log(self) -> str:
        """What the datanode has said."""
        return (self._directory / "datanode.log").read_text()

    async def until(self, condition: Callable[[list[admin_pb2.ChannelInfo]], bool]) -> None:
        """Waits until what the coordinator says of all channels satisfies a condition."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                while not condition(await asyncio.to_thread(self.channels)):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{self.channels()}\n{self.log()[-6000:]}") from None

    async def until_said(self, word: str, times: int) -> None:
        """Waits until the datanode's log says something so often."""
        async with asyncio.timeout(STEP_SECONDS):
            while self.log().count(word) < times:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)

    async def until_registered(self, timestamps: dict[str, int]) -> None:
        """Waits until every checkpoint has reached a timestamp, by the names of collections."""
        await self.until(
            lambda channels: all(each.checkpoint.timestamp >= timestamps[each.collection_name] for each in channels)
        )

    def channels(self) -> list[admin_pb2.ChannelInfo]:
        """All channels."""
        return [channel for name in self._collections for channel in self.client.list_channels(name)]

    def registered(self, collection: str, column: str) -> Counter[tuple[int, int, object]]:
        """How often every (channel, timestamp, value of a column) stands in a registered insert log."""
        root = Path(self.client.describe_collection(collection).storage_root.removeprefix("file://"))
        found = Counter[tuple[int, int, object]]()
        for index, channel in enumerate(self.client.list_binlogs(collection)):
            for log in channel.binlogs:
                if log.kind == common_pb2.BINLOG_KIND_INSERT:
                    rows = pq.read_table(root / log.binlog.log_path, columns=["_timestamp", column]).to_pylist()
                    found.update((index, row["_timestamp"], row[column]) for row in rows)
        return found

    async def _start_coordinator(self) -> None:
        os.environ[ENVIRONMENT_VARIABLE] = str(self.failpoints["coordinator"])
        try:
            await self.coordinator.start()
        finally:
            del os.environ[ENVIRONMENT_VARIABLE]

    async def _die_at(
        self, who: str, point: str, process: asyncio.subprocess.Process, occasion: Callable[[], object]
    ) -> None:
        kill = self.failpoints[who] / f"{point}.kill"
        kill.touch()
        await asyncio.to_thread(occasion)
        assert await asyncio.wait_for(process.wait(), STEP_SECONDS) == -signal.SIGKILL
        kill.unlink()
