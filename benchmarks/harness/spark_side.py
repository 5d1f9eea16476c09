"""What the benchmarks with Spark share: one session, one input, and Spark's own writers set to write what ours write.

Parquet from Spark and Parquet from a datanode differ by default in a dozen ways that have nothing to do with who is faster. Here
both sides have the same codec at the same level, dictionaries on texts only, timestamps as INT64, row groups of as many rows and no
page checksums. Sides must run in the thread that made the session: elsewhere Spark does not find data sources of Python.
"""

import contextlib
import importlib.metadata
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, cpu_us_per_item, per_second, ratios, spread
from datacoord.client import CoordinatorClient
from datacoord.objectstore import ObjectStore
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.spark import local_session

CODEC = "zstd"
CODEC_LEVEL = 1
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("note", pa.string()),
        pa.field("quantity", pa.int32()),
        pa.field("amount", pa.float64()),
        pa.field("points", pa.int64()),
        pa.field("ordered_at", pa.timestamp("us", "UTC")),
    ]
)
TEXTS = ("customer", "note")
CUSTOMERS = 20_000
WORDS = 4_000
_EPOCH_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Input:
    """Parquet files in as many directories as there are channels.

    Attributes:
        root: of them.
        directories: their names, in order.
        rows_per_directory: in each.
        files: in all.
    """

    root: Path
    directories: tuple[str, ...]
    rows_per_directory: int
    files: int

    @property
    def rows(self) -> int:
        """In all."""
        return self.rows_per_directory * len(self.directories)


@dataclass(frozen=True)
class Written:
    """What a side left on disk.

    Attributes:
        rows: in its files.
        size_bytes: of the files.
        files: how many.
        group_rows: rows of each row group.
    """

    rows: int
    size_bytes: int
    files: int
    group_rows: Sequence[int]

    @property
    def rows_per_group(self) -> int:
        """Of the group that the typical row is in: remainders do not count for much."""
        sizes = np.sort(np.array(self.group_rows))
        return int(sizes[np.searchsorted(np.cumsum(sizes), sizes.sum() / 2)])


