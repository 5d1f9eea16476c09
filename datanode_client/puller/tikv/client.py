"""The client of a cluster's change feed: carries out what the core asks for, and feeds it with what comes.

                        ┌────────────── KVClientCore ──────────────┐
    TSO, regions ─▶ PD  │  LoadRegions · ResolveLocks              │
    locks ─────▶ stores │  SendRequest · Deregister ─▶ StoreStream ─▶ store
                        │  handle_event ◀──────────── StoreStream ◀─ store
                        └─▶ outputs ─▶ Outbox (one per subscription) ─▶ event_feed ─▶ sink

A slow sink fills its outbox, a full outbox stops the streams that have something for it, and then the stores slow down or give
regions up as congested, which is one more error that passes.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final

import grpc
import structlog

from datacoord.errors import InternalError, SourceUnavailableError
from datanode_client.clock import Clock, SystemClock
from datanode_client.puller.actions import Action, Deregister, LoadRegions, ResolveLocks, SendRequest
from datanode_client.puller.errors import FatalFeedError
from datanode_client.puller.event_feed_session import REQUEST_ID_BITS
from datanode_client.puller.events import FeedEvent, RegionFeedEvent
from datanode_client.puller.feed_context import SessionStats
from datanode_client.puller.kv_client import KVClientCore
from datanode_client.puller.outbox import Outbox
from datanode_client.puller.puller import EventSink
from datanode_client.puller.resolve_lock import physical_ms
from datanode_client.puller.span import Span
from datanode_client.puller.tikv.codec import decode, encode_deregister, encode_register
from datanode_client.puller.tikv.lock_resolver import TiKVLockResolver, resolve_quietly
from datanode_client.puller.tikv.pd_client import PDClient
from datanode_client.puller.tikv.settings import TiKVSettings
from datanode_client.puller.tikv.store_directory import StoreDirectory, StoreUnknownError
from datanode_client.puller.tikv.store_stream import MultiplexingUnsupportedError, StoreStream
from datanode_client.puller.wire import cdcpb_pb2

_log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 0.05
"""How often the core's timers are looked at: as fine as its shortest back-off."""

LOCK_RESOLUTIONS_MAX: Final = 8
"""Attempts at once; each makes several calls."""


