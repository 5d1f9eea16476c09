"""Whatever is pushed down: filters and columns never change an answer. Many filters in one job, since jobs take the time."""

import datetime as dt
import json
import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from server.running_coordinator import CoordinatorThread, running
from sink.rig import Query

import datacoord
from datanode_client.spark import register

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COLUMNS = pa.schema(
    [
        ("key", pa.int64()),
        ("text", pa.string()),
        ("number", pa.float64()),
        ("day", pa.date32()),
        ("op", pa.string()),
    ]
)
KEYS = 12
VALUES: dict[str, list[Any]] = {
    "key": list(range(-1, KEYS + 1)),
    "text": ["", "a", "ab", "b", "ä", "'"],
    "number": [0.0, -0.0, 1.5, -1e300, math.inf, 2.0],
    "day": [dt.date(1500, 1, 1), dt.date(2020, 2, 29), dt.date(2021, 1, 1)],
}
"""What rows have in a column (beside nulls and NaN), and what they are compared with."""

Condition = tuple[str, str, Any]


def conditions() -> st.SearchStrategy[list[Condition]]:
    """Some conditions that must all be true; none = every row."""
    singles = [
        st.tuples(st.just(name), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.sampled_from(values))
        for name, values in VALUES.items()
    ]
    several = [
        st.tuples(st.just(name), st.sampled_from(["in", "not in"]), st.lists(st.sampled_from(values), min_size=1))
        for name, values in VALUES.items()
    ]
    return st.lists(st.one_of(*singles, *several), max_size=3)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own."""
    with running(tmp_path_factory.mktemp("pushdown") / "data") as thread:
        yield thread


@pytest.fixture(scope="module")
def collection(coordinator: CoordinatorThread) -> str:
    """Every key has had other values before, most of which other filters find, and some are gone."""
    query = Query(
        coordinator.address, "pushed", primaryKey="key", operationColumn="op", channelCount="1", bufferBytes="1024"
    )
    numbers = [*VALUES["number"], None, math.nan]
    texts, days = [*VALUES["text"], None], [*VALUES["day"], None]
    for batch in range(4):
        rows = [
            {
                "key": key,
                "text": texts[(key * 5 + batch * 3) % len(texts)],
                "number": numbers[(key * 3 + batch) % len(numbers)],
                "day": days[(key + batch) % len(days)],
                "op": "delete" if batch and (key * 7 + batch) % 6 == 0 else "upsert",
            }
            for key in range(KEYS)
        ]
        query.frame(batch, pa.Table.from_pylist(rows, COLUMNS), tasks=2)
    return query.collection


def as_json(filters: list[Condition]) -> str:
    """As the option `filters` has them."""
    return json.dumps(filters, default=str)


def as_sql(filters: list[Condition]) -> str:
    """As `where` has them."""

    def literal(value: Any) -> str:
        if isinstance(value, str):
            return "'" + value.replace("'", "\\'") + "'"
        return (
            f"date'{value}'"
            if isinstance(value, dt.date)
            else f"double('{value}')"
            if isinstance(value, float)
            else str(value)
        )

    parts = [
        f"{name} {operator} ({', '.join(map(literal, value))})"
        if isinstance(value, list)
        else f"{name} {operator} {literal(value)}"
        for name, operator, value in filters
    ]
    return " and ".join(parts) or "true"


def test_filters_never_change_an_answer(spark: SparkSession, coordinator: CoordinatorThread, collection: str) -> None:
    """A filter that reached the deletes would bring old rows back, and one frame's filter must not become another's.

    What is pushed down is compared with the same filter over all rows: the option's as Arrow knows it, those of `where` as Spark
    does (nulls, NaN and -0.0 are not the same there).
    """
    register(spark)
    everything = datacoord.to_arrow(coordinator.address, collection)
    assert 4 <= everything.num_rows < KEYS
    reader = spark.read.format("datacoord").options(coordinator=coordinator.address, collection=collection)
    reader = reader.option("maxPartitionBytes", "3000")
    source, native = reader.load(), datacoord.read(spark, coordinator=coordinator.address, collection=collection)
    local = spark.createDataFrame(everything)

    @given(st.lists(conditions(), min_size=5, max_size=5))
    @settings(
        max_examples=3,  # the first is the simplest there is
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(many: list[list[Condition]]) -> None:
        expected: dict[str, list[tuple[Any, ...]]] = {}
        frames: dict[str, DataFrame] = {}
        for number, filters in enumerate(many):
            rows = everything if not filters else everything.filter(pq.filters_to_expression(filters))
            expected[f"option {number}"] = sorted(
                zip(*(rows[name].to_pylist() for name in ("key", "text")), strict=True)
            )
            frames[f"option {number}"] = (
                reader.option("filters", as_json(filters)).schema("key long, text string").load()
            )
            for way, frame in (("source", source), ("native", native), ("local", local)):
                frames[f"{way} {number}"] = frame.where(as_sql(filters)).select("key", "text")
        marked = [frame.select(F.lit(name).alias("way"), "key", "text") for name, frame in frames.items()]
        found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in frames}
        for way, key, text in reduce(DataFrame.union, marked).collect():
            found[way].append((key, text))
        for number, filters in enumerate(many):
            assert sorted(found[f"option {number}"]) == expected[f"option {number}"], filters
            assert sorted(found[f"source {number}"]) == sorted(found[f"local {number}"]), filters
            assert sorted(found[f"native {number}"]) == sorted(found[f"local {number}"]), filters

    check()
