"""How long a datanode job on a local cluster takes to recover from the loss of an executor, and from a worker that stands still."""

import json
import os
import sys
from pathlib import Path

import pyspark

from benchmarks.datanode_figures import CORES, growing_files
from benchmarks.harness.servers import scratch
from datanode_client.spark import cluster_session

CONFIG = {
    "spark.log.level": "OFF",
    "spark.executor.memory": "768m",
    "spark.ui.showConsoleProgress": "false",
    # A master takes ten dead executors for a broken application; here they are the purpose.
    "spark.deploy.maxExecutorRetries": "-1",
}


def main(rounds: int) -> None:
    """Prints seconds per trial, by what was done, as one line of JSON."""
    with scratch() as directory:
        home = directory / "spark"
        home.mkdir()
        # Workers of a local cluster put their files below Spark's home, which may be read-only.
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
        os.environ |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        spark = cluster_session(f"local-cluster[{CORES},1,768]", "recovery", CONFIG)
        try:
            with growing_files(spark, directory / "feed") as feed:
                trials = {
                    "executor": feed.trials(feed.kill_executor, rounds),
                    "frozen": feed.trials(feed.freeze_worker, rounds),
                }
                feed.check()
        finally:
            spark.stop()
    print(json.dumps(trials), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
