"""A driver of its own that runs short datanode jobs, two at a time; prints the process of each datanode.

python short_jobs.py ADDRESS REUSE_WORKERS COUNT
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from datacoord.client import CoordinatorClient
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.sources.generator import GENERATOR_PRIMARY_KEY, GENERATOR_SCHEMA, GeneratorReaderFactory
from datanode_client.spark import DataNodeJob, local_session

JOB_SECONDS_MAX = 120.0
ROWS = 40


def main(address: str, reuse: str, count: str) -> None:
    """Lands so many small collections, each with a job of its own."""
    spark = local_session(config={"spark.python.worker.reuse": reuse}, quick_start=True)
    print("java", spark.sparkContext._jvm.java.lang.System.getProperty("java.specification.version"), flush=True)  # type: ignore[union-attr]

    def run(number: int) -> list[int]:
        name = f"short{number}"
        with CoordinatorClient(address, timeout_seconds=20) as client:
            client.create_collection(
                collection_pb2.CreateCollectionRequest(
                    collection_name=name,
                    arrow_schema=GENERATOR_SCHEMA.serialize().to_pybytes(),
                    primary_key=GENERATOR_PRIMARY_KEY,
                    channel_count=1,
                    channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                    timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
                )
            )
            source = GeneratorReaderFactory(number, ROWS, 1)
            with DataNodeJob(spark, source, collections=[name], coordinator=address, datanodes=1, job_name=name) as job:
                job.await_finished(JOB_SECONDS_MAX)
            return [node.pid for node in client.list_datanodes(name, include_ended=True)]

    with ThreadPoolExecutor(2) as pool:
        for pids in pool.map(run, range(int(count))):
            print("landed", *pids, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
