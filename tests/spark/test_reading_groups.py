"""Through Spark: rows whose columns stand in several objects, next to rows whose columns stand in one."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from server.running_coordinator import CoordinatorThread, running
from sink.rig import Query

import datacoord
from datacoord.client import CoordinatorClient
from datacoord.v1 import collection_pb2
from datanode_client.spark import register

pytestmark = pytest.mark.spark

PLAIN = pa.schema([pa.field("key", pa.int64()), pa.field("op", pa.string())])
VECTOR = pa.field("vector", pa.list_(pa.float32(), 64))


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own."""
    with running(tmp_path_factory.mktemp("groups") / "data") as thread:
        yield thread


def test_a_wide_column_that_came_later_is_read_by_both_ways(
    spark: SparkSession, coordinator: CoordinatorThread
) -> None:
    """One frame has objects with and without the column's group, and deletes that reach over both."""
    register(spark)
    query = Query(coordinator.address, "grown", primaryKey="key", operationColumn="op", channelCount="1")
    query.frame(0, pa.table([[1, 2, 3], ["upsert"] * 3], schema=PLAIN))
    with CoordinatorClient(coordinator.address) as client:
        added = pa.schema([VECTOR]).serialize().to_pybytes()
        client.alter_collection(collection_pb2.AlterCollectionRequest(collection_name="grown", add_columns=added))
    rows = [
        {"key": key, "op": op, "vector": [float(key)] * 64} for key, op in ((2, "upsert"), (3, "delete"), (4, "upsert"))
    ]
    query.frame(1, pa.Table.from_pylist(rows, pa.schema([*PLAIN, VECTOR])))

    expected: list[tuple[int, Any]] = [(1, None), (2, [2.0] * 64), (4, [4.0] * 64)]
    table = datacoord.to_arrow(coordinator.address, "grown").sort_by("key")
    assert list(zip(table["key"].to_pylist(), table["vector"].to_pylist(), strict=True)) == expected
    native = datacoord.read(spark, coordinator=coordinator.address, collection="grown")
    source = spark.read.format("datacoord").options(coordinator=coordinator.address, collection="grown").load()
    for frame in (native, source):
        assert [tuple(row) for row in frame.select("key", "vector").sort("key").collect()] == expected
