"""The three ways of reading give the same rows: Spark's own Parquet reader, Python tasks, and Arrow without Spark."""

import datetime as dt
import decimal
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from server.running_coordinator import CoordinatorThread, definition, running
from sink.rig import KEYED, ORDERED, Query, Row
from support import level_zero

import datacoord
from datacoord.client import CoordinatorClient
from datacoord.errors import CollectionNotFoundError, InvalidFieldError
from datacoord.reading import CollectionSchema
from datacoord.v1 import common_pb2
from datanode_client.spark.frame import collection_frame, hadoop_uri

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SEED = 20261121

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, None, -128]),
    "uint8": (pa.uint8(), [255, None, 0]),
    "uint16": (pa.uint16(), [65535, None, 0]),
    "uint32": (pa.uint32(), [2**32 - 1, None, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, None, 0]),
    "float32": (pa.float32(), [1.5, None, float("inf")]),
    "large_text": (pa.large_string(), ["ä", None, ""]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["x", None, "x"]),
    "fixed": (pa.binary(2), [b"ab", None, b"cd"]),
    "date": (pa.date32(), [dt.date(2020, 2, 29), None, dt.date(1900, 1, 1)]),
    "millis": (pa.timestamp("ms", "UTC"), [dt.datetime(2020, 1, 1, 1, tzinfo=dt.UTC), None, None]),
    "zone": (pa.timestamp("us", "Asia/Tokyo"), [dt.datetime(2020, 1, 1, 1, tzinfo=dt.UTC), None, None]),
    "clock": (pa.timestamp("us"), [dt.datetime(2020, 1, 1, 1, 2, 3, 4), None, None]),
    "money": (pa.decimal128(12, 2), [decimal.Decimal("-1.20"), None, decimal.Decimal("0.00")]),
    "vector": (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [0.0, -1.0]]),
    "list": (pa.large_list(pa.int64()), [[1, None], None, []]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": None}, None, {"a": None, "b": "x"}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1)], None, []]),
}
"""Columns that Spark's own Parquet reader knows, and values of them."""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own."""
    with running(tmp_path_factory.mktemp("reading") / "data") as thread:
        yield thread


@pytest.fixture(scope="module")
def log() -> list[Row]:
    """Operations on few keys over two channels, most of them replaced or deleted later."""
    rng = random.Random(SEED)
    rows: list[Row] = []
    for timestamp in range(1, 201):
        key, deletes = rng.randrange(40), rng.random() < 0.25
        rows.append((key, None if deletes else f"v{timestamp}", key % 2, timestamp, "delete" if deletes else "upsert"))
    return rows


@pytest.fixture(scope="module")
def collection(coordinator: CoordinatorThread, log: list[Row]) -> str:
    """A collection with the log in some objects."""
    query = Query(coordinator.address, "log", **KEYED, **ORDERED, bufferBytes="8000")
    for batch_id, start in enumerate(range(0, len(log), 50)):
        query.run(batch_id, log[start : start + 50])
    return query.collection


def seen(log: list[Row], upto: dict[int, int]) -> list[tuple[int, str, int]]:
    """Rows a reader must see, with channel 0 and 1 read up to a timestamp."""
    last: dict[int, tuple[int, str, int]] = {}
    for key, value, channel, timestamp, _ in log:
        if timestamp <= upto[channel]:
            last.pop(key, None)
            if value is not None:
                last[key] = (key, value, timestamp)
    return sorted(last.values())


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a frame, sorted."""
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("upto", [{0: 200, 1: 200}, {0: 0, 1: 120}, {0: 77, 1: 30}], ids=str)
def test_a_native_frame_has_the_rows_up_to_the_checkpoint_of_their_channel(
    session: SparkSession, coordinator: CoordinatorThread, collection: str, log: list[Row], upto: dict[int, int]
) -> None:
    """Spark knows nothing of checkpoints and deletes: what it reads are files, some of which reach beyond."""
    with CoordinatorClient(coordinator.address) as client:
        description = CollectionSchema.of(client.describe_collection(collection))
        channels = list(client.list_binlogs(collection))
    for index, channel in enumerate(channels):
        channel.checkpoint.timestamp = upto[index]

    frame = collection_frame(session, description, channels, with_timestamp=True)

    assert frame.columns == ["key", "value", "_timestamp"]
    assert rows_of(frame) == seen(log, upto)


