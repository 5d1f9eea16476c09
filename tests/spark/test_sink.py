"""The data source `datacoord` in a real Spark: streams and frames in, tasks and drivers failing, three ways of reading back."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from server.running_coordinator import CoordinatorProcess
from sink.rig import Query, orphans, positions

import datacoord

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = 6
ROWS_PER_FILE = 500
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.string()), ("ts", pa.int64()), ("shard", pa.int32())])
ORDERED = {"channelColumn": "shard", "timestampColumn": "ts", "channelCount": "2"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A coordinator process; each test has collections of its own."""
    with CoordinatorProcess(tmp_path_factory.mktemp("landing") / "data") as coordinator:
        yield coordinator.address


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet files whose rows have an order over all files, as a log has; every file has rows of both channels."""
    directory = tmp_path_factory.mktemp("source")
    for number in range(FILES):
        keys = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        columns = [list(keys), [f"v{key}" for key in keys], [key + 1 for key in keys], [key % 2 for key in keys]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        path = directory / f"{number}.parquet"
        pq.write_table(pa.table(arrays, schema=SCHEMA), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads files in this order
    return directory


def everything() -> Counter[tuple[int, str]]:
    """Every row of the source, once."""
    return Counter((key, f"v{key}") for key in range(FILES * ROWS_PER_FILE))


def read_back(address: str, collection: str) -> Counter[tuple[int, str]]:
    """Key and value of every row a reader sees, and how often."""
    rows = datacoord.to_arrow(address, collection, columns=["key", "value"])
    return Counter(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True))


def stream(session: SparkSession, source: Path, files_per_batch: int = 2) -> DataFrame:
    """The source as a stream."""
    ddl = "key long, value string, ts long, shard int"
    return session.readStream.schema(ddl).option("maxFilesPerTrigger", files_per_batch).parquet(str(source))


def land(frame: DataFrame, address: str, collection: str, checkpoints: Path, **options: str) -> StreamingQuery:
    """Runs a stream until it has landed what there is."""
    writer = frame.writeStream.format("datacoord").option("coordinator", address).option("collection", collection)
    query = writer.options(**options).option("checkpointLocation", str(checkpoints)).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    return query


def test_rows_land_exactly_once_though_tasks_fail_with_objects_written(
    session: SparkSession, address: str, source: Path, tmp_path: Path
) -> None:
    """What a failed attempt has written is durable and looks like any other object."""
    objects = tmp_path / "objects"

    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 3 and context.attemptNumber() == 0:
                deadline = time.monotonic() + 60
                while not any(objects.rglob("*.parquet")) and time.monotonic() < deadline:
                    time.sleep(0.05)
                raise RuntimeError("this attempt dies with objects written")
            yield batch

    # Batches of few rows, but larger than what Spark buffers, reach the sink while the rest is held back.
    wide = stream(session, source).selectExpr("key", "rpad(value, 1000, 'x') AS value", "ts", "shard")
    frame = wide.mapInArrow(failing_once, wide.schema)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        options = {**ORDERED, "storage": str(objects), "bufferBytes": "30000"}
        query = land(frame, address, "retried", tmp_path / "checkpoints", **options)
    finally:
        session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert read_back(address, "retried") == Counter((key, value.ljust(1000, "x")) for key, value in everything())
    assert len(orphans(address, "retried")) > 0
    assert [position for _, position in positions(address, "retried")] == [f"{query.id}/2"] * 2
    assert sum(progress["sink"]["numOutputRows"] for progress in query.recentProgress) == FILES * ROWS_PER_FILE


def test_a_batch_that_spark_has_not_noted_as_done_is_not_landed_twice(
    session: SparkSession, address: str, source: Path, tmp_path: Path
) -> None:
    """The driver dies between the commit of the sink and Spark's own: Spark runs the batch again."""
    frame = stream(session, source).drop("ts", "shard")
    first = land(frame, address, "noted", tmp_path / "checkpoints")
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoints" / "commits" / name).unlink()

    again = land(frame, address, "noted", tmp_path / "checkpoints")

    assert again.id == first.id
    assert [progress["batchId"] for progress in again.recentProgress] == [2]
    assert read_back(address, "noted") == everything()


