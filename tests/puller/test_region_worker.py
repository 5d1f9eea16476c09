"""What the region worker drops, holds back, gives up and refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.errors import OrderBrokenError, RegionErrorAction, classify
from datanode_client.puller.events import EntriesEvent, LogType, OpType, RegionErrorKind, ResolvedTsEvent, Row
from datanode_client.puller.range_lock import LockedRangeState
from datanode_client.puller.region_worker import EntriesResult, KeyFilter, RegionFeedState, RegionWorker
from datanode_client.puller.span import Span, encode_bytes

SPAN = Span(encode_bytes(b"b"), encode_bytes(b"y"))


def worker_of(
    *, request_id: int = 1, checkpoint_ts: int = 10, start_ts: int = 10, initialized: bool = False
) -> RegionWorker:
    """A worker with region 1."""
    worker = RegionWorker()
    worker.register(
        RegionFeedState(1, request_id, SPAN, start_ts, LockedRangeState(checkpoint_ts, initialized=initialized))
    )
    return worker


def row(kind: LogType, ts: int = 0, key: bytes = b"k", value: bytes = b"v", *, start_ts: int = 5) -> Row:
    """A row with commit timestamp `ts`."""
    op_type = OpType.PUT if kind in {LogType.COMMITTED, LogType.COMMIT, LogType.PREWRITE} else OpType.UNKNOWN
    return Row(kind, start_ts, ts, key, value, b"", op_type)


INITIALIZED = row(LogType.INITIALIZED, key=b"", value=b"")


def feed(worker: RegionWorker, *rows: Row, request_id: int = 1) -> EntriesResult:
    """One message."""
    return worker.handle_entries(EntriesEvent(1, request_id, rows))


def emitted(result: EntriesResult) -> list[tuple[bytes, int]]:
    """Key and commit timestamp of what came out."""
    return [(entry.key, entry.commit_ts) for entry in result.batch.entries] if result.batch else []


def resolve(worker: RegionWorker, ts: int, request_id: int | None = 1) -> bool:
    """Whether the resolved timestamp is handed on."""
    return worker.handle_resolved(ResolvedTsEvent(ts, [1], request_id)) is not None


def test_messages_of_an_older_request_are_dropped() -> None:
    """They come late from a store that has lost the region: their rows are old and their resolved timestamp does not hold."""
    worker = worker_of(request_id=7)
    feed(worker, row(LogType.PREWRITE, start_ts=11), INITIALIZED, request_id=6)
    assert emitted(feed(worker, row(LogType.COMMITTED, 20), request_id=6)) == []
    assert not resolve(worker, 30, request_id=6)
    feed(worker, INITIALIZED, request_id=7)
    assert not resolve(worker, 30, request_id=6)

    assert resolve(worker, 15, request_id=7)
    assert emitted(feed(worker, row(LogType.COMMITTED, 16), request_id=7)) == [(b"k", 16)]
    assert worker.stats.stale_messages == 4
    state = worker.state(1)
    assert state is not None
    assert state.matcher.waiting == 0


def test_messages_of_a_request_that_is_not_known_are_dropped() -> None:
    """Nobody has asked for them: their rows belong to no range that is accounted for."""
    worker = worker_of(request_id=7)
    assert emitted(feed(worker, row(LogType.COMMITTED, 20), request_id=8)) == []
    worker.deregister(1)

    assert emitted(feed(worker, row(LogType.COMMITTED, 20), request_id=7)) == []
    assert not resolve(worker, 30, request_id=7)


def test_rows_outside_the_subscribed_span_are_dropped() -> None:
    """Stores before TiKV 7.0 send the whole region; its other part may be fed by another session, from another timestamp."""
    worker = worker_of()
    result = feed(
        worker,
        row(LogType.COMMITTED, 20, b"a"),
        row(LogType.COMMITTED, 20, b"b"),
        row(LogType.COMMITTED, 20, b"y"),
        row(LogType.PREWRITE, key=b"z"),
        row(LogType.COMMIT, 20, b"z"),
        INITIALIZED,
        row(LogType.COMMIT, 21, b"z"),
    )

    assert emitted(result) == [(b"b", 20)]
    assert result.error is None
    assert worker.stats.outside_rows == 5
    assert worker.stats.rows == {
        LogType.COMMITTED: 3, LogType.PREWRITE: 1, LogType.COMMIT: 2, LogType.INITIALIZED: 1,
    }  # fmt: skip


@given(start=st.binary(max_size=10), end=st.binary(max_size=10), key=st.binary(max_size=12), raw=st.booleans())
def test_the_key_filter_answers_as_if_it_encoded_every_key(start: bytes, end: bytes, key: bytes, raw: bool) -> None:
    """It compares raw keys where it can; a wrong shortcut loses rows at region borders."""
    span = Span(start, end) if raw else Span(encode_bytes(start), encode_bytes(end))

    assert (key in KeyFilter(span)) == (encode_bytes(key) in span)


def test_a_commit_without_its_prewrite_gives_the_region_up() -> None:
    """Something was lost on the way: only reading the region again brings the value back; TiCDC's later versions end the feed."""
    worker = worker_of(initialized=True)
    result = feed(worker, row(LogType.COMMITTED, 19), row(LogType.COMMIT, 20, start_ts=6), row(LogType.COMMITTED, 21))

    assert emitted(result) == [(b"k", 19)]
    assert result.error is not None
    assert result.error.kind is RegionErrorKind.PREWRITE_NOT_MATCH
    assert classify(result.error.kind) is RegionErrorAction.RETRY_REGION
    assert emitted(feed(worker, row(LogType.COMMITTED, 22))) == []
    assert not resolve(worker, 30)


