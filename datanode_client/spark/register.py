"""Makes `format("datacoord")` known to a session."""

from pyspark.sql import SparkSession

from datanode_client.spark.sink import DatacoordDataSource


def register(spark: SparkSession) -> None:
    """Registers the data source `datacoord` for writing and reading; once per session.

    Args:
        spark: the session.
    """
    spark.dataSource.register(DatacoordDataSource)
