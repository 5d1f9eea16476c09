"""The network client of TiKV's change feed: streams, protocols, PD, and who waits for whom."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from datacoord.errors import ConfigInvalidError, InternalError, SourceUnavailableError
from datanode_client.puller.actions import Deregister
from datanode_client.puller.errors import ClusterIDMismatchError, DuplicateRequestError
from datanode_client.puller.events import EntryBatch, RegionErrorKind, RegionFeedEvent, RegionSpan, ResolvedSpans
from datanode_client.puller.outbox import Outbox
from datanode_client.puller.span import Span, encode_bytes
from datanode_client.puller.tikv.client import TiKVClient
from datanode_client.puller.tikv.codec import encode_deregister
from datanode_client.puller.tikv.pd_client import PDClient, PDUnavailableError
from datanode_client.puller.tikv.settings import TiKVSettings
from datanode_client.puller.tikv.store_stream import StoreStream
from datanode_client.puller.wire import cdcpb_pb2

from .tikv_server.living import LivingCluster, living_cluster, until
from .tikv_server.mvcc import PUT, Lock

LEFT, RIGHT = Span(encode_bytes(b"a"), encode_bytes(b"m")), Span(encode_bytes(b"m"), encode_bytes(b"z"))


class Feeding:
    """A feed under way, and what it has delivered."""

    def __init__(self, client: TiKVClient, span: Span) -> None:
        self.values: list[bytes] = []
        self.resolved = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.task = asyncio.create_task(client.event_feed(span, 1, self._take))

    async def _take(self, event: RegionFeedEvent) -> None:
        await self.may_go_on.wait()
        if isinstance(event, EntryBatch):
            self.values += [entry.value for entry in event.entries]
        elif isinstance(event, ResolvedSpans):
            self.resolved = max(self.resolved, event.ts)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def living() -> AsyncIterator[LivingCluster]:
    """A cluster without keys."""
    async with living_cluster() as made:
        yield made


@pytest.fixture
async def client(living: LivingCluster) -> AsyncIterator[TiKVClient]:
    """A client of it."""
    settings = TiKVSettings(tuple(living.server.pd_addresses), call_timeout_seconds=20.0, backlog_bytes_max=2000)
    made = TiKVClient(settings, clock=living.clock)
    yield made
    await made.close()


@pytest.fixture
async def feed(client: TiKVClient) -> AsyncIterator[Callable[[Span], Feeding]]:
    """Begins feeds; they end with the test."""
    feedings: list[Feeding] = []

    def begin(span: Span) -> Feeding:
        feedings.append(Feeding(client, span))
        return feedings[-1]

    yield begin
    for feeding in feedings:
        await feeding.end()


def write(living: LivingCluster, key: bytes, value: bytes) -> int:
    """One committed change; returns its timestamp."""
    mvcc, start_ts = living.cluster.mvcc, living.cluster.tso()
    mvcc.prewrite(key, Lock(start_ts, key, PUT, value))
    commit_ts = living.cluster.tso()
    mvcc.commit(key, start_ts, commit_ts)
    return commit_ts


def connections(living: LivingCluster) -> int:
    """Streams that are open."""
    return sum(len(feed.connections) for feed in living.cluster.feeds.values())


def requests(living: LivingCluster) -> int:
    """Requests that are being answered."""
    feeds = living.cluster.feeds.values()
    return sum(len(connection.downstreams) for feed in feeds for connection in feed.connections)


async def test_all_feeds_share_one_stream_per_store(living: LivingCluster, feed: Callable[[Span], Feeding]) -> None:
    """A stream for each of a thousand channels and a hundred stores is more than anybody keeps open."""
    left, right = feed(LEFT), feed(RIGHT)
    write(living, b"b", b"left")
    target = write(living, b"n", b"right")
    await until(lambda: min(left.resolved, right.resolved) > target)

    assert (left.values, right.values) == ([b"left"], [b"right"])
    assert (connections(living), requests(living)) == (1, 2)


async def test_a_store_of_the_old_protocol_gets_a_stream_for_each_feed(
    living: LivingCluster, feed: Callable[[Span], Feeding]
) -> None:
    """Its resolved timestamps do not say whose they are; nothing that was asked for may be lost with the refused stream."""
    living.cluster.old_stores = {1, 2, 3}
    left, right = feed(LEFT), feed(RIGHT)
    target = write(living, b"n", b"right")
    await until(lambda: min(left.resolved, right.resolved) > target)

    assert (left.values, right.values) == ([], [b"right"])
    assert (connections(living), requests(living)) == (2, 2)
    asked = [(each.region_id, each.request_id) for each in living.cluster.feeds[1].seen_requests]
    assert len(asked) == len(set(asked)) == 2

    await left.end()
    await until(lambda: connections(living) == 1)
    target = write(living, b"n", b"again")
    await until(lambda: right.resolved > target)
    assert right.values == [b"right", b"again"]


async def test_a_store_is_asked_for_the_new_protocol_again_when_it_comes_back(
    living: LivingCluster, feed: Callable[[Span], Feeding]
) -> None:
    """A cluster is upgraded store by store, while feeds run."""
    living.cluster.old_stores = {1}
    left, right = feed(LEFT), feed(RIGHT)
    await until(lambda: left.resolved and right.resolved)
    living.cluster.old_stores.clear()
    living.cluster.break_streams(1)
    target = write(living, b"n", b"v")
    await until(lambda: min(left.resolved, right.resolved) > target)

    assert [connection.multiplexed for connection in living.cluster.feeds[1].connections] == [True]


async def test_a_store_speaks_one_protocol_at_a_time(living: LivingCluster, feed: Callable[[Span], Feeding]) -> None:
    """Resolved timestamps of the old protocol name no request: beside the new one they would be taken for a newer request's."""
    living.cluster.old_stores = {1}
    left, right = feed(LEFT), feed(RIGHT)
    await until(lambda: left.resolved and right.resolved)
    living.cluster.old_stores.clear()
    store = living.cluster.feeds[1]
    store.disconnect(store.connections[0])
    target = write(living, b"n", b"v")
    await until(lambda: min(left.resolved, right.resolved) > target)

    assert [connection.multiplexed for connection in store.connections] == [False, False]


