"""Reads the changes of a TiKV cluster: keys of a range, as raw keys and values, in commit order.

All rows of one commit timestamp are one message, handed out once the resolved timestamp has reached it; the resolved timestamp
itself comes as ticks. Timestamps are TiKV's (TSO). The feed begins with whatever the cluster still has, or after a given timestamp,
and has no end. Which columns a collection may have stands in `tikv_rows`; rows of TiDB's tables are not decoded.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from datacoord.errors import SourceInvalidError, SourceLostError
from datacoord.positions import Position
from datanode_client.clock import Clock, SystemClock
from datanode_client.puller.events import EntryBatch, RawKVEntry
from datanode_client.puller.puller import Puller
from datanode_client.puller.resolve_lock import physical_ms
from datanode_client.puller.sorter import SORTER_MEMORY_BYTES, SORTER_SPILL_BYTES_MAX, Sorter
from datanode_client.puller.span import MalformedKeyError, Span, decode_bytes, table_range, to_comparable
from datanode_client.puller.spill import entry_bytes
from datanode_client.puller.tikv.client import TiKVClient
from datanode_client.puller.tikv.gc_safe_point import GCSafePointKeeper
from datanode_client.puller.tikv.pd_client import PDClient
from datanode_client.puller.tikv.settings import TiKVSettings
from datanode_client.sources.base import ChannelContext, MessageBatch, SourceEvent, Tick, check_group
from datanode_client.sources.threads import in_thread
from datanode_client.sources.tikv_rows import TIKV_CHANGES_SCHEMA, TIKV_PRIMARY_KEY, TIKV_SCHEMA, RowMaker

__all__ = [
    "TIKV_CHANGES_SCHEMA",
    "TIKV_PRIMARY_KEY",
    "TIKV_SCHEMA",
    "TiKVSettings",
    "TikvChannelReader",
    "TikvReaderFactory",
    "propose_split_keys",
    "table_range",
]

BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 8 * 1024 * 1024
"""A batch is closed at either; a message is never split and may make it larger."""

ADD_BYTES: Final = 256 * 1024
"""Changes go to the sorter in portions of about this size, in a thread: it may write to disk."""

READY_EVENTS_MAX: Final = 4
"""Events that wait for the datanode. When they do, the streams are not read any more."""


class TikvReaderFactory:
    """Makes the readers of one datanode. They share one client of the cluster; it is pickled without it.

    Args:
        settings: how the cluster is called.
        span: the keys, as the cluster's client writes them (not memcomparable); the default is all keys. For a table of TiDB,
            `table_range(table_id)`.
        split_keys: where the span is cut into channels, ascending, one key less than channels. They must stay what they are: a
            channel's positions belong to its part of the span. `propose_split_keys` proposes some.
        start_ts: where channels begin that have no position yet; 0 = with whatever the cluster still has.
        gc_hold_back_seconds: what was handed out so recently is kept from the cluster's garbage collection; must be longer than
            rows wait in a datanode.
        gc_ttl_seconds: for so long it is kept when nobody reads the channel any more; 0 = nothing is kept.
        sorter_memory_bytes: per channel, what waits for its resolved timestamp in memory; beyond it, on disk.
        sorter_spill_bytes_max: per channel, what may wait on disk.
        sorter_directory: where; None = the system's place for temporary files.
        clock: elapsed time; the machine's unless a test brings its own.

    Raises:
        SourceInvalidError: the split keys do not ascend inside of the span, or a time is not what times are.
    """

    def __init__(
        self,
        settings: TiKVSettings,
        span: Span | None = None,
        *,
        split_keys: Sequence[bytes] = (),
        start_ts: int = 0,
        gc_hold_back_seconds: float = 3600.0,
        gc_ttl_seconds: float = 24 * 3600.0,
        sorter_memory_bytes: int = SORTER_MEMORY_BYTES,
        sorter_spill_bytes_max: int = SORTER_SPILL_BYTES_MAX,
        sorter_directory: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        if gc_hold_back_seconds <= 0 or gc_ttl_seconds < 0:
            raise SourceInvalidError(
                f"gc_hold_back_seconds is {gc_hold_back_seconds} and gc_ttl_seconds is {gc_ttl_seconds}, but the first must be "
                "above 0 and the second not below"
            )
        self.settings = settings
        self.spans = cut_span(span or Span(), split_keys)
        self.start_ts = start_ts
        self.gc_hold_back_seconds = gc_hold_back_seconds
        self.gc_ttl_seconds = gc_ttl_seconds
        self.sorter_memory_bytes = sorter_memory_bytes
        self.sorter_spill_bytes_max = sorter_spill_bytes_max
        self.sorter_directory = sorter_directory
        self.clock = clock or SystemClock()
        self._shared: SharedClient | None = None

    def __call__(self, context: ChannelContext) -> "TikvChannelReader":
        """Makes the reader of a channel; nothing is called before `open`.

        Raises:
            SourceInvalidError: the collection has another number of channels than the span has parts, or columns that changes
                do not have.
        """
        if context.channel_count != len(self.spans):
            raise SourceInvalidError(
                f"the key range is cut into {len(self.spans)} parts, and collection {context.collection_name} has "
                f"{context.channel_count} channels: give {context.channel_count - 1} split keys",
                channel=context.channel_name,
            )
        return TikvChannelReader(self, context)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to executors: the settings."""
        return self.__dict__ | {"_shared": None}

    def shared(self) -> "SharedClient":
        """The client that all readers of this process and event loop share."""
        loop = asyncio.get_running_loop()
        if self._shared is None or self._shared.loop is not loop or not self._shared.client.is_usable:
            self._shared = SharedClient(loop, TiKVClient(self.settings, clock=self.clock))
        return self._shared


