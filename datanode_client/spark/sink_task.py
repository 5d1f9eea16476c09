"""One task of a batch (PROTOCOL R6, 2): rows in, durable objects with unique paths out, and a message that names them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datacoord.errors import ConfigInvalidError, InternalError, InvalidFieldError, OutOfOrderError
from datacoord.limits import TIMESTAMP_MAX
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogKind
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.binlog.writer import BinlogWriter, Part, RangeRows, rows_of
from datanode_client.flowgraph.fold import fold_last_operations
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, TIMESTAMP_COLUMN
from datanode_client.spark.sink_plan import ChannelPlan, Landed, SinkPlan
from datanode_client.spark.sink_rows import ORDINAL_BITS, RowMapper, split_by_lane

_MORSEL_BYTES: Final = 8 * 1024 * 1024
"""Rows are split by lane this many at a time: Spark's own batches are so small that each split would be mostly overhead."""

_CHUNK_BITS: Final = 12
_TASK_BITS: Final = 18
KEYED_BATCH_BITS: Final = _TASK_BITS + _CHUNK_BITS
"""Without an order of its own, a batch of a collection with a primary key counts as `number << 30 | task << 12 | object`: of
several rows of one key the last one wins, although nobody sees all of them."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which batch a task belongs to.

    Attributes:
        batch: query and number, as they will stand in the positions.
        numbered: the number orders the batches of the query; False = it is a single write, which comes after all there is.
    """

    batch: Landed
    numbered: bool = True


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """What one task wrote for one lane: exactly what its part of the save needs.

    Attributes:
        channel_name: the channel.
        channel_id: its number.
        channel_index: which of the collection's channels it is.
        epoch: of the plan.
        partition_id: the lane.
        timestamp_from: P of the lane in the plan.
        ts_min: smallest timestamp of a row.
        ts_max: largest timestamp of a row.
        binlogs: the objects by kind and group, as serialized `Binlog` messages.
    """

    channel_name: str
    channel_id: int
    channel_index: int
    epoch: int
    partition_id: int
    timestamp_from: int
    ts_min: int
    ts_max: int
    binlogs: dict[Part, bytes]


@dataclass(slots=True)
class TaskReport:
    """What a task tells the commit.

    Attributes:
        batch: the batch.
        owner: of the channels.
        storage_root: of the collection.
        primary_key: of the collection.
        collection: the collection, a serialized CollectionInfo.
        ranges: what was written.
        rows: rows that were taken.
        skipped_rows: rows that were left out because they were landed before.
    """

    batch: Landed
    owner: str
    storage_root: str
    primary_key: tuple[str, ...]
    collection: bytes = b""
    ranges: list[WrittenRange] = field(default_factory=list)
    rows: int = 0
    skipped_rows: int = 0


@dataclass(slots=True)
class _Lane:
    """What a task has of one lane and has not written."""

    channel: ChannelPlan
    channel_index: int
    partition_id: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0
    objects: int = 0


