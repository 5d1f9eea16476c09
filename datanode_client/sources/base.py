"""The one interface between a source and the datanode. A reader of your own is a class with four methods.

A reader yields the messages of one channel in order, many at a time: a `MessageBatch` holds whole messages (all rows of one
timestamp), as an Arrow record batch with the collection's columns and the system's:

    _timestamp   int64   the message's timestamp; not decreasing within a batch, strictly greater than in the batch before
    _op          int8    OP_INSERT (append-only collections), OP_UPSERT or OP_DELETE; rows of one key and timestamp apply in order
    _partition   int64   optional: the partition id; absent = the default partition; ALL_PARTITIONS_ID is legal for deletes

For a delete only the primary key columns need values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from datacoord.errors import SourceLostError
from datacoord.positions import Position

TIMESTAMP_COLUMN = "_timestamp"
OP_COLUMN = "_op"
PARTITION_COLUMN = "_partition"

OP_INSERT = 0
OP_UPSERT = 1
OP_DELETE = 2


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Whole messages of one channel.

    Attributes:
        rows: the rows, with the system's columns; at least one.
        position: of the last message in the batch.
    """

    rows: pa.RecordBatch
    position: Position


@dataclass(frozen=True, slots=True)
class Tick:
    """No message with a timestamp <= the position's will come any more: advances what is consumed without rows."""

    position: Position


@dataclass(frozen=True, slots=True)
class DropPartitionMessage:
    """DDL of the log: the partition is dropped, in every channel of the collection.

    The flow graph has the coordinator drop it, and holds the checkpoint before the message until that is done. A reader that is
    opened after the position need not hand it out again. Not for the default partition.
    """

    partition_id: int
    position: Position


@dataclass(frozen=True, slots=True)
class DropCollectionMessage:
    """DDL of the log: the collection is dropped at the position."""

    position: Position


@dataclass(frozen=True, slots=True)
class EndOfChannel:
    """The source is bounded and everything up to the position has been read; nothing more will come."""

    position: Position


SourceEvent = MessageBatch | Tick | DropPartitionMessage | DropCollectionMessage | EndOfChannel


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """What a reader may know of its channel.

    Attributes:
        channel_name: the channel.
        channel_index: which of the collection's channels it is, 0 to `channel_count` - 1.
        channel_count: how many channels the collection has.
        collection_name: the collection.
        schema: its columns, without the system's.
        primary_key: its key columns; empty = append-only.
        partitions: partition ids by name.
        properties: free properties of the collection.
    """

    channel_name: str
    channel_index: int
    channel_count: int
    collection_name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    partitions: Mapping[str, int]
    properties: Mapping[str, str]


class ChannelReader(Protocol):
    """Reads one channel. Used by one task of an event loop; blocking work belongs into a thread (`asyncio.to_thread`)."""

    async def open(self, after: Position) -> None:
        """Seeks right after a position (timestamp 0: the start).

        Raises:
            SourceInvalidError: the source is not what this reader reads.
            SourceLostError: the source does not hold the position any more.
        """
        ...

    async def next(self) -> SourceEvent:
        """The next event; waits for it. After EndOfChannel it is not called again.

        May be cancelled while it waits without losing anything: the next call continues where the last answer ended.

        Raises:
            SourceLostError: the source went away and will not come back by waiting.
            Exception: anything else is a passing fault: the datanode closes the reader, waits, and opens a new one.
        """
        ...

    def head(self) -> int | None:
        """Timestamp of the newest message the source is known to have; None = not known."""
        ...

    async def close(self) -> None:
        """Frees what the reader holds. Safe to call twice, and before `open`."""
        ...


ReaderFactory = Callable[[ChannelContext], ChannelReader]
"""Makes the reader of a channel. Shipped to executors by cloudpickle, once per datanode: readers of one datanode may share what
the factory keeps (a process that reads one log for many channels, say)."""


def check_group(after: Position, group: str, inputs: str) -> None:
    """Refuses a position that was given for another log.

    Args:
        after: where a reader is to begin; the start is everybody's.
        group: `msg_group` of the positions that this reader gives.
        inputs: what makes the group, as the sentence's end: "the topic it had".

    Raises:
        SourceLostError: the position is of another group.
    """
    if after.timestamp and after.msg_group != group:
        raise SourceLostError(
            f"position {after.timestamp} belongs to {after.msg_group!r}, and this is {group!r}: give the collection {inputs}, "
            "or begin a new one",
            timestamp=after.timestamp,
            position_group=after.msg_group,
            group=group,
        )