class SharedClient:
    """A client and how many readers use it; the last one closes it.

    Args:
        loop: where it lives.
        client: the client.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, client: TiKVClient) -> None:
        self.loop = loop
        self.client = client
        self._readers = 0

    def acquire(self) -> TiKVClient:
        """One more reader."""
        self._readers += 1
        return self.client

    async def release(self) -> None:
        """One reader less."""
        self._readers -= 1
        if not self._readers:
            await self.client.close()


class TikvChannelReader:
    """Reads one part of the key range: the `ChannelReader` of `TikvReaderFactory`.

    Args:
        factory: the settings, and the client.
        context: of the channel.
    """

    def __init__(self, factory: TikvReaderFactory, context: ChannelContext) -> None:
        self._factory = factory
        self._context = context
        self._span = factory.spans[context.channel_index]
        self._row_maker = RowMaker(context)
        self._sorter = Sorter(
            memory_limit_bytes=factory.sorter_memory_bytes,
            spill_limit_bytes=factory.sorter_spill_bytes_max,
            directory=factory.sorter_directory,
        )
        self._ready: asyncio.Queue[SourceEvent | Exception] = asyncio.Queue(READY_EVENTS_MAX)
        self._shared: SharedClient | None = None
        self._puller: Puller | None = None
        self._keeper: GCSafePointKeeper | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pending: list[RawKVEntry] = []
        self._pending_bytes = 0
        self._msg_group = ""

    async def open(self, after: Position) -> None:
        """Begins to feed after a position; see `ChannelReader.open`.

        Raises:
            SourceLostError: the cluster has removed the history after the position, or the position belongs to another cluster
                or key range.
            PDUnavailableError: PD does not answer.
        """
        factory = self._factory
        self._shared = factory.shared()
        client = self._shared.acquire()
        self._msg_group = msg_group(await client.pd.cluster_id(), self._span)
        check_group(after, self._msg_group, "the cluster, span and split keys it had")
        start_ts = after.timestamp or factory.start_ts
        keeper = self._keeper = GCSafePointKeeper(
            client.pd,
            f"datacoord-{self._context.channel_name}",
            hold_back_seconds=factory.gc_hold_back_seconds,
            ttl_seconds=factory.gc_ttl_seconds,
            clock=factory.clock,
        )
        await keeper.begin(_needed_ts(after) if after.timestamp else factory.start_ts or None)
        puller = self._puller = Puller([to_comparable(self._span)], start_ts, client)
        work = [lambda: self._run_puller(puller), lambda: self._pump(puller)]
        if factory.gc_ttl_seconds:
            work.append(keeper.run)
        self._tasks = [asyncio.create_task(self._guarded(part)) for part in work]

    async def next(self) -> SourceEvent:
        """The next messages or tick; see `ChannelReader.next`.

        Raises:
            SourceInvalidError: the cluster is not what this client can read.
            Exception: what else ended the feed; it passes.
        """
        if self._puller is None:
            raise SourceInvalidError("the reader of TiKV is not open")
        event = await self._ready.get()
        if isinstance(event, Exception):
            self._ready.put_nowait(event)
            raise event
        return event

    def head(self) -> int | None:
        """The newest change or resolved timestamp received."""
        return self._puller.stats().checkpoint_ts_ingress or None if self._puller is not None else None

    async def close(self) -> None:
        """Ends the feed. The last reader of a process closes the client."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._sorter.close()
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()

    # ── between the puller and the datanode ─────────────────────────────────────────────────────────────────────────────────

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Whatever ends the work ends the reader, behind what was ready before."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # it is raised by `next`
            await self._ready.put(first_of(error))

    @staticmethod
    async def _run_puller(puller: Puller) -> None:
        with suppress(Exception):  # its output raises it, too, and in the right place
            await puller.run()

    async def _pump(self, puller: Puller) -> None:
        """Sorts what comes, and makes messages and ticks of it."""
        async for output in puller.output():
            if isinstance(output, EntryBatch):
                self._pending += output.entries
                self._pending_bytes += sum(map(entry_bytes, output.entries))
                if self._pending_bytes >= ADD_BYTES:
                    await in_thread(self._add_pending)
            else:
                await self._hand_out(output.ts)

    async def _hand_out(self, resolved_ts: int) -> None:
        waiting = self._sorter.stats()
        if self._pending or waiting.memory_bytes or waiting.runs:
            while (batch := await in_thread(lambda: self._next_batch(resolved_ts))) is not None:
                await self._ready.put(batch)
        await self._ready.put(Tick(self._position(resolved_ts)))

    def _add_pending(self) -> None:
        entries, self._pending, self._pending_bytes = self._pending, [], 0
        self._sorter.add(entries)

    def _next_batch(self, resolved_ts: int) -> MessageBatch | None:
        """The next whole messages up to the resolved timestamp; None if there are none."""
        self._add_pending()
        entries: list[RawKVEntry] = []
        size_bytes = 0
        messages = self._sorter.drain(resolved_ts)
        for message in messages:
            entries += message.entries
            size_bytes += sum(map(entry_bytes, message.entries))
            if len(entries) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                break
        messages.close()
        if not entries:
            return None
        return MessageBatch(self._row_maker.rows(entries), self._position(entries[-1].commit_ts))

    def _position(self, ts: int) -> Position:
        """The position at a timestamp; its msg_id says since when the cluster's history is needed to go on there."""
        assert self._keeper is not None, "open has made one"  # noqa: S101
        msg_id = str(self._keeper.handed_out(ts)).encode()
        return Position(ts, msg_id=msg_id, msg_group=self._msg_group, event_time_ms=physical_ms(ts))


