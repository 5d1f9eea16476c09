"""Plays the call sequences of vectors/puller.json on the real parts: one class per component, one method per call.

Nothing is decided here: a method translates hex to bytes, calls the part, and names what came back.
"""

from collections.abc import Callable
from typing import Any

from datanode_client.puller import errors
from datanode_client.puller import span as spans
from datanode_client.puller.admission import AdmissionController, Lease, ScanPriority
from datanode_client.puller.errors import OrderBrokenError, RegionRecovery, classify
from datanode_client.puller.events import (
    EntriesEvent,
    EntryBatch,
    LogType,
    OpType,
    PullerOutput,
    RawKVEntry,
    RegionErrorKind,
    RegionSpan,
    Resolved,
    ResolvedSpans,
    ResolvedTsEvent,
    Row,
)
from datanode_client.puller.frontier import Frontier
from datanode_client.puller.lock_heap import RegionTsHeap
from datanode_client.puller.matcher import Matcher
from datanode_client.puller.puller import PullerCore
from datanode_client.puller.range_lock import LockedRangeState, RangeClaim, RangeLock
from datanode_client.puller.range_ts_map import RangeTsMap
from datanode_client.puller.region_router import RegionRouter
from datanode_client.puller.region_worker import RegionFeedState, RegionWorker
from datanode_client.puller.resolve_lock import ResolveLockRateLimiter, StaleLocks, resolve_target_ms
from datanode_client.puller.span import Span
from datanode_client.puller.span_init import SpanInitialization

Json = dict[str, Any]


def key(text: str | None) -> bytes:
    """A key of the vectors; in spans absent and empty both mean unbounded."""
    return bytes.fromhex(text or "")


def span_of(pair: list[str | None]) -> Span:
    """A span of the vectors."""
    return Span(key(pair[0]), key(pair[1]))


def span_json(span: Span) -> list[str | None]:
    """A span as the vectors write it."""
    return [span.start.hex() or None, span.end.hex() or None]


class FrontierComponent:
    def new(self, spans: list[list[str | None]], ts: int) -> Json:
        self.frontier = Frontier(ts, [span_of(pair) for pair in spans])
        return self._state()

    def forward(self, region: int, span: list[str | None], ts: int) -> Json:
        self.frontier.forward(span_of(span), ts)
        return self._state()

    def _state(self) -> Json:
        return {
            "frontier": self.frontier.frontier(),
            "entries": [[start.hex(), ts] for start, ts in self.frontier.entries()],
        }


class SpanComponent:
    def compare_start(self, lhs: str | None, rhs: str | None) -> Json:
        return {"cmp": spans.compare_start(*(None if k is None else key(k) for k in (lhs, rhs)))}

    def compare_end(self, lhs: str | None, rhs: str | None) -> Json:
        return {"cmp": spans.compare_end(*(None if k is None else key(k) for k in (lhs, rhs)))}

    def intersect(self, lhs: list[str | None], rhs: list[str | None]) -> Json:
        return {"span": span_json(spans.intersect(span_of(lhs), span_of(rhs)))}

    def left_cover(self, regions: list[list[str | None]], span: list[str | None]) -> Json:
        return {"covered": spans.left_cover([span_of(pair) for pair in regions], span_of(span))}

    def cut_left_cover(self, regions: list[list[str | None]], span: list[str | None]) -> Json:
        kept = spans.cut_left_cover([(span_of(pair), None) for pair in regions], span_of(span))
        return {"regions": [span_json(region) for region, _ in kept]}

    def table_range(self, table_id: int) -> Json:
        return {"span": span_json(spans.table_range(table_id))}

    def table_comparable_range(self, table_id: int) -> Json:
        return {"span": span_json(spans.table_comparable_range(table_id))}

    def ddl_spans(self) -> Json:
        return {"spans": [span_json(span) for span in spans.ddl_spans()]}


def row_of(fields: Json) -> Row:
    """A row of the vectors; in the matcher's cases it has no type, which the matcher does not look at."""
    return Row(
        type=LogType[fields.get("type", "unknown").upper()],
        start_ts=fields["start_ts"],
        commit_ts=fields["commit_ts"],
        key=key(fields["key"]),
        value=key(fields.get("value")),
        old_value=key(fields.get("old_value")),
        op_type=OpType[fields.get("op", "unknown").upper()],
        generation=fields.get("generation", 0),
    )