async def test_a_request_that_ended_before_it_was_refused_is_not_sent_again(
    living: LivingCluster, client: TiKVClient
) -> None:
    """On a stream of its own it would cost the store, for a feed that is no more."""
    stream = StoreStream(1, None)
    stream.send(encode_deregister(1, Deregister(1, 7, 5)))
    stream.send(cdcpb_pb2.ChangeDataRequest(region_id=7, request_id=5))
    stream.send(cdcpb_pb2.ChangeDataRequest(region_id=7, request_id=(3 << 32) + 1))
    client._streams[1, None] = stream
    client._stream_tasks[stream] = asyncio.create_task(asyncio.sleep(0))

    client._fall_back(stream)

    assert list(client._streams) == [(1, 3)]


async def test_a_feed_that_ends_is_deregistered_and_its_neighbour_goes_on(
    living: LivingCluster, feed: Callable[[Span], Feeding]
) -> None:
    """Requests that nobody reads cost the store, and the shared stream."""
    left, right = feed(LEFT), feed(RIGHT)
    await until(lambda: left.resolved and right.resolved)

    await left.end()
    await until(lambda: requests(living) == 1)
    target = write(living, b"n", b"v")
    await until(lambda: right.resolved > target)

    assert right.values == [b"v"]


async def test_a_slow_consumer_stops_the_stream_and_not_the_memory(
    living: LivingCluster, client: TiKVClient, monkeypatch: pytest.MonkeyPatch, feed: Callable[[Span], Feeding]
) -> None:
    """What is read from the socket and not taken must lie somewhere: at the store, then."""
    feeding = feed(LEFT)
    await until(lambda: feeding.resolved)
    waiting = [0]
    put = Outbox.put

    def watched(outbox: Outbox[RegionFeedEvent], event: RegionFeedEvent) -> None:
        put(outbox, event)
        waiting.append(outbox._bytes)

    monkeypatch.setattr(Outbox, "put", watched)
    feeding.may_go_on.clear()
    for number in range(40):
        write(living, b"b", b"%03d" % number * 100)
    (connection,) = living.cluster.feeds[1].connections
    await until(lambda: not connection.outgoing and max(waiting) > 2000)
    for _ in range(5):
        await client.pd.tso()  # as much time as it takes to talk to somebody
    feeding.may_go_on.set()
    await until(lambda: len(feeding.values) == 40)

    assert 2000 < max(waiting) < 2000 + 1000


async def test_a_feed_that_ends_with_its_backlog_full_sets_the_shared_stream_free(
    living: LivingCluster, client: TiKVClient, feed: Callable[[Span], Feeding]
) -> None:
    """The stream waits for room that nobody would make any more."""
    left, right = feed(LEFT), feed(RIGHT)
    await until(lambda: left.resolved and right.resolved)
    left.may_go_on.clear()
    for _ in range(10):
        write(living, b"b", b"v" * 1000)
    await until(lambda: not client._outboxes[1]._room.is_set())
    target = write(living, b"n", b"v")

    await left.end()
    await until(lambda: right.resolved > target)

    assert right.values == [b"v"]


