"""One span's feed: finds its regions, asks their stores for them, and keeps all of them fed whatever happens.

A region goes round in this circle until the session stops:

    range task ─▶ LoadRegions ─▶ range lock ─▶ RPC context ─▶ router ─▶ SendRequest ─▶ INITIALIZED ─▶ …
        ▲                            ▲                                        │             │
        └── retry_range ── back-off ─┴── retry_region ◀── unlock, token back ◀┴─── error ◀──┘

The range lock keeps how far every key has come, so nothing else has to be remembered over a failure.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

import structlog

from datanode_client.puller.actions import Deregister, LoadRegions, RegionRequest, ResolveLocks, SendRequest
from datanode_client.puller.admission import Lease, scan_priority
from datanode_client.puller.errors import RegionErrorAction, classify, fatal_error, server_backoff_ms
from datanode_client.puller.events import (
    EntriesEvent,
    FeedEvent,
    RegionError,
    RegionErrorKind,
    RegionFeedEvent,
    ResolvedTsEvent,
)
from datanode_client.puller.feed_context import FeedContext, RegionInfo, RegionPhase, SessionStats
from datanode_client.puller.range_lock import LockRangeStatus, RangeClaim, RangeLock
from datanode_client.puller.region_cache import RegionMeta
from datanode_client.puller.region_worker import RegionFeedState, RegionWorker
from datanode_client.puller.resolve_lock import RESOLVE_LOCK_TICK_MS, LockResolver, physical_ms
from datanode_client.puller.retry_timers import RetryTimers
from datanode_client.puller.span import Span, cut_left_cover, intersect
from datanode_client.puller.span_init import SpanInitialization

_log = structlog.get_logger(__name__)

LOAD_REGIONS_RETRY_MS = 100
"""Between two questions to PD that had no usable answer; it is asked for ever, for regions always come back."""

RANGE_TASKS_MAX = 64
"""Questions to PD under way at once per session; the others wait."""

REQUEST_ID_BITS = 32
"""A request id is the subscription's id above so many bits of a counter: ids are unique in a client, and name their session."""


