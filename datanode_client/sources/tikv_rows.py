"""Changes of a TiKV cluster as columns."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from datacoord.errors import SourceInvalidError
from datanode_client.puller.events import OpType, RawKVEntry
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, OP_INSERT, OP_UPSERT, TIMESTAMP_COLUMN, ChannelContext

TIKV_PRIMARY_KEY: Final = ("key",)

TIKV_SCHEMA: Final = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
"""The state of a key range: with the primary key TIKV_PRIMARY_KEY, the newest value of every key."""

TIKV_CHANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("old_value", pa.binary()),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
    ]
)
"""The log of its changes: without a primary key, a row for every change."""

_BYTES: Final = (pa.binary(), pa.large_binary())
_TYPES: Final = {
    "key": _BYTES,
    "value": _BYTES,
    "old_value": _BYTES,
    "op": (pa.string(),),
    "start_ts": (pa.int64(),),
    "commit_ts": (pa.int64(),),
}
_OP_NAMES: Final = {OpType.PUT: "put", OpType.DELETE: "delete"}
_VALUES: Final[dict[str, Callable[[RawKVEntry], Any]]] = {
    "key": lambda entry: entry.key,
    "value": lambda entry: entry.value if entry.op_type is OpType.PUT else None,
    "old_value": lambda entry: entry.old_value or None,
    "op": lambda entry: _OP_NAMES[entry.op_type],
    "start_ts": lambda entry: entry.start_ts,
    "commit_ts": lambda entry: entry.commit_ts,
}
_OPERATIONS: Final = {OpType.PUT: OP_UPSERT, OpType.DELETE: OP_DELETE}


class RowMaker:
    """Makes the rows of one collection.

    Args:
        context: of a channel.

    Raises:
        SourceInvalidError: the collection has a column that changes do not have, or another primary key than the key.
    """

    def __init__(self, context: ChannelContext) -> None:
        for field in context.schema:
            if not any(field.type.equals(kind) for kind in _TYPES.get(field.name, ())):
                legal = ", ".join(f"{name} ({' or '.join(map(str, kinds))})" for name, kinds in _TYPES.items())
                raise SourceInvalidError(
                    f"collection {context.collection_name} has the column {field.name} ({field.type}), but changes of TiKV have: "
                    f"{legal}",
                    collection=context.collection_name,
                    column=field.name,
                )
        if context.primary_key not in {(), TIKV_PRIMARY_KEY}:
            raise SourceInvalidError(
                f"collection {context.collection_name} has the primary key {context.primary_key}, but changes of TiKV have the "
                f"primary key {TIKV_PRIMARY_KEY}, or none to keep every change as a row",
                collection=context.collection_name,
            )
        self._columns = [_VALUES[name] for name in context.schema.names]
        self._keeps_changes = not context.primary_key
        system = [pa.field(TIMESTAMP_COLUMN, pa.int64()), pa.field(OP_COLUMN, pa.int8())]
        self._schema = pa.schema([*context.schema, *system])

    def rows(self, entries: Sequence[RawKVEntry]) -> pa.RecordBatch:
        """Some changes, in commit order, with the system's columns."""
        columns: list[list[Any]] = [[value(entry) for entry in entries] for value in self._columns]
        columns.append([entry.commit_ts for entry in entries])
        if self._keeps_changes:
            columns.append([OP_INSERT] * len(entries))
        else:
            columns.append([_OPERATIONS[entry.op_type] for entry in entries])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
