"""A bounded source in memory: channels of upserts and deletes, read by readers that a test can hold at half time."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from datacoord.positions import Position
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_DELETE,
    OP_UPSERT,
    TIMESTAMP_COLUMN,
    ChannelContext,
    EndOfChannel,
    MessageBatch,
    SourceEvent,
)

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.string())])
ROW_SCHEMA = pa.schema([*SCHEMA, pa.field(TIMESTAMP_COLUMN, pa.int64()), pa.field(OP_COLUMN, pa.int8())])

Operation = tuple[int, int, str | None]
"""Timestamp, key, value; None = a delete."""


def operations(channel_index: int, messages: int, seed: int) -> list[Operation]:
    """One operation per message, on few keys, so that most rows are overwritten or deleted later."""
    rng = random.Random(f"{seed}/{channel_index}")
    made = []
    for timestamp in range(1, messages + 1):
        key = rng.randrange(40)
        value = None if rng.random() < 0.2 else f"{channel_index}/{timestamp}/" + "x" * rng.randrange(200)
        made.append((timestamp, key, value))
    return made


def state(channel: list[Operation]) -> dict[int, tuple[int, str]]:
    """What a reader must see at the end: (timestamp, value) by key."""
    seen: dict[int, tuple[int, str]] = {}
    for timestamp, key, value in channel:
        if value is None:
            seen.pop(key, None)
        else:
            seen[key] = (timestamp, value)
    return seen


@dataclass(frozen=True)
class ListSource:
    """The source. Shipped to datanodes of other processes as it is.

    Attributes:
        channels: operations by channel index.
        limit_path: a file with the timestamp up to which readers may read now.
        messages_per_batch: messages of one event.
    """

    channels: list[list[Operation]]
    limit_path: Path
    messages_per_batch: int = 7

    def set_limit(self, timestamp: int) -> None:
        """Lets readers go on up to a timestamp."""
        fresh = self.limit_path.with_suffix(".new")
        fresh.write_text(str(timestamp))
        fresh.replace(self.limit_path)

    def reader(self, context: ChannelContext) -> "ListReader":
        """The reader factory."""
        return ListReader(self, self.channels[context.channel_index])


class ListReader:
    """Reads one channel."""

    def __init__(self, source: ListSource, channel: list[Operation]) -> None:
        self._source = source
        self._channel = channel
        self._next = 0

    async def open(self, after: Position) -> None:
        self._next = after.timestamp  # timestamps count from 1

    async def next(self) -> SourceEvent:
        if self._next >= len(self._channel):
            return EndOfChannel(_position(len(self._channel)))
        while (limit := int(self._source.limit_path.read_text())) <= self._next:  # noqa: ASYNC110  # another process sets it
            await asyncio.sleep(0.02)
        end = min(self._next + self._source.messages_per_batch, len(self._channel), limit)
        part = self._channel[self._next : end]
        columns = [
            [key for _, key, _ in part],
            [value for _, _, value in part],
            [timestamp for timestamp, _, _ in part],
            [OP_DELETE if value is None else OP_UPSERT for _, _, value in part],
        ]
        arrays = [pa.array(column, type=kind.type) for column, kind in zip(columns, ROW_SCHEMA, strict=True)]
        self._next = end
        return MessageBatch(pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA), _position(end))

    def head(self) -> int | None:
        return len(self._channel)

    async def close(self) -> None:
        return


def _position(timestamp: int) -> Position:
    return Position(timestamp, msg_id=str(timestamp).encode(), msg_group="list")
