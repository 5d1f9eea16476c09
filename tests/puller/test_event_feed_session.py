"""One session step by step: what it asks for, in which order it gives things back, and what it does not forget."""

import random
from itertools import pairwise

import pytest

from datanode_client.puller.actions import Deregister, LoadRegions, ResolveLocks, SendRequest
from datanode_client.puller.errors import DuplicateRequestError
from datanode_client.puller.event_feed_session import LOAD_REGIONS_RETRY_MS, RANGE_TASKS_MAX
from datanode_client.puller.events import (
    EntriesEvent,
    EntryBatch,
    ErrorEvent,
    LogType,
    OpType,
    RegionError,
    RegionErrorKind,
    ResolvedSpans,
    ResolvedTsEvent,
    Row,
)
from datanode_client.puller.feed_context import RegionPhase
from datanode_client.puller.kv_client import KVClientCore
from datanode_client.puller.region_cache import RegionMeta, RegionVerID
from datanode_client.puller.resolve_lock import RESOLVE_LOCK_TICK_MS, compose_ts
from datanode_client.puller.span import Span, encode_bytes

SPAN = Span(encode_bytes(b"b"), encode_bytes(b"y"))
START_TS = 100
AFTER_ALL_BACK_OFF_MS = 10_000


def region(region_id: int, start: bytes = b"", end: bytes = b"", *, version: int = 1, leader: int = 1) -> RegionMeta:
    """A region between two raw keys, on the stores 1 to 3."""
    span = Span(encode_bytes(start) if start else b"", encode_bytes(end) if end else b"")
    return RegionMeta(RegionVerID(region_id, 1, version), span, (1, 2, 3), leader)


def committed(commit_ts: int, key: bytes = b"k") -> Row:
    """A row of a scan."""
    return Row(LogType.COMMITTED, commit_ts - 1, commit_ts, key, b"v", b"", OpType.PUT)


class Feed:
    """A client core with one subscription, and what it has asked for."""

    def __init__(self, *, region_scan_limit: int = 40) -> None:
        self.core = KVClientCore(region_scan_limit=region_scan_limit, rng=random.Random(1))
        self.now_ms = 0
        self.id = self.core.subscribe(SPAN, START_TS, 0)
        session = self.core.session(self.id)
        assert session is not None
        self.session = session

    def loads(self) -> list[LoadRegions]:
        return [action for action in self.core.take_actions() if isinstance(action, LoadRegions)]

    def requests(self) -> list[SendRequest]:
        return [action for action in self.core.take_actions() if isinstance(action, SendRequest)]

    def load(self, *regions: RegionMeta) -> list[SendRequest]:
        """Answers the one question to PD."""
        (task,) = self.loads()
        self.core.regions_loaded(self.id, task.task_id, list(regions), self.now_ms)
        return self.requests()

    def rows(self, request: SendRequest, *rows: Row) -> None:
        event = EntriesEvent(request.request.region.ver_id.id, request.request.request_id, rows)
        self.core.handle_event(event, self.now_ms)

    def initialize(self, request: SendRequest) -> None:
        self.rows(request, Row(LogType.INITIALIZED))

    def resolve(self, request: SendRequest, ts: int) -> None:
        ids = [request.request.region.ver_id.id]
        self.core.handle_event(ResolvedTsEvent(ts, ids, request.request.request_id), self.now_ms)

    def fail(self, request: SendRequest, kind: RegionErrorKind, **more: int) -> None:
        error = RegionError(kind, leader_store_id=more.get("leader", 0), backoff_ms=more.get("backoff_ms", 0))
        event = ErrorEvent(request.request.region.ver_id.id, request.request.request_id, error)
        self.core.handle_event(event, self.now_ms)

    def wait(self, milliseconds: int = AFTER_ALL_BACK_OFF_MS) -> None:
        self.now_ms += milliseconds
        self.core.tick(self.now_ms)