async def test_a_store_that_comes_back_elsewhere_is_found(
    living: LivingCluster, feed: Callable[[Span], Feeding]
) -> None:
    """In Kubernetes a store that is restarted has another address."""
    feeding = feed(LEFT)
    await until(lambda: feeding.resolved)
    for region in living.cluster.topology.regions:
        region.stores = [1]

    await living.server.stop_store(1)
    await living.server.start_store(1)
    target = write(living, b"b", b"v")
    await until(lambda: feeding.resolved > target)

    assert feeding.values == [b"v"]


async def test_a_store_that_pd_has_forgotten_does_not_hold_its_regions(
    living: LivingCluster, client: TiKVClient, feed: Callable[[Span], Feeding]
) -> None:
    """PD is asked again who leads them, until it is somebody who exists."""
    living.cluster.tombstones.add(1)
    feeding = feed(LEFT)
    await until(lambda: 1 in client.stats() and client.stats()[1].errors[RegionErrorKind.GET_STORE_FAILED] > 1)

    living.cluster.transfer_leader(living.cluster.topology.regions[0], 2)
    target = write(living, b"b", b"v")
    await until(lambda: feeding.resolved > target)

    assert feeding.values == [b"v"]
    assert not living.cluster.feeds[1].seen_requests


async def test_a_pd_that_hangs_is_given_up_and_its_successor_found(
    living: LivingCluster, client: TiKVClient, feed: Callable[[Span], Feeding]
) -> None:
    """A call without a deadline waits for a dead machine as long as the machine is dead."""
    feeding = feed(LEFT)
    await until(lambda: feeding.resolved)

    client.pd._timeout_seconds = 0.5
    living.cluster.hanging.add("pd-0")
    living.cluster.pd_leader = 1
    living.cluster.split(encode_bytes(b"c"))  # PD has to be asked
    target = write(living, b"b", b"v")
    await until(lambda: feeding.resolved > target)

    assert feeding.values == [b"v"]


async def test_a_pd_without_a_leader_fails_a_call_within_its_deadline(living: LivingCluster) -> None:
    """Whoever asks must be able to say that PD does not answer."""
    pd = PDClient(living.server.pd_addresses, 20.0)
    cluster_id = await pd.cluster_id()
    living.cluster.hanging |= {"pd-0", "pd-1"}
    pd._timeout_seconds = 0.2
    async with asyncio.timeout(20):
        with pytest.raises(PDUnavailableError):
            await pd.scan_regions(Span(), 10)
        with pytest.raises(PDUnavailableError):
            await pd.tso()
    living.cluster.hanging.clear()
    pd._timeout_seconds = 20.0
    living.cluster.pd_down.add(living.cluster.pd_leader)
    with pytest.raises(PDUnavailableError, match="knows no leader"):
        await pd.stores()
    living.cluster.pd_down.clear()

    assert len(await pd.stores()) == 3
    assert cluster_id == living.cluster.cluster_id
    await pd.close()


async def test_a_cluster_that_becomes_another_one_is_named_to_the_feeds(
    living: LivingCluster, feed: Callable[[Span], Feeding]
) -> None:
    """Behind an address that was given to somebody else; "internal error" would send people to look for a bug."""
    feeding = feed(LEFT)
    await until(lambda: feeding.resolved)
    living.cluster.cluster_id += 1
    await until(feeding.task.done)

    with pytest.raises(ClusterIDMismatchError, match="check the addresses"):
        await feeding.task


async def test_a_member_of_pd_that_ends_a_stream_without_a_word_is_not_asked_for_ever(living: LivingCluster) -> None:
    """It leads no more; as long as its timestamps are waited for, no lock of a dead client is resolved."""
    pd = PDClient(living.server.pd_addresses, 20.0)
    before = await pd.tso()
    living.cluster.pd_mute.add(0)
    living.cluster.pd_leader = 1
    assert await pd.tso() > before

    living.cluster.pd_mute.add(1)
    with pytest.raises(PDUnavailableError, match=r"ended .*Tso without an answer"):
        await pd.tso()
    await pd.close()


@pytest.mark.parametrize("its_leader", [0, 1])
async def test_the_pd_of_another_cluster_is_never_believed(living: LivingCluster, its_leader: int) -> None:
    """Its regions have the same ids and other keys, be it the leader we know or one we have to look for."""
    pd = PDClient(living.server.pd_addresses, 20.0)
    await pd.stores()
    living.cluster.cluster_id += 1
    living.cluster.pd_leader = its_leader

    with pytest.raises(ClusterIDMismatchError, match="check the addresses"):
        await pd.stores()
    await pd.close()


