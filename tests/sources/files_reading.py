"""Drives readers of directories that are written to meanwhile: a clock that lets them look again only when a test says so."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from datacoord.positions import START, Position
from datanode_client.sources.base import TIMESTAMP_COLUMN, ChannelContext, EndOfChannel, MessageBatch, SourceEvent
from datanode_client.sources.files import FilesReaderFactory

from .replay import Reading, read_channel

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


class HeldClock:
    """A clock whose sleepers wake when they are told to."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self.asleep = asyncio.Event()

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        if not self._wake.is_set():
            self.asleep.set()
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        self.asleep.clear()
        self._wake.set()


def channel(
    index: int = 0, count: int = 1, *, schema: pa.Schema = SCHEMA, primary_key: tuple[str, ...] = ()
) -> ChannelContext:
    """A channel of a collection `c` with the partitions `_default` and `eu`."""
    partitions = {"_default": 1, "eu": 2}
    return ChannelContext(f"c-{index}", index, count, "c", schema, primary_key, partitions, {})


def line(number: int, name: str = "x") -> str:
    """A line, with its newline."""
    return f'{{"id":{number},"name":"{name}"}}\n'


def write(path: Path, numbers: Sequence[int]) -> None:
    """A file with a line for each number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line(number) for number in numbers))


def ids(reading: Reading) -> list[int]:
    """What was read, in order."""
    return [value for batch in reading.batches for value in batch.column("id").to_pylist()]


def timestamps(reading: Reading) -> list[int]:
    """The timestamps of what was read."""
    return [value for batch in reading.batches for value in batch.column(TIMESTAMP_COLUMN).to_pylist()]


async def read_all(
    factory: FilesReaderFactory, context: ChannelContext | None = None, after: Position = START
) -> Reading:
    """Reads to the end."""
    return await read_channel(factory, context or channel(), after=after)


class Following:
    """A reader that follows a directory.

    Args:
        factory: with a `HeldClock` of its own.
        context: the channel.
    """

    def __init__(self, factory: FilesReaderFactory, context: ChannelContext | None = None) -> None:
        self.clock = HeldClock()
        factory.clock = self.clock
        factory.until_head = False
        self.reader = factory(context or channel())
        self.position = START
        self._next: asyncio.Task[SourceEvent] | None = None

    async def drain(self) -> list[int]:
        """Everything that is there now, as ids; the reader has looked again since this was called."""
        self.clock.wake()
        found: list[int] = []
        while True:
            self._next = self._next or asyncio.create_task(self.reader.next())
            asleep = asyncio.create_task(self.clock.asleep.wait())
            async with asyncio.timeout(20):
                await asyncio.wait({self._next, asleep}, return_when=asyncio.FIRST_COMPLETED)
            asleep.cancel()
            if not self._next.done():
                return found
            event, self._next = self._next.result(), None
            assert not isinstance(event, EndOfChannel)
            self.position = event.position
            if isinstance(event, MessageBatch):
                found += event.rows.column("id").to_pylist()

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
            self._next = None
        await self.reader.close()