def row_json(row: Row) -> Json:
    """A row as the vectors write it."""
    return {
        "start_ts": row.start_ts,
        "commit_ts": row.commit_ts,
        "key": row.key.hex(),
        "value": row.value.hex(),
        "old_value": row.old_value.hex(),
    }


def entry_json(entry: RawKVEntry) -> Json:
    """A change as the vectors write it."""
    return {
        "op": entry.op_type.name.lower(),
        "key": entry.key.hex(),
        "value": entry.value.hex(),
        "old_value": entry.old_value.hex(),
        "start_ts": entry.start_ts,
        "commit_ts": entry.commit_ts,
    }


class MatcherComponent:
    def new(self) -> Json:
        self.matcher = Matcher()
        return {}

    def prewrite(self, row: Json) -> Json:
        self.matcher.put_prewrite(row_of(row))
        return {}

    def commit(self, row: Json, initialized: bool) -> Json:
        matched = self.matcher.match(row_of(row), initialized=initialized)
        return {"matched": False} if matched is None else {"matched": True, "row": row_json(matched)}

    def rollback(self, row: Json) -> Json:
        self.matcher.rollback(row_of(row))
        return {}

    def cache_commit(self, row: Json) -> Json:
        self.matcher.cache_commit(row_of(row))
        return {}

    def cache_rollback(self, row: Json) -> Json:
        self.matcher.cache_rollback(row_of(row))
        return {}

    def match_cached_commits(self) -> Json:
        return {"rows": [row_json(row) for row in self.matcher.match_cached_commits()]}

    def match_cached_rollbacks(self) -> Json:
        return {"unmatched": self.matcher.match_cached_rollbacks()}


class RangeLockComponent:
    def __init__(self) -> None:
        self.claims: dict[str, RangeClaim] = {}

    def new(self, span: list[str | None], ts: int) -> Json:
        self.lock_ = RangeLock(span_of(span), ts)
        return {}

    def lock(self, span: list[str | None], region: int, version: int, handle: str = "") -> Json:
        claim = self.claims[handle] = self.lock_.lock_range(span_of(span), region, version)
        return self._answer(claim)

    def poll(self, handle: str) -> Json:
        return self._answer(self.claims[handle])

    def cancel(self, handle: str) -> Json:
        self.lock_.cancel(self.claims[handle])
        return {}

    def unlock(self, span: list[str | None], region: int, version: int, ts: int | None = None) -> Json:
        self.lock_.unlock_range(span_of(span), region, version, ts=ts)
        return {}

    def set_resolved(self, region: int, ts: int) -> Json:
        self.lock_.locked_state(region).resolved_ts = ts
        return {}

    def resolved_ts(self) -> Json:
        return {"ts": self.lock_.resolved_ts()}

    def stats(self) -> Json:
        stats = self.lock_.stats()
        return {
            "unlocked": len(stats.unlocked),
            "slowest": stats.slowest[1] if stats.slowest else None,
            "fastest": stats.fastest[1] if stats.fastest else None,
        }

    @staticmethod
    def _answer(claim: RangeClaim) -> Json:
        answer: Json = {"status": claim.status.value, "retry": [span_json(span) for span in claim.retry_spans]}
        if claim.locked is not None:
            answer["ts"] = claim.locked.resolved_ts
        return answer


class RangeTsMapComponent:
    def new(self, span: list[str | None], ts: int) -> Json:
        self.map = RangeTsMap(span_of(span), ts)
        return {}

    def set(self, span: list[str | None], ts: int) -> Json:
        self.map.set(span_of(span), ts)
        return {}

    def unset(self, span: list[str | None]) -> Json:
        self.map.unset(span_of(span))
        return {}

    def min(self, span: list[str | None]) -> Json:
        return {"ts": self.map.min(span_of(span))}


