"""A driver of its own for long tests: lands the files of a directory as a stream, and says so at the end.

python sink_driver.py ADDRESS COLLECTION SOURCE CHECKPOINTS REUSE_WORKERS WRITES
"""

import sys

import datacoord
from datanode_client.spark import local_session, register


def main(*arguments: str) -> None:
    """Runs the stream, one file per batch, then so many writes of a frame, reading in between."""
    address, collection, source, checkpoints, reuse, writes = arguments
    spark = local_session(config={"spark.python.worker.reuse": reuse}, quick_start=True)
    register(spark)
    stream = spark.readStream.schema("key long, value string, ts long, shard int").option("maxFilesPerTrigger", 1)
    options = {"coordinator": address, "collection": collection, "checkpointLocation": checkpoints}
    ordered = {"channelColumn": "shard", "timestampColumn": "ts", "channelCount": "2"}
    query = stream.parquet(source).writeStream.format("datacoord").options(**options, **ordered)
    query.trigger(availableNow=True).start().awaitTermination()
    for number in range(int(writes)):
        frame = spark.range(number, number + 20, 1, 2).selectExpr("id AS key", f"'w{number}' AS value")
        writer = frame.write.format("datacoord").mode("append").option("coordinator", address)
        writer.options(collection=f"{collection}_writes", primaryKey="key").save()
        if number % 20 == 19:
            reader = spark.read.format("datacoord").option("coordinator", address)
            assert reader.option("collection", f"{collection}_writes").load().count() == number + 20
            assert datacoord.read(spark, coordinator=address, collection=f"{collection}_writes").count() == number + 20
    print("landed", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
