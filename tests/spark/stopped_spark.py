"""A driver of its own whose Spark goes away under a running job, in three ways; prints what whoever waits for the job hears.

python stopped_spark.py COORDINATOR
"""

import os
import signal
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from support.waiting import WAIT_SECONDS_MAX, eventually, joined

from datacoord.errors import SparkStoppedError
from datanode_client.client_config import RetryConfig
from datanode_client.spark import DataNodeJob, JobConfig, local_session


def no_reader(context: object) -> object:
    """Nobody gives the job a channel."""
    raise AssertionError(context)


def stop_in_python(spark: SparkSession) -> None:
    """What a notebook does when its session ends."""
    spark.stop()


def stop_in_java(spark: SparkSession) -> None:
    """What a cluster does with an application that it gives up: Python is not told."""
    spark.sparkContext._jsc.sc().stop()


def kill_java(spark: SparkSession) -> None:
    """What the kernel does when memory is short."""
    jvm: Any = spark.sparkContext._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)


def main(coordinator: str) -> None:
    """Each way once; the last one leaves nothing to start again."""
    for go_away in (stop_in_python, stop_in_java, kill_java):
        spark = local_session(cores=1, log_level="off", quick_start=True)
        job = DataNodeJob(
            spark,
            no_reader,  # type: ignore[arg-type]
            collections=["t"],
            coordinator=coordinator,
            datanodes=1,
            # Whoever waits for the next attempt to fail waits for hours.
            job_config=JobConfig(resubmit=RetryConfig(3600.0, 3600.0)),
        )
        job.start()
        eventually(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), WAIT_SECONDS_MAX)  # noqa: B023
        leaving = threading.Thread(target=go_away, args=(spark,), daemon=True)
        leaving.start()
        try:
            job.await_finished(timeout_seconds=WAIT_SECONDS_MAX)
        except (SparkStoppedError, TimeoutError) as error:
            print(go_away.__name__, type(error).__name__, flush=True)
        job.stop()
        joined(leaving)
        if go_away is stop_in_java:
            spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
