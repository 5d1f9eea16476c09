"""The region worker: turns the event stream of regions into changes and resolved timestamps.

A region goes through *requested* (registered, its incremental scan runs), *initialized* (live, its resolved timestamp moves) and
*stopped* (given up; whatever still comes for it is dropped). Every request has an id that a region never sees twice, so messages
of an older request are recognised and dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from datanode_client.puller.errors import OrderBrokenError
from datanode_client.puller.events import (
    EntriesEvent,
    EntryBatch,
    LogType,
    OpType,
    RawKVEntry,
    RegionError,
    RegionErrorKind,
    RegionSpan,
    ResolvedSpans,
    ResolvedTsEvent,
    Row,
)
from datanode_client.puller.matcher import Matcher
from datanode_client.puller.range_lock import LockedRangeState
from datanode_client.puller.span import MalformedKeyError, Span, decode_bytes, encode_bytes


class KeyFilter:
    """Tells which raw keys lie in a memcomparable span.

    Where both bounds are whole memcomparable keys, raw keys are compared with the raw bounds, which gives the same answer without
    encoding every key; where a region was split inside of a key, each key is encoded.

    Args:
        span: memcomparable.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self._encode = False
        try:
            raw_start = decode_bytes(span.start) if span.start else b""
            raw_end = decode_bytes(span.end) if span.end else b""
        except MalformedKeyError:
            self._encode = True
        else:
            # The smallest key is the empty one: a span that ends there holds nothing, and an empty raw end would hold everything.
            self._encode = bool(span.end) and not raw_end
            self._span = span if self._encode else Span(raw_start, raw_end)

    def __contains__(self, key: bytes) -> bool:
        """Whether the raw key lies in the span."""
        return (encode_bytes(key) if self._encode else key) in self._span


@dataclass(eq=False, slots=True)
class RegionFeedState:
    """One request of one region.

    Attributes:
        region_id: the region.
        request_id: the request.
        span: the subscribed part of it, memcomparable.
        start_ts: of the whole subscription: commits at or before it are not wanted, but come.
        locked: how far it has come, shared with the range lock.
        matcher: its prewrites.
        stopped: whether it was given up.
    """

    region_id: int
    request_id: int
    span: Span
    start_ts: int
    locked: LockedRangeState
    matcher: Matcher = field(default_factory=Matcher)
    stopped: bool = False
    key_filter: KeyFilter = field(init=False)
    region_span: RegionSpan = field(init=False)

    def __post_init__(self) -> None:
        self.key_filter = KeyFilter(self.span)
        self.region_span = RegionSpan(self.region_id, self.span)


@dataclass(slots=True)
class EntriesResult:
    """What came of a message with rows.

    Attributes:
        batch: the changes that came out; None if there were none.
        initialized: whether the region became initialized by it.
        error: the region was stopped, must be given up and asked for again; the changes that came out before stay valid.
    """

    batch: EntryBatch | None = None
    initialized: bool = False
    error: RegionError | None = None


@dataclass(slots=True)
class RegionWorkerStats:
    """Counters of a region worker.

    Attributes:
        rows: rows received, by kind.
        stale_messages: messages dropped because no current request awaits them.
        outside_rows: rows dropped because their key is not subscribed.
        before_start_rows: commits dropped because they are not after the subscription's start.
        resolved_fallbacks: resolved timestamps ignored because the region had been further.
    """

    rows: dict[LogType, int] = field(default_factory=dict)
    stale_messages: int = 0
    outside_rows: int = 0
    before_start_rows: int = 0
    resolved_fallbacks: int = 0