def test_a_span_is_cut_into_its_regions_and_each_asked_for_its_part() -> None:
    """A part that is too large brings rows of others, one that is too small loses rows."""
    feed = Feed()
    requests = feed.load(region(1, b"", b"f", leader=1), region(2, b"f", b"", leader=2))

    assert [(r.store_id, r.request.span, r.request.checkpoint_ts) for r in requests] == [
        (1, Span(SPAN.start, encode_bytes(b"f")), START_TS),
        (2, Span(encode_bytes(b"f"), SPAN.end), START_TS),
    ]
    assert len({request.request.request_id for request in requests}) == 1  # so that the store can batch


def test_a_region_is_asked_for_again_from_where_it_was() -> None:
    """From further ahead, changes are lost; from the start, every failure costs a scan of everything."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.initialize(request)
    feed.resolve(request, 150)
    feed.fail(request, RegionErrorKind.CONGESTED)
    assert feed.requests() == []
    feed.wait()
    (again,) = feed.requests()

    assert again.request.checkpoint_ts == 150
    assert again.request.request_id > request.request.request_id


def test_messages_of_the_request_before_are_dropped() -> None:
    """The store that lost the region may still be sending."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.initialize(request)
    feed.fail(request, RegionErrorKind.NOT_LEADER, leader=2)
    feed.wait()
    (again,) = feed.requests()
    assert again.store_id == 2
    feed.core.take_outputs()

    feed.rows(request, committed(200))
    feed.resolve(request, 300)
    feed.fail(request, RegionErrorKind.REGION_NOT_FOUND)
    feed.rows(again, committed(250))

    outputs = [output for _, output in feed.core.take_outputs()]
    assert [[entry.commit_ts for entry in output.entries] for output in outputs if isinstance(output, EntryBatch)] == [
        [250]
    ]
    assert not any(isinstance(output, ResolvedSpans) for output in outputs)
    assert feed.session.stats().regions == {RegionPhase.REQUESTED: 1}


def test_a_region_given_up_by_the_client_is_deregistered() -> None:
    """The store would go on sending, and refuse nothing: two requests for one region would be alive."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.initialize(request)
    feed.rows(request, Row(LogType.COMMIT, 120, 130, b"k", op_type=OpType.PUT))

    assert feed.core.take_actions() == [Deregister(1, 1, request.request.request_id)]
    feed.wait()
    assert len(feed.requests()) == 1


def test_a_failed_region_waits_before_it_is_asked_for_again_and_longer_each_time() -> None:
    """Without back-off per range a store in trouble gets thousands of requests per second (TiCDC 6.5, and after)."""
    feed = Feed()
    (request,) = feed.load(region(1))
    waits = []
    for _ in range(8):
        feed.fail(request, RegionErrorKind.UNKNOWN)
        failed_at = feed.now_ms
        while not (sent := feed.requests()):
            feed.wait(10)
        (request,) = sent
        waits.append(feed.now_ms - failed_at)

    assert feed.session.stats().errors == {RegionErrorKind.UNKNOWN: 8}
    assert waits[0] >= 25
    assert all(later >= 0.5 * earlier for earlier, later in pairwise(waits))
    assert 1000 <= waits[-1] <= 2010


def test_a_busy_store_is_left_alone_as_long_as_it_asked() -> None:
    """It knows when it will be free."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.fail(request, RegionErrorKind.SERVER_IS_BUSY, backoff_ms=5000)
    feed.wait(4999)
    assert feed.requests() == []
    feed.wait(1)

    assert len(feed.requests()) == 1


def test_an_initialized_range_starts_over_with_the_shortest_wait() -> None:
    """Last night's trouble is no reason to wait today."""
    feed = Feed()
    (request,) = feed.load(region(1))
    for _ in range(10):
        feed.fail(request, RegionErrorKind.UNKNOWN)
        feed.wait()
        (request,) = feed.requests()
    feed.initialize(request)
    feed.fail(request, RegionErrorKind.UNKNOWN)
    feed.wait(50)

    assert len(feed.requests()) == 1