class RegionComponent:
    def __init__(self) -> None:
        self.worker = RegionWorker()

    def register(
        self,
        *,
        region: int,
        request: int,
        span: list[str | None],
        checkpoint_ts: int,
        init: bool = False,
        resolved_ts: int | None = None,
        start_ts: int = 0,
    ) -> Json:
        locked = LockedRangeState(checkpoint_ts if resolved_ts is None else resolved_ts, initialized=init)
        self.worker.register(RegionFeedState(region, request, span_of(span), start_ts, locked))
        return {}

    def rows(self, region: int, request: int, rows: list[Json]) -> Json:
        try:
            result = self.worker.handle_entries(EntriesEvent(region, request, [row_of(row) for row in rows]))
        except OrderBrokenError:
            return {"fatal": True}
        answer: Json = {"emit": [entry_json(entry) for entry in result.batch.entries] if result.batch else []}
        if result.error is not None:
            answer["region_error"] = result.error.kind.value
        return answer

    def resolved(self, ts: int, regions: list[int], request: int) -> Json:
        resolved = self.worker.handle_resolved(ResolvedTsEvent(ts, regions, request))
        return {"regions": [item.region_id for item in resolved.regions] if resolved else []}

    def region_ts(self, region: int) -> Json:
        state = self.worker.state(region)
        return {"ts": state.locked.resolved_ts if state else None}


class AdmissionComponent:
    def __init__(self) -> None:
        self.sequence = 0
        self.leases: dict[int, Lease[int]] = {}

    def new(self, window: int, multiplier: int) -> Json:
        self.controller: AdmissionController[int] = AdmissionController(window, multiplier)
        return {}

    def submit(self, region: int, priority: str) -> Json:
        self.sequence += 1
        return {"accepted": self.controller.submit(region, ScanPriority[priority.upper()], self.sequence)}

    def pop(self) -> Json:
        lease = self.controller.pop()
        if lease is not None:
            self.leases[lease.item] = lease
        return {"region": lease.item if lease else None, "inflight": self.controller.inflight}

    def finish(self, region: int) -> Json:
        return {"released": region in self.leases and self.leases[region].finish()}

    def abort(self, region: int) -> Json:
        return {"released": region in self.leases and self.leases[region].abort()}

    def close(self) -> Json:
        self.controller.close()
        return {}

    def drain(self) -> Json:
        return {"regions": self.controller.drain(), "pending": self.controller.pending}


class TokenComponent:
    """Taking a region takes its token at once, so `acquire` only says which store the lease belongs to."""

    def __init__(self) -> None:
        self.taken: list[tuple[object, Lease[int]]] = []
        self.acquired: list[tuple[object, Lease[int]]] = []

    def new(self, limit: int) -> Json:
        self.router: RegionRouter[int] = RegionRouter(limit)
        return {}

    def add(self, store: str, id: int) -> Json:  # noqa: A002
        self.router.add_region(store, id)
        return {}

    def add_many(self, store: str, count: int) -> Json:
        for number in range(count):
            self.router.add_region(store, number)
        return {}

    def take(self) -> Json:
        taken = self.router.take()
        if taken is None:
            return {"store": None, "id": None}
        self.taken.append(taken)
        return {"store": taken[0], "id": taken[1].item}

    def take_all(self, acquire_and_release: bool = False) -> Json:
        delivered: dict[str, int] = {}
        while (answer := self.take())["store"] is not None:
            delivered[answer["store"]] = delivered.get(answer["store"], 0) + 1
            if acquire_and_release:
                self.acquire(answer["store"])
                self.release(answer["store"])
        return {"delivered": delivered}

    def acquire(self, store: str) -> Json:
        self.acquired.append(self.taken.pop([name for name, _ in self.taken].index(store)))
        return {}

    def release(self, store: str) -> Json:
        _, lease = self.acquired.pop([name for name, _ in self.acquired].index(store))
        assert lease.finish()
        return {}

    def tokens(self, store: str) -> Json:
        return {"tokens": self.router.tokens(store)}


ORIGIN_NAMES = {
    "get_store": "get_store_failed",
    "send_request": "store_stream",
    "send_request_to_store": "store_stream",
    "connect_to_store": "store_stream",
    "subscription_cancelled": "request_cancelled",
}
"""Names that TiCDC's types and metrics have for the same errors."""


class ErrorComponent:
    def new(self) -> Json:
        self.recovery = RegionRecovery()
        return {}

    def classify(self, error: str, leader_known: bool = True) -> Json:
        return {"action": classify(RegionErrorKind(ORIGIN_NAMES.get(error, error)), leader_known=leader_known).value}

    def server_backoff(self, backoff_ms: int) -> Json:
        return {"wait_ms": errors.server_backoff_ms(backoff_ms)}

    def recover(self, subscription: int, region: int, span: list[str | None]) -> Json:
        return {"attempt": self.recovery.fail(subscription, span_of(span), now_ms=0)}

    def cancelled(self, subscription: int, span: list[str | None]) -> Json:
        self.recovery.reset(subscription, span_of(span))
        return {}