def test_filters_and_columns_never_change_an_answer(
    session: SparkSession, coordinator: CoordinatorThread, collection: str, log: list[Row]
) -> None:
    """One frame used with several filters, with none, and joined with itself: Spark mixes up what it offers Python data sources."""
    rows = seen(log, {0: 200, 1: 200})

    def load(schema: str = "", **options: str) -> DataFrame:
        reader = session.read.format("datacoord").options(coordinator=coordinator.address, collection=collection)
        reader = reader.options(withTimestamp="true", maxPartitionBytes="1000", **options)
        return (reader.schema(schema) if schema else reader).load()

    frame = load()
    assert frame.rdd.getNumPartitions() > 2
    assert rows_of(frame.where("key = 7")) == [row for row in rows if row[0] == 7]
    assert rows_of(frame.where("value LIKE 'v1%' OR key < 5")) == [
        row for row in rows if row[1].startswith("v1") or row[0] < 5
    ]
    assert rows_of(frame) == rows
    both = frame.where("key < 9").unionByName(frame.where("key > 30"))
    assert rows_of(both) == [row for row in rows if row[0] < 9 or row[0] > 30]

    filters = '[["key", ">", 20], ["value", "!=", "v150"], ["key", "not in", [33, 34]]]'
    filtered = [row for row in rows if row[0] > 20 and row[1] != "v150" and row[0] not in {33, 34}]
    assert rows_of(load(filters=filters)) == filtered
    pruned = load("_timestamp long, KEY int", filters=filters)
    assert rows_of(pruned) == sorted((timestamp, key) for key, _, timestamp in filtered)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("value int", "cannot be given as int32"),
        ("key boolean", "cannot be given as bool"),
        ("_timestamp byte", "int8"),
    ],
)
def test_a_type_that_would_change_a_value_is_refused(
    session: SparkSession, coordinator: CoordinatorThread, collection: str, schema: str, says: str
) -> None:
    """2^40 as an int is 0, and 1.9 as a long is 1: wrong rows that look like right ones."""
    reader = session.read.format("datacoord").options(coordinator=coordinator.address, collection=collection)
    with pytest.raises(Exception, match=says):
        reader.options(withTimestamp="true").schema(schema).load().collect()


def test_deletes_that_name_no_partition_reach_all_of_them(
    session: SparkSession, coordinator: CoordinatorThread
) -> None:
    """Level zero: they stand in a segment of their own, beside those of the partitions."""
    name = level_zero.land(coordinator.address)
    native = datacoord.read(session, coordinator=coordinator.address, collection=name, with_timestamp=True)
    source = session.read.format("datacoord").options(coordinator=coordinator.address, collection=name).load()

    assert rows_of(native) == level_zero.SEEN
    assert rows_of(source) == [(key, value) for key, value, _ in level_zero.SEEN]


