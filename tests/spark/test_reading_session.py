"""What a reader gives does not depend on how the user's session is set, nor on what columns are called."""

import contextlib
import datetime as dt
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StructField, StructType
from reading.test_column_groups import Written
from server.running_coordinator import CoordinatorThread, definition, running
from sink.rig import Query

import datacoord
from datacoord.client import CoordinatorClient
from datacoord.paths import BinlogKind
from datacoord.reading import CollectionSchema, read_units
from datacoord.v1 import common_pb2
from datanode_client.spark.frame import collection_frame
from datanode_client.spark.options import ReadOptions
from datanode_client.spark.source import CollectionReader, UnitsPartition

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ANCIENT = pa.schema(
    [
        ("k", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("clock", pa.timestamp("us")),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("op", pa.string()),
    ]
)
"""Columns whose values a session could change: old dates are other days in the calendar of old versions of Spark."""

VECTOR = pa.field("vector", pa.list_(pa.float32(), 64))

SETTINGS = [
    {
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.parquet.mergeSchema": "true",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    },
    {
        "spark.sql.parquet.datetimeRebaseModeInRead": "EXCEPTION",
        "spark.sql.parquet.int96RebaseModeInRead": "EXCEPTION",
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
        "spark.sql.parquet.aggregatePushdown": "true",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    },
]
"""Settings of a session that Spark's readers listen to."""

NAMES = ["a.b", "a b", "a`b", "`q`", "ä.ключ", "a'b\"c", "a[0]", "select", "*", "${x}", "a\\b", "a%20b"]
"""Columns that some quoting gets wrong."""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own."""
    with running(tmp_path_factory.mktemp("session") / "data") as thread:
        yield thread


@contextlib.contextmanager
def set_to(session: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """The session as another user has it; afterwards as it was."""
    before = {key: session.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            session.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


def land(address: str, name: str, keys: list[str], batches: list[pa.Table], root: str = "") -> None:
    """A collection with these batches, whose column `op` says what the rows do."""
    stored = pa.schema([column for column in batches[0].schema if column.name != "op"])
    with CoordinatorClient(address) as client:
        change = {"arrow_schema": stored.serialize().to_pybytes(), "primary_key": keys, "channel_count": 1}
        change["storage_root"] = root
        client.create_collection(definition(name, channel_mode=common_pb2.CHANNEL_MODE_CLAIMED, **change))
    query = Query(address, name, operationColumn="op")
    for number, batch in enumerate(batches):
        query.frame(number, batch)


@pytest.fixture(scope="module", params=["plain", "wide"])
def ancient(
    request: pytest.FixtureRequest, coordinator: CoordinatorThread, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Rows of old dates, some of them replaced and deleted, read by Spark's reader or (with a wide column) by Arrow tasks."""
    columns = ANCIENT if request.param == "plain" else pa.schema([*ANCIENT, VECTOR])
    days = [dt.date(1, 1, 3), dt.date(1000, 2, 28), dt.date(1582, 10, 10), dt.date(2020, 1, 1)]

    def rows(chosen: list[dt.date], text: str, op: str) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {
                    "k": day,
                    "at": dt.datetime(day.year, day.month, day.day, 1, tzinfo=dt.UTC),
                    "clock": dt.datetime(day.year, day.month, day.day, 2),
                    "text": text,
                    "raw": text.encode(),
                    "op": op,
                    "vector": [1.0] * 64,
                }
                for day in chosen
            ],
            columns,
        )

    # Spark takes a directory named so for a column of its own where it looks for partitions.
    root = tmp_path_factory.mktemp(f"{request.param}") / "text=partition"
    batches = [rows(days, "old", "upsert"), rows(days[:2], "new", "upsert"), rows(days[2:3], "", "delete")]
    land(coordinator.address, f"ancient_{request.param}", ["k"], batches, str(root))
    return f"ancient_{request.param}"


def ways(session: SparkSession, address: str, name: str) -> dict[str, DataFrame]:
    """Both ways of Spark."""
    reader = session.read.format("datacoord").options(coordinator=address, collection=name)
    return {"native": datacoord.read(session, coordinator=address, collection=name), "source": reader.load()}


def collected(frames: dict[str, DataFrame]) -> dict[str, list[tuple[Any, ...]]]:
    """Rows of each frame, sorted, in one job: the tests' time goes into jobs."""
    marked = [frame.select(F.lit(name).alias("way"), "*") for name, frame in frames.items()]
    rows = sorted(tuple(row) for row in reduce(DataFrame.union, marked).collect())
    return {name: [row[1:] for row in rows if row[0] == name] for name in frames}


@pytest.mark.parametrize("settings", SETTINGS, ids=["lenient", "slow"])
def test_no_setting_of_the_session_changes_an_answer(
    session: SparkSession, coordinator: CoordinatorThread, ancient: str, settings: dict[str, str]
) -> None:
    """Users set their sessions for other tables: a date of another calendar, or a row that is back, is an answer nobody doubts."""
    table = datacoord.to_arrow(coordinator.address, ancient).sort_by("k")
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    expected = [
        (
            (row["k"] - epoch.date()).days,
            (row["at"] - epoch) // dt.timedelta(microseconds=1),
            f"{row['clock'].year:04}-{row['clock']:%m-%d %H:%M:%S}",
            row["text"],
            row["raw"].hex().upper(),
        )
        for row in table.to_pylist()
    ]
    assert [row[3] for row in expected] == ["new", "new", "old"]

    # Days and instants as numbers: how they are shown is the session's.
    shown = ["unix_date(k)", "unix_micros(at)", "cast(clock as string)", "text", "hex(raw)"]
    with set_to(session, settings):
        frames = ways(session, coordinator.address, ancient)
        frames |= {
            f"{way}, filtered": frame.where("text = 'new' and k > date'0500-01-01'") for way, frame in frames.items()
        }
        found = collected({way: frame.selectExpr(*shown) for way, frame in frames.items()})
    assert found == {way: expected[1:2] if "filtered" in way else expected for way in frames}


