"""Datacoord on Spark: the datanode job and a local session to run it in, the data source `datacoord`, and native frames."""

from datanode_client.spark.job import DataNodeJob, DataNodeJobListener, JobConfig
from datanode_client.spark.job_progress import JobProgress
from datanode_client.spark.local import cluster_session, local_session
from datanode_client.spark.register import register

__all__ = [
    "DataNodeJob",
    "DataNodeJobListener",
    "JobConfig",
    "JobProgress",
    "cluster_session",
    "local_session",
    "register",
]