class EventFeedSession:
    """The state machine of one span's feed. It does no I/O and has no clock: every input brings the time along.

    After any input, `context.actions` and `outputs` hold what is to be done and what came out.

    Args:
        subscription_id: number of the session in its client; at least 1.
        span: what to feed, memcomparable.
        start_ts: changes after it are wanted.
        context: what it shares with other sessions.
    """

    def __init__(self, subscription_id: int, span: Span, start_ts: int, context: FeedContext) -> None:
        self.subscription_id = subscription_id
        self.span = span
        self.start_ts = start_ts
        self.outputs: list[RegionFeedEvent] = []
        self.worker = RegionWorker()
        self.range_lock = RangeLock(span, start_ts)
        self._context = context
        self._span_init = SpanInitialization(span)
        self._lock_resolver = LockResolver(self.range_lock, context.limiter)
        self._regions: dict[int, RegionInfo] = {}
        self._waiting: dict[RangeClaim, RegionInfo] = {}
        self._range_tasks: dict[int, Span] = {}
        self._queued_ranges: deque[Span] = deque()
        self._retries = RetryTimers()
        self._last_task_id = 0
        self._request_number = 1
        self._requested_in_number: set[int] = set()
        self._next_lock_tick_ms = 0
        self._pd_now_ms = 0
        self._errors: Counter[RegionErrorKind] = Counter()

    # ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, now_ms: int) -> None:
        """Begins."""
        self._next_lock_tick_ms = now_ms + RESOLVE_LOCK_TICK_MS
        self._schedule_range(self.span)

    def regions_loaded(self, task_id: int, metas: Sequence[RegionMeta], now_ms: int) -> None:
        """PD answered a LoadRegions.

        Args:
            task_id: of the action; one that is not awaited any more is ignored.
            metas: the regions, ordered by start; none = PD did not answer, and is asked again.
            now_ms: the time.
        """
        span = self._range_tasks.pop(task_id, None)
        if span is None:
            return
        usable = cut_left_cover([(meta.span, meta) for meta in metas], span)
        rest = Span(usable[-1][0].end, span.end) if usable else span
        if usable and rest.start and rest.start <= span.start:
            usable = []  # PD's regions end before the span begins: as good as no answer
        if usable:
            self._context.region_cache.insert(meta for _, meta in usable)
            for region_span, meta in usable:
                if region_span.overlaps(self.span):
                    self._claim(meta, now_ms)
            if rest.start and not rest.is_empty():
                self._schedule_range(rest)
        else:
            self._retries.set(span, now_ms + LOAD_REGIONS_RETRY_MS, self._schedule_range_of(span))
        if self._queued_ranges:
            self._schedule_range(self._queued_ranges.popleft())

    def handle_event(self, event: FeedEvent, now_ms: int) -> None:
        """A message came from a store.

        Raises:
            FatalFeedError: the feed cannot go on.
        """
        if isinstance(event, ResolvedTsEvent):
            resolved = self.worker.handle_resolved(event)
            if resolved is not None:
                self.outputs.append(resolved)
        elif isinstance(event, EntriesEvent):
            self._handle_entries(event, now_ms)
        elif self.worker.accepts(event.region_id, event.request_id):
            self._fail(self._regions[event.region_id], event.error, now_ms)

    def store_failed(self, store_id: int, now_ms: int, *, unknown_to_pd: bool = False) -> None:
        """A store cannot be reached, or its stream broke: all its regions are asked for elsewhere, or again.

        Args:
            store_id: the store.
            now_ms: the time.
            unknown_to_pd: PD does not know the store, or not its address.
        """
        kind = RegionErrorKind.GET_STORE_FAILED if unknown_to_pd else RegionErrorKind.STORE_STREAM
        for region in [region for region in self._regions.values() if region.store_id == store_id]:
            self._fail(region, RegionError(kind, f"store {store_id}"), now_ms)

    def tick(self, now_ms: int, pd_now_ms: int) -> None:
        """Time has passed; see `next_due_ms`.

        Args:
            now_ms: the time by a monotonic clock.
            pd_now_ms: the time by PD's clock, never ahead of it; 0 = not known.
        """
        self._pd_now_ms = max(self._pd_now_ms, pd_now_ms)
        for act in self._retries.due(now_ms):
            act(now_ms)
        if now_ms >= self._next_lock_tick_ms:
            self._next_lock_tick_ms = now_ms + RESOLVE_LOCK_TICK_MS
            self._tick_locks(now_ms)

    def next_due_ms(self) -> int:
        """When `tick` has something to do next."""
        retry_ms = self._retries.next_due_ms()
        return self._next_lock_tick_ms if retry_ms is None else min(self._next_lock_tick_ms, retry_ms)

    def stop(self, now_ms: int) -> None:
        """Ends the session: its requests are deregistered, and nothing comes out any more."""
        self.range_lock.stop()
        for region in list(self._regions.values()):
            self._deregister(region)
            self._release(region, now_ms)
        self._waiting.clear()
        self._range_tasks.clear()
        self._queued_ranges.clear()
        self._retries.clear()
        self._context.recovery.forget(self.subscription_id)
        self.outputs.clear()

    def stats(self) -> SessionStats:
        """A look at the session."""
        return SessionStats(
            regions=Counter(region.phase for region in self._regions.values()),
            waiting_for_lock=len(self._waiting),
            range_tasks=len(self._range_tasks) + len(self._queued_ranges),
            errors=self._errors.copy(),
            resolved_ts=self.range_lock.resolved_ts(),
            initialized=self._span_init.completed,
            matcher_bytes=self.worker.matcher_bytes,
        )

    # ── divideAndSendEventFeedToRegions ─────────────────────────────────────────────────────────────────────────────────────

    def _schedule_range(self, span: Span) -> None:
        if len(self._range_tasks) >= RANGE_TASKS_MAX:
            self._queued_ranges.append(span)
            return
        self._last_task_id += 1
        self._range_tasks[self._last_task_id] = span
        self._context.actions.append(LoadRegions(self.subscription_id, self._last_task_id, span))

    def _claim(self, meta: RegionMeta, now_ms: int) -> None:
        """Claims a region's part of the whole span, not of the range asked for: after a merge it reaches beyond that."""
        span = intersect(self.span, meta.span)
        claim = self.range_lock.lock_range(span, meta.ver_id.id, meta.ver_id.version, now_ms=now_ms)
        self._answered(RegionInfo(self, meta, span, claim), now_ms)

    def _answered(self, region: RegionInfo, now_ms: int) -> None:
        claim = region.claim
        if claim.status is LockRangeStatus.SUCCESS:
            self._regions[region.region_id] = region
            self._dispatch(region, now_ms)
        elif claim.status is LockRangeStatus.WAIT:
            self._waiting[claim] = region
        elif claim.status is LockRangeStatus.STALE:
            for span in claim.retry_spans:
                self._retry_later(span, self._schedule_range_of(span), now_ms)

    # ── dispatchRequest, requestRegionToStore ───────────────────────────────────────────────────────────────────────────────

    def _dispatch(self, region: RegionInfo, now_ms: int) -> None:
        rpc_context = self._context.region_cache.get_rpc_context(region.meta.ver_id)
        if rpc_context is None:
            self._fail(region, RegionError(RegionErrorKind.RPC_CTX_UNAVAILABLE), now_ms)
            return
        region.store_id = rpc_context.store_id
        region.priority = scan_priority(
            physical_ms(region.locked.resolved_ts), self._pd_now_ms, was_initialized=self._span_init.completed
        )
        self._context.router.add_region(region.store_id, region, region.priority)

    def send(self, region: RegionInfo, lease: Lease[RegionInfo]) -> None:
        """The router handed a region out; one that has failed in the meantime gives its token back."""
        if region.phase is not RegionPhase.QUEUED:
            lease.abort()
            return
        region.phase, region.lease = RegionPhase.REQUESTED, lease
        region.request_id = self._next_request_id(region.region_id)
        locked = region.locked
        state = RegionFeedState(region.region_id, region.request_id, region.span, self.start_ts, locked)
        self.worker.register(state)
        request = RegionRequest(
            region=region.meta,
            request_id=region.request_id,
            checkpoint_ts=locked.resolved_ts,
            span=region.span,
            filter_loop=self._context.filter_loop,
            scan_priority=region.priority,
        )
        self._context.actions.append(SendRequest(region.store_id, request))

    def _next_request_id(self, region_id: int) -> int:
        """An id that this region never had. Regions share ids as long as possible: a store batches resolved timestamps by id."""
        if region_id in self._requested_in_number:
            self._request_number += 1
            self._requested_in_number.clear()
        self._requested_in_number.add(region_id)
        return (self.subscription_id << REQUEST_ID_BITS) + self._request_number

    # ── events of a region ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _handle_entries(self, event: EntriesEvent, now_ms: int) -> None:
        result = self.worker.handle_entries(event)
        if result.batch is not None:
            self.outputs.append(result.batch)
        if result.initialized:
            region = self._regions[event.region_id]
            region.phase = RegionPhase.INITIALIZED
            self._return_token(region)
            self._context.recovery.reset(self.subscription_id, region.span)
            self._span_init.add(region.span)
        if result.error is not None:
            region = self._regions[event.region_id]
            self._deregister(region)
            self._fail(region, result.error, now_ms)

    def _tick_locks(self, now_ms: int) -> None:
        self._context.recovery.expire(now_ms)
        if not self._pd_now_ms:
            return
        for task in self._lock_resolver.tick(now_ms, self._pd_now_ms, initialized=self._span_init.completed):
            self._context.actions.append(ResolveLocks(task.region_id, task.max_ts))
        for region_id in self._lock_resolver.stuck_regions():
            self._deregister(self._regions[region_id])
            self._fail(self._regions[region_id], RegionError(RegionErrorKind.REGION_STUCK), now_ms)

    # ── handleError ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fail(self, region: RegionInfo, error: RegionError, now_ms: int) -> None:
        """A region failed: its range is unlocked where it stands, its token goes back, and only then its next round is decided.

        Raises:
            FatalFeedError: the feed cannot go on.
        """
        self._errors[error.kind] += 1
        _log.debug(
            "region_failed",
            subscription_id=self.subscription_id,
            region_id=region.region_id,
            store_id=region.store_id,
            kind=error.kind.value,
            detail=error.detail,
        )
        answered = self._release(region, now_ms)
        action = classify(error.kind, leader_known=self._correct_cache(region, error))
        if action is RegionErrorAction.FATAL:
            raise fatal_error(region.region_id, error)
        if action is RegionErrorAction.RETRY_REGION:
            delay_ms = server_backoff_ms(error.backoff_ms)
            self._retry_later(region.span, lambda later_ms: self._claim(region.meta, later_ms), now_ms, delay_ms)
        elif action is RegionErrorAction.RETRY_RANGE:
            self._retry_later(region.span, self._schedule_range_of(region.span), now_ms)
        for claim in answered:
            self._answered(self._waiting.pop(claim), now_ms)

    def _correct_cache(self, region: RegionInfo, error: RegionError) -> bool:
        """Tells the region cache what the error says.

        Returns:
            False if nobody is known to lead the region now.
        """
        cache, ver_id = self._context.region_cache, region.meta.ver_id
        if error.kind is RegionErrorKind.NOT_LEADER and error.leader_store_id:
            return cache.update_leader(ver_id, error.leader_store_id)
        if error.kind is RegionErrorKind.STORE_STREAM:
            cache.on_send_fail(ver_id, region.store_id)
        elif error.kind in _FORGET_REGION:
            cache.invalidate(ver_id)
        return error.kind is not RegionErrorKind.NOT_LEADER

    def _release(self, region: RegionInfo, now_ms: int) -> list[RangeClaim]:
        """Takes a region out of the circle; returns the claims that waited for its range."""
        region.phase = RegionPhase.FAILED
        self.worker.deregister(region.region_id)
        del self._regions[region.region_id]
        self._return_token(region)
        return self.range_lock.unlock_range(region.span, region.region_id, region.meta.ver_id.version, now_ms=now_ms)

    @staticmethod
    def _return_token(region: RegionInfo) -> None:
        if region.lease is not None:
            region.lease.finish()
            region.lease = None

    def _deregister(self, region: RegionInfo) -> None:
        if region.phase in {RegionPhase.REQUESTED, RegionPhase.INITIALIZED}:
            self._context.actions.append(Deregister(region.store_id, region.region_id, region.request_id))

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_range_of(self, span: Span) -> Callable[[int], None]:
        return lambda _: self._schedule_range(span)

    def _retry_later(self, span: Span, act: Callable[[int], None], now_ms: int, delay_ms_min: int = 0) -> None:
        recovery = self._context.recovery
        delay_ms = recovery.delay_ms(recovery.fail(self.subscription_id, span, now_ms))
        self._retries.set(span, now_ms + max(delay_ms, delay_ms_min), act)


_FORGET_REGION = frozenset(
    {
        RegionErrorKind.NOT_LEADER,
        RegionErrorKind.EPOCH_NOT_MATCH,
        RegionErrorKind.REGION_NOT_FOUND,
        RegionErrorKind.GET_STORE_FAILED,
    }
)
