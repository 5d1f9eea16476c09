"""Commits per second to one collection, each with a Parquet object of its own: against appends to Delta Lake and Iceberg.

make bench NAME=commits [ARGS="--rounds 5 --work 1"]; 15 minutes at most. `--work` is a share of the commits. The first
run installs the other side from requirements/bench.lock.
"""

import asyncio
import functools
import hashlib
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import table_formats
from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, interleave, per_second, ratios, spread
from benchmarks.harness.servers import ROOT, CoordinatorProcess, scratch
from datacoord.client import CoordinatorClient
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2

ROWS = 100
WRITERS = 8
CHANNELS_PER_CALL = 32
COMMITS = {"datacoord": 16_384, "delta": 96, "iceberg": 48}
"""Of one round."""

METHOD = (
    f"Objects of {ROWS} rows are written before the clock starts; then each is committed on its own, to one collection, on a "
    f"local disk. Ours: {WRITERS} writers call SaveBinlogPaths over gRPC, {CHANNELS_PER_CALL} channels per call as datanodes do, "
    "each channel's part a commit of its own with its position, on SQLite with synchronous=FULL. Delta Lake: delta-rs, the "
    "better of one writer and as many as ours. Iceberg: PyIceberg's fast append with a catalog in SQLite, one writer, because "
    "its appends fail where two meet. Neither of them syncs its log."
)


class Ours:
    """Writers of a collection of ours.

    Args:
        address: of the coordinator.
        directory: where objects go.
    """

    def __init__(self, address: str, directory: Path) -> None:
        self._root = directory
        self._clients = [CoordinatorClient(address, caller="sink") for _ in range(WRITERS)]
        schema = table_formats.batch(1, 0).schema
        info = self._clients[0].create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name="commits",
                arrow_schema=schema.serialize().to_pybytes(),
                channel_count=WRITERS * CHANNELS_PER_CALL,
                channel_mode=common_pb2.CHANNEL_MODE_CLAIMED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
                storage_root=str(directory),
            )
        )
        claimed = self._clients[0].claim_channels("bench", list(info.channel_names))
        self._channels = [result.info for result in claimed]
        self._partition = info.partitions["_default"]
        self._end = 0
        sink = pa.BufferOutputStream()
        rows = table_formats.batch(ROWS, 0).append_column("_timestamp", pa.array(range(ROWS), pa.int64()))
        pq.write_table(rows, sink)
        self._data = sink.getvalue()

    async def run(self, commits: int) -> Sample:
        """Makes so many commits."""
        calls = max(commits // len(self._channels), 1)
        parts = [self._parts(writer, calls) for writer in range(WRITERS)]
        self._end += calls * ROWS
        started = time.perf_counter()
        await asyncio.gather(*(asyncio.to_thread(self._commit, writer, parts[writer]) for writer in range(WRITERS)))
        return Sample(calls * len(self._channels), time.perf_counter() - started)

    def _commit(self, writer: int, calls: list[list[data_coord_pb2.ChannelBinlogs]]) -> None:
        for parts in calls:
            for result in self._clients[writer].save_binlog_paths(parts):
                assert result.outcome == common_pb2.OUTCOME_APPLIED, result

    def _parts(self, writer: int, calls: int) -> list[list[data_coord_pb2.ChannelBinlogs]]:
        """Writes the objects of a writer; what its calls say of them."""
        channels = self._channels[writer * CHANNELS_PER_CALL : (writer + 1) * CHANNELS_PER_CALL]
        starts = range(self._end, self._end + calls * ROWS, ROWS)
        return [[self._part(info, start, start + ROWS) for info in channels] for start in starts]

    def _part(self, info: data_coord_pb2.ChannelRecoveryInfo, start: int, end: int) -> data_coord_pb2.ChannelBinlogs:
        log_id = start + 1
        path = BinlogPath(BinlogKind.INSERT, info.channel_id, self._partition, info.epoch, start, end, 0, log_id)
        self._write(str(path))
        binlog = common_pb2.Binlog(
            log_id=log_id,
            log_path=str(path),
            entries_num=ROWS,
            timestamp_from=start + 1,
            timestamp_to=end,
            log_size_bytes=self._data.size,
            memory_size_bytes=self._data.size,
        )
        lane = data_coord_pb2.LaneBinlogs(
            partition_id=self._partition,
            timestamp_from=start,
            timestamp_to=end,
            insert_logs=[common_pb2.FieldBinlog(binlogs=[binlog])],
        )
        position = common_pb2.MsgPosition(timestamp=end, msg_id=b"m")
        return data_coord_pb2.ChannelBinlogs(
            channel_name=info.channel_name, epoch=info.epoch, lanes=[lane], check_point=position
        )

    def _write(self, path: str) -> None:
        # Before the clock starts, and without syncing: neither side syncs these.
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self._data)