def test_a_commit_without_its_prewrite_waits_while_the_scan_runs() -> None:
    """The scan brings either the prewrite or the change itself."""
    worker = worker_of()
    assert feed(worker, row(LogType.COMMIT, 20), row(LogType.COMMIT, 21, b"m", start_ts=7)).error is None
    feed(worker, row(LogType.PREWRITE, value=b"x"))

    result = feed(worker, INITIALIZED)

    assert emitted(result) == [(b"k", 20)]
    assert result.initialized


def test_late_commits_of_transactions_under_way_at_the_start_are_dropped() -> None:
    """TiCDC 6.5.0 checked the timestamp before matching and crashed on these, which every busy table has (#9078)."""
    worker = worker_of(checkpoint_ts=10, start_ts=10, initialized=True)
    result = feed(worker, row(LogType.PREWRITE, start_ts=7), row(LogType.COMMIT, 9, start_ts=7))

    assert emitted(result) == []
    assert result.error is None
    assert worker.stats.before_start_rows == 1
    state = worker.state(1)
    assert state is not None
    assert state.matcher.waiting == 0  # matched all the same, or its prewrite would wait for ever


def test_cached_commits_are_checked_like_live_ones() -> None:
    """No version of TiCDC checks what it emits at INITIALIZED: a commit before the start would come out after all."""
    worker = worker_of(checkpoint_ts=10, start_ts=10)
    feed(worker, row(LogType.COMMIT, 9, start_ts=7), row(LogType.COMMIT, 20, start_ts=8))
    feed(worker, row(LogType.PREWRITE, start_ts=7), row(LogType.PREWRITE, start_ts=8))
    assert emitted(feed(worker, INITIALIZED)) == [(b"k", 20)]

    resumed = worker_of(checkpoint_ts=30, start_ts=10)
    feed(resumed, row(LogType.COMMIT, 25), row(LogType.PREWRITE))
    with pytest.raises(OrderBrokenError):
        feed(resumed, INITIALIZED)


@pytest.mark.parametrize("kind", [LogType.COMMITTED, LogType.COMMIT])
def test_a_change_at_or_before_the_resolved_timestamp_stops_the_feed(kind: LogType) -> None:
    """Its message has gone out without it. Going on would hide that the store broke its promise."""
    worker = worker_of(initialized=True)
    assert resolve(worker, 50)
    feed(worker, row(LogType.PREWRITE))

    with pytest.raises(OrderBrokenError) as error:
        feed(worker, row(kind, 50))
    assert error.value.metadata == {"region_id": "1", "commit_ts": "50", "resolved_ts": "50"}


def test_nothing_is_resolved_before_the_scan_is_over() -> None:
    """The scan still brings changes from any time after the checkpoint."""
    worker = worker_of()

    assert not resolve(worker, 30)
    feed(worker, INITIALIZED)
    assert resolve(worker, 30)


def test_a_regions_resolved_timestamp_never_goes_back_and_repeats_are_handed_on() -> None:
    """A store may send an older one after its leader changed; a repeat is how lock resolution sees that nothing moves."""
    worker = worker_of(initialized=True)

    assert [resolve(worker, ts) for ts in (20, 20, 19, 21)] == [True, True, False, True]
    assert worker.stats.resolved_fallbacks == 1
    state = worker.state(1)
    assert state is not None
    assert state.locked.resolved_ts == 21


def test_a_stream_that_names_no_request_resolves_its_regions() -> None:
    """Streams without multiplexing send request 0 for all regions."""
    worker = worker_of(request_id=9, initialized=True)

    assert resolve(worker, 20, request_id=None)


def test_rollbacks_during_the_scan_wait_until_the_cached_commits_are_matched() -> None:
    """A repeated rollback of a transaction that another client committed must not take its prewrite first."""
    worker = worker_of()
    feed(worker, row(LogType.ROLLBACK), row(LogType.PREWRITE, value=b""), row(LogType.COMMIT, 20))
    feed(worker, row(LogType.PREWRITE, key=b"m"), row(LogType.ROLLBACK, key=b"m"))

    assert emitted(feed(worker, INITIALIZED)) == [(b"k", 20)]
    state = worker.state(1)
    assert state is not None
    assert (state.matcher.waiting, state.matcher.bytes) == (0, 0)


def test_a_rollback_of_a_live_region_forgets_the_prewrite() -> None:
    """Prewrites do not expire: each that is kept by mistake is kept for ever."""
    worker = worker_of(initialized=True)
    feed(worker, row(LogType.PREWRITE), row(LogType.ROLLBACK))

    assert worker.matcher_bytes == 0


def test_rows_of_an_unknown_kind_end_the_feed() -> None:
    """A newer store sends something that this client would lose; asking again brings the same."""
    result = feed(worker_of(), row(LogType.UNKNOWN))

    assert result.error is not None
    assert result.error.kind is RegionErrorKind.UNKNOWN_LOG_TYPE
    assert classify(result.error.kind) is RegionErrorAction.FATAL


def test_a_change_that_is_neither_put_nor_delete_gives_the_region_up() -> None:
    """TiCDC crashed on it; taken for a put, it would write a value that nobody wrote."""
    worker = worker_of()
    change = row(LogType.COMMITTED, 20)
    change.op_type = OpType.UNKNOWN
    result = feed(worker, row(LogType.COMMITTED, 19), change, row(LogType.COMMITTED, 21))

    assert emitted(result) == [(b"k", 19)]
    assert result.error is not None
    assert result.error.kind is RegionErrorKind.UNKNOWN_OP
    assert classify(result.error.kind) is RegionErrorAction.RETRY_REGION


def test_initialized_twice_is_told_once() -> None:
    """The token of the store would be given back twice, and the limit grow."""
    worker = worker_of()

    assert [feed(worker, INITIALIZED).initialized for _ in range(2)] == [True, False]
    assert len(worker) == 1
