"""Lands a directory of JSON Lines or Parquet files: each of its sub-directories is a channel.

    .venv/bin/datacoord serve &
    .venv/bin/python examples/land_directory.py DIRECTORY        # or s3://bucket/prefix

Lines and rows look like `{"id": 7, "name": "x", "op": "upsert"}`; `op` may also be `insert` or `delete`. Run it again after files
were added, or lines to the last file: only those are read. Files are read in the order of their names: new ones must sort behind.
"""

import sys

import pyarrow as pa

from datacoord.client import CoordinatorClient
from datacoord.reading import to_arrow
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.sources.files import list_directories
from datanode_client.sources.jsonl import JsonlReaderFactory
from datanode_client.sources.parquet import ParquetReaderFactory
from datanode_client.spark import DataNodeJob, local_session

COLLECTION = "directory"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
FACTORIES: dict[str, type[JsonlReaderFactory] | type[ParquetReaderFactory]] = {
    "jsonl": JsonlReaderFactory,
    "parquet": ParquetReaderFactory,
}


def main(directory: str, file_format: str = "jsonl", address: str = "127.0.0.1:13333") -> None:
    directories = list_directories(directory)
    # Without `until_head` the job goes on, and follows what is added.
    factory = FACTORIES[file_format](directory, directories=directories, operation_column="op", until_head=True)

    # Spark first: it forks to start Java, and gRPC does not survive a fork.
    spark = local_session(quick_start=True)
    with CoordinatorClient(address) as client:
        client.create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name=COLLECTION,
                arrow_schema=SCHEMA.serialize().to_pybytes(),
                primary_key=["id"],
                channel_count=len(directories),
                channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
            )
        )
        with DataNodeJob(spark, factory, collections=[COLLECTION], coordinator=address, datanodes=1) as job:
            job.await_finished()
        print(to_arrow(client, COLLECTION).sort_by("id").to_pandas().to_string(index=False))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