class TiKVClient:
    """Feeds spans from all stores of a cluster: the `KVClient` of pullers. Used by one event loop; `close` ends it.

    Args:
        settings: how the cluster is called.
        clock: elapsed time; the machine's unless a test brings its own.
        rng: where jitter comes from.
    """

    def __init__(self, settings: TiKVSettings, *, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self.pd = PDClient(settings.pd_addresses, settings.call_timeout_seconds)
        self._stores = StoreDirectory(self.pd, self._clock)
        self._lock_resolver = TiKVLockResolver(self.pd, self._stores, settings.call_timeout_seconds)
        self._core = KVClientCore(
            region_scan_limit=settings.region_scan_limit,
            scan_window_multiplier=settings.scan_window_multiplier,
            filter_loop=settings.filter_loop,
            rng=rng,
        )
        self._cluster_id = 0
        self._pd_now_ms = 0
        self._outboxes: dict[int, Outbox[RegionFeedEvent]] = {}
        self._streams: dict[tuple[int, int | None], StoreStream] = {}
        self._stream_tasks: dict[StoreStream, asyncio.Task[None]] = {}
        self._old_stores: set[int] = set()
        self._resolutions = asyncio.Semaphore(LOCK_RESOLUTIONS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._closed = False
        self._failed = False

    async def event_feed(self, span: Span, start_ts: int, sink: EventSink) -> None:
        """Feeds a span until it is cancelled; see `KVClient`.

        Raises:
            FatalFeedError: the feed cannot go on.
            PDUnavailableError: PD does not even say which cluster this is.
        """
        await self._start()
        outbox = Outbox[RegionFeedEvent](self._settings.backlog_bytes_max)
        subscription_id = self._core.subscribe(span, start_ts, self._now_ms())
        self._outboxes[subscription_id] = outbox
        self._work_off()
        try:
            while True:
                await sink(await outbox.get())
        finally:
            self._end_subscription(subscription_id)

    @property
    def is_usable(self) -> bool:
        """False once it is closed, or a bug has ended part of it: make a new one."""
        return not self._closed and not self._failed

    def stats(self) -> dict[int, SessionStats]:
        """A look at every subscription."""
        return self._core.stats()

    async def close(self) -> None:
        """Ends everything; feeds that still run fail."""
        if self._closed:
            return
        self._closed = True
        self._fail_all(SourceUnavailableError("the client of the TiKV cluster was closed; make a new one"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stores.close()
        await self.pd.close()

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    async def _start(self) -> None:
        if not self.is_usable:
            raise SourceUnavailableError("the client of the TiKV cluster is closed or has failed; make a new one")
        if not self._cluster_id:
            self._cluster_id = await self.pd.cluster_id()
        if not self._started:
            self._started = True
            self._spawn(self._tick_forever())
            self._spawn(self._follow_pd_clock())

    async def _tick_forever(self) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            due_ms, now_ms = self._core.next_due_ms(), self._now_ms()
            if due_ms is not None and due_ms <= now_ms:
                self._core.tick(now_ms, self._pd_now_ms)
                self._work_off()

    async def _follow_pd_clock(self) -> None:
        """Keeps the time of PD as PD said it last: never ahead of it, and a little behind does no harm."""
        while True:
            try:
                self._pd_now_ms = max(self._pd_now_ms, physical_ms(await self.pd.tso()))
            except SourceUnavailableError as error:
                _log.warning("pd_clock_unknown", error=error.message)
            await self._clock.sleep(self._settings.pd_clock_interval_seconds)

    # ── between the core and the world ──────────────────────────────────────────────────────────────────────────────────────

    def _work_off(self) -> None:
        """After every input of the core: hands its outputs on, and begins what it asks for."""
        for subscription_id, output in self._core.take_outputs():
            self._outboxes[subscription_id].put(output)
        for action in self._core.take_actions():
            self._begin(action)

    def _begin(self, action: Action) -> None:
        if isinstance(action, SendRequest):
            subscription_id = action.request.request_id >> REQUEST_ID_BITS
            request = encode_register(self._cluster_id, action.request)
            self._stream_to(action.store_id, subscription_id).send(request)
        elif isinstance(action, Deregister):
            self._deregister(action)
        elif isinstance(action, LoadRegions):
            self._spawn(self._load_regions(action))
        else:
            self._spawn(self._resolve_locks(action))

    async def _load_regions(self, action: LoadRegions) -> None:
        limit = min(action.limit, self._settings.region_load_limit)
        try:
            metas = await self.pd.scan_regions(action.span, limit)
        except SourceUnavailableError as error:
            _log.warning("regions_not_loaded", span=str(action.span), error=error.message)
            self._core.load_regions_failed(action.subscription_id, action.task_id, self._now_ms())
        except FatalFeedError as error:
            self._fail(action.subscription_id, error)
        else:
            self._core.regions_loaded(action.subscription_id, action.task_id, metas, self._now_ms())
        self._work_off()

    async def _resolve_locks(self, action: ResolveLocks) -> None:
        await resolve_quietly(self._lock_resolver, action.region_id, action.max_ts, self._resolutions)
        self._core.locks_resolved(action.region_id, self._now_ms())
        self._work_off()

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _stream_to(self, store_id: int, subscription_id: int) -> StoreStream:
        """The stream to a store, opened if there is none."""
        whose = subscription_id if store_id in self._old_stores else None
        stream = self._streams.get((store_id, whose))
        if stream is None:
            stream = self._streams[store_id, whose] = StoreStream(store_id, whose)
            self._stream_tasks[stream] = self._spawn(self._run_stream(stream))
        return stream

    def _deregister(self, action: Deregister) -> None:
        subscription_id = action.request_id >> REQUEST_ID_BITS
        shared = self._streams.get((action.store_id, None))
        own = self._streams.get((action.store_id, subscription_id))
        if shared is not None:
            shared.send(encode_deregister(self._cluster_id, action))
        if own is not None:  # the old protocol has no other way to end a request
            self._stream_tasks[own].cancel()
            self._stream_ended(own)

    async def _run_stream(self, stream: StoreStream) -> None:
        unknown_to_pd = False
        try:
            channel = await self._stores.channel(stream.store_id)
            await stream.run(channel, lambda message: self._on_message(stream, message))
            _log.info("store_stream_ended", store_id=stream.store_id)
        except MultiplexingUnsupportedError:
            self._fall_back(stream)
            return
        except StoreUnknownError:
            unknown_to_pd = True
        except (SourceUnavailableError, grpc.aio.AioRpcError) as error:
            why = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            _log.info("store_stream_broken", store_id=stream.store_id, error=why)
        self._stream_ended(stream, unknown_to_pd=unknown_to_pd)

    def _stream_ended(self, stream: StoreStream, *, unknown_to_pd: bool = False) -> None:
        """Tells the core that a stream is gone; from here on nothing that it delivered is taken."""
        if stream.ended:
            return
        self._forget(stream)
        self._stores.suspect(stream.store_id)
        if all(store_id != stream.store_id for store_id, _ in self._streams):
            # When it comes back it may have been upgraded. Not before: resolved timestamps of the old protocol name no request, so
            # as long as it is spoken with a store, nothing else may be.
            self._old_stores.discard(stream.store_id)
        self._core.store_failed(
            stream.store_id, self._now_ms(), unknown_to_pd=unknown_to_pd, subscription_id=stream.subscription_id
        )
        self._work_off()

    def _fall_back(self, stream: StoreStream) -> None:
        """Sends what the new protocol did not take in the old one, on a stream for each subscription."""
        _log.info("store_without_multiplexing", store_id=stream.store_id)
        self._forget(stream)
        self._old_stores.add(stream.store_id)
        requests = stream.take_unsent()
        over = {_identity(request) for request in requests if request.HasField("deregister")}
        for request in requests:
            if _identity(request) not in over:
                self._stream_to(stream.store_id, request.request_id >> REQUEST_ID_BITS).send(request)

    def _forget(self, stream: StoreStream) -> None:
        stream.ended = True
        del self._streams[stream.store_id, stream.subscription_id]
        del self._stream_tasks[stream]

    async def _on_message(self, stream: StoreStream, message: cdcpb_pb2.ChangeDataEvent) -> None:
        touched = set()
        for event in decode(message):
            subscription_id = _subscription_of(stream, event)
            touched.add(subscription_id)
            try:
                self._core.handle_event(event, self._now_ms(), subscription_id=stream.subscription_id)
            except FatalFeedError as error:
                if subscription_id is not None:
                    self._fail(subscription_id, error)
        self._work_off()
        for subscription_id in touched:
            if subscription_id is not None and (outbox := self._outboxes.get(subscription_id)) is not None:
                await outbox.wait_for_room()

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fail(self, subscription_id: int, error: BaseException) -> None:
        """A feed cannot go on: nothing more is taken in for it, and its consumer is told."""
        outbox = self._outboxes.get(subscription_id)
        if outbox is not None:
            outbox.fail(error)
        self._core.unsubscribe(subscription_id, self._now_ms())

    def _fail_all(self, error: BaseException) -> None:
        for subscription_id in list(self._outboxes):
            self._fail(subscription_id, error)

    def _end_subscription(self, subscription_id: int) -> None:
        self._outboxes.pop(subscription_id).close()
        self._core.unsubscribe(subscription_id, self._now_ms())
        if not self._closed:
            self._work_off()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """A task that fails found a bug, or that nothing can go on; feeds must not stand still because of it without a word."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed = True
            _log.error("tikv_client_failed", exc_info=error)
            if not isinstance(error, FatalFeedError):
                error = InternalError(f"the client of the TiKV cluster failed: {type(error).__name__}: {error}")
            self._fail_all(error)


def _subscription_of(stream: StoreStream, event: FeedEvent) -> int | None:
    if stream.subscription_id is not None or event.request_id is None:
        return stream.subscription_id
    return event.request_id >> REQUEST_ID_BITS


def _identity(request: cdcpb_pb2.ChangeDataRequest) -> tuple[int, int]:
    return request.region_id, request.request_id