@pytest.mark.parametrize("kind", [RegionErrorKind.EPOCH_NOT_MATCH, RegionErrorKind.REGION_NOT_FOUND])
def test_a_region_that_has_changed_is_looked_up_again(kind: RegionErrorKind) -> None:
    """Asked for in its old shape it would be refused for ever."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.fail(request, kind)
    feed.wait()

    requests = feed.load(region(1, b"", b"f", version=2), region(2, b"f", b"", version=2))
    assert [r.request.region.ver_id.version for r in requests] == [2, 2]


def test_a_leader_that_is_not_known_is_looked_up_again() -> None:
    """The store knows that it is not the leader, and no more."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.fail(request, RegionErrorKind.NOT_LEADER)
    feed.wait()

    assert [request.store_id for request in feed.load(region(1, leader=3))] == [3]


def test_a_region_without_leader_in_pd_is_asked_for_until_it_has_one() -> None:
    """An election takes seconds; the feed must neither end nor spin."""
    feed = Feed()
    assert feed.load(region(1, leader=0)) == []
    feed.wait()
    assert feed.load(region(1, leader=0)) == []
    feed.wait()

    assert len(feed.load(region(1, leader=2))) == 1


def test_a_broken_stream_moves_its_regions_to_their_peers() -> None:
    """PD may name the dead store as leader for minutes; a peer says who leads, at once."""
    feed = Feed()
    requests = feed.load(region(1, b"", b"f", leader=1), region(2, b"f", b"", leader=2))
    feed.core.store_failed(1, 0)
    feed.wait()

    assert [(r.store_id, r.request.region.ver_id.id) for r in feed.requests()] == [(2, 1)]
    assert feed.session.worker.state(2) is not None
    assert requests[1].request.request_id == feed.session.worker.state(2).request_id  # type: ignore[union-attr]


def test_pd_is_asked_again_after_a_while_when_it_has_no_usable_answer() -> None:
    """Regions always come back; TiCDC 6.5 ended the feed after a minute."""
    feed = Feed()
    assert feed.load(region(1, b"c", b"")) == []  # begins after the span does
    assert feed.loads() == []
    for _ in range(1000):
        feed.wait(LOAD_REGIONS_RETRY_MS)
        (task,) = feed.loads()
        feed.core.load_regions_failed(feed.id, task.task_id, feed.now_ms)
    feed.wait(LOAD_REGIONS_RETRY_MS)

    assert len(feed.load(region(1))) == 1


def test_an_answer_before_the_span_is_not_taken_for_progress() -> None:
    """Asking on from its end would go back, for ever, without a pause."""
    feed = Feed()
    assert feed.load(region(1, b"", b"b")) == []
    assert feed.loads() == []
    feed.wait()

    assert len(feed.loads()) == 1


def test_what_follows_a_hole_is_asked_for_again() -> None:
    """The regions behind it may be the old ones."""
    feed = Feed()
    requests = feed.load(region(1, b"", b"f"), region(3, b"g", b""))
    assert [r.request.region.ver_id.id for r in requests] == [1]


def test_the_rest_of_a_short_answer_is_asked_for_at_once() -> None:
    """PD answers with so many regions at most."""
    feed = Feed()
    (task,) = feed.loads()
    feed.core.regions_loaded(feed.id, task.task_id, [region(1, b"", b"f")], 0)
    actions = feed.core.take_actions()

    assert [action.span for action in actions if isinstance(action, LoadRegions)] == [
        Span(encode_bytes(b"f"), SPAN.end)
    ]


def test_an_answer_that_is_not_awaited_is_ignored() -> None:
    """A question that timed out may be answered after all."""
    feed = Feed()
    (task,) = feed.loads()
    for _ in range(2):
        feed.core.regions_loaded(feed.id, task.task_id, [region(1)], 0)

    assert len(feed.requests()) == 1


def test_a_newer_shape_waits_for_the_older_to_go_and_goes_on_from_there() -> None:
    """Two requests for the same keys would send everything twice and resolve it once."""
    feed = Feed()
    old = feed.load(region(1, b"", b"f"), region(2, b"f", b""))
    for request, ts in zip(old, (200, 170), strict=True):
        feed.initialize(request)
        feed.resolve(request, ts)
    feed.fail(old[1], RegionErrorKind.REGION_NOT_FOUND)
    feed.wait()
    assert feed.load(region(1, b"", b"", version=2)) == []
    assert feed.session.stats().waiting_for_lock == 1

    feed.fail(old[0], RegionErrorKind.EPOCH_NOT_MATCH)
    (merged,) = feed.requests()
    assert (merged.request.span, merged.request.checkpoint_ts) == (SPAN, 170)


