"""Makes `format("datacoord")` known to a session."""

from pyspark.sql import SparkSession

from datanode_client.spark.sink import DatacoordDataSource

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Registers the data source `datacoord` for writing and reading; once per session.

    Also switches on that Spark offers filters to Python data sources, without which it refuses a reader that takes them.

    Args:
        spark: the session.
    """
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(DatacoordDataSource)
