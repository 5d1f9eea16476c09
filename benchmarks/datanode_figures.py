"""What a datanode takes and gives: sizes of binlogs, memory per buffered byte, freshness, time to recover from SIGKILL.

make bench NAME=datanode_figures [ARGS="--rounds 5 --scale 1 --work 1"]; 10 minutes at most. `--rounds` is how often is
killed, `--scale` a share of the rows, `--work` of those whose freshness is taken.
"""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.datanode_job import DataNodes, SparkWrite
from benchmarks.harness import spark_side
from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Spread
from benchmarks.harness.servers import ROOT, resident_bytes, scratch, sqlite_coordinator
from benchmarks.harness.spark_side import Input, Written
from datacoord.client import CoordinatorClient
from datacoord.demo.services import CoordinatorProcess
from datacoord.reading import to_arrow
from datanode_client.client_config import BrokerConfig, SessionConfig
from datanode_client.config import DataNodeConfig
from datanode_client.sources.jsonl import JsonlReaderFactory
from datanode_client.sources.parquet import ParquetReaderFactory
from datanode_client.spark import DataNodeJob
from datanode_client.spark.job import JobConfig
from datanode_client.spark.task import SlotSpec

ROWS = 4_000_000
CORES = 2
CHANNELS = 2
FRESH_ROWS = 200
APPEND_SECONDS = 0.05
FRESH = DataNodeConfig(sync_period_seconds=0.2, sync_policy_tick_seconds=0.05)
SOURCE_POLL_SECONDS = 0.05
STEP_SECONDS_MAX = 180.0
_POLL_SECONDS = 0.01
_FEED, _BUFFERED = "feed", "buffered"
_FEED_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
_RUN_DATANODE = (
    "import pickle, sys; from datanode_client.spark.task import run_datanode; "
    "run_datanode(pickle.load(open(sys.argv[1], 'rb')))"
)

METHOD = (
    "Sizes: the input of `datanode_job`, landed with a datanode's defaults, as binlogs (with a column more, `_timestamp`) and "
    "written by Spark in the same way, and with Spark's own defaults. Memory: a datanode process without rows, and the same after "
    "it has read the input into buffers that nothing empties; resident bytes that came to it per byte that it reports as "
    f"buffered. Freshness: {CHANNELS} JSON Lines files, a row to each every {APPEND_SECONDS * 1000:.0f} ms, a datanode job of "
    f"{CORES} datanodes with a sync period of {FRESH.sync_period_seconds:g} s; from the append until the checkpoint up to which "
    "readers see has passed the row in every channel. Recovery: from a SIGKILL until a row that was appended right after it is "
    "readable in every channel; the killed coordinator is started again at once; a stopped worker goes on after that row, so that "
    "its channels move by their lease of 15 s. Executors are those of a local cluster. "
    "At the end `to_arrow` must give every row once."
)