async def test_a_feed_that_cannot_go_on_leaves_the_others_alone(
    living: LivingCluster, feed: Callable[[Span], Feeding]
) -> None:
    """One table's trouble must not stop all tables of a process."""
    living.cluster.split(encode_bytes(b"m"))
    living.cluster.topology.tell_pd()
    left, right = feed(LEFT), feed(RIGHT)
    await until(lambda: left.resolved and right.resolved)

    error = cdcpb_pb2.Error(duplicate_request=cdcpb_pb2.DuplicateRequest())
    living.cluster.feeds[1].give_up(living.cluster.topology.regions[0], error)
    await until(left.task.done)
    target = write(living, b"n", b"v")
    await until(lambda: right.resolved > target)

    with pytest.raises(DuplicateRequestError):
        await left.task
    assert right.values == [b"v"]
    await until(lambda: requests(living) == 1)


async def test_nothing_is_taken_in_for_a_feed_behind_what_it_failed_with(
    living: LivingCluster, client: TiKVClient, feed: Callable[[Span], Feeding]
) -> None:
    """Its consumer may be slow to hear of it; what other regions send meanwhile would look as if nothing had happened."""
    living.cluster.split(encode_bytes(b"f"))
    living.cluster.topology.tell_pd()
    left, right = feed(LEFT), feed(RIGHT)
    await until(lambda: left.resolved and right.resolved)
    outbox = client._outboxes[1]
    left.may_go_on.clear()
    await until(lambda: outbox._events)

    error = cdcpb_pb2.Error(duplicate_request=cdcpb_pb2.DuplicateRequest())
    living.cluster.feeds[1].give_up(living.cluster.topology.regions[0], error)
    await until(lambda: outbox._error)
    write(living, b"g", b"of the other region")
    target = write(living, b"n", b"v")
    await until(lambda: right.resolved > target)
    left.may_go_on.set()

    with pytest.raises(DuplicateRequestError):
        await left.task
    assert left.values == []


async def test_a_bug_ends_the_feeds_aloud(
    living: LivingCluster, client: TiKVClient, monkeypatch: pytest.MonkeyPatch, feed: Callable[[Span], Feeding]
) -> None:
    """A background task that died in silence leaves feeds that wait for ever."""
    feeding = feed(LEFT)
    await until(lambda: feeding.resolved)

    def broken(*_args: Any) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(client._core, "tick", broken)
    await until(feeding.task.done)

    with pytest.raises(InternalError, match="KeyError"):
        await feeding.task
    assert not client.is_usable
    with pytest.raises(SourceUnavailableError, match="make a new one"):
        await client.event_feed(LEFT, 1, feeding._take)


async def test_closing_ends_streams_and_feeds(
    living: LivingCluster, client: TiKVClient, feed: Callable[[Span], Feeding]
) -> None:
    """A client that is closed under a feed must not leave it waiting."""
    feeding = feed(LEFT)
    await until(lambda: feeding.resolved)

    await client.close()
    await client.close()

    with pytest.raises(SourceUnavailableError, match="was closed"):
        await feeding.task
    await until(lambda: connections(living) == 0)


async def test_an_outbox_hands_out_what_it_has_before_it_fails() -> None:
    """What came before the failure is good."""
    outbox = Outbox[ResolvedSpans](1000)
    outbox.put(ResolvedSpans(5, []))
    outbox.fail(InternalError("first"))
    outbox.fail(InternalError("second"))

    assert await outbox.get() == ResolvedSpans(5, [])
    with pytest.raises(InternalError, match="first"):
        await outbox.get()


async def test_nobody_waits_for_room_in_an_outbox_that_failed() -> None:
    """Its stream has others to serve."""
    outbox = Outbox[ResolvedSpans](0)
    outbox.put(ResolvedSpans(5, [RegionSpan(1, LEFT)]))
    outbox.fail(InternalError("over"))

    async with asyncio.timeout(5):
        await outbox.wait_for_room()


@pytest.mark.parametrize(
    "options",
    [
        {"pd_addresses": ()},
        {"pd_addresses": ("host",)},
        {"call_timeout_seconds": 0},
        {"region_scan_limit": 0},
        {"backlog_bytes_max": -1},
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """A limit of 0 is a feed that never begins."""
    with pytest.raises(ConfigInvalidError):
        TiKVSettings(**({"pd_addresses": ("127.0.0.1:2379",)} | options))