class SinkTask:
    """Writes the rows of one task.

    Args:
        plan: of the batch.
        identity: of the batch.
        partition: number of the task within the batch.
    """

    def __init__(self, plan: SinkPlan, identity: BatchIdentity, partition: int) -> None:
        self._plan = plan
        self._identity = identity
        self._partition = partition
        self._schema = CollectionSchema.of(plan.schema, plan.primary_key)
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._writers: dict[int, BinlogWriter] = {}
        self._buffered_bytes = 0
        self._given_rows = self._written_rows = 0
        self._report = TaskReport(identity.batch, plan.owner, plan.storage_root, plan.primary_key, plan.collection)
        self._only_channel = next(iter(plan.channels)) if len(plan.channels) == 1 else None
        keyed_batch = plan.primary_key and not plan.options.timestamp_column and not plan.options.ordinal_column
        self._number_bits = KEYED_BATCH_BITS if keyed_batch else (ORDINAL_BITS if plan.options.ordinal_column else 0)
        if keyed_batch and partition >= 1 << _TASK_BITS:
            raise ConfigInvalidError(
                f"the batch has a task {partition}, but without an ordinalColumn at most {1 << _TASK_BITS} tasks can be told "
                "apart; coalesce the frame",
                setting="ordinalColumn",
            )

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Writes all rows; every object is durable when this returns.

        Raises:
            OutOfOrderError: a row of a new batch is at or below the checkpoint of its channel.
            InvalidFieldError: a row is not what it must be.
            ObjectStoreError: an object could not be written. What was written stays: the garbage collector knows it.
            InternalError: other rows were written than were taken; a task that failed registers nothing.
        """
        mapper: RowMapper | None = None
        for morsel in _morsels(self._counted(batches), min(_MORSEL_BYTES, self._plan.options.buffer_bytes)):
            if mapper is None:
                mapper = RowMapper(self._plan, morsel.schema)
            self._take(mapper.map(morsel))
        for lane in self._lanes.values():
            self._write(lane)
        if self._given_rows != self._written_rows + self._report.skipped_rows:
            raise InternalError(
                f"task {self._partition} of batch {self._identity.batch.batch_id} was given {self._given_rows} rows, but wrote "
                f"{self._written_rows} and left out {self._report.skipped_rows} that are landed; nothing of the batch is "
                "registered. This is a bug of the sink: report it, with the schema of the frame",
                given_rows=self._given_rows,
                written_rows=self._written_rows,
            )
        return self._report

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._given_rows += batch.num_rows
            yield batch

    def _take(self, rows: pa.RecordBatch) -> None:
        for index, partition_id, part in split_by_lane(rows, self._plan.default_partition_id):
            channel_index = self._only_channel if index is None else index
            assert channel_index is not None  # noqa: S101 - the options name one channel or a column
            channel = self._plan.channels[channel_index]
            left = self._landed_rows_out(channel, part)
            self._report.rows += left.num_rows
            self._report.skipped_rows += part.num_rows - left.num_rows
            if left.num_rows:
                lane = self._lanes.setdefault(
                    (channel_index, partition_id), _Lane(channel, channel_index, partition_id)
                )
                size_bytes: int = left.nbytes
                lane.batches.append(left)
                lane.size_bytes += size_bytes
                self._buffered_bytes += size_bytes
        while self._buffered_bytes > self._plan.options.buffer_bytes:
            self._write(max(self._lanes.values(), key=lambda lane: lane.size_bytes))

    def _landed_rows_out(self, channel: ChannelPlan, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leaves out what was landed before, and refuses what comes too late (R6, 1)."""
        landed, batch = channel.landed, self._identity.batch
        if landed is not None and landed.covers(batch):
            return rows.slice(0, 0)
        options = self._plan.options
        if not options.timestamp_column:
            return rows if self._first_of_batch(channel) > channel.checkpoint else self._refuse_batch(channel)
        timestamps = rows.column(TIMESTAMP_COLUMN)
        lowest = pc.min(timestamps).as_py()
        if lowest is None or lowest > channel.checkpoint:
            return rows
        began_anew = landed is None or landed.query_id != batch.query_id
        if options.resume and began_anew:
            return rows.filter(pc.greater(timestamps, channel.checkpoint))
        raise OutOfOrderError(
            f"batch {batch.batch_id} of query {batch.query_id} has a row of timestamp {lowest} for channel {channel.name!r}, "
            f"which is landed up to {channel.checkpoint}"
            + (f" by batch {landed.batch_id} of query {landed.query_id}" if landed is not None else "")
            + "; rows of a channel must come in order, and all rows of one timestamp in one batch"
            + (
                "; if this query lost its checkpoint directory and reads all again, say resume=progress"
                if began_anew
                else ""
            ),
            channel_name=channel.name,
            timestamp=lowest,
            checkpoint=channel.checkpoint,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
        )

    def _refuse_batch(self, channel: ChannelPlan) -> pa.RecordBatch:
        batch = self._identity.batch
        raise OutOfOrderError(
            f"batch {batch.batch_id} of query {batch.query_id} would land at timestamp {self._first_of_batch(channel)} in "
            f"channel {channel.name!r}, which is landed up to {channel.checkpoint} by others; let this query write a channel of "
            "its own (option channels), or give the rows an order of their own (timestampColumn)",
            channel_name=channel.name,
            timestamp=self._first_of_batch(channel),
            checkpoint=channel.checkpoint,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
        )

    def _first_of_batch(self, channel: ChannelPlan) -> int:
        """Smallest timestamp of the batch in a channel, where the batch's number is its order."""
        bits = self._number_bits
        number = self._identity.batch.batch_id + 1 if self._identity.numbered else (channel.checkpoint >> bits) + 1
        if number > TIMESTAMP_MAX >> bits:
            raise ConfigInvalidError(
                f"batch {number - 1} is too large a number for an order of its own; give the rows one (timestampColumn)",
                setting="timestampColumn",
            )
        return number << bits

    def _write(self, lane: _Lane) -> None:
        """Writes what a task has of a lane as one object per kind, or as several where Arrow cannot join the rows."""
        batches = lane.batches
        lane.batches, self._buffered_bytes, lane.size_bytes = [], self._buffered_bytes - lane.size_bytes, 0
        for rows in _joined(batches):
            self._write_rows(lane, rows)

    def _write_rows(self, lane: _Lane, rows: pa.RecordBatch) -> None:
        timestamps = self._timestamps(lane, rows)
        if not pc.all(pc.less_equal(timestamps.slice(0, len(timestamps) - 1), timestamps.slice(1))).as_py():
            # Stable: rows of one timestamp keep their order, which says which of two of a key is the last.
            order = pc.sort_indices(timestamps)
            rows, timestamps = rows.take(order), timestamps.take(order)
        kinds = self._by_kind(rows, timestamps)
        start = lane.channel.progress.get(lane.partition_id, 0)
        first, last = timestamps[0].as_py(), timestamps[-1].as_py()
        written = RangeRows(lane.partition_id, start, last, {kind: [batch] for kind, batch in kinds.items()})
        self._writer(lane).write(written)
        lane.objects += 1
        if all(rows_of(written.written, kind) == batch.num_rows for kind, batch in kinds.items()):
            self._written_rows += rows.num_rows
        self._report.ranges.append(
            WrittenRange(
                channel_name=lane.channel.name,
                channel_id=lane.channel.channel_id,
                channel_index=lane.channel_index,
                epoch=lane.channel.epoch,
                partition_id=lane.partition_id,
                timestamp_from=start,
                ts_min=first,
                ts_max=last,
                binlogs={part: binlog.SerializeToString() for part, binlog in written.written.items()},
            )
        )

    def _timestamps(self, lane: _Lane, rows: pa.RecordBatch) -> pa.Array:
        options = self._plan.options
        if options.timestamp_column:
            return rows.column(TIMESTAMP_COLUMN)
        first = self._first_of_batch(lane.channel)
        if options.ordinal_column:
            return pc.add(rows.column(TIMESTAMP_COLUMN), first)
        if self._number_bits:
            if lane.objects >= 1 << _CHUNK_BITS:
                raise ConfigInvalidError(
                    f"a task would write more than {lane.objects} objects into one lane; raise bufferBytes or repartition",
                    setting="bufferBytes",
                )
            first |= self._partition << _CHUNK_BITS | lane.objects
        return pa.array(np.full(rows.num_rows, first, np.int64))

    def _by_kind(self, rows: pa.RecordBatch, timestamps: pa.Array) -> dict[BinlogKind, pa.RecordBatch]:
        """Folds the rows and sorts them by what they do: an upsert is a delete and an insert of the same timestamp."""
        keys, columns = self._plan.primary_key, self._plan.schema.names
        stamped = rows.select(columns).append_column(TIMESTAMP_COLUMN, timestamps)
        if not keys:
            return {BinlogKind.INSERT: self._inserts(stamped)}
        if OP_COLUMN in rows.schema.names:
            stamped = stamped.append_column(OP_COLUMN, rows.column(OP_COLUMN))
        for key in keys:
            if stamped.column(key).null_count:
                raise InvalidFieldError(f"key column {key!r} is null in a row; give every row a key", column=key)
        stamped = fold_last_operations(stamped, stamped.column(TIMESTAMP_COLUMN), [stamped.column(key) for key in keys])
        kinds = {
            BinlogKind.DELTA: pa.RecordBatch.from_arrays(
                [stamped.column(name) for name in (*keys, TIMESTAMP_COLUMN)], schema=self._schema.delta_log
            )
        }
        if OP_COLUMN in stamped.schema.names:
            stamped = stamped.filter(pc.not_equal(stamped.column(OP_COLUMN), OP_DELETE))
        if stamped.num_rows and self._plan.options.operation != "delete":
            kinds[BinlogKind.INSERT] = self._inserts(stamped)
        return kinds

    def _inserts(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._schema.insert_log
        for column in schema:
            if not column.nullable and rows.column(column.name).null_count:
                raise InvalidFieldError(
                    f"column {column.name!r} is null in a row, but collection {self._plan.options.collection!r} says it never is",
                    column=column.name,
                )
        return pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)

    def _writer(self, lane: _Lane) -> BinlogWriter:
        channel = lane.channel
        writer = self._writers.get(channel.channel_id)
        if writer is None:
            collection = collection_pb2.CollectionInfo.FromString(self._plan.collection)
            info = data_coord_pb2.ChannelRecoveryInfo(
                channel_name=channel.name,
                channel_id=channel.channel_id,
                channel_index=lane.channel_index,
                channel_count=collection.channel_count,
                collection_id=self._plan.collection_id,
                collection_name=self._plan.options.collection,
                epoch=channel.epoch,
                arrow_schema=collection.arrow_schema,
                primary_key=collection.primary_key,
                timestamp_kind=collection.timestamp_kind,
                partitions=collection.partitions,
                properties=collection.properties,
            )
            writer = self._writers[channel.channel_id] = BinlogWriter(
                info,
                self._schema,
                lambda: open_store(self._plan.storage_root),
                self._plan.options.compression,
                channel_mode=common_pb2.CHANNEL_MODE_CLAIMED,
                manifest_follows=True,
            )
        return writer


@lru_cache(maxsize=16)
def open_store(storage_root: str) -> ObjectStore:
    """The object store of a storage root. Spark uses its workers again, so a process opens it once and knows its directories.

    Raises:
        ConfigInvalidError, ObjectStoreError: it cannot be opened.
    """
    return ObjectStore.from_uri(storage_root)


def _morsels(batches: Iterable[pa.RecordBatch], morsel_bytes: int) -> Iterator[pa.RecordBatch]:
    """Joins small record batches to ones of a size that is worth the work; empty ones are left out."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= morsel_bytes:
            yield from _joined(waiting)
            waiting, size_bytes = [], 0
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows as one batch, or as several: Arrow cuts text and bytes where a column has more than 2 GiB of them."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