class TableFormat:
    """A table of others, in its process.

    Args:
        python: one that has their libraries.
        kind: delta or iceberg.
        writers: threads that append.
        directory: where the table goes.
    """

    def __init__(self, python: Path, kind: str, writers: int, directory: Path) -> None:
        self._process = subprocess.Popen(
            [python, table_formats.__file__, kind, directory, str(writers), str(ROWS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask(None)

    async def run(self, commits: int) -> Sample:
        """Makes so many commits."""
        return Sample(commits, float(await asyncio.to_thread(self._ask, commits)))

    def _ask(self, commits: int | None) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if commits is not None:
            print(commits, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the other side ended; what it said stands above")
        return answer

    def stop(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


def libraries() -> Path:
    """A Python with the libraries of the other side, from requirements/bench.lock, made once in .cache."""
    lock = ROOT / "requirements" / "bench.lock"
    venv = ROOT / ".cache" / "bench" / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    python = venv / "bin" / "python"
    if not (venv / ".complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "--require-hashes", "--no-deps", "-r", str(lock)], check=True)
        (venv / ".complete").touch()
    return python


async def measure(options: Options) -> Report:
    """Runs all sides, round by round; tables grow from round to round."""
    python = libraries()
    with ExitStack() as stack:
        directory = stack.enter_context(scratch())
        coordinator = CoordinatorProcess(directory / "coordinator", {})
        stack.callback(coordinator.stop)
        ours = Ours(coordinator.address, directory / "objects")
        runs: dict[str, Callable[[], Awaitable[Sample]]] = {
            "datacoord": lambda: ours.run(options.calls(COMMITS["datacoord"]))
        }
        for name, kind, writers in (
            ("delta, 1 writer", "delta", 1),
            (f"delta, {WRITERS} writers", "delta", WRITERS),
            ("iceberg", "iceberg", 1),
        ):
            table = TableFormat(python, kind, writers, directory / name)
            stack.callback(table.stop)
            commits = max(options.calls(COMMITS[kind]), WRITERS)
            runs[name] = functools.partial(table.run, commits)
        samples = await interleave([Side(name, run) for name, run in runs.items()], options.rounds)
    report = Report("commits", METHOD, ("side", "commits/s", "first round", "last round", "ours ×"))
    for name, of in samples.items():
        rate, ratio = spread(of, per_second), ratios(samples["datacoord"], of, per_second)
        first, last = of[0].per_second, of[-1].per_second
        times = "1" if name == "datacoord" else ratio.shown(0)
        report.rows.append((name, rate.shown(0), f"{first:.0f}", f"{last:.0f}", times))
        report.figures[name] = {
            "commits_per_second": rate.as_json(),
            "first": first,
            "last": last,
            "ours": ratio.as_json(),
        }
    delta = report.best(samples, "delta")
    for name, other in (("Delta Lake", delta), ("Iceberg", "iceberg")):
        report.bars.append(
            Bar(f"ours to {name}", ratios(samples["datacoord"], samples[other], per_second).median, 20, 50)
        )
    return report


if __name__ == "__main__":
    main(measure, __doc__)