@pytest.mark.parametrize(
    ("damage", "kind"), [("missing", "delta_log"), ("corrupt", "delta_log"), ("missing", "insert_log")]
)
def test_an_object_that_cannot_be_read_fails_the_read_whatever_the_session_ignores(
    session: SparkSession, coordinator: CoordinatorThread, tmp_path: Path, damage: str, kind: str
) -> None:
    """Without its deletes a replaced row stands beside the new one; without its rows a hole is taken for the truth."""
    columns, name = pa.schema([("k", pa.int64()), ("v", pa.string()), ("op", pa.string())]), f"{damage}_{kind}"
    batches = [pa.table([[1], [text], ["upsert"]], schema=columns) for text in ("old", "new")]
    land(coordinator.address, name, ["k"], batches, str(tmp_path))
    settings = {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"}

    with set_to(session, settings):
        frames = ways(session, coordinator.address, name)
        if damage == "missing":
            assert collected(frames) == {"native": [(1, "new")], "source": [(1, "new")]}
        for path in (tmp_path / kind).rglob("*.parquet"):
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(b"PAR1" + bytes(path.stat().st_size))
        for frame in frames.values():
            with pytest.raises((PySparkException, Py4JJavaError)):
                frame.collect()
        if damage == "missing":
            with pytest.raises(PySparkException):  # where Spark lists
                datacoord.read(session, coordinator=coordinator.address, collection=name)


@pytest.mark.parametrize("wide", [False, True], ids=["plain", "wide"])
def test_columns_may_be_called_anything(session: SparkSession, coordinator: CoordinatorThread, wide: bool) -> None:
    """A dot in a key's name is a field of a struct for Spark, unless it is quoted."""
    collection = f"names_{wide}"
    vector = [VECTOR] if wide else []
    numbers = [pa.field(name, pa.int64()) for name in NAMES]
    columns = pa.schema([*numbers, ("value", pa.string()), ("op", pa.string()), *vector])
    rows = [
        {**dict.fromkeys(NAMES, key), "value": f"{key}{version}", "op": "upsert", "vector": [1.0] * 64}
        for version in "ab"
        for key in (1, 2)
    ]
    batches = [pa.Table.from_pylist(some, columns) for some in (rows[:2], rows[2:])]
    land(coordinator.address, collection, NAMES, batches)

    expected = [(*[key] * len(NAMES), f"{key}b") for key in (1, 2)]
    table = datacoord.to_arrow(coordinator.address, collection).select([*NAMES, "value"]).sort_by("value")
    assert [tuple(row.values()) for row in table.to_pylist()] == expected
    frames = {way: frame.drop("vector") for way, frame in ways(session, coordinator.address, collection).items()}
    assert [frame.columns for frame in frames.values()] == [[*NAMES, "value"]] * 2
    frames |= {f"{way}, filtered": frame.where("`a.b` = 2 and `a``b` = 2") for way, frame in frames.items()}
    assert collected(frames) == {way: expected[1:] if "filtered" in way else expected for way in frames}


def test_columns_that_differ_by_case_only_are_told_apart_or_refused(
    session: SparkSession, coordinator: CoordinatorThread, tmp_path: Path
) -> None:
    """A datanode may land them. Spark tells them apart if its session says so, and else must not take one for the other."""
    columns = pa.schema([pa.field("k", pa.int64(), nullable=False), ("K", pa.int64())])
    with CoordinatorClient(coordinator.address) as client:
        change = {"arrow_schema": columns.serialize().to_pybytes(), "primary_key": ["k"], "channel_count": 1}
        client.create_collection(definition("cases", storage_root=str(tmp_path), **change))
        collection = CollectionSchema.of(client.describe_collection("cases"))
    written = Written.begin(tmp_path, columns, ("k",))
    for start in (0, 1):
        made = written.inserts([{"k": 1, "K": 10 + start}], start)
        (batch,) = made[BinlogKind.INSERT]
        made[BinlogKind.DELTA] = [batch.select(written.schema.delta_log.names).cast(written.schema.delta_log)]
        written.add(start, made, start + 1)

    with set_to(session, {"spark.sql.caseSensitive": "true"}):
        assert [tuple(row) for row in collection_frame(session, collection, [written.channel]).collect()] == [(1, 11)]
    with pytest.raises(PySparkException, match="COLUMN_ALREADY_EXISTS"):
        collection_frame(session, collection, [written.channel])
    options = ReadOptions.read({"coordinator": coordinator.address, "collection": "cases"})
    for name, value in (("k", 1), ("K", 11)):
        reader = CollectionReader(options, StructType([StructField(name, LongType())]))
        batches = reader.read(UnitsPartition(list(read_units(written.channel))))
        assert [row for batch in batches for row in batch.to_pylist()] == [{name: value}]