class RegionWorker:
    """The regions of one subscription that are being fed. A region has one current request at most."""

    def __init__(self) -> None:
        self._states: dict[int, RegionFeedState] = {}
        self.stats = RegionWorkerStats()

    def __len__(self) -> int:
        """Number of regions with a current request."""
        return len(self._states)

    @property
    def matcher_bytes(self) -> int:
        """What waiting prewrites weigh."""
        return sum(state.matcher.bytes for state in self._states.values())

    def register(self, state: RegionFeedState) -> None:
        """A request is about to be sent; an older one of the same region is forgotten."""
        self._states[state.region_id] = state

    def state(self, region_id: int) -> RegionFeedState | None:
        """The current request of a region."""
        return self._states.get(region_id)

    def deregister(self, region_id: int) -> None:
        """Forgets the current request of a region: what still comes for it is dropped."""
        self._states.pop(region_id, None)

    def accepts(self, region_id: int, request_id: int) -> bool:
        """Whether a message belongs to the current request of its region; counts it if not."""
        state = self._states.get(region_id)
        if state is None or state.stopped or state.request_id != request_id:
            self.stats.stale_messages += 1
            return False
        return True

    def handle_entries(self, event: EntriesEvent) -> EntriesResult:
        """Takes the rows of one message.

        Raises:
            OrderBrokenError: a change is not after the region's resolved timestamp.
        """
        result = EntriesResult()
        if not self.accepts(event.region_id, event.request_id):
            return result
        state = self._states[event.region_id]
        out: list[RawKVEntry] = []
        for row in event.rows:
            self.stats.rows[row.type] = self.stats.rows.get(row.type, 0) + 1
            if row.type is LogType.INITIALIZED:
                result.initialized = result.initialized or not state.locked.initialized
                result.error = self._initialize(state, out)
            elif row.key not in state.key_filter:
                self.stats.outside_rows += 1  # stores before TiKV 7.0 send the whole region
            else:
                result.error = self._handle_row(state, row, out)
            if result.error is not None:
                state.stopped = True
                break
        if out:
            result.batch = EntryBatch(out)
        return result

    def handle_resolved(self, event: ResolvedTsEvent) -> ResolvedSpans | None:
        """Takes a resolved timestamp for many regions.

        Returns:
            the regions for which it is handed on (one that did not move is, one that would go back is not); None if there are none.
        """
        regions = []
        for region_id in event.region_ids:
            state = self._states.get(region_id)
            if state is None or state.stopped or event.request_id not in {None, state.request_id}:
                self.stats.stale_messages += 1
            elif not state.locked.initialized:
                continue
            elif event.ts < state.locked.resolved_ts:
                self.stats.resolved_fallbacks += 1
            else:
                state.locked.resolved_ts = event.ts
                regions.append(state.region_span)
        return ResolvedSpans(event.ts, regions) if regions else None

    def _handle_row(self, state: RegionFeedState, row: Row, out: list[RawKVEntry]) -> RegionError | None:
        if row.type is LogType.COMMITTED:
            return self._emit(state, row, out)
        if row.type is LogType.PREWRITE:
            state.matcher.put_prewrite(row)
        elif row.type is LogType.COMMIT:
            return self._commit(state, row, out)
        elif row.type is not LogType.ROLLBACK:
            return RegionError(RegionErrorKind.UNKNOWN_LOG_TYPE, f"row of kind {row.type!r}")
        elif state.locked.initialized:
            state.matcher.rollback(row)
        else:
            state.matcher.cache_rollback(row)
        return None

    def _commit(self, state: RegionFeedState, row: Row, out: list[RawKVEntry]) -> RegionError | None:
        matched = state.matcher.match(row, initialized=state.locked.initialized)
        if matched is not None:
            return self._emit_commits(state, [matched], out)
        if state.locked.initialized:
            detail = f"start_ts {row.start_ts}, commit_ts {row.commit_ts}, key {row.key.hex()}"
            return RegionError(RegionErrorKind.PREWRITE_NOT_MATCH, detail)
        state.matcher.cache_commit(row)
        return None

    def _initialize(self, state: RegionFeedState, out: list[RawKVEntry]) -> RegionError | None:
        """The scan is over: cached commits first, for a rollback must not take a prewrite that was committed."""
        state.locked.initialized = True
        error = self._emit_commits(state, state.matcher.match_cached_commits(), out)
        state.matcher.match_cached_rollbacks()
        return error

    def _emit_commits(self, state: RegionFeedState, rows: Sequence[Row], out: list[RawKVEntry]) -> RegionError | None:
        """Hands matched commits on, live and cached ones alike.

        Commits at or before the start of the subscription come legitimately when their transaction was under way then; they had
        to be matched, so that their prewrites are forgotten, and are dropped only here.
        """
        for row in rows:
            if row.commit_ts <= state.start_ts:
                self.stats.before_start_rows += 1
                continue
            error = self._emit(state, row, out)
            if error is not None:
                return error
        return None

    @staticmethod
    def _emit(state: RegionFeedState, row: Row, out: list[RawKVEntry]) -> RegionError | None:
        resolved_ts = state.locked.resolved_ts
        if row.commit_ts <= resolved_ts:
            raise OrderBrokenError(
                f"Region {state.region_id} sent a change of commit_ts {row.commit_ts} after {resolved_ts} was resolved; "
                "start the feed again from its last checkpoint.",
                region_id=state.region_id,
                commit_ts=row.commit_ts,
                resolved_ts=resolved_ts,
            )
        if row.op_type is OpType.UNKNOWN:
            return RegionError(RegionErrorKind.UNKNOWN_OP, f"commit_ts {row.commit_ts}, key {row.key.hex()}")
        out.append(
            RawKVEntry(row.op_type, row.key, row.value, row.old_value, row.start_ts, row.commit_ts, state.region_id)
        )
        return None
