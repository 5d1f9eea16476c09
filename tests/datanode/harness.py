"""What the datanode's tests stand on: a clock and threads that move only when told, a source with a known log, a running loop."""

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from datacoord.positions import Position
from datanode_client.sources.base import (
    OP_DELETE,
    OP_INSERT,
    OP_UPSERT,
    ChannelContext,
    DropCollectionMessage,
    DropPartitionMessage,
    EndOfChannel,
    MessageBatch,
    SourceEvent,
    Tick,
)

DEFAULT_PARTITION = 11
OPS = {"insert": OP_INSERT, "upsert": OP_UPSERT, "delete": OP_DELETE}
SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())])


async def settle(rounds: int = 40) -> None:
    """Lets everything run that needs neither the clock nor a thread nor the coordinator."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def eventually(condition: Callable[[], bool], rounds: int = 2000) -> None:
    """Waits, bounded by turns of the loop, until something holds."""
    for _ in range(rounds):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"never came true: {condition}")


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """The time it was set to."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Waits until the clock is moved so far."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        """Moves the clock and wakes whoever waited for less."""
        self.now += seconds
        due = [future for at, future in self._sleepers if at <= self.now]
        self._sleepers = [(at, future) for at, future in self._sleepers if at > self.now]
        for future in due:
            if not future.done():
                future.set_result(None)


@dataclass
class _Work:
    future: Future[Any]
    run: Callable[[], Any]


class ManualExecutor(Executor):
    """Runs what is submitted when told, in any order, on the caller's thread. `auto` runs it at once."""

    def __init__(self, auto: bool = True) -> None:
        self.auto = auto
        self.waiting: list[_Work] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Takes work."""
        work = _Work(Future(), lambda: fn(*args, **kwargs))
        self.waiting.append(work)
        if self.auto:
            self.run_all()
        return work.future

    def run_one(self, index: int = 0) -> None:
        """Does one piece of the waiting work."""
        work = self.waiting.pop(index)
        if not work.future.set_running_or_notify_cancel():
            return
        try:
            result = work.run()
        except BaseException as error:  # noqa: BLE001  # as ThreadPoolExecutor does
            work.future.set_exception(error)
        else:
            work.future.set_result(result)

    def run_all(self) -> None:
        """Does all waiting work, in order."""
        while self.waiting:
            self.run_one()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to shut down."""


@dataclass(frozen=True)
class Row:
    """One operation of a message; `partition` None = the default one."""

    op: str
    key: str
    value: int | None = None
    partition: int | None = None


@dataclass(frozen=True)
class Message:
    """One message of a log."""

    ts: int
    rows: tuple[Row, ...]


def message(ts: int, *rows: tuple[str, str] | tuple[str, str, int | None]) -> Message:
    """A message of upserts and deletes: (op, key) or (op, key, partition)."""
    return Message(ts, tuple(Row(row[0], row[1], ts, row[2] if len(row) == 3 else None) for row in rows))


def position(ts: int) -> Position:
    """The position at a timestamp, as the tests' source gives it."""
    return Position(ts, f"at {ts}".encode(), "log", ts * 10) if ts else Position(0)


def to_batch(messages: Sequence[Message], *, partitions: bool | None = None) -> MessageBatch:
    """Several whole messages as a reader hands them over."""
    rows = [(message.ts, row) for message in messages for row in message.rows]
    if partitions is None:
        partitions = any(row.partition is not None for _, row in rows)
    columns = {
        "key": pa.array([row.key for _, row in rows], pa.string()),
        "value": pa.array([row.value for _, row in rows], pa.int64()),
        "_timestamp": pa.array([ts for ts, _ in rows], pa.int64()),
        "_op": pa.array([OPS[row.op] for _, row in rows], pa.int8()),
    }
    if partitions:
        ids = [DEFAULT_PARTITION if row.partition is None else row.partition for _, row in rows]
        columns["_partition"] = pa.array(ids, pa.int64())
    return MessageBatch(pa.record_batch(columns), position(messages[-1].ts))


Item = Message | SourceEvent


