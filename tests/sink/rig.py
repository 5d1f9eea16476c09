"""What Spark does with a sink, step by step, so that a test can take the steps in any order and leave some out."""

import uuid
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from datacoord.client import CoordinatorClient
from datacoord.objectstore import ObjectStore
from datacoord.reading import read_batches
from datacoord.v1 import common_pb2
from datanode_client.spark.options import SinkOptions
from datanode_client.spark.sink_commit import commit_batch
from datanode_client.spark.sink_plan import Landed, SinkPlan, make_plan
from datanode_client.spark.sink_task import BatchIdentity, SinkTask, TaskReport

Row = tuple[int, str | None, int, int, str]
"""Key, value, channel, timestamp, operation."""

FRAME = pa.schema(
    [
        pa.field("key", pa.int64()),
        pa.field("value", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("ts", pa.int64()),
        pa.field("op", pa.string()),
    ]
)

KEYED = {"primaryKey": "key", "operationColumn": "op"}
"""A collection with a key, whose rows say what they do."""

ORDERED = {"channelColumn": "shard", "timestampColumn": "ts"}
"""Rows that say where and when they go."""


def table(rows: Sequence[Row]) -> pa.Table:
    """Rows as Arrow."""
    columns: list[tuple[object, ...]] = list(zip(*rows, strict=True)) or [()] * len(FRAME)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, FRAME, strict=True)], schema=FRAME)


def split(rows: pa.Table, tasks: int) -> list[pa.Table]:
    """Rows as so many tasks get them."""
    bounds = [rows.num_rows * task // tasks for task in range(tasks + 1)]
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


class Query:
    """One streaming query, or one life of its driver.

    Args:
        address: of the coordinator.
        collection: name of the collection.
        query_id: what Spark knows it by over restarts; another one = its checkpoint directory was lost.
        owner: name it claims under.
        options: more options of the sink.
    """

    def __init__(
        self, address: str, collection: str, *, query_id: str = "", owner: str = "query", **options: str
    ) -> None:
        self.query_id = query_id or str(uuid.uuid4())
        self.owner = owner
        self.address = address
        self.collection = collection
        given = {"coordinator": address, "collection": collection, "channelCount": "2", "timeoutSeconds": "30"}
        self.given = {**given, **options}
        self.options = SinkOptions.read(self.given)

    def plan(self, frame: pa.Schema = FRAME) -> SinkPlan:
        """What the driver does first."""
        return make_plan(self.options, self.owner, frame)

    def task(self, plan: SinkPlan, batch_id: int, rows: pa.Table, partition: int = 0) -> TaskReport:
        """One attempt of one task."""
        identity = BatchIdentity(Landed(self.query_id, batch_id))
        return SinkTask(plan, identity, partition).write(rows.to_batches(max_chunksize=7))

    def tasks(self, plan: SinkPlan, batch_id: int, parts: Sequence[pa.Table]) -> list[TaskReport]:
        """Every task of a batch, once."""
        return [self.task(plan, batch_id, part, number) for number, part in enumerate(parts)]

    def commit(self, reports: Sequence[TaskReport]) -> None:
        """What the driver does last."""
        commit_batch(self.options, reports)

    def run(self, batch_id: int, rows: Sequence[Row], tasks: int = 2) -> list[TaskReport]:
        """A whole batch in which nothing goes wrong."""
        data = table(rows)
        reports = self.tasks(self.plan(data.schema), batch_id, split(data, tasks))
        self.commit(reports)
        return reports

    def frame(self, batch_id: int, rows: pa.Table, tasks: int = 1) -> list[TaskReport]:
        """The same with a frame of any schema."""
        reports = self.tasks(self.plan(rows.schema), batch_id, split(rows, tasks))
        self.commit(reports)
        return reports


def landed(address: str, collection: str) -> Counter[tuple[int, str | None]]:
    """Key and value of every row a reader sees, and how often."""
    found: Counter[tuple[int, str | None]] = Counter()
    for batch in read_batches(address, collection, columns=["key", "value"]):
        found.update(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    return found


def orphans(address: str, collection: str) -> set[str]:
    """Objects that lie below the storage root and are not registered."""
    with CoordinatorClient(address) as client:
        root = client.describe_collection(collection).storage_root
        registered = {log.binlog.log_path for channel in client.list_binlogs(collection) for log in channel.binlogs}
    return {info.path for info in ObjectStore.from_uri(root).list_objects()} - registered


def positions(address: str, collection: str) -> list[tuple[int, str]]:
    """Checkpoint and msg_id of every channel."""
    with CoordinatorClient(address) as client:
        return [
            (channel.checkpoint.timestamp, channel.checkpoint.msg_id.decode())
            for channel in client.list_binlogs(collection)
        ]


def insert_timestamps(address: str, collection: str) -> list[int]:
    """Smallest timestamp of every insert log, in the order of the listing."""
    with CoordinatorClient(address) as client:
        return [
            log.binlog.timestamp_from
            for channel in client.list_binlogs(collection)
            for log in channel.binlogs
            if log.kind == common_pb2.BINLOG_KIND_INSERT
        ]
