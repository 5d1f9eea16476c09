"""Lands a directory of JSON Lines files: how to bring a source of your own, in one class of four methods.

    .venv/bin/datacoord serve &
    .venv/bin/python examples/land_json_lines.py DIRECTORY

Every `*.jsonl` file of the directory is one channel, every line one message like `{"id": 7, "name": "x"}`; a later line of an id
replaces an earlier one. Run it again after lines were appended: only those are read.
"""

import asyncio
import json
import sys
from pathlib import Path

import pyarrow as pa

from datacoord.client import CoordinatorClient
from datacoord.positions import Position
from datacoord.reading import to_arrow
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.sources.base import OP_UPSERT, ChannelContext, EndOfChannel, MessageBatch, SourceEvent
from datanode_client.spark import DataNodeJob, local_session

ADDRESS = "127.0.0.1:13333"
COLLECTION = "json_lines"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
LINES_PER_BATCH = 10_000


class JsonLinesReader:
    """Reads one file. The timestamp of a line is its number, so a position says which line comes next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._consumed = 0

    async def open(self, after: Position) -> None:
        self._lines = (await asyncio.to_thread(self._path.read_text)).splitlines()
        self._consumed = after.timestamp

    async def next(self) -> SourceEvent:
        if self._consumed >= len(self._lines):
            return EndOfChannel(Position(self._consumed))
        end = min(self._consumed + LINES_PER_BATCH, len(self._lines))
        records = [json.loads(line) for line in self._lines[self._consumed : end]]
        rows = pa.RecordBatch.from_pylist(records, schema=SCHEMA)
        rows = rows.append_column("_timestamp", pa.array(range(self._consumed + 1, end + 1), pa.int64()))
        rows = rows.append_column("_op", pa.array([OP_UPSERT] * len(records), pa.int8()))
        self._consumed = end
        return MessageBatch(rows, Position(end))

    def head(self) -> int | None:
        return len(self._lines)

    async def close(self) -> None:
        self._lines = []


def main(directory: Path, address: str = ADDRESS) -> None:
    files = sorted(directory.resolve().glob("*.jsonl"))

    def reader_of(context: ChannelContext) -> JsonLinesReader:
        return JsonLinesReader(files[context.channel_index])

    # Spark first: it forks to start Java, and gRPC does not survive a fork.
    spark = local_session(quick_start=True)
    with CoordinatorClient(address) as client:
        client.create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name=COLLECTION,
                arrow_schema=SCHEMA.serialize().to_pybytes(),
                primary_key=["id"],
                channel_count=len(files),
                channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
            )
        )
        with DataNodeJob(spark, reader_of, collections=[COLLECTION], coordinator=address, datanodes=1) as job:
            job.await_finished()
        print(to_arrow(client, COLLECTION).sort_by("id").to_pandas().to_string(index=False))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
