"""Rows of a frame become rows of lanes: the collection's columns, and the system's that say where, when and what (columnar)."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from datacoord.errors import InvalidFieldError, PartitionNotFoundError
from datacoord.limits import DEFAULT_PARTITION_NAME, TIMESTAMP_MAX
from datanode_client.conversions import converted
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_DELETE,
    OP_INSERT,
    OP_UPSERT,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
)
from datanode_client.spark.options import OPERATIONS
from datanode_client.spark.sink_plan import SinkPlan, columns_by_name

CHANNEL_COLUMN: Final = "_channel"
"""Index of the channel, beside the system's columns of `sources.base`; never stored."""

ORDINAL_BITS: Final = 18
"""A timestamp with an ordinal is `timestamp << 18 | ordinal`, as a TSO is built of milliseconds and a logical part."""

_OP_CODES: Final = {"append": OP_INSERT, "upsert": OP_UPSERT, "delete": OP_DELETE}


class RowMapper:
    """Maps the record batches of one frame.

    What the options leave open is left out: a mapped batch has `_timestamp`, `_op`, `_partition` and `_channel` only where
    a column of the frame says it.

    Args:
        plan: of the batch.
        frame: schema of the record batches.
    """

    def __init__(self, plan: SinkPlan, frame: pa.Schema) -> None:
        self._plan = plan
        self._options = plan.options
        self._names = columns_by_name(frame)
        self._channel_indexes = pa.array(sorted(plan.channels), pa.int64())
        self._channel_names = pa.array([plan.channels[index].name for index in sorted(plan.channels)], pa.string())
        self._partition_names = pa.array(list(plan.partitions), pa.string())
        self._partition_ids = pa.array(list(plan.partitions.values()), pa.int64())

    def map(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as the collection has them, with the system's columns that the frame gives.

        Raises:
            InvalidFieldError: a value cannot be what its column must be.
            PartitionNotFoundError: a row names a partition that the collection does not have.
        """
        options, columns = self._options, {}
        for field in self._plan.schema:
            columns[field.name] = self._column(rows, field)
        if options.timestamp_column:
            columns[TIMESTAMP_COLUMN] = self._timestamps(rows)
        elif options.ordinal_column:
            columns[TIMESTAMP_COLUMN] = self._integers(rows, options.ordinal_column, 0, (1 << ORDINAL_BITS) - 1)
        if options.operation_column:
            columns[OP_COLUMN] = self._operations(rows)
        if options.partition_column:
            columns[PARTITION_COLUMN] = self._partitions(rows)
        if options.channel_column:
            columns[CHANNEL_COLUMN] = self._channels(rows)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _raw(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        return rows.column(self._names[name.lower()])

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = self._names.get(field.name.lower())
        if index is None:
            return pa.nulls(rows.num_rows, field.type)
        values = rows.column(index)
        try:
            return converted(values, field.type)
        except pa.ArrowException as error:
            raise InvalidFieldError(
                f"a value of column {field.name!r}, which is {values.type}, cannot become the {field.type} of collection "
                f"{self._options.collection!r}: {error}. Correct it in the frame, or leave the row out",
                column=field.name,
            ) from error

    def _integers(self, rows: pa.RecordBatch, name: str, minimum: int, maximum: int) -> pa.Array:
        values = self._raw(rows, name)
        if not pa.types.is_integer(values.type):
            raise InvalidFieldError(f"column {name!r} is {values.type}, but must be an integer; cast it", column=name)
        if values.null_count:
            raise InvalidFieldError(
                f"column {name!r} is null in {values.null_count} rows; give every row one", column=name
            )
        values = values.cast(pa.int64())
        lowest, highest = (value.as_py() for value in pc.min_max(values).values())
        if lowest is not None and not minimum <= lowest <= highest <= maximum:
            wrong = lowest if lowest < minimum else highest
            raise InvalidFieldError(
                f"column {name!r} is {wrong} in a row, but must be from {minimum} to {maximum}",
                column=name,
                value=wrong,
            )
        return values

    def _timestamps(self, rows: pa.RecordBatch) -> pa.Array:
        options = self._options
        if not options.ordinal_column:
            return self._integers(rows, options.timestamp_column, 1, TIMESTAMP_MAX)
        timestamps = self._integers(rows, options.timestamp_column, 1, TIMESTAMP_MAX >> ORDINAL_BITS)
        ordinals = self._integers(rows, options.ordinal_column, 0, (1 << ORDINAL_BITS) - 1)
        return pc.bit_wise_or(pc.shift_left(timestamps, ORDINAL_BITS), ordinals)

    def _operations(self, rows: pa.RecordBatch) -> pa.Array:
        name = self._options.operation_column
        words = self._words(rows, name)
        legal = ("upsert", "delete") if self._plan.primary_key else ("append",)
        found = pc.index_in(pc.utf8_lower(words), value_set=pa.array(OPERATIONS))
        codes = pa.array([_OP_CODES[word] if word in legal else None for word in OPERATIONS], pa.int8()).take(found)
        if codes.null_count:
            wrong = words.filter(codes.is_null())[0].as_py()
            raise InvalidFieldError(
                f"column {name!r} is {wrong!r} in a row, but collection {self._options.collection!r} takes "
                f"{' and '.join(legal)} only",
                column=name,
                value=wrong,
            )
        return codes

    def _words(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        words = self._raw(rows, name)
        if not (pa.types.is_string(words.type) or pa.types.is_large_string(words.type)):
            raise InvalidFieldError(f"column {name!r} is {words.type}, but must be text; cast it", column=name)
        return words.cast(pa.string())

    def _partitions(self, rows: pa.RecordBatch) -> pa.Array:
        name = self._options.partition_column
        words = pc.fill_null(self._words(rows, name), DEFAULT_PARTITION_NAME)
        ids = self._partition_ids.take(pc.index_in(words, value_set=self._partition_names))
        if ids.null_count:
            wrong = words.filter(ids.is_null())[0].as_py()
            raise PartitionNotFoundError(
                f"column {name!r} is {wrong!r} in a row, but collection {self._options.collection!r} has no such partition; "
                "create it first",
                partition_name=wrong,
            )
        return ids

    def _channels(self, rows: pa.RecordBatch) -> pa.Array:
        name = self._options.channel_column
        values = self._raw(rows, name)
        if pa.types.is_integer(values.type):
            found = pc.index_in(values.cast(pa.int64()), value_set=self._channel_indexes)
        else:
            found = pc.index_in(self._words(rows, name), value_set=self._channel_names)
        indexes = self._channel_indexes.take(found)
        if indexes.null_count:
            wrong = values.filter(indexes.is_null())[0].as_py()
            raise InvalidFieldError(
                f"column {name!r} is {wrong!r} in a row, which is none of the {len(self._channel_indexes)} channels that "
                "this query writes",
                column=name,
                value=wrong,
            )
        return indexes


def split_by_lane(rows: pa.RecordBatch, default_partition_id: int) -> Iterator[tuple[int | None, int, pa.RecordBatch]]:
    """Splits mapped rows by channel and partition, each part in the order of its rows and with memory of its own.

    Args:
        rows: mapped rows.
        default_partition_id: of rows that name no partition.

    Yields:
        index of the channel (None = the rows do not say), partition id, rows without the columns that were split by.
    """
    keys = [name for name in (CHANNEL_COLUMN, PARTITION_COLUMN) if name in rows.schema.names]
    kept = [name for name in rows.schema.names if name not in keys]
    if not keys:
        yield None, default_partition_id, rows
        return
    numbered = pa.table([rows.column(name) for name in keys], names=keys).append_column(
        "row", pa.arange(0, rows.num_rows)
    )
    lanes = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")]).combine_chunks()
    taken = lanes.column("row_list").combine_chunks().flatten()
    start = 0
    for lane in (
        lanes.drop_columns(["row_list"]).append_column("rows", pc.list_value_length(lanes["row_list"])).to_pylist()
    ):
        # By `take` and not as slices: a small lane must not keep the memory of all of its neighbours.
        part = rows.select(kept).take(taken.slice(start, lane["rows"]))
        start += lane["rows"]
        yield lane.get(CHANNEL_COLUMN), lane.get(PARTITION_COLUMN, default_partition_id), part
