"""Drives readers the way a datanode does, and checks that what they yield is what the interface promises."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datacoord.positions import START, Position
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_DELETE,
    TIMESTAMP_COLUMN,
    ChannelContext,
    EndOfChannel,
    MessageBatch,
    ReaderFactory,
    SourceEvent,
    Tick,
)

from .git_repositories import Tree


def context(index: int, count: int, schema: pa.Schema, primary_key: tuple[str, ...]) -> ChannelContext:
    """A channel of a collection `c`."""
    return ChannelContext(f"c-{index}", index, count, "c", schema, primary_key, {}, {})


@dataclass
class Reading:
    """What one channel yielded.

    Attributes:
        batches: rows of the message batches.
        positions: of all events.
        ticks: how many events were ticks.
    """

    batches: list[pa.RecordBatch]
    positions: list[Position]
    ticks: int = 0

    def table(self) -> pa.Table:
        """All rows; there must be some."""
        return pa.Table.from_batches(self.batches)


async def read_channel(
    factory: ReaderFactory, channel: ChannelContext, *, after: Position = START, stops: Iterable[int] = ()
) -> Reading:
    """Reads a channel to its end.

    Args:
        factory: makes its readers.
        channel: which.
        after: where to begin.
        stops: after so many events each, the reader is closed and another one goes on from the last position.
    """
    reading = Reading([], [after])
    leave = iter(stops)
    while True:
        reader = factory(channel)
        await reader.open(reading.positions[-1])
        left = next(leave, None)
        try:
            while left is None or left > 0:
                event = await reader.next()
                _record(reading, event)
                if isinstance(event, EndOfChannel):
                    return reading
                left = None if left is None else left - 1
        finally:
            await reader.close()


def _record(reading: Reading, event: SourceEvent) -> None:
    last = reading.positions[-1].timestamp
    if isinstance(event, MessageBatch):
        timestamps = event.rows.column(TIMESTAMP_COLUMN).to_pylist()
        assert event.rows.num_rows > 0
        assert timestamps == sorted(timestamps)
        assert timestamps[0] > last
        assert timestamps[-1] == event.position.timestamp
        reading.batches.append(event.rows)
    else:
        assert isinstance(event, (Tick, EndOfChannel))
        assert event.position.timestamp > last or isinstance(event, EndOfChannel)
        reading.ticks += isinstance(event, Tick)
    reading.positions.append(event.position)


def git_states(readings: Iterable[Reading], commits: int) -> Iterator[tuple[int, Tree]]:
    """The state after each commit, number by number, from what all channels yielded."""
    rows = [row for reading in readings for batch in reading.batches for row in batch.to_pylist()]
    by_number: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_number.setdefault(row[TIMESTAMP_COLUMN], []).append(row)
    state: Tree = {}
    for number in range(1, commits + 1):
        for row in by_number.get(number, []):
            if row[OP_COLUMN] == OP_DELETE:
                del state[row["path"]]  # a delete of a path that is not there is a bug
            else:
                state[row["path"]] = (row["mode"].encode(), row["blob_id"].hex().encode())
        yield number, dict(state)
