"""Rows per second of a datanode job that lands a directory of Parquet files, against Spark's own write of the same rows.

make bench NAME=datanode_job [ARGS="--rounds 5 --scale 1"]; 10 minutes at most. `--scale` is a share of the rows.
"""

import itertools
import os
import time
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
from datanode_client.config import DataNodeConfig
from datanode_client.sources.parquet import ParquetReaderFactory
from datanode_client.spark import DataNodeJob

ROWS = 4_000_000
CORES = 2
CHANNELS = 8
FILES_PER_CHANNEL = 4
SECONDS_MAX = 600.0
_POLL_SECONDS = 0.02

METHOD = (
    f"The same Parquet files, {CHANNELS} directories of {FILES_PER_CHANNEL} (a key, two texts, three numbers, a time), in one "
    f"Spark session on {CORES} processors, to which everything is bound. Datanode job: {CORES} datanodes, one channel per "
    "directory, append only; from the start of the job until every row is registered with the coordinator, whose objects are "
    "synced one by one. Spark: `spark.read.parquet(…).write.parquet(…)`, then fsync of every file and directory. Both: zstd at "
    "level 1, dictionaries on texts only, INT64 timestamps, no page checksums, row groups of as many rows as the datanodes make; "
    "the footers are checked for it. CPU is that of all processes together: driver, JVM, Python workers, coordinator."
)


@dataclass
class DataNodes:
    """The side of the datanode job."""

    spark: SparkSession
    source: Input
    coordinator: CoordinatorProcess
    client: CoordinatorClient
    config: DataNodeConfig = field(
        default_factory=lambda: DataNodeConfig(binlog_compression_level=spark_side.CODEC_LEVEL)
    )
    written: list[Written] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def run(self) -> Sample:
        """Lands everything once."""
        name = f"landed_{next(self._numbers)}"
        spark_side.create_collection(self.client, name, spark_side.SCHEMA, len(self.source.directories))
        factory = ParquetReaderFactory(self.source.root, directories=self.source.directories, until_head=True)
        job = DataNodeJob(
            self.spark,
            factory,
            collections=[name],
            coordinator=self.coordinator.address,
            datanodes=CORES,
            job_name=name,
            config=self.config,
        )
        cpu, started = cpu_seconds([os.getpid()]), time.perf_counter()
        job.start()
        try:
            self._await_registered(name, job)
            seconds, cpu = time.perf_counter() - started, cpu_seconds([os.getpid()]) - cpu
        finally:
            job.stop()
        files = spark_side.binlog_files(self.client, name)
        self.written.append(spark_side.inspect(files))
        assert self.written[-1].rows == self.source.rows
        for file in files:
            file.unlink()
        return Sample(self.source.rows, seconds, cpu_seconds=cpu)

    def _await_registered(self, name: str, job: DataNodeJob) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while min(spark_side.checkpoints(self.client, name).values()) < self.source.rows_per_directory:
            job.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} was not landed in {SECONDS_MAX:.0f} s")
            time.sleep(_POLL_SECONDS)


@dataclass
class SparkWrite:
    """The side of Spark; the datanodes must have run once, so that it is known what row groups they make.

    Attributes:
        options: of the writer; None = those that make it write as the datanodes do.
    """

    spark: SparkSession
    source: Input
    directory: Path
    datanodes: DataNodes
    options: dict[str, str] | None = None
    written: list[Written] = field(default_factory=list)

    async def run(self) -> Sample:
        """Writes everything once."""
        options = self.options or spark_side.writer_options(self.datanodes.written[0].rows_per_group)
        cpu, started = cpu_seconds([os.getpid()]), time.perf_counter()
        rows = self.spark.read.option("recursiveFileLookup", "true").parquet(str(self.source.root))
        rows.write.options(**options).parquet(str(self.directory))
        spark_side.sync_files(self.directory)
        seconds, cpu = time.perf_counter() - started, cpu_seconds([os.getpid()]) - cpu
        self.written.append(spark_side.inspect(spark_side.parquet_files(self.directory), strict=self.options is None))
        assert self.written[-1].rows == self.source.rows
        spark_side.remove(self.directory)
        return Sample(self.source.rows, seconds, cpu_seconds=cpu)


async def measure(options: Options) -> Report:
    """Runs both sides."""
    with scratch() as directory, spark_side.spark_session(CORES) as spark:
        rows = options.scaled(ROWS, CHANNELS * FILES_PER_CHANNEL)
        source = spark_side.make_input(directory / "input", rows, CHANNELS, FILES_PER_CHANNEL)
        with (
            sqlite_coordinator(directory / "coordinator") as coordinator,
            CoordinatorClient(coordinator.address, caller="benchmark") as client,
        ):
            ours = DataNodes(spark, source, coordinator, client)
            theirs = SparkWrite(spark, source, directory / "spark", ours)
            sides = [Side("datanode job", ours.run), Side("Spark's write", theirs.run)]
            samples = await interleave(sides, options.rounds)
        versions = spark_side.versions(spark)
    written = {sides[0].name: ours.written[-1], sides[1].name: theirs.written[-1]}
    return spark_side.rates_report(
        Report("datanode_job", METHOD, (), versions=versions),
        samples,
        written,
        [(sides[0].name, sides[1].name, 1.2, 1.8)],
    )


if __name__ == "__main__":
    main(measure, __doc__)