async def propose_split_keys(settings: TiKVSettings, span: Span, channels: int) -> list[bytes]:
    """Cuts a span where regions meet now, so that each part has about as many regions.

    Args:
        settings: how the cluster is called.
        span: not memcomparable.
        channels: how many parts are wanted.

    Returns:
        `channels` - 1 keys for `TikvReaderFactory`, fewer if there are not so many regions; to be kept with the collection.

    Raises:
        PDUnavailableError: PD does not answer.
    """
    pd, whole = PDClient(settings.pd_addresses, settings.call_timeout_seconds), to_comparable(span)
    bounds: list[bytes] = []
    try:
        rest = whole
        while regions := await pd.scan_regions(rest, settings.region_load_limit):
            for region in regions:
                with suppress(MalformedKeyError):  # a region may be cut inside of a key, a channel may not
                    if region.span.start > whole.start:
                        bounds.append(decode_bytes(region.span.start))
            rest = Span(regions[-1].span.end, whole.end)
            if not rest.start or rest.is_empty():
                break
    finally:
        await pd.close()
    parts = min(channels, len(bounds) + 1)
    return [bounds[round(index * (len(bounds) + 1) / parts) - 1] for index in range(1, parts)]


def cut_span(span: Span, split_keys: Sequence[bytes]) -> list[Span]:
    """The parts of a span.

    Raises:
        SourceInvalidError: the split keys do not ascend inside of it.
    """
    starts = [span.start, *split_keys]
    parts = [Span(start, end) for start, end in zip(starts, [*split_keys, span.end], strict=True)]
    if (
        any(key not in span for key in split_keys)
        or any(start >= end for start, end in pairwise(starts))
        or span.is_empty()
    ):
        raise SourceInvalidError(
            f"split keys must ascend inside of the key range {span}: {[key.hex() for key in split_keys]}"
        )
    return parts


def msg_group(cluster_id: int, span: Span) -> str:
    """What positions belong to: one cluster and one key range."""
    digest = hashlib.blake2s(len(span.start).to_bytes(8) + span.start + span.end, digest_size=8)
    return f"tikv-{cluster_id}-{digest.hexdigest()}"


def _needed_ts(position: Position) -> int:
    try:
        return int(position.msg_id)
    except ValueError:
        raise SourceLostError(
            f"position {position.timestamp} was not given by this reader: {position.msg_id!r}",
            timestamp=position.timestamp,
            msg_id=position.msg_id,
        ) from None


def first_of(error: Exception) -> Exception:
    """The error that a group of errors began with."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