class LockHeapComponent:
    def new(self) -> Json:
        self.heap = RegionTsHeap()
        return {}

    def upsert(self, region: int, ts: int, time: int) -> Json:
        self.heap.upsert(region, ts, time)
        return {}

    def pop(self) -> Json:
        region = self.heap.pop()
        if region is None:
            return {"region": None}
        return {"region": region.region_id, "ts": region.ts, "penalty": region.penalty}


class ResolveLockComponent:
    def target(self, **args: Any) -> Json:
        return {"target_ms": resolve_target_ms(**args)}

    def new(self, min_interval_ms: int) -> Json:
        self.limiter = ResolveLockRateLimiter(min_interval_ms)
        return {}

    def try_(self, keyspace: int, region: int, now_ms: int) -> Json:
        return {"ok": self.limiter.try_start(keyspace, region, now_ms)}

    def finish(self, keyspace: int, region: int, now_ms: int) -> Json:
        self.limiter.finish(keyspace, region, now_ms)
        return {}

    def table(self, span: list[str | None], ts: int) -> Json:
        self.range_lock = RangeLock(span_of(span), ts)
        self.stale = StaleLocks(self.range_lock)
        return {}

    def lock_range(self, span: list[str | None], region: int, version: int) -> Json:
        self.range_lock.lock_range(span_of(span), region, version)
        return self._behind(region)

    def init(self, region: int) -> Json:
        self.range_lock.locked_state(region).initialized = True
        return self._behind(region)

    def advance(self, region: int, ts: int) -> Json:
        self.range_lock.locked_state(region).resolved_ts = ts
        return self._behind(region)

    def request(self, target: int) -> Json:
        return {"tasks": self.stale.request(target)}

    def _behind(self, region: int) -> Json:
        return {"tasks": [region] if self.stale.is_behind(self.range_lock.locked_state(region)) else []}


class SpanInitComponent:
    def new(self, span: list[str | None]) -> Json:
        self.initialization = SpanInitialization(span_of(span))
        return {}

    def add(self, span: list[str | None]) -> Json:
        return {"completed_now": self.initialization.add(span_of(span))}


class PullerComponent:
    def new(self, spans: list[list[str | None]], checkpoint_ts: int) -> Json:
        self.core = PullerCore([span_of(pair) for pair in spans], checkpoint_ts)
        return {}

    def kv(self, op: str, key: str, value: str = "", commit_ts: int = 0) -> Json:
        entry = RawKVEntry(OpType[op.upper()], bytes.fromhex(key), bytes.fromhex(value), b"", 0, commit_ts)
        return self._output(self.core.handle(EntryBatch([entry])))

    def resolved(self, region: int, span: list[str | None], ts: int) -> Json:
        return self._output(self.core.handle(ResolvedSpans(ts, [RegionSpan(region, span_of(span))])))

    def resolved_ts(self) -> Json:
        return {"resolved_ts": self.core.resolved_ts, "ts": self.core.resolved_ts}

    @staticmethod
    def _output(output: PullerOutput | None) -> Json:
        if isinstance(output, Resolved):
            return {"output": [{"resolved": output.ts}]}
        entries = output.entries if output else []
        return {"output": [{"key": entry.key.hex(), "commit_ts": entry.commit_ts} for entry in entries]}


COMPONENTS: dict[str, Callable[[], object]] = {
    "frontier": FrontierComponent,
    "span": SpanComponent,
    "matcher": MatcherComponent,
    "range_lock": RangeLockComponent,
    "range_ts_map": RangeTsMapComponent,
    "region": RegionComponent,
    "admission": AdmissionComponent,
    "token": TokenComponent,
    "error": ErrorComponent,
    "lock_heap": LockHeapComponent,
    "resolve_lock": ResolveLockComponent,
    "span_init": SpanInitComponent,
    "puller": PullerComponent,
}


def normalise(value: object) -> object:
    """Absent and empty keys are the same thing in spans, also inside lists."""
    if isinstance(value, list):
        return [normalise(item) for item in value]
    if isinstance(value, dict):
        return {name: normalise(item) for name, item in value.items()}
    return None if value == "" else value