def test_an_older_shape_is_not_asked_for_and_its_uncovered_part_is_looked_up() -> None:
    """PD may be behind: the stale answer must not displace what is fed, and must not be believed for the rest."""
    feed = Feed()
    feed.load(region(1, b"", b"f", version=5))
    (task_id,) = feed.session._range_tasks  # of what the answer had left uncovered
    feed.core.regions_loaded(feed.id, task_id, [region(1, b"", b"", version=4)], 0)
    assert feed.core.take_actions() == []
    feed.wait()

    assert [load.span for load in feed.loads()] == [Span(encode_bytes(b"f"), SPAN.end)]


def test_tokens_come_back_at_initialized_and_at_failure() -> None:
    """A token that is lost makes the store slower for good."""
    feed = Feed(region_scan_limit=1)
    regions = [region(number + 1, bytes([98 + number]), bytes([99 + number])) for number in range(4)]
    (first,) = feed.load(*regions)
    feed.initialize(first)
    (second,) = feed.requests()
    feed.fail(second, RegionErrorKind.CONGESTED)
    (third,) = feed.requests()
    feed.initialize(first)

    assert [r.request.region.ver_id.id for r in (first, second, third)] == [1, 2, 3]
    assert feed.requests() == []


def test_questions_to_pd_are_bounded() -> None:
    """After a store is lost, thousands of ranges are looked up."""
    feed = Feed()
    bounds = [b"c" + bytes([number]) for number in range(200)]
    many = [region(number, *pair) for number, pair in enumerate(pairwise(bounds), start=1)]
    requests = feed.load(region(1000, b"", bounds[0]), *many, region(1001, bounds[-1], b""))
    while more := feed.requests():
        requests += more
    for request in requests:
        feed.fail(request, RegionErrorKind.REGION_NOT_FOUND)
        requests += feed.requests()
    feed.wait()

    assert len(feed.loads()) == RANGE_TASKS_MAX
    assert feed.session.stats().range_tasks > RANGE_TASKS_MAX


def test_a_fatal_error_ends_the_feed() -> None:
    """Asking again would get the same answer; somebody has to look."""
    feed = Feed()
    (request,) = feed.load(region(1))

    with pytest.raises(DuplicateRequestError, match="report it"):
        feed.fail(request, RegionErrorKind.DUPLICATE_REQUEST)


def test_stuck_locks_are_resolved_and_stuck_regions_asked_for_again() -> None:
    """A dead client's lock holds the whole feed; so does a store that has forgotten a request."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.initialize(request)
    start_ms = 1_000_000
    feed.resolve(request, compose_ts(start_ms))
    tasks = []
    for _ in range(60 * 60 * 1000 // RESOLVE_LOCK_TICK_MS + 10):
        feed.now_ms += RESOLVE_LOCK_TICK_MS
        feed.core.tick(feed.now_ms, start_ms + feed.now_ms)
        actions = feed.core.take_actions()
        for task in (action for action in actions if isinstance(action, ResolveLocks)):
            tasks.append(task)
            feed.core.locks_resolved(task.region_id, feed.now_ms)
        if any(isinstance(action, Deregister) for action in actions):
            break
    feed.wait()

    assert len(tasks) > 100
    assert feed.requests()[0].request.checkpoint_ts == compose_ts(start_ms)


def test_an_attempt_at_locks_whose_subscription_has_ended_does_not_keep_others_from_the_region() -> None:
    """Attempts are kept apart for all subscriptions of a client: one that never ends would leave the lock where it is for ever."""
    feed = Feed()
    start_ms = 1_000_000

    def asked_to_resolve() -> list[int]:
        """Lets time pass until the locks of the subscription's only region are to be resolved."""
        (request,) = feed.load(region(1))
        feed.initialize(request)
        feed.resolve(request, compose_ts(start_ms))
        asked: list[int] = []
        for _ in range(20):
            feed.now_ms += RESOLVE_LOCK_TICK_MS
            feed.core.tick(feed.now_ms, start_ms + feed.now_ms)
            actions = feed.core.take_actions()
            asked += [action.region_id for action in actions if isinstance(action, ResolveLocks)]
        return asked

    assert asked_to_resolve() == [1]
    feed.core.unsubscribe(feed.id, feed.now_ms)
    feed.core.locks_resolved(1, feed.now_ms)
    feed.core.take_actions()
    feed.id = feed.core.subscribe(SPAN, START_TS, feed.now_ms)

    assert asked_to_resolve() == [1]


