"""An ordinary pipeline: files in, transformed by Spark, landed exactly once by the sink `datacoord`, and read back.

    .venv/bin/datacoord serve &
    .venv/bin/python examples/stream_orders.py DIRECTORY

Every line of every `*.jsonl` file of the directory is an event like `{"id": 7, "item": "tea", "quantity": 2, "price": 3.5,
"status": "placed"}`; a later event of an id replaces an earlier one, and `"status": "cancelled"` takes the order away. Files are
read in the order in which they were written, each as one batch. Run it again after files were added: only those are read. Kill it
at any moment: nothing is lost, nothing is doubled.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import datacoord
from datanode_client.spark import local_session, register

ADDRESS = "127.0.0.1:13333"
EVENTS = "id LONG, item STRING, quantity LONG, price DOUBLE, status STRING"


def transform(events: DataFrame) -> DataFrame:
    """What is to be landed; the column `operation` says what a row does."""
    return events.where("quantity > 0").selectExpr(
        "id",
        "lower(item) AS item",
        "round(quantity * price, 2) AS total",
        "if(status = 'cancelled', 'delete', 'upsert') AS operation",
    )


def land(spark: SparkSession, directory: Path, address: str) -> None:
    """Lands what is there, and ends; leave out the trigger to go on for ever."""
    events = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(f"{directory}/*.jsonl")
    query = (
        transform(events)
        .writeStream.format("datacoord")
        .option("coordinator", address)
        .option("collection", "orders")
        .option("primaryKey", "id")
        .option("operationColumn", "operation")
        .option("checkpointLocation", str(directory / "_checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(directory: Path, address: str = ADDRESS) -> None:
    spark = local_session()
    register(spark)
    land(spark, directory.resolve(), address)
    orders = datacoord.read(spark, coordinator=address, collection="orders")
    orders.groupBy("item").agg({"total": "sum", "id": "count"}).orderBy("item").show()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
