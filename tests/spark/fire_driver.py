"""A driver of its own for the fire: the datanode job on two executors of a local cluster; says `landed` when all has.

It says `fell` when what it shows of its progress has fallen.

python fire_driver.py ADDRESS DIRECTORY SEED ROWS CHANNELS
"""

import os
import sys
from pathlib import Path

import pyspark
from server.running_coordinator import ROOT

from datanode_client.client_config import BrokerConfig, RetryConfig, SessionConfig
from datanode_client.config import DataNodeConfig
from datanode_client.sources.generator import GeneratorReaderFactory
from datanode_client.spark import DataNodeJob, JobConfig, JobProgress, cluster_session

EXECUTORS = 2
CORES = 2
"""More than datanodes: the task of a frozen worker keeps its place."""

CONFIG = {
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.showConsoleProgress": "false",
    # JVMs that come and go: started soon, not fast later.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A master takes ten dead executors for a broken application; here they are the purpose.
    "spark.deploy.maxExecutorRetries": "-1",
}

MEMORY_LIMIT_BYTES = 4 * 1024 * 1024

SMALL_BUFFERS = DataNodeConfig(
    memory_limit_bytes=MEMORY_LIMIT_BYTES,
    insert_buf_size_bytes=16_000,
    delete_buf_bytes=16_000,
    sync_period_seconds=1.0,
    sync_policy_tick_seconds=0.2,
    sync_retry_delay_seconds_max=0.5,
    source_retry_delay_seconds_initial=0.05,
    update_channel_checkpoint_interval_seconds=1.0,
    channel_checkpoint_update_tick_in_seconds=0.5,
)
"""Every channel syncs every second, so that every fault hits some that are under way."""


def source(seed: int, rows: int, channels: int, limit_path: Path) -> GeneratorReaderFactory:
    """What is landed."""
    return GeneratorReaderFactory(seed, rows, channels, limit_path=limit_path, limit_poll_seconds=0.1, block_rows=64)


def home_of_spark(directory: Path) -> str:
    """Spark's own files, under a home where the workers of a local cluster may put theirs."""
    home = directory / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    return str(home)


def main(address: str, directory: str, seed: str, rows: str, channels: str) -> None:
    """Runs the job to the end of the source, however often it is disturbed."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = home_of_spark(Path(directory))
    spark = cluster_session(f"local-cluster[{EXECUTORS},{CORES},768]", "fire", CONFIG)
    spark.sparkContext.setLogLevel("OFF")
    job = DataNodeJob(
        spark,
        source(int(seed), int(rows), int(channels), Path(directory) / "limit"),
        collections=["generated"],
        coordinator=address,
        datanodes=EXECUTORS,
        job_name="fire",
        config=SMALL_BUFFERS,
        broker_config=BrokerConfig(address, call_timeout_seconds=5.0, retry=RetryConfig(0.05, 0.5)),
        session_config=SessionConfig(restart=RetryConfig(0.05, 1.0)),
        job_config=JobConfig(resubmit=RetryConfig(0.1, 1.0)),
    )
    before = JobProgress(0, 0, ())

    def look(now: JobProgress) -> None:
        nonlocal before
        if now.rows < before.rows or now.read < before.read:
            print("fell", before.rows, now.rows, before.read, now.read, flush=True)
        before = now

    with job:
        job.await_finished(on_progress=look)
    print("landed", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