def test_unsubscribing_deregisters_and_frees_the_tokens() -> None:
    """Others wait for them; and the store should not send what nobody reads."""
    feed = Feed(region_scan_limit=1)
    feed.load(region(1))
    other = feed.core.subscribe(Span(encode_bytes(b"z"), b""), START_TS, 0)
    (task,) = feed.loads()
    feed.core.regions_loaded(other, task.task_id, [region(9, b"y", b"")], 0)
    assert feed.requests() == []
    feed.core._context.recovery.fail(feed.id, SPAN, 0)

    feed.core.unsubscribe(feed.id, 0)
    actions = feed.core.take_actions()

    assert [type(action) for action in actions] == [Deregister, SendRequest]
    assert feed.core.session(feed.id) is None
    assert feed.session.range_lock.drained
    assert len(feed.core._context.recovery) == 0
    feed.core.unsubscribe(feed.id, 0)
    feed.core.regions_loaded(feed.id, task.task_id, [region(1)], 0)
    assert feed.core.take_actions() == []
    assert list(feed.core.stats()) == [other]


def test_events_find_their_subscription_by_request_id() -> None:
    """Streams are shared: a row of one table in another one's feed is corruption."""
    feed = Feed()
    (mine,) = feed.load(region(1))
    other = feed.core.subscribe(Span(encode_bytes(b"z"), b""), START_TS, 0)
    (task,) = feed.loads()
    feed.core.regions_loaded(other, task.task_id, [region(1)], 0)
    (theirs,) = feed.requests()
    feed.rows(mine, committed(200))
    feed.rows(theirs, committed(201, b"zz"))
    feed.core.handle_event(ResolvedTsEvent(500, [1], None), 0)
    feed.core.handle_event(EntriesEvent(1, 2**40, [committed(300)]), 0)

    batches = [(id_, output) for id_, output in feed.core.take_outputs() if isinstance(output, EntryBatch)]
    assert [(id_, [entry.commit_ts for entry in batch.entries]) for id_, batch in batches] == [
        (feed.id, [200]),
        (other, [201]),
    ]


def test_a_stream_of_one_subscription_is_told_apart_by_it() -> None:
    """Without multiplexing a store's resolved timestamps name no request, and a broken stream is one subscription's."""
    feed = Feed()
    (request,) = feed.load(region(1))
    feed.initialize(request)
    feed.core.handle_event(ResolvedTsEvent(200, [1], None), 0, subscription_id=feed.id)
    feed.core.store_failed(1, 0, subscription_id=feed.id + 1)

    (output,) = (output for _, output in feed.core.take_outputs())
    assert isinstance(output, ResolvedSpans)
    assert (output.ts, output.regions[0].span) == (200, SPAN)
    assert feed.session.stats().resolved_ts == 200
    assert feed.session.stats().initialized


def test_the_next_due_time_is_never_missed() -> None:
    """The network client sleeps until then."""
    feed = Feed()
    assert feed.core.next_due_ms() == RESOLVE_LOCK_TICK_MS
    feed.load(region(1, b"c", b""))

    assert feed.core.next_due_ms() == LOAD_REGIONS_RETRY_MS
    feed.core.unsubscribe(feed.id, 0)
    assert feed.core.next_due_ms() is None
