"""Datanodes on Spark: the job that keeps them running, and a local session to run it in."""

from datanode_client.spark.job import DataNodeJob, DataNodeJobListener, JobConfig, JobProgress
from datanode_client.spark.local import local_session

__all__ = ["DataNodeJob", "DataNodeJobListener", "JobConfig", "JobProgress", "local_session"]