async def measure(options: Options) -> Report:
    """Measures all of it."""
    report = Report("datanode_figures", METHOD, ("figure", "value", "unit"))
    with scratch() as directory, spark_side.spark_session(CORES) as spark:
        source = spark_side.make_input(directory / "input", options.scaled(ROWS, 32), 8, 4)
        await _sizes(report, spark, source, directory)
        _memory(report, source, directory)
        with growing_files(spark, directory / "feed") as feed:
            latencies = feed.freshness(options.calls(FRESH_ROWS))
            for percent in (50, 99):
                found = sorted(latencies)[min(len(latencies) - 1, len(latencies) * percent // 100)]
                _add(report, f"freshness p{percent}", "s", [found], 2)
            worker = feed.trials(feed.kill_worker, options.rounds)
            coordinator = feed.trials(feed.kill_coordinator, options.rounds)
            feed.check()
        report.versions = spark_side.versions(spark)
    on_a_cluster = _on_a_cluster(options.rounds)
    for name, seconds in (
        ("SIGKILL of a Python worker", worker),
        ("SIGKILL of an executor", on_a_cluster["executor"]),
        ("SIGSTOP of a Python worker", on_a_cluster["frozen"]),
        ("SIGKILL of the coordinator", coordinator),
    ):
        _add(report, f"recovery from {name}", "s", seconds, 2)
    return report


def _on_a_cluster(rounds: int) -> Mapping[str, list[float]]:
    """Recoveries that want executors of their own: a driver has one master for its life, so it is another process."""
    command = [sys.executable, "-m", "benchmarks.harness.cluster_recovery", str(rounds)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    seconds: Mapping[str, list[float]] = json.loads(output.strip().splitlines()[-1])
    return seconds


def _add(report: Report, name: str, unit: str, values: list[float], digits: int) -> None:
    spread = Spread(values)
    report.rows.append((name, spread.shown(digits) if len(values) > 1 else f"{values[0]:,.{digits}f}", unit))
    report.figures[name] = {"unit": unit, **spread.as_json(), "trials": len(values)}


# ---- sizes ----------------------------------------------------------------------------------------------------------------------


async def _sizes(report: Report, spark: SparkSession, source: Input, directory: Path) -> None:
    with (
        sqlite_coordinator(directory / "sizes") as coordinator,
        CoordinatorClient(coordinator.address, caller="benchmark") as client,
    ):
        ours = DataNodes(spark, source, coordinator, client, DataNodeConfig())
        await ours.run()
    alike = SparkWrite(spark, source, directory / "alike", ours)
    default = SparkWrite(spark, source, directory / "default", ours, {"compression": "snappy"})
    await alike.run()
    await default.run()
    sides = {
        "binlogs": ours.written,
        "Spark's Parquet, same settings": alike.written,
        "Spark's Parquet, its defaults": default.written,
    }
    for name, written in sides.items():
        _add(report, f"size of {name}", "bytes/row", [_bytes_per_row(written[-1])], 2)


def _bytes_per_row(written: Written) -> float:
    return written.size_bytes / written.rows


# ---- memory ---------------------------------------------------------------------------------------------------------------------


def _memory(report: Report, source: Input, directory: Path) -> None:
    """One datanode process, whose input appears after it has settled."""
    appearing = directory / "appearing"
    for name in source.directories:
        (appearing / name).mkdir(parents=True)
    huge = 1 << 34
    config = DataNodeConfig(insert_buf_size_bytes=huge, memory_limit_bytes=huge, sync_period_seconds=86_400.0)
    with (
        sqlite_coordinator(directory / "memory") as coordinator,
        CoordinatorClient(coordinator.address, caller="benchmark") as client,
    ):
        spark_side.create_collection(client, _BUFFERED, spark_side.SCHEMA, len(source.directories))
        spec = SlotSpec(
            job=_BUFFERED,
            slot=0,
            collection_names=(_BUFFERED,),
            reader_factory=ParquetReaderFactory(appearing, directories=source.directories, poll_seconds=0.1),
            broker=BrokerConfig(coordinator.address),
            session=SessionConfig(),
            datanode=config,
            log_level="warning",
        )
        with _datanode(spec, directory / "spec") as pid:
            _until(lambda: sum(_reports(client).values()) == 0 and len(_reports(client)) == len(source.directories))
            before = resident_bytes(pid)
            for file in source.root.rglob("*.parquet"):
                os.link(file, appearing / file.relative_to(source.root))
            _until(lambda: sum(_reports(client).values()) == source.rows)
            buffered = sum(msg.buffered_bytes for node in client.list_datanodes(_BUFFERED) for msg in node.msgs)
            after = resident_bytes(pid)
    _add(report, "memory of a datanode without rows", "MiB", [before / 2**20], 0)
    _add(report, "buffered, as reported", "MiB", [buffered / 2**20], 0)
    _add(report, "memory per buffered byte", "bytes", [(after - before) / buffered], 2)


def _reports(client: CoordinatorClient) -> Mapping[str, int]:
    """Rows in the buffers of every channel that a datanode has reported."""
    return {msg.channel_name: msg.buffered_rows for node in client.list_datanodes(_BUFFERED) for msg in node.msgs}


@contextlib.contextmanager
def _datanode(spec: SlotSpec, path: Path) -> Iterator[int]:
    path.write_bytes(pickle.dumps(spec))
    process = subprocess.Popen([sys.executable, "-c", _RUN_DATANODE, str(path)], cwd=ROOT)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


# ---- freshness and recovery -----------------------------------------------------------------------------------------------------


@dataclass
class Feed:
    """Files that grow, landed by a job.

    Attributes:
        spark: runs the job.
        files: one per channel, by the channel's name.
        coordinator: can be killed.
        client: of the coordinator.
    """

    spark: SparkSession
    files: dict[str, Path]
    coordinator: CoordinatorProcess
    client: CoordinatorClient
    _rows: int = 0
    _ends: dict[str, int] = field(default_factory=dict)
    _frozen: list[int] = field(default_factory=list)

    def append(self) -> dict[str, int]:
        """A row to every file; the timestamps that they have."""
        for name, path in self.files.items():
            line = json.dumps({"id": self._rows, "text": "x" * 100}) + "\n"
            with path.open("a") as file:
                file.write(line)
            self._ends[name] = self._ends.get(name, 0) + len(line)
        self._rows += 1
        return dict(self._ends)

    def until_readable(self, ends: Mapping[str, int]) -> None:
        """Waits until a reader sees rows of these timestamps in every channel."""
        _until(lambda: all(self._readable().get(name, 0) >= end for name, end in ends.items()))

    def freshness(self, rows: int) -> list[float]:
        """Appends rows at a steady pace; seconds until each is readable in every channel."""
        self.until_readable(self.append())
        waiting: list[tuple[float, dict[str, int]]] = []
        found: list[float] = []
        next_at = time.monotonic()
        deadline = next_at + STEP_SECONDS_MAX + rows * APPEND_SECONDS
        while len(found) < rows:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"{len(found)} of {rows} rows became readable")
            if now >= next_at and len(found) + len(waiting) < rows:
                waiting.append((now, self.append()))
                next_at += APPEND_SECONDS
            readable = self._readable()
            seen = time.monotonic()
            while waiting and all(readable.get(name, 0) >= end for name, end in waiting[0][1].items()):
                found.append(seen - waiting.pop(0)[0])
            time.sleep(_POLL_SECONDS)
        return found

    def trials(self, kill: Callable[[], None], count: int) -> list[float]:
        """Kills, and says how long it took each time until a row that came after it was readable."""
        seconds = []
        for _ in range(count):
            self.until_readable(self.append())
            started = time.monotonic()
            kill()
            self.until_readable(self.append())
            seconds.append(time.monotonic() - started)
            self.thaw()
            _until(lambda: len(list(self.client.list_datanodes(_FEED))) == CORES)
        return seconds

    def kill_worker(self) -> None:
        """Kills the Python worker of a datanode that has channels."""
        os.kill(self._worker(), signal.SIGKILL)

    def kill_executor(self) -> None:
        """Kills the JVM of an executor whose datanode has channels; its worker dies with it."""
        os.kill(_parent(_parent(self._worker())), signal.SIGKILL)

    def freeze_worker(self) -> None:
        """Stops the Python worker of a datanode that has channels, for longer than its lease; it goes on after the trial."""
        worker = self._worker()
        os.kill(worker, signal.SIGSTOP)
        self._frozen.append(worker)

    def thaw(self) -> None:
        """Lets go on what stands still."""
        while self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._frozen.pop(), signal.SIGCONT)

    def _worker(self) -> int:
        return next(node.pid for node in self.client.list_datanodes(_FEED) if node.channels)

    def kill_coordinator(self) -> None:
        """Kills the coordinator and starts it again."""
        self.coordinator.kill()
        self.coordinator.start()

    def check(self) -> None:
        """Every row is there, once."""
        ids = to_arrow(self.client, _FEED).column("id").to_pylist()
        assert sorted(ids) == sorted(list(range(self._rows)) * len(self.files))

    def _readable(self) -> Mapping[str, int]:
        # A reader sees rows up to the checkpoint that ListBinlogs gives it; the same one without the list is cheaper to ask for.
        return spark_side.checkpoints(self.client, _FEED)


@contextlib.contextmanager
def growing_files(spark: SparkSession, directory: Path) -> Iterator[Feed]:
    """A coordinator, files, and a job that lands them."""
    names = [f"{number}" for number in range(CHANNELS)]
    for name in names:
        (directory / name).mkdir(parents=True)
    settings = {"DATACOORD_LOG_LEVEL": "error"}
    coordinator = CoordinatorProcess(directory / "data", directory / "coordinator.log", settings)
    address = coordinator.start().address
    try:
        with CoordinatorClient(address, caller="benchmark", timeout_seconds=STEP_SECONDS_MAX) as client:
            spark_side.create_collection(client, _FEED, _FEED_SCHEMA, CHANNELS)
            channels = client.describe_collection(_FEED).channel_names
            files = {channel: directory / name / "rows.jsonl" for channel, name in zip(channels, names, strict=True)}
            factory = JsonlReaderFactory(directory, directories=names, poll_seconds=SOURCE_POLL_SECONDS)
            job = DataNodeJob(
                spark,
                factory,
                collections=[_FEED],
                coordinator=address,
                datanodes=CORES,
                job_name=_FEED,
                config=FRESH,
                job_config=JobConfig(log_level="error"),
            )
            with job:
                yield Feed(spark, files, coordinator, client)
    finally:
        coordinator.kill()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {STEP_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main(measure, __doc__)
