"""Spark sessions with everything set that a datanode job needs: a quiet local one, and one on a cluster."""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from datanode_client.spark.java import find_java

TASK_SLOTS_BESIDE = 2
"""Task slots for queries beside the datanodes, and for a cancelled task that goes on for some seconds."""

TASK_FAILURES_MAX = 4
"""Spark's own default in a cluster. Plain `local[n]` has 1: every killed worker would end its job."""


_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Without the compiler that makes long queries fast, and the threads of its garbage collector."""


def local_session(
    app_name: str = "datacoord",
    cores: int = 2,
    config: Mapping[str, str] | None = None,
    log_level: str = "error",
    *,
    quick_start: bool = False,
) -> SparkSession:
    """Starts Spark in this process' own JVM, on loopback only, without a user interface and without chatter.

    Sets JAVA_HOME, PYSPARK_PYTHON and SPARK_LOCAL_IP for this process: without them Spark takes another Java, another Python
    without our packages, or an address of the network. Environment variables that datanodes are to see must be set before.

    Args:
        app_name: shown in Spark's logs.
        cores: how many datanodes it must run at once; two task slots more are made for queries beside them.
        config: further settings of Spark; they win.
        log_level: least severe log line of the JVM that is shown (off, error, warn, info, debug); from `warn` on failed tasks too.
        quick_start: for a JVM that only runs Python: it starts sooner and takes less of the processor, but long queries in it
            are slower.

    Raises:
        JavaNotFoundError: no Java 17 or newer.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    task_log_level = "off" if log_level in {"off", "error"} else log_level
    log_options = " ".join(
        (
            f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}",
            f"-Ddatacoord.spark.log.level={log_level}",
            f"-Ddatacoord.spark.task.log.level={task_log_level}",
        )
    )
    settings = {
        "spark.driver.extraJavaOptions": f"{log_options} {_QUICK_START}" if quick_start else log_options,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        # Spark makes this directory at the first query, by default where the user happens to stand.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"datacoord-{os.getuid()}" / "spark-warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        **(config or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(f"local[{cores + TASK_SLOTS_BESIDE},{TASK_FAILURES_MAX}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def cluster_session(master: str, app_name: str = "datacoord", config: Mapping[str, str] | None = None) -> SparkSession:
    """Starts a driver of a cluster whose executors have Datacoord installed at the same path as this process.

    Args:
        master: URL of the cluster, for instance `spark://host:7077` or `k8s://…`.
        app_name: shown by Spark.
        config: settings of Spark; they win. Give the executors at least a core for each datanode.

    Raises:
        JavaNotFoundError: no Java 17 or newer.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        # A killed worker must not end its job before the slot is submitted again.
        "spark.task.maxFailures": str(TASK_FAILURES_MAX),
        "spark.sql.catalogImplementation": "in-memory",
        **(config or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