def timestamp_of(item: Item) -> int:
    """Where an item of a log stands."""
    return item.ts if isinstance(item, Message) else item.position.timestamp


@dataclass
class LogSource:
    """A source whose log is known: what tests compare the world with.

    Attributes:
        items: messages, ticks and DDL in order.
        head: how many of them exist so far.
        batch_messages: messages of one batch at most.
        faults: raised by the next calls of `next`, one each; None = no fault.
        resend: how many timestamps before the position a reader begins again, as a sloppy one would.
    """

    items: list[Item] = field(default_factory=list)
    head: int = 0
    batch_messages: int = 100
    faults: list[Exception] = field(default_factory=list)
    open_faults: list[Exception] = field(default_factory=list)
    resend: int = 0
    opened_after: list[Position] = field(default_factory=list)
    open_readers: int = 0
    contexts: list[ChannelContext] = field(default_factory=list)
    _changed: list[asyncio.Event] = field(default_factory=list)

    def publish(self, *items: Item) -> None:
        """Appends to the log; readers see it at once."""
        self.items.extend(items)
        self.reveal(len(self.items))

    def reveal(self, head: int) -> None:
        """Lets readers see the log up to here."""
        self.head = max(self.head, head)
        self.wake()

    def wake(self) -> None:
        """Lets waiting readers look again."""
        for event in self._changed:
            event.set()

    def messages(self) -> list[Message]:
        """All messages of the log."""
        return [item for item in self.items if isinstance(item, Message)]

    def reader(self, context: ChannelContext) -> "LogReader":
        """The reader factory."""
        self.contexts.append(context)
        return LogReader(self)

    def _subscribe(self) -> asyncio.Event:
        event = asyncio.Event()
        self._changed.append(event)
        return event


class LogReader:
    """A reader of a LogSource."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._cursor = 0
        self._event = source._subscribe()
        self._open = False

    async def open(self, after: Position) -> None:
        """Seeks; the whole position must have survived wherever it was kept."""
        source = self._source
        source.opened_after.append(after)
        if source.open_faults:
            raise source.open_faults.pop(0)
        assert after == position(after.timestamp), f"a position lost its parts: {after}"
        wanted = after.timestamp - source.resend
        self._cursor = next(
            (
                index
                for index, item in enumerate(source.items)
                if timestamp_of(item) > wanted or isinstance(item, EndOfChannel)
            ),
            len(source.items),
        )
        self._open = True
        source.open_readers += 1

    async def next(self) -> SourceEvent:
        """The next batch or other item."""
        source = self._source
        while True:
            if source.faults:
                raise source.faults.pop(0)
            if self._cursor < source.head:
                break
            self._event.clear()
            await self._event.wait()
        item = source.items[self._cursor]
        if not isinstance(item, Message):
            self._cursor += 1
            return item
        batch: list[Message] = []
        while self._cursor < source.head and len(batch) < source.batch_messages:
            item = source.items[self._cursor]
            if not isinstance(item, Message) or not item.rows:
                break
            batch.append(item)
            self._cursor += 1
        if not batch:
            self._cursor += 1
            return Tick(position(timestamp_of(item)))
        return to_batch(batch)

    def head(self) -> int | None:
        """Timestamp of the newest item."""
        return timestamp_of(self._source.items[self._source.head - 1]) if self._source.head else None

    async def close(self) -> None:
        """Frees nothing."""
        if self._open:
            self._open = False
            self._source.open_readers -= 1


def tick(ts: int) -> Tick:
    """A tick."""
    return Tick(position(ts))


def end_of_channel(ts: int) -> EndOfChannel:
    """The end of a bounded source."""
    return EndOfChannel(position(ts))


def drop_partition(ts: int, partition: int) -> DropPartitionMessage:
    """DDL: a partition is dropped."""
    return DropPartitionMessage(partition, position(ts))


def drop_collection(ts: int) -> DropCollectionMessage:
    """DDL: the collection is dropped."""
    return DropCollectionMessage(position(ts))


def seeded(seed: int = 1) -> random.Random:
    """Jitter that repeats itself."""
    return random.Random(seed)
