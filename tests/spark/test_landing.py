"""Rows land through Spark, with a coordinator process on SQLite and a datanode process that is killed."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from datanode_process import lists
from datanode_process.landing import MESSAGES, SMALL_BUFFERS, Landing
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from datacoord.v1 import admin_pb2
from datanode_client.client_config import BrokerConfig, RetryConfig
from datanode_client.spark import DataNodeJob

pytestmark = pytest.mark.spark


async def test_rows_land_exactly_once_though_a_python_worker_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Spark starts the task again; what the dead one had in its buffers must be read again, and what it had saved must not."""
    cloudpickle.register_pickle_by_value(lists)  # type: ignore[no-untyped-call]  # workers cannot import our tests
    try:
        async with Landing(tmp_path) as landing:
            target = landing.coordinator.target
            job = DataNodeJob(
                spark,
                landing.source.reader,
                collections=["t"],
                coordinator=target,
                job_name="landing",
                config=SMALL_BUFFERS,
                broker_config=BrokerConfig(target, retry=RetryConfig(0.02, 0.3)),
            )
            landing.source.set_limit(MESSAGES // 2)
            job.start()
            await landing.until_consumed(MESSAGES // 2)
            victim = max(await asyncio.to_thread(lambda: list(landing.client.list_datanodes("landing"))), key=_buffered)

            os.kill(victim.pid, signal.SIGKILL)
            landing.source.set_limit(MESSAGES)
            await asyncio.to_thread(job.await_finished, 60)
            sessions = await asyncio.to_thread(
                lambda: list(landing.client.list_datanodes("landing", include_ended=True))
            )
            await asyncio.to_thread(job.stop, 30)

            assert len([node for node in sessions if node.slot == victim.slot]) == 2
            assert sum(node.metrics.get("datanode_replayed_rows_total", 0) for node in sessions) > 0
            await landing.check()
    finally:
        cloudpickle.unregister_pickle_by_value(lists)  # type: ignore[no-untyped-call]


def _buffered(node: admin_pb2.DataNodeInfo) -> int:
    return sum(message.buffered_rows for message in node.msgs)
