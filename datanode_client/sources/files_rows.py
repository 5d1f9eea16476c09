"""Rows as a source has them become rows as the datanode takes them: the collection's columns and the system's (columnar)."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datacoord.errors import SourceInvalidError
from datacoord.limits import DEFAULT_PARTITION_NAME
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_DELETE,
    OP_INSERT,
    OP_UPSERT,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    ChannelContext,
)

_APPEND_WORDS: Final[Mapping[str, int]] = {"append": OP_INSERT, "insert": OP_INSERT}
_STATE_WORDS: Final[Mapping[str, int]] = {"upsert": OP_UPSERT, "insert": OP_UPSERT, "delete": OP_DELETE}


class BadRowError(Exception):
    """A row cannot be taken; the rows before it are good.

    Args:
        index: of the row in its batch.
        why: the end of a sentence that begins with the row.
    """

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.why = why


class RowMaker:
    """Makes rows of one channel.

    Args:
        context: of the channel.
        operation_column: the column that says in words what a row does: insert, upsert or delete; empty = all rows are upserted, or
            inserted where the collection has no primary key.
        partition_column: the column with the name of a row's partition; null = the default one. Empty = all rows go there.

    Raises:
        SourceInvalidError: one of these columns is in the collection, but is no text.
    """

    def __init__(self, context: ChannelContext, operation_column: str = "", partition_column: str = "") -> None:
        self._context = context
        self._operation_column = operation_column
        self._partition_column = partition_column
        self._words = _STATE_WORDS if context.primary_key else _APPEND_WORDS
        self._default_op = OP_UPSERT if context.primary_key else OP_INSERT
        schema = context.schema
        for name in (operation_column, partition_column):
            if name and name not in schema.names:
                schema = schema.append(pa.field(name, pa.string()))
            elif name and not pa.types.is_string(schema.field(name).type):
                raise SourceInvalidError(
                    f"column {name!r} is {schema.field(name).type} in collection {context.collection_name!r}, but an operation or "
                    "a partition is said in words: make it a string",
                    column=name,
                )
        self.schema = schema
        """The columns to read: the collection's, and the ones that say what and where."""
        self._required = [field.name for field in schema if not field.nullable and field.name in context.schema.names]
        self._required += [name for name in context.primary_key if name not in self._required]

    def make(
        self, rows: pa.RecordBatch, timestamps: npt.NDArray[np.int64], deletes: npt.NDArray[np.bool_] | None = None
    ) -> pa.RecordBatch:
        """Rows for a `MessageBatch`.

        Args:
            rows: with the columns of `schema`, of their types.
            timestamps: one for each row.
            deletes: rows that delete their key whatever their columns say; None = there are none.

        Raises:
            BadRowError: a row says something that the collection cannot take; the first such row is named.
        """
        try:
            return self._make(rows, timestamps, deletes)
        except BadRowError as error:
            if error.index:  # one before it may be wrong, too, in what is looked at later
                count = error.index
                self.make(rows.slice(0, count), timestamps[:count], None if deletes is None else deletes[:count])
            raise

    def _make(
        self, rows: pa.RecordBatch, timestamps: npt.NDArray[np.int64], deletes: npt.NDArray[np.bool_] | None
    ) -> pa.RecordBatch:
        operations = self._operations(rows, deletes)
        self._refuse_nulls(rows, operations)
        columns = [rows.column(field.name) for field in self._context.schema]
        names = self._context.schema.names
        columns += [pa.array(timestamps, pa.int64()), operations]
        names = [*names, TIMESTAMP_COLUMN, OP_COLUMN]
        if self._partition_column:
            columns.append(self._partitions(rows))
            names = [*names, PARTITION_COLUMN]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _operations(self, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_] | None) -> pa.Array:
        codes = pa.array(np.full(rows.num_rows, self._default_op, np.int8))
        legal = list(self._words)
        if self._operation_column:
            words = rows.column(self._operation_column)
            found = pc.index_in(pc.utf8_lower(words), value_set=pa.array(legal))
            codes = pa.array([self._words[word] for word in legal], pa.int8()).take(found)
        if deletes is not None and deletes.any():
            if not self._context.primary_key:
                raise BadRowError(
                    int(deletes.argmax()),
                    "deletes a key, and the collection has no primary key: it can only be added to",
                )
            codes = pc.if_else(pa.array(deletes), pa.scalar(OP_DELETE, pa.int8()), codes)
        if codes.null_count:
            index = _first_true(codes.is_null())
            said = rows.column(self._operation_column)[index].as_py()
            raise BadRowError(index, f"says {said!r} in {self._operation_column!r}, but may say {', '.join(legal)}")
        return codes

    def _partitions(self, rows: pa.RecordBatch) -> pa.Array:
        known = self._context.partitions
        words = rows.column(self._partition_column).fill_null(DEFAULT_PARTITION_NAME)
        found = pc.index_in(words, value_set=pa.array(list(known), pa.string()))
        ids = pa.array(list(known.values()), pa.int64()).take(found)
        if ids.null_count:
            index = _first_true(ids.is_null())
            raise BadRowError(
                index, f"names the partition {words[index].as_py()!r}, and the collection has {', '.join(known)}"
            )
        return ids

    def _refuse_nulls(self, rows: pa.RecordBatch, operations: pa.Array) -> None:
        for name in self._required:
            values = rows.column(name)
            if not values.null_count:
                continue
            wrong = values.is_null()
            if name not in self._context.primary_key:  # a delete needs only its key
                wrong = pc.and_(wrong, pc.not_equal(operations, OP_DELETE))
            if pc.any(wrong).as_py():
                raise BadRowError(_first_true(wrong), f"has no {name!r}, which every row must have")


def _first_true(values: pa.Array) -> int:
    index: int = pc.index(values, True).as_py()
    return index