def test_filters_are_of_the_type_of_their_column(session: SparkSession, coordinator: CoordinatorThread) -> None:
    """JSON has neither dates nor decimals; what cannot be one is refused before a task runs."""
    at = pa.schema([("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("money", pa.decimal128(9, 2))])
    with CoordinatorClient(coordinator.address) as client:
        change = {"arrow_schema": at.serialize().to_pybytes(), "primary_key": [], "channel_count": 1}
        client.create_collection(definition("typed", channel_mode=common_pb2.CHANNEL_MODE_CLAIMED, **change))
    times = [dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
    money = [decimal.Decimal(f"{number}.50") for number in range(3)]
    Query(coordinator.address, "typed").frame(
        0, pa.table([pa.array(times, at.field("at").type), [time.date() for time in times], pa.array(money)], schema=at)
    )

    def load(filters: str) -> list[Any]:
        reader = session.read.format("datacoord").options(coordinator=coordinator.address, collection="typed")
        return [row["money"] for row in reader.option("filters", filters).load().collect()]

    assert load('[["at", ">=", "2020-01-02 00:00:00Z"], ["money", "<", "2.50"]]') == [money[1]]
    assert load('[["day", "in", ["2020-01-01", "2020-01-03"]]]') == [money[0], money[2]]
    with pytest.raises(PySparkException, match="compares column 'day' with 'soon', which is no date32"):
        load('[["day", "=", "soon"]]')
    with pytest.raises(PySparkException, match="filters names column 'nobody'"):
        load('[["nobody", "=", 1]]')


def test_every_type_comes_back_as_itself(session: SparkSession, coordinator: CoordinatorThread, tmp_path: Path) -> None:
    """What Spark does not have comes as the next larger type; nothing comes as null, from whatever a directory is called."""
    schema = pa.schema([("n", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    table = pa.table([[1, 2, 3], *(values for _, values in TYPES.values())], schema=schema)
    with CoordinatorClient(coordinator.address) as client:
        change = {"arrow_schema": schema.serialize().to_pybytes(), "primary_key": ["n"], "channel_count": 1}
        change["storage_root"] = str(tmp_path / "50% of {this} [and] that*")
        client.create_collection(definition("types", channel_mode=common_pb2.CHANNEL_MODE_CLAIMED, **change))
    Query(coordinator.address, "types").frame(0, table)

    arrow = datacoord.to_arrow(coordinator.address, "types").sort_by("n")
    native = datacoord.read(session, coordinator=coordinator.address, collection="types").orderBy("n").collect()
    reader = session.read.format("datacoord").options(coordinator=coordinator.address, collection="types")
    source = reader.load().orderBy("n").collect()

    assert arrow.equals(table)
    assert native == source
    expected = table.to_pylist()
    assert [row["uint64"] for row in native] == [decimal.Decimal(2**64 - 1), None, decimal.Decimal(0)]
    for name in (
        "int8",
        "uint8",
        "uint32",
        "float32",
        "large_text",
        "dictionary",
        "fixed",
        "date",
        "clock",
        "money",
        "vector",
        "list",
    ):
        assert [row[name] for row in native] == [row[name] for row in expected], name
    assert [row["struct"] and row["struct"].asDict() for row in native] == [row["struct"] for row in expected]
    assert [row["map"] for row in native] == [{"k": 1}, None, {}]
    assert [row["zone"] for row in native] == [row["millis"] for row in native]


def test_a_type_that_sparks_parquet_reader_does_not_know_is_said(
    session: SparkSession, coordinator: CoordinatorThread
) -> None:
    """Spark would fail in a task, with a page about Parquet annotations; the other ways read it."""
    nanos = pa.schema([("at", pa.timestamp("ns", "UTC")), ("half", pa.float16())])
    with CoordinatorClient(coordinator.address) as client:
        change = {"arrow_schema": nanos.serialize().to_pybytes(), "primary_key": [], "channel_count": 1}
        client.create_collection(definition("nanos", channel_mode=common_pb2.CHANNEL_MODE_CLAIMED, **change))
    at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    Query(coordinator.address, "nanos").frame(0, pa.table([[at], [1.5]], schema=nanos))

    with pytest.raises(InvalidFieldError, match=r"'at' is .*ns.*; read with spark\.read\.format"):
        datacoord.read(session, coordinator=coordinator.address, collection="nanos")
    reader = session.read.format("datacoord").options(coordinator=coordinator.address, collection="nanos")
    (row,) = reader.load().collect()
    assert (row["at"].astimezone(dt.UTC), row["half"]) == (at, 1.5)


def test_an_empty_collection_is_an_empty_frame(session: SparkSession, coordinator: CoordinatorThread) -> None:
    """And one that is not there is said to be not there."""
    Query(coordinator.address, "empty", **KEYED).plan(pa.schema([("key", pa.int64()), ("op", pa.string())]))
    reader = session.read.format("datacoord").options(coordinator=coordinator.address, collection="empty")

    assert datacoord.read(session, coordinator=coordinator.address, collection="empty").columns == ["key"]
    assert datacoord.read(session, coordinator=coordinator.address, collection="empty").collect() == []
    assert reader.load().collect() == []
    with pytest.raises(CollectionNotFoundError):
        datacoord.read(session, coordinator=coordinator.address, collection="nobody")


@pytest.mark.parametrize(
    ("root", "uri"),
    [
        ("/data/objects/7", "/data/objects/7"),
        ("file:///data/objects/7/", "file:///data/objects/7"),
        ("s3://bucket/a/7?region=eu&scheme=http", "s3a://bucket/a/7"),
        ("gcs://bucket/7", "gs://bucket/7"),
        ("hdfs://name:9000/a", "hdfs://name:9000/a"),
    ],
)
def test_storage_roots_are_named_as_hadoop_names_them(root: str, uri: str) -> None:
    """Spark reads through Hadoop, which has other names for the same buckets, and its own credentials."""
    assert hadoop_uri(root) == uri