def make_input(root: Path, rows: int, directories: int, files_per_directory: int) -> Input:
    """Writes orders: a key, two texts (one with few values, one free), three numbers and a time."""
    rng = np.random.default_rng(7)
    customers = pa.array([f"customer-{number:06}" for number in range(CUSTOMERS)])
    words = pa.array([f"{rng.integers(1 << 40):x}" for _ in range(WORDS)])
    count = max(1, rows // (directories * files_per_directory))
    names = tuple(f"{number:02}" for number in range(directories))
    first = 0
    for name in names:
        (root / name).mkdir(parents=True)
        for file in range(files_per_directory):
            pq.write_table(_orders(rng, customers, words, first, count), root / name / f"{file:03}.parquet")
            first += count
    return Input(root, names, count * files_per_directory, directories * files_per_directory)


def _orders(rng: np.random.Generator, customers: pa.Array, words: pa.Array, first: int, count: int) -> pa.Table:
    notes = [words.take(pa.array(rng.integers(WORDS, size=count))) for _ in range(3)]
    columns = [
        pa.array(np.arange(first, first + count)),
        customers.take(pa.array(rng.integers(CUSTOMERS, size=count))),
        pc.binary_join_element_wise(*notes, " "),
        pa.array(rng.integers(1, 100, size=count).astype(np.int32)),
        pa.array(np.round(rng.gamma(2.0, 40.0, size=count), 2)),
        pa.array(rng.integers(1 << 20, size=count)),
        pa.array(_EPOCH_US + first * 1000 + np.cumsum(rng.integers(2000, size=count))).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


# ---- Spark ----------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_session(cores: int) -> Iterator[SparkSession]:
    """A session that is bound to so many processors, and with it everything that is started later; one that there is, is taken.

    Spark first, gRPC later: it forks to start Java.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    mine = SparkSession.getActiveSession() is None
    config = {"spark.driver.memory": "3g", "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
    try:
        session = local_session("datacoord-benchmark", cores, config if mine else {})
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        try:
            yield session
        finally:
            if mine:
                session.stop()
    finally:
        os.sched_setaffinity(0, before)


def writer_options(rows_per_group: int) -> dict[str, str]:
    """Options that make Spark write Parquet as a datanode does."""
    return {
        "compression": CODEC,
        "parquet.compression.codec.zstd.level": str(CODEC_LEVEL),
        "parquet.enable.dictionary": "false",
        **{f"parquet.enable.dictionary#{name}": "true" for name in TEXTS},
        "parquet.block.row.count.limit": str(rows_per_group),
        "parquet.page.write-checksum.enabled": "false",
    }


def sync_files(root: Path) -> None:
    """Makes every file below a directory, and their names, durable."""
    for directory, _, names in os.walk(root):
        for path in (*(os.path.join(directory, name) for name in names), directory):
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def versions(spark: SparkSession) -> dict[str, str]:
    """Of what runs on both sides."""
    java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
    return {"spark": spark.version, "java": str(java), "pyarrow": importlib.metadata.version("pyarrow")}


# ---- what was written -----------------------------------------------------------------------------------------------------------


def inspect(paths: Sequence[Path], *, strict: bool = True) -> Written:
    """Reads the footers of files, and checks, if strict, that they were written as both sides must write them.

    Raises:
        AssertionError: another codec, or a dictionary where the other side has none.
    """
    rows, groups = 0, []
    for path in paths:
        metadata = pq.read_metadata(path)
        rows += metadata.num_rows
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            groups.append(group.num_rows)
            for number in range(group.num_columns if strict else 0):
                column = group.column(number)
                assert column.compression == CODEC.upper(), (path, column)
                # Of a text with few repetitions both give the dictionary up, Spark without a trace of it.
                assert column.has_dictionary_page <= (column.path_in_schema in TEXTS), (path, column)
                repeated = column.path_in_schema == TEXTS[0] and group.num_rows >= CUSTOMERS
                assert column.has_dictionary_page or not repeated, (path, column)
    return Written(rows, sum(path.stat().st_size for path in paths), len(paths), groups)


def parquet_files(root: Path) -> list[Path]:
    """What Spark wrote."""
    return sorted(root.rglob("*.parquet"))


def binlog_files(client: CoordinatorClient, collection: str) -> list[Path]:
    """The registered objects of an append-only collection."""
    root = Path(ObjectStore.from_uri(client.describe_collection(collection).storage_root).root)
    return [
        root / registered.binlog.log_path
        for channel in client.list_binlogs(collection)
        for registered in channel.binlogs
        if registered.kind == common_pb2.BINLOG_KIND_INSERT
    ]


def create_collection(client: CoordinatorClient, name: str, schema: pa.Schema, channels: int) -> None:
    """An append-only collection for a datanode job."""
    client.create_collection(
        collection_pb2.CreateCollectionRequest(
            collection_name=name,
            arrow_schema=schema.serialize().to_pybytes(),
            channel_count=channels,
            channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
            timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
        )
    )


def checkpoints(client: CoordinatorClient, collection: str) -> Mapping[str, int]:
    """How far every channel is registered."""
    return {channel.channel_name: channel.checkpoint.timestamp for channel in client.list_channels(collection)}


def remove(path: Path) -> None:
    """Gives the disk back."""
    shutil.rmtree(path, ignore_errors=True)


# ---- reports --------------------------------------------------------------------------------------------------------------------


def rates_report(
    report: Report,
    samples: Mapping[str, Sequence[Sample]],
    written: Mapping[str, Written],
    bars: Sequence[tuple[str, str, float, float]],
) -> Report:
    """Fills in rates, processor time and what was left on disk; ratios are to the last side.

    Args:
        report: with its name and method.
        samples: of each side.
        written: by side, in its last run.
        bars: side, other side, first bar, goal.
    """
    report.columns = ("side", "rows/s", "× last", "CPU µs/row", "× last", "bytes/row", "files", "rows per group")
    last = list(samples)[-1]
    for side, of in samples.items():
        rate, to_last = spread(of, per_second), ratios(of, samples[last], per_second)
        cpu, cpu_to_last = spread(of, cpu_us_per_item), ratios(of, samples[last], cpu_us_per_item)
        left = written[side]
        size = left.size_bytes / left.rows
        cells = (rate.shown(0), to_last.shown(), cpu.shown(), cpu_to_last.shown())
        report.rows.append((side, *cells, f"{size:.2f}", f"{left.files:,}", f"{left.rows_per_group:,}"))
        report.figures[side] = {
            "rows": left.rows,
            "rows_per_second": rate.as_json(),
            "rate_to_last": to_last.as_json(),
            "cpu_us_per_row": cpu.as_json(),
            "cpu_to_last": cpu_to_last.as_json(),
            "bytes_per_row": round(size, 2),
            "files": left.files,
            "rows_per_group": left.rows_per_group,
        }
    report.bars = [
        Bar(f"{side} to {other}", ratios(samples[side], samples[other], per_second).median, first, goal)
        for side, other, first, goal in bars
    ]
    return report
