"""Every type of a column goes the whole way with Spark: a frame, the sink, objects, and back by all readers."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from server.running_coordinator import CoordinatorThread, definition, running
from sink.rig import Query

import datacoord
from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError
from datacoord.v1 import common_pb2
from datanode_client.conversions import converted
from datanode_client.spark import register
from datanode_client.spark.types import spark_schema
from spark.every_type import NATIVE, OTHERS, column

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own."""
    with running(tmp_path_factory.mktemp("types") / "data") as thread:
        yield thread


def create(coordinator: CoordinatorThread, name: str, schema: pa.Schema) -> None:
    """Makes a collection."""
    with CoordinatorClient(coordinator.address) as client:
        change = {"arrow_schema": schema.serialize().to_pybytes(), "primary_key": [], "channel_count": 1}
        client.create_collection(definition(name, channel_mode=common_pb2.CHANNEL_MODE_CLAIMED, **change))


def texts(values: pa.ChunkedArray) -> list[str]:
    """Values that can be compared: NaN is itself, 0 is not -0, and times are beyond what Python has."""
    if pa.types.is_temporal(values.type) and values.type.bit_width == 64:
        values = values.cast(pa.int64())
    return [repr(value) for value in values.to_pylist()]


@pytest.mark.parametrize("types", [NATIVE, OTHERS], ids=["native", "others"])
def test_every_type_comes_back_as_it_went_in(
    spark: SparkSession, coordinator: CoordinatorThread, types: dict[str, tuple[pa.DataType, list[Any]]]
) -> None:
    """At its edges, and as null."""
    register(spark)
    rows = max(len(values) for _, values in types.values()) + 1
    schema = pa.schema([("n", pa.int64()), *((name, kind) for name, (kind, _) in types.items())])
    landed = pa.table(
        [list(range(rows)), *(column(kind, values, rows) for kind, values in types.values())], schema=schema
    )
    ours, collection = spark_schema(schema), f"types{len(types)}"
    given = pa.table(
        [
            values.cast(field.type)
            for values, field in zip(landed.columns, to_arrow_schema(ours, timezone="UTC"), strict=True)
        ],
        schema=to_arrow_schema(ours, timezone="UTC"),
    )
    create(coordinator, collection, schema)
    options = {"coordinator": coordinator.address, "collection": collection}

    spark.createDataFrame(given, ours).coalesce(2).write.format("datacoord").mode("append").options(**options).save()

    found = datacoord.to_arrow(coordinator.address, collection).sort_by("n")
    assert found.schema.equals(schema)
    for name in schema.names:
        assert texts(found[name]) == texts(landed[name]), name
    frames = {
        "source": spark.read.format("datacoord").options(**options).load(),
        "read": datacoord.read(spark, coordinator=coordinator.address, collection=collection),
    }
    for way, frame in frames.items():
        table = frame.toArrow().sort_by("n").cast(given.schema)
        for name in schema.names:
            assert texts(table[name]) == texts(given[name]), (way, name)


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.duration(unit) for unit in ("s", "ms", "ns")),
        pa.struct([("half", pa.float16())]),
        pa.struct([("at", pa.timestamp("ns"))]),
        pa.map_(pa.string(), pa.time32("s")),
    ],
    ids=str,
)
def test_what_sparks_parquet_reader_would_misread_is_refused_nested_too(
    spark: SparkSession, coordinator: CoordinatorThread, kind: pa.DataType
) -> None:
    """It takes every duration for microseconds: a second would come back as a millionth of one, and nobody would know."""
    name = f"unknown{hash(str(kind)) & 0xFFFFFF}"
    create(coordinator, name, pa.schema([("n", pa.int64()), ("value", kind)]))
    Query(coordinator.address, name).frame(0, pa.table([pa.array([1]), pa.nulls(1, kind)], ["n", "value"]))

    with pytest.raises(InvalidFieldError, match=r"column 'value' is .*, which Spark's Parquet reader does not know"):
        datacoord.read(spark, coordinator=coordinator.address, collection=name)


def test_a_column_of_nulls_becomes_vectors() -> None:
    """As Spark sends it there is no memory for the values: Arrow's cast ended the whole process, and so did every retry."""
    empty = pa.Array.from_buffers(pa.float32(), 0, [None, None])
    offsets, none = pa.array([0, 0], pa.int32()).buffers()[1], pa.py_buffer(b"\0")
    for kind in (pa.list_(pa.float32()), pa.list_(pa.field("element", pa.float32(), nullable=False))):
        nulls = pa.Array.from_buffers(kind, 1, [none, offsets], children=[empty])
        assert converted(nulls, pa.list_(pa.float32(), 64)).to_pylist() == [None]


def test_types_that_spark_does_not_have_are_refused_in_words() -> None:
    """A decimal of 76 digits came as Spark's own sentence about its precision, without the column; maps were never widened."""
    with pytest.raises(InvalidFieldError, match="column 'money' is decimal256"):
        spark_schema(pa.schema([("money", pa.decimal256(76, 3))]))
    assert spark_schema(pa.schema([("m", pa.map_(pa.uint8(), pa.uint64()))]))["m"].dataType.simpleString() == (
        "map<smallint,decimal(20,0)>"
    )
