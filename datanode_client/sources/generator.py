"""Reads a made-up change log (`GeneratedLog`): millions of rows, many channels, some of them sparse, always the same for a seed."""

import asyncio
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datacoord.errors import SourceInvalidError, SourceLostError
from datacoord.positions import Position
from datanode_client.sources.base import TIMESTAMP_COLUMN, ChannelContext, EndOfChannel, MessageBatch, SourceEvent, Tick
from datanode_client.sources.generator_log import GENERATOR_PRIMARY_KEY, GENERATOR_SCHEMA, GeneratedLog
from datanode_client.sources.head_limit import HeadLimit

__all__ = [
    "GENERATOR_PRIMARY_KEY",
    "GENERATOR_SCHEMA",
    "GeneratedLog",
    "GeneratorChannelReader",
    "GeneratorReaderFactory",
]


class GeneratorReaderFactory:
    """Makes the readers of one datanode.

    Args:
        seed: any number of 64 bits.
        rows: operations in all channels together.
        channels: how many channels the collection has.
        limit_path: a file with the largest timestamp to emit yet, see `HeadLimit`; None = no limit.
        limit_poll_seconds: how often that file is read.
        options: further arguments of `GeneratedLog`.

    Raises:
        SourceInvalidError: an argument is out of range.
    """

    def __init__(
        self,
        seed: int,
        rows: int,
        channels: int = 256,
        *,
        limit_path: str | os.PathLike[str] | None = None,
        limit_poll_seconds: float = 0.2,
        **options: Any,
    ) -> None:
        self.log = GeneratedLog(seed, rows, channels, **options)
        self._limit_path = None if limit_path is None else os.fspath(limit_path)
        self._limit_poll_seconds = limit_poll_seconds
        self._limit: HeadLimit | None = None

    def __call__(self, context: ChannelContext) -> "GeneratorChannelReader":
        """Makes the reader of a channel.

        Raises:
            SourceInvalidError: the collection has another number of channels than the log.
        """
        if context.channel_count != self.log.channels or not 0 <= context.channel_index < self.log.channels:
            raise SourceInvalidError(
                f"the generator was made for {self.log.channels} channels and cannot read channel {context.channel_index} of "
                f"{context.channel_count}: give the collection and the generator the same number",
                channel=context.channel_name,
            )
        if self._limit is None:
            self._limit = HeadLimit(self._limit_path, poll_seconds=self._limit_poll_seconds)
        return GeneratorChannelReader(self.log, context.channel_index, self._limit)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to executors: the log's description and the settings."""
        return self.__dict__ | {"_limit": None}


class GeneratorChannelReader:
    """Reads one channel of a log: the `ChannelReader` of `GeneratorReaderFactory`.

    Args:
        log: the log.
        channel_index: which channel.
        limit: the largest timestamp to emit yet.
    """

    def __init__(self, log: GeneratedLog, channel_index: int, limit: HeadLimit) -> None:
        self._log = log
        self._channel_index = channel_index
        self._limit = limit
        self._counts: npt.NDArray[np.int64] | None = None
        self._after = 0
        self._told = 0
        self._block: tuple[int, pa.RecordBatch, npt.NDArray[np.int64]] | None = None

    async def open(self, after: Position) -> None:
        """Seeks right after a position; see `ChannelReader.open`."""
        log = self._log
        if after.timestamp and (after.msg_group != log.name or after.timestamp > log.last_timestamp):
            raise SourceLostError(
                f"position {after.timestamp} belongs to the log {after.msg_group!r}, and this is {log.name!r}: give the generator "
                "the arguments it had, or begin a new collection",
                timestamp=after.timestamp,
                position_log=after.msg_group,
                log=log.name,
            )
        self._counts = log.block_counts(self._channel_index)
        self._after = self._told = after.timestamp
        self._block = None

    async def next(self) -> SourceEvent:
        """The next rows, or a tick over a stretch without any; see `ChannelReader.next`."""
        log = self._log
        while True:
            limit = min(self._limit.value(), log.last_timestamp)
            rows = await self._advance(limit) if self._after < limit else None
            if rows is not None:
                self._told = rows.column(TIMESTAMP_COLUMN)[-1].as_py()
                return MessageBatch(rows, log.position(self._told))
            if self._after == log.last_timestamp:
                return EndOfChannel(log.position(self._after))
            if self._after > self._told:
                self._told = self._after
                return Tick(log.position(self._told))
            await self._limit.wait()

    def head(self) -> int | None:
        """The last timestamp."""
        return self._log.last_timestamp

    async def close(self) -> None:
        """Frees the current block."""
        self._counts = None
        self._block = None

    async def _advance(self, limit: int) -> pa.RecordBatch | None:
        """Moves to the end of the current block, over all empty ones, or up to the limit; the rows on the way, None = none."""
        if self._counts is None:
            raise SourceInvalidError("the reader of the generator is not open")
        index = self._after // self._log.block_width
        left = np.flatnonzero(self._counts[index:])
        empty_blocks = int(left[0]) if len(left) else len(self._counts) - index
        if empty_blocks:
            self._after = min((index + empty_blocks) * self._log.block_width, limit)
            return None
        rows, timestamps = await self._load(index, int(self._counts[index]))
        to = min((index + 1) * self._log.block_width, limit)
        begin, end = np.searchsorted(timestamps, [self._after, to], side="right")
        self._after = to
        return rows.slice(int(begin), int(end - begin)) if begin < end else None

    async def _load(self, index: int, count: int) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        if self._block is None or self._block[0] != index:
            # A block takes less than a millisecond, about what handing it to a thread costs. The other channels have their turn.
            await asyncio.sleep(0)
            rows = self._log.block(self._channel_index, index, count)
            self._block = index, rows, rows.column(TIMESTAMP_COLUMN).to_numpy()
        return self._block[1:]
