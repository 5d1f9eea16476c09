"""The benchmarks with Spark at tiny sizes: that both sides write the same rows in the same way, and say what was measured."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.harness import spark_side
from benchmarks.harness.command import Options
from benchmarks.harness.report import Report

BARS = {"datanode_job": 1, "stream_sink": 2, "datanode_figures": 0}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One session for all: each benchmark alone would start its own."""
    with spark_side.spark_session(2) as session:
        yield session


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(BARS))
async def test_a_benchmark_with_spark_runs_and_says_what_it_measured(
    name: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that nobody runs is broken when somebody wants to know; and it checks itself that no row is lost on either side."""
    module = importlib.import_module(f"benchmarks.{name}")
    report: Report = await module.measure(Options(rounds=1, scale=0.001, work=0.02))
    report.show()
    *shown, last = capsys.readouterr().out.strip().splitlines()
    figures = json.loads(last)
    assert figures["benchmark"] == name
    assert figures["versions"]["spark"] == spark.version
    assert len(report.rows) >= 2
    assert all(any(str(row[0]) in line for line in shown) for row in report.rows)
    assert [bar["value"] > 0 for bar in figures["bars"]] == [True] * BARS[name]


@pytest.mark.parametrize(
    ("codec", "dictionaries"), [("snappy", ["customer", "note"]), ("zstd", ["customer", "points"]), ("zstd", ["note"])]
)
def test_files_that_were_written_otherwise_are_not_compared(
    tmp_path: Path, codec: str, dictionaries: list[str]
) -> None:
    """A ratio between two codecs, or between numbers with a dictionary and numbers without, says nothing about the writers."""
    source = spark_side.make_input(tmp_path / "input", spark_side.CUSTOMERS, 1, 1)
    table = pa.concat_tables(pq.read_table(path) for path in spark_side.parquet_files(source.root))
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(table, good, compression=spark_side.CODEC, use_dictionary=["customer", "note"])
    pq.write_table(table, bad, compression=codec, use_dictionary=dictionaries)
    assert spark_side.inspect([good]).rows == source.rows
    with pytest.raises(AssertionError, match=r"bad\.parquet"):
        spark_side.inspect([good, bad])
