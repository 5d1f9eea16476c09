"""Rows per second of the stream sink, against Spark's own streaming Parquet sink of the same stream.

make bench NAME=stream_sink [ARGS="--rounds 5 --scale 1"]; 10 minutes at most. `--scale` is a share of the rows.
"""

import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.harness import spark_side
from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Sample, Side, interleave
from benchmarks.harness.servers import CoordinatorProcess, cpu_seconds, scratch, sqlite_coordinator
from benchmarks.harness.spark_side import Input, Written
from datacoord.client import CoordinatorClient
from datanode_client.spark import register

ROWS = 4_000_000
CORES = 2
DIRECTORIES = 8
FILES_PER_DIRECTORY = 4
BATCHES = 4

METHOD = (
    f"The same {DIRECTORIES * FILES_PER_DIRECTORY} Parquet files as a file stream in {BATCHES} batches (availableNow), in one "
    f"Spark session on {CORES} processors, to which everything is bound; from the start of a query to its end. Sink: "
    '`writeStream.format("datacoord")`, append only, one channel: every object is synced, every batch registered with the '
    'coordinator. Spark: `writeStream.format("parquet")`, which syncs nothing; the same run counts a second time with an fsync '
    "of every file and directory at its end. All: zstd at its level 1, dictionaries on texts only, INT64 timestamps, no page "
    "checksums, row groups of as many rows as the sink makes; the footers are checked for it. CPU is that of all processes "
    "together."
)
SINK, PARQUET, PARQUET_SYNCED = "stream sink", "Spark's sink, not synced", "Spark's sink, synced"


@dataclass
class Stream:
    """What both sides read, and where they keep their state."""

    spark: SparkSession
    source: Input
    directory: Path
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def copy(self, output: str, options: Mapping[str, str]) -> tuple[float, float]:
        """Runs one query over everything there is; seconds, and those of processors."""
        state = self.directory / f"checkpoint-{next(self._numbers)}"
        cpu, started = cpu_seconds([os.getpid()]), time.perf_counter()
        rows = (
            self.spark.readStream.schema(_ddl(self.spark, self.source))
            .option("maxFilesPerTrigger", -(-self.source.files // BATCHES))
            .option("recursiveFileLookup", "true")
            .parquet(str(self.source.root))
        )
        writer = rows.writeStream.format(output).options(**options).option("checkpointLocation", str(state))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds, cpu = time.perf_counter() - started, cpu_seconds([os.getpid()]) - cpu
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        assert sum(batch["numInputRows"] for batch in batches) == self.source.rows
        assert len(batches) == BATCHES
        spark_side.remove(state)
        return seconds, cpu


@dataclass
class Sink:
    """The side of the stream sink."""

    stream: Stream
    coordinator: CoordinatorProcess
    client: CoordinatorClient
    written: list[Written] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def run(self) -> Sample:
        """Lands everything once."""
        name = f"sunk_{next(self._numbers)}"
        options = {"coordinator": self.coordinator.address, "collection": name, "compression": spark_side.CODEC}
        seconds, cpu = self.stream.copy("datacoord", options)
        files = spark_side.binlog_files(self.client, name)
        self.written.append(spark_side.inspect(files))
        assert self.written[-1].rows == self.stream.source.rows
        for file in files:
            file.unlink()
        return Sample(self.stream.source.rows, seconds, cpu_seconds=cpu)


@dataclass
class ParquetSink:
    """The side of Spark; the sink must have run once, so that it is known what row groups it makes."""

    stream: Stream
    output: Path
    sink: Sink
    written: list[Written] = field(default_factory=list)
    synced: list[Sample] = field(default_factory=list)

    async def run(self) -> Sample:
        """Writes everything once."""
        options = {**spark_side.writer_options(self.sink.written[0].rows_per_group), "path": str(self.output)}
        seconds, cpu = self.stream.copy("parquet", options)
        started, cpu_before = time.perf_counter(), cpu_seconds([os.getpid()])
        spark_side.sync_files(self.output)
        more, more_cpu = time.perf_counter() - started, cpu_seconds([os.getpid()]) - cpu_before
        self.written.append(spark_side.inspect(spark_side.parquet_files(self.output)))
        rows = self.stream.source.rows
        assert self.written[-1].rows == rows
        spark_side.remove(self.output)
        self.synced.append(Sample(rows, seconds + more, cpu_seconds=cpu + more_cpu))
        return Sample(rows, seconds, cpu_seconds=cpu)


async def measure(options: Options) -> Report:
    """Runs both sides."""
    with scratch() as directory, spark_side.spark_session(CORES) as spark:
        register(spark)
        rows = options.scaled(ROWS, DIRECTORIES * FILES_PER_DIRECTORY)
        source = spark_side.make_input(directory / "input", rows, DIRECTORIES, FILES_PER_DIRECTORY)
        stream = Stream(spark, source, directory)
        with (
            sqlite_coordinator(directory / "coordinator") as coordinator,
            CoordinatorClient(coordinator.address, caller="benchmark") as client,
        ):
            ours = Sink(stream, coordinator, client)
            theirs = ParquetSink(stream, directory / "spark", ours)
            samples = await interleave([Side(SINK, ours.run), Side(PARQUET, theirs.run)], options.rounds)
        versions = spark_side.versions(spark)
    sides = {SINK: samples[SINK], PARQUET_SYNCED: theirs.synced[1:], PARQUET: samples[PARQUET]}
    return spark_side.rates_report(
        Report("stream_sink", METHOD, (), versions=versions),
        sides,
        {SINK: ours.written[-1], PARQUET_SYNCED: theirs.written[-1], PARQUET: theirs.written[-1]},
        [(SINK, PARQUET, 0.85, 1.0), (SINK, PARQUET_SYNCED, 0.85, 1.0)],
    )


def _ddl(spark: SparkSession, source: Input) -> str:
    columns = spark.read.option("recursiveFileLookup", "true").parquet(str(source.root)).schema
    return ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in columns)


if __name__ == "__main__":
    main(measure, __doc__)