def test_a_lost_checkpoint_directory_is_told_and_can_be_gone_on_from(
    session: SparkSession, address: str, source: Path, tmp_path: Path
) -> None:
    """The new query has another id, counts its batches anew, and cuts them in other places."""
    some = tmp_path / "some"
    some.mkdir()
    for number in range(FILES // 2):
        shutil.copy2(source / f"{number}.parquet", some)
    land(stream(session, some), address, "anew", tmp_path / "lost", **ORDERED, owner="anew")

    with pytest.raises(StreamingQueryException, match=r"OutOfOrderError.*resume=progress"):
        land(stream(session, source), address, "anew", tmp_path / "new", **ORDERED, owner="anew")
    for name in range(2, 5):
        frame, checkpoints = stream(session, source, files_per_batch=name), tmp_path / f"checkpoints{name}"
        land(frame, address, "anew", checkpoints, **ORDERED, owner="anew", resume="progress")

    assert read_back(address, "anew") == everything()


def test_a_query_that_does_not_own_its_channels_says_who_does(
    session: SparkSession, address: str, source: Path, tmp_path: Path
) -> None:
    """The sentence of the coordinator must reach the person who started the query."""
    frame = stream(session, source).drop("ts", "shard")
    land(frame, address, "owned", tmp_path / "one", owner="the-first")

    with pytest.raises(StreamingQueryException, match="claimed by 'the-first' and its lease lives"):
        land(frame, address, "owned", tmp_path / "two")


def test_frames_are_appended_upserted_and_deleted(session: SparkSession, address: str) -> None:
    """The same keys from several tasks, over several writes, each of which comes after the one before."""

    def write(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("datacoord").mode("append").option("coordinator", address)
        writer.options(collection="frames", **options).save()

    write(session.range(0, 100, 1, 4).selectExpr("id AS key", "concat('a', id) AS value"), primaryKey="key")
    write(session.range(50, 150, 1, 3).selectExpr("id AS key", "concat('b', id) AS value"))
    write(session.range(0, 10, 1, 2).selectExpr("id AS key"), operation="delete")
    changes = session.range(140, 160, 1, 2).selectExpr(
        "id AS key", "concat('c', id) AS value", "if(id < 150, 'delete', 'upsert') AS op"
    )
    write(changes, operationColumn="op")
    expected = {key: ("a" if key < 50 else "b" if key < 140 else "c") + str(key) for key in range(10, 160)}
    expected = {key: value for key, value in expected.items() if not 140 <= key < 150}

    assert read_back(address, "frames") == Counter(expected.items())
    native = datacoord.read(session, coordinator=address, collection="frames")
    source = session.read.format("datacoord").options(coordinator=address, collection="frames").load()
    assert {row.key: row.value for row in native.collect()} == expected
    assert {row.key: row.value for row in source.collect()} == expected
    assert native.count() == source.count() == len(expected)


def test_a_write_in_foreach_batch_is_known_when_it_is_repeated(
    session: SparkSession, address: str, source: Path, tmp_path: Path
) -> None:
    """Spark promises at least once there; the number of the batch makes it once."""

    def twice(frame: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            writer = frame.select("key", "value").write.format("datacoord").mode("append")
            writer.options(coordinator=address, collection="each", owner="each", batchId=str(batch_id)).save()

    query = stream(session, source, 3).writeStream.foreachBatch(twice).trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path / "checkpoints")).start().awaitTermination(200)

    assert read_back(address, "each") == everything()
    assert positions(address, "each") == [(2, "each/1")]


@pytest.mark.parametrize(
    ("options", "mode", "sentence"),
    [
        ({"collection": "refused", "timestampColum": "id"}, "append", "did you mean timestampColumn"),
        ({"collection": "refused"}, "overwrite", "mode overwrite is not possible"),
        ({"collection": "nobody", "createIfMissing": "false"}, "append", "collection 'nobody' does not exist"),
    ],
)
def test_a_write_that_cannot_be_is_refused_before_it_begins(
    session: SparkSession, address: str, options: dict[str, str], mode: str, sentence: str
) -> None:
    """With a sentence that says what to change, at the end of Spark's traceback."""
    with pytest.raises(AnalysisException, match=sentence):
        session.range(1).write.format("datacoord").mode(mode).options(coordinator=address, **options).save()


def test_a_failed_write_hands_its_channels_back(session: SparkSession, address: str) -> None:
    """The next one, a minute of lease later, would be the first that helps."""

    def write(expression: str) -> None:
        frame = session.range(3).selectExpr(f"{expression} AS key")
        writer = frame.write.format("datacoord").mode("append").option("coordinator", address)
        writer.options(collection="failed", primaryKey="key").save()

    with pytest.raises(PySparkException, match="key column 'key' is null"):
        write("if(id = 1, null, id)")

    write("id")
    assert datacoord.to_arrow(address, "failed").num_rows == 3


def test_a_reader_that_is_asked_for_what_is_not_there_says_so(session: SparkSession, address: str) -> None:
    """At once, and not in a task."""
    Query(address, "columns").plan(pa.schema([("key", pa.int64())]))

    def reader(**options: str) -> Any:
        return session.read.format("datacoord").options(coordinator=address, collection="columns", **options)

    with pytest.raises(PySparkException, match="no column 'nobody'; it has key"):
        reader().schema("nobody long").load().collect()
    with pytest.raises(AnalysisException, match="no option 'channel'"):
        reader(channel="1").load()
