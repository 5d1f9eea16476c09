"""The data source `datacoord`: a sink for streams, a writer for frames, and a reader (PROTOCOL R6; docs/spark-sink.md).

    from datanode_client.spark import register

    register(spark)
    df.writeStream.format("datacoord").option("coordinator", "127.0.0.1:13333").option("collection", "events")…
    df.write.format("datacoord").mode("append").option(…).save()
    spark.read.format("datacoord").option(…).load()

Spark makes a data source and its writer twice per batch of a stream: once to plan it, and once, out of a pickle, to commit it. Only
the first claims channels: a commit that claimed could take a channel back from whoever has fenced this query.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from datacoord.errors import ConfigInvalidError, InternalError
from datanode_client.spark.options import FORMAT, ReadOptions, SinkOptions, stream_owner
from datanode_client.spark.sink_commit import commit_batch, release_channels
from datanode_client.spark.sink_plan import Landed, SinkPlan, make_plan
from datanode_client.spark.sink_task import BatchIdentity, SinkTask, TaskReport

_QUERY_ID_PROPERTY = "sql.streaming.queryId"
_BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task hands to the commit.

    Attributes:
        report: what it wrote.
    """

    report: TaskReport


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the batches of one streaming query.

    Args:
        options: of the sink.
        plan: of the batch; None where only commit or abort is called.
    """

    def __init__(self, options: SinkOptions, plan: SinkPlan | None) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Runs in a task: writes its rows."""
        if self._plan is None:
            raise InternalError(
                "the sink was shipped without a plan; this version of Spark plans batches in another way"
            )
        context = _task_context()
        query_id, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID_PROPERTY, _BATCH_ID_PROPERTY))
        if not query_id or batch_id is None:
            raise InternalError("Spark does not say which batch of which query the task belongs to")
        identity = BatchIdentity(Landed(query_id, int(batch_id)))
        return TaskMessage(SinkTask(self._plan, identity, context.partitionId()).write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Runs on the driver after the last task: registers the batch."""
        reports = _reports(messages)
        if any(report.batch.batch_id != batchId for report in reports):
            raise InternalError(f"the tasks of batch {batchId} say they belong to another one")
        commit_batch(self._options, reports)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: what became of a commit is not known here, and only the garbage collector deletes."""


class BatchSink(DataSourceArrowWriter):
    """Writes one frame.

    Args:
        options: of the sink.
        plan: of the write.
    """

    def __init__(self, options: SinkOptions, plan: SinkPlan) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Runs in a task: writes its rows."""
        numbered = self._options.batch_id >= 0
        batch = Landed(self._options.owner, self._options.batch_id) if numbered else Landed(self._plan.run_id, 0)
        task = SinkTask(self._plan, BatchIdentity(batch, numbered), _task_context().partitionId())
        return TaskMessage(task.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver after the last task: registers the rows."""
        commit_batch(self._options, _reports(messages))
        self._release()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Deletes nothing; hands the channels back, whose epoch ends with this write."""
        self._release()

    def _release(self) -> None:
        if self._options.batch_id < 0:
            release_channels(self._options, {channel.name: channel.epoch for channel in self._plan.channels.values()})


class DatacoordDataSource(DataSource):
    """`format("datacoord")`. Options: `datanode_client.spark.options`, docs/spark-sink.md."""

    _plans = True

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Out of a pickle it is here to commit, to abort or to read, not to plan."""
        self.__dict__.update(state)
        self._plans = False

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Columns of the collection that is read."""
        from datanode_client.spark.source import collection_schema

        return collection_schema(ReadOptions.read(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a collection."""
        from datanode_client.spark.source import CollectionReader

        return CollectionReader(ReadOptions.read(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Plans a batch of a stream, or commits it."""
        options = SinkOptions.read(self.options)
        _refuse_overwrite(overwrite, "outputMode complete")
        if options.batch_id >= 0:
            raise ConfigInvalidError("batchId is for df.write; a stream numbers its batches itself", setting="batchId")
        if not self._plans:
            return StreamSink(options, None)
        return StreamSink(options, make_plan(options, stream_owner(self.options), _arrow_schema(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Plans the write of a frame."""
        options = SinkOptions.read(self.options)
        _refuse_overwrite(overwrite, "mode overwrite")
        return BatchSink(options, make_plan(options, options.owner, _arrow_schema(schema)))


def _arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def _refuse_overwrite(overwrite: bool, what: str) -> None:
    if overwrite:
        raise ConfigInvalidError(
            f"{what} is not possible: objects are immutable and readers see every row that no delete hides; append, and delete "
            "rows with the operation delete",
            setting="mode",
        )


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InternalError("the writer runs outside a Spark task")
    return context


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message.report for message in messages if isinstance(message, TaskMessage)]
