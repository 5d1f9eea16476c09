"""The dd node: checks what a reader hands over, filters what is registered or dropped, and sorts rows by lane and operation.

Everything here is columnar: a constant number of Arrow calls per batch and lane, whatever the number of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from datacoord import reported_metrics as names
from datacoord.errors import SourceInvalidError
from datacoord.limits import ALL_PARTITIONS_ID, DEFAULT_PARTITION_NAME, TIMESTAMP_MAX
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.flowgraph.fold import fold_last_operations
from datanode_client.metrics import DataNodeMetrics
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_DELETE,
    OP_INSERT,
    OP_UPSERT,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    MessageBatch,
)
from datanode_client.writebuffer.buffers import LaneRows
from datanode_client.writebuffer.metacache import MetaCache


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the columns stand in one reader's batches; worked out once per schema, not once per batch."""

    schema: pa.Schema
    columns: tuple[int, ...]
    keys: tuple[int, ...]
    timestamp: int
    op: int
    partition: int | None


class DDNode:
    """First node of the flow graph.

    Args:
        channel_name: for messages.
        schema: of the collection.
        default_partition_id: lane of rows that name no partition; None = the collection has no such partition.
        metacache: progress and dropped partitions.
        replayed_until: timestamps up to here were read by an earlier owner.
        metrics: of the process.
    """

    def __init__(
        self,
        *,
        channel_name: str,
        schema: CollectionSchema,
        default_partition_id: int | None,
        metacache: MetaCache,
        replayed_until: int,
        metrics: DataNodeMetrics,
    ) -> None:
        self._channel_name = channel_name
        self._schema = schema
        self._default_partition_id = default_partition_id
        self._metacache = metacache
        self._replayed_until = replayed_until
        self._metrics = metrics
        self._layout: _Layout | None = None
        self._seen = 0
        self._consumed_at_open = 0

    def reader_opened(self, after: int) -> None:
        """A new reader begins right after a timestamp; should it hand over older messages again, they are dropped."""
        self._seen = 0
        self._consumed_at_open = after

    def see(self, timestamp: int) -> None:
        """Notes that the reader is at a timestamp: nothing at or below it may come any more."""
        self._seen = max(self._seen, timestamp)

    def drop_partition(self, partition_id: int) -> bool:
        """Throws the rows of a partition away from now on.

        Returns:
            whether that is news: the coordinator may not know it.

        Raises:
            SourceInvalidError: it is the default partition or none at all.
        """
        if partition_id < 1 or partition_id == self._default_partition_id:
            raise self._invalid(f"a message that drops partition {partition_id}, which cannot be dropped")
        lane = self._metacache.lane(partition_id)
        was_dropped, lane.dropped = lane.dropped, True
        return not was_dropped

    def operate(self, batch: MessageBatch) -> list[LaneRows]:
        """Turns a batch into rows per lane.

        Returns:
            what is to be buffered, folded to one operation per message and key; lanes without rows are absent.

        Raises:
            SourceInvalidError: the batch breaks the rules of `sources.base`; the reader has a bug.
        """
        rows = batch.rows
        if rows.num_rows == 0:
            self.see(batch.position.timestamp)
            return []
        layout = self._layout
        if layout is None or not layout.schema.equals(rows.schema):
            layout = self._layout = self._read_layout(rows.schema)
        distinct = self._check_order(rows.column(layout.timestamp), batch.position.timestamp)
        rows = self._count_and_skip_replayed(rows, layout)
        if rows.num_rows == 0:
            return []
        if layout.keys:
            self._refuse_nulls(rows, layout.keys)
            if not distinct:
                # Before rows are filtered or sorted by lane: what a message means must not depend on who replays it.
                keys = [rows.column(index) for index in layout.keys]
                folded = fold_last_operations(rows, rows.column(layout.timestamp), keys)
                self._count_filtered(rows.num_rows - folded.num_rows, "folded")
                rows = folded
        return [lane for part in self._lanes(rows, layout) if (lane := self._lane_rows(*part, layout)) is not None]

    def _invalid(self, what: str) -> SourceInvalidError:
        return SourceInvalidError(
            f"the reader of {self._channel_name} handed over {what}; it must be corrected",
            channel_name=self._channel_name,
        )

    def _read_layout(self, schema: pa.Schema) -> _Layout:
        def index(name: str, kind: pa.DataType) -> int:
            found: int = schema.get_field_index(name)
            if found < 0:
                raise self._invalid(f"batches without the column {name!r} ({kind})")
            if not schema.field(found).type.equals(kind):
                raise self._invalid(f"column {name!r} as {schema.field(found).type} instead of {kind}")
            return found

        columns = {field.name: index(field.name, field.type) for field in self._schema.columns}
        return _Layout(
            schema=schema,
            columns=tuple(columns.values()),
            keys=tuple(columns[name] for name in self._schema.primary_key),
            timestamp=index(TIMESTAMP_COLUMN, pa.int64()),
            op=index(OP_COLUMN, pa.int8()),
            partition=index(PARTITION_COLUMN, pa.int64()) if PARTITION_COLUMN in schema.names else None,
        )

    def _check_order(self, timestamps: pa.Array, position_timestamp: int) -> bool:
        """Checks the order of a batch and returns whether every row is a message of its own."""
        if timestamps.null_count:
            raise self._invalid(f"nulls in {TIMESTAMP_COLUMN}")
        count = len(timestamps)
        distinct = True
        if count > 1:
            before, after = timestamps.slice(0, count - 1), timestamps.slice(1)
            distinct = pc.all(pc.less(before, after)).as_py()
            if not distinct and not pc.all(pc.less_equal(before, after)).as_py():
                raise self._invalid("timestamps that decrease within a batch")
        first, last = timestamps[0].as_py(), timestamps[count - 1].as_py()
        if first < 1 or last > TIMESTAMP_MAX:
            raise self._invalid(f"the timestamp {first}; they are 1 to 2^63-1")
        if first <= self._seen:
            # A message that comes in two batches would be cut in the middle, and its second half filtered in a replay.
            raise self._invalid(f"timestamp {first} after {self._seen}: messages come in order and are never split")
        if last > position_timestamp:
            raise self._invalid(f"rows up to {last} under the position {position_timestamp}")
        self.see(position_timestamp)
        return bool(distinct)

    def _count_and_skip_replayed(self, rows: pa.RecordBatch, layout: _Layout) -> pa.RecordBatch:
        self._metrics.add(names.CONSUMED_ROWS, rows.num_rows)
        timestamps = rows.column(layout.timestamp)
        replayed = _rows_until(timestamps, max(self._replayed_until, self._consumed_at_open))
        if replayed:
            self._metrics.add(names.REPLAYED_ROWS, replayed)
        known = _rows_until(timestamps, self._consumed_at_open) if replayed else 0
        if not known:
            return rows
        self._count_filtered(known, "registered")
        return rows.slice(known)

    def _lanes(self, rows: pa.RecordBatch, layout: _Layout) -> Iterator[tuple[int, pa.RecordBatch]]:
        if layout.partition is None:
            if self._default_partition_id is None:
                raise self._invalid(f"rows without a partition, and the collection has no {DEFAULT_PARTITION_NAME}")
            yield self._default_partition_id, rows
            return
        partitions = rows.column(layout.partition)
        self._refuse_nulls(rows, (layout.partition,))
        distinct = pc.unique(partitions).to_pylist()
        for partition_id in distinct:
            if partition_id < ALL_PARTITIONS_ID:
                raise self._invalid(f"partition {partition_id}")
            yield partition_id, rows if len(distinct) == 1 else rows.filter(pc.equal(partitions, partition_id))

    def _lane_rows(self, partition_id: int, rows: pa.RecordBatch, layout: _Layout) -> LaneRows | None:
        lane = self._metacache.lane(partition_id)
        if lane.dropped:
            self._count_filtered(rows.num_rows, "dropped_partition")
            return None
        registered = _rows_until(rows.column(layout.timestamp), lane.floor)
        if registered:
            self._count_filtered(registered, "registered")
            rows = rows.slice(registered)
            if rows.num_rows == 0:
                return None
        inserts, deletes = self._by_operation(partition_id, rows, layout)
        return LaneRows(partition_id, inserts, deletes, rows.column(layout.timestamp)[0].as_py())

    def _by_operation(
        self, partition_id: int, rows: pa.RecordBatch, layout: _Layout
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
        """An upsert is a delete and an insert of the same timestamp; a delete hides strictly older rows only."""
        operations = rows.column(layout.op)
        if operations.null_count:
            raise self._invalid(f"nulls in {OP_COLUMN}")
        lowest, highest = (value.as_py() for value in pc.min_max(operations).values())
        legal = (OP_UPSERT, OP_DELETE) if layout.keys else (OP_INSERT, OP_INSERT)
        if lowest < legal[0] or highest > legal[1]:
            kind = (
                "with a primary key takes upserts and deletes" if layout.keys else "without a primary key takes inserts"
            )
            raise self._invalid(f"operations {lowest} to {highest}; a collection {kind} only")
        if partition_id == ALL_PARTITIONS_ID and lowest != OP_DELETE:
            raise self._invalid("rows to insert without saying into which partition; only deletes may do that")
        inserts = None
        if lowest == highest != OP_DELETE:
            inserts = self._insert_rows(rows, layout)
        elif lowest != highest:
            inserts = self._insert_rows(rows.filter(pc.equal(operations, OP_UPSERT)), layout)
        deletes = None
        if layout.keys:
            keys = [rows.column(index) for index in (*layout.keys, layout.timestamp)]
            deletes = pa.RecordBatch.from_arrays(keys, schema=self._schema.delta_log)
        return inserts, deletes

    def _insert_rows(self, rows: pa.RecordBatch, layout: _Layout) -> pa.RecordBatch:
        columns = [rows.column(index) for index in (*layout.columns, layout.timestamp)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.insert_log)

    def _refuse_nulls(self, rows: pa.RecordBatch, columns: tuple[int, ...]) -> None:
        for index in columns:
            if rows.column(index).null_count:
                raise self._invalid(f"nulls in column {rows.schema.names[index]!r}")

    def _count_filtered(self, rows: int, reason: str) -> None:
        if rows:
            self._metrics.add(names.FILTERED_ROWS, rows, reason=reason)


def _rows_until(timestamps: pa.Array, timestamp: int) -> int:
    """How many rows at the head of ordered timestamps are at or below one; a single look where none is."""
    if timestamps[0].as_py() > timestamp:
        return 0
    if timestamps[len(timestamps) - 1].as_py() <= timestamp:
        return len(timestamps)
    count: int = pc.sum(pc.less_equal(timestamps, timestamp)).as_py()
    return count
