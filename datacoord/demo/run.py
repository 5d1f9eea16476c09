"""The demo from its start to its last line."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from rich.console import Console

from datacoord.client import CoordinatorClient
from datacoord.demo.failpoint_files import FailpointFiles
from datacoord.demo.inputs import DemoInput, make_input
from datacoord.demo.kills import HeadLimit, Saboteur
from datacoord.demo.observe import Observer
from datacoord.demo.options import DemoOptions
from datacoord.demo.progress import Progress
from datacoord.demo.report import Figures, print_report, to_json
from datacoord.demo.rpc_figures import read_rpc_figures
from datacoord.demo.services import CoordinatorProcess
from datacoord.errors import SourceInvalidError
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.v1 import collection_pb2, common_pb2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LAND_SECONDS_MAX = 3600.0
_STOP_SECONDS_MAX = 60.0

_COORDINATOR_SETTINGS = {
    # Reports come often, so that the demo sees what it waits for; the lease is the time a dead datanode's channels wait for.
    "DATACOORD_DATANODE_LEASE_SECONDS": "5",
    "DATACOORD_HEARTBEAT_INTERVAL_SECONDS": "0.2",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.5",
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.5",
    "DATACOORD_JOB_LEASE_SECONDS": "1",
}


def run_demo(options: DemoOptions) -> int:
    """Runs the demo.

    Returns:
        the exit status: 0 if the result is proven.

    Raises:
        DatacoordError: the input is not what it should be, or something could not be started.
    """
    started_at = time.monotonic()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    data_dir = _fresh_directory(options.directory)
    limit_path = data_dir / "head_limit"
    demo_input = make_input(options, limit_path, data_dir / "input")
    progress = Progress(Console(stderr=True), demo_input.description, demo_input.last_timestamp)
    limit = HeadLimit(limit_path, demo_input.last_timestamp)
    if options.kill:
        limit.set_share(0.25)
    failpoints = FailpointFiles(data_dir / "failpoints")
    os.environ[ENVIRONMENT_VARIABLE] = str(failpoints.directory)

    coordinator = CoordinatorProcess(data_dir, data_dir / "coordinator.log", _COORDINATOR_SETTINGS)
    progress.say("starting the coordinator on SQLite")
    endpoints = coordinator.start()
    with contextlib.ExitStack() as stack:
        stack.callback(coordinator.stop)
        progress.say(f"starting Spark for {options.datanodes} datanodes over {demo_input.channel_count} channels")
        spark = stack.enter_context(_spark_session(options.datanodes))
        client = stack.enter_context(CoordinatorClient(endpoints.address, caller="demo"))
        observer = Observer(client, demo_input.collection_name, progress.show)
        stack.enter_context(progress)
        job_started_at = time.monotonic()
        with _running_job(spark, options, demo_input, client, endpoints.address):
            kills = Saboteur(observer, failpoints, limit, coordinator, progress.say).kill_all() if options.kill else []
            limit.lift()
            observer.wait_until(
                lambda seen: bool(seen.channels) and all(channel.report.finished for channel in seen.channels.values()),
                "all channels to be registered to their end",
                _LAND_SECONDS_MAX,
            )
            run_seconds = time.monotonic() - job_started_at
            progress.say("everything is registered; stopping the datanodes")
        seen = observer.look()
        progress.say(f"reading the collection back; {demo_input.judge_name} judges it")
        verdict = demo_input.judge(client)
        segments = list(client.list_segments(demo_input.collection_name))
        binlog_bytes = sum(segment.size_bytes for segment in segments)
        binlogs = sum(segment.binlogs for segment in segments)
        operations = sum(max(segment.rows, segment.delete_rows) for segment in segments)
    figures = Figures(
        source=demo_input.description,
        judge=demo_input.judge_name,
        rows=verdict.rows,
        expected_rows=verdict.expected_rows,
        mismatches=verdict.mismatches,
        duplicates=verdict.duplicates,
        operations=operations,
        binlogs=binlogs,
        binlog_bytes=binlog_bytes,
        consumed=seen.metric("datanode_consumed_rows_total"),
        replayed=seen.metric("datanode_replayed_rows_total"),
        filtered=seen.metric('datanode_filtered_rows_total{reason="registered"}'),
        rpcs=read_rpc_figures(data_dir / "datacoord.db"),
        kills=kills,
        run_seconds=run_seconds,
        total_seconds=time.monotonic() - started_at,
        samples=verdict.samples,
    )
    print_report(figures, data_dir, demo_input.collection_name, Console(file=sys.stdout))
    sys.stdout.write(to_json(figures, data_dir) + "\n")
    sys.stdout.flush()
    return 0 if figures.proven else 1


def _fresh_directory(directory: Path) -> Path:
    """Empties what an earlier demo left; refuses to empty anything else."""
    mark = directory / ".datacoord-demo"
    if directory.exists() and any(directory.iterdir()):
        if not mark.exists():
            raise SourceInvalidError(
                f"{str(directory)!r} holds something that no demo has made; name another directory with --dir",
                directory=directory,
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return directory.resolve()


@contextlib.contextmanager
def _spark_session(datanodes: int) -> Iterator["SparkSession"]:
    """A local session; begun before any gRPC connection, because PySpark forks to start Java and gRPC does not survive that."""
    from datanode_client.spark import local_session

    spark = local_session(app_name="datacoord-demo", cores=datanodes, quick_start=True)
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _running_job(
    spark: "SparkSession", options: DemoOptions, demo_input: DemoInput, client: CoordinatorClient, address: str
) -> Iterator[None]:
    """Creates the collection and runs the datanode job around a block."""
    from datanode_client.spark import DataNodeJob, JobConfig

    client.create_collection(
        collection_pb2.CreateCollectionRequest(
            collection_name=demo_input.collection_name,
            arrow_schema=demo_input.schema.serialize().to_pybytes(),
            primary_key=demo_input.primary_key,
            channel_count=demo_input.channel_count,
            channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
            timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
        )
    )
    job = DataNodeJob(
        spark,
        demo_input.reader_factory,
        collections=[demo_input.collection_name],
        coordinator=address,
        datanodes=options.datanodes,
        job_name="demo",
        config=demo_input.datanode_config,
        # What datanodes have to say of the coordinator's absence is expected here.
        job_config=JobConfig(log_level="error"),
    )
    job.start()
    try:
        yield
    finally:
        job.stop(timeout_seconds=_STOP_SECONDS_MAX)
