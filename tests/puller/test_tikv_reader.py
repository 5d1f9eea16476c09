"""The reader of TiKV's change feed: messages, ticks, positions, and what it refuses."""

import asyncio
import pickle
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datacoord.errors import SourceInvalidError, SourceLostError, SourceUnavailableError
from datacoord.positions import Position
from datanode_client.puller.span import Span, encode_bytes
from datanode_client.puller.tikv.gc_safe_point import RETRY_SECONDS, GCSafePointKeeper
from datanode_client.puller.tikv.pd_client import PDUnavailableError
from datanode_client.sources import tikv
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_DELETE,
    OP_INSERT,
    OP_UPSERT,
    TIMESTAMP_COLUMN,
    ChannelContext,
    MessageBatch,
    SourceEvent,
    Tick,
)
from datanode_client.sources.tikv import (
    TIKV_CHANGES_SCHEMA,
    TIKV_SCHEMA,
    TikvChannelReader,
    TikvReaderFactory,
    TiKVSettings,
    propose_split_keys,
)

from .socket_run import SteppedClock
from .tikv_server.living import LivingCluster, living_cluster
from .tikv_server.mvcc import DELETE, PUT, Lock
from .tikv_server.workload import Workload

KEYS = [b"k%02d" % number for number in range(20)]


@pytest.fixture
async def living() -> AsyncIterator[LivingCluster]:
    """A cluster without keys."""
    async with living_cluster() as made:
        yield made


def context(schema: pa.Schema = TIKV_SCHEMA, index: int = 0, count: int = 1, **changes: Any) -> ChannelContext:
    """What a reader is told of its channel."""
    primary_key = ("key",) if schema.equals(TIKV_SCHEMA) else ()
    options: dict[str, Any] = {
        "channel_name": f"t_1v{index}",
        "channel_index": index,
        "channel_count": count,
        "collection_name": "t",
        "schema": schema,
        "primary_key": primary_key,
        "partitions": {"_default": 1},
        "properties": {},
    }
    return ChannelContext(**(options | changes))


def factory(living: LivingCluster, span: Span | None = None, **options: Any) -> TikvReaderFactory:
    """Makes readers of the cluster."""
    settings = TiKVSettings(tuple(living.server.pd_addresses), call_timeout_seconds=20.0)
    return TikvReaderFactory(settings, span, clock=living.clock, **options)


def write(living: LivingCluster, *changes: tuple[bytes, bytes | None]) -> int:
    """One transaction over some keys; None deletes. Returns its commit timestamp."""
    cluster = living.cluster
    start_ts = cluster.tso()
    for key, value in changes:
        cluster.mvcc.prewrite(key, Lock(start_ts, changes[0][0], DELETE if value is None else PUT, value or b""))
    commit_ts = cluster.tso()
    for key, _ in changes:
        cluster.mvcc.commit(key, start_ts, commit_ts)
    return commit_ts


async def read_to(reader: TikvChannelReader, timestamp: int) -> list[SourceEvent]:
    """Events until everything up to a timestamp is there."""
    events: list[SourceEvent] = []
    async with asyncio.timeout(20):
        while not events or events[-1].position.timestamp < timestamp or isinstance(events[-1], MessageBatch):
            events.append(await reader.next())
    return events


def rows(events: list[SourceEvent]) -> list[dict[str, Any]]:
    """The rows of some events."""
    return [row for event in events if isinstance(event, MessageBatch) for row in event.rows.to_pylist()]


async def test_a_transaction_is_one_message_and_the_resolved_timestamp_a_tick(living: LivingCluster) -> None:
    """A transaction that came in two halves would be visible in halves."""
    first = write(living, (b"a", b"1"), (b"b", b"2"))
    second = write(living, (b"a", None), (b"c", b"3"))
    reader = factory(living)(context())
    await reader.open(Position(0))

    events = await read_to(reader, second)
    await reader.close()

    assert rows(events) == [
        {"key": b"a", "value": b"1", TIMESTAMP_COLUMN: first, OP_COLUMN: OP_UPSERT},
        {"key": b"b", "value": b"2", TIMESTAMP_COLUMN: first, OP_COLUMN: OP_UPSERT},
        {"key": b"a", "value": None, TIMESTAMP_COLUMN: second, OP_COLUMN: OP_DELETE},
        {"key": b"c", "value": b"3", TIMESTAMP_COLUMN: second, OP_COLUMN: OP_UPSERT},
    ]
    assert isinstance(events[-1], Tick)
    assert events[0].position.event_time_ms == second >> 18
    assert reader.head() is not None


async def test_a_log_of_changes_keeps_every_change_as_a_row(living: LivingCluster) -> None:
    """Without a primary key a delete is something that happened, and must be there to be read."""
    first = write(living, (b"a", b"1"))
    second = write(living, (b"a", None))
    reader = factory(living)(context(TIKV_CHANGES_SCHEMA))
    await reader.open(Position(0))

    found = rows(await read_to(reader, second))
    await reader.close()

    assert [(row["op"], row["value"], row["old_value"], row["commit_ts"]) for row in found] == [
        ("put", b"1", None, first),
        ("delete", None, b"1", second),
    ]
    assert all(row[OP_COLUMN] == OP_INSERT and row["start_ts"] < row["commit_ts"] for row in found)


async def test_a_reader_goes_on_right_behind_any_position_it_gave(living: LivingCluster) -> None:
    """A checkpoint may lie anywhere between two messages: what is before it must not come again, what is after it must."""
    commits = [write(living, (key, b"v")) for key in KEYS]
    make = factory(living)
    whole = make(context())
    await whole.open(Position(0))
    events = await read_to(whole, commits[-1])
    position = next(event.position for event in events)
    assert position.timestamp == commits[-1]  # all in one batch
    await whole.close()

    for index in (0, 7, 19):
        reader = make(context())
        await reader.open(Position(commits[index], str(commits[index]).encode(), position.msg_group))
        last = write(living, (b"z", b"later"))
        found = [row[TIMESTAMP_COLUMN] for row in rows(await read_to(reader, last))]
        await reader.close()
        later = {change.commit_ts for change in living.cluster.mvcc.history if change.key == b"z"}
        assert [ts for ts in found if ts not in later] == commits[index + 1 :]


async def test_channels_divide_the_keys_among_them(living: LivingCluster) -> None:
    """A key that two channels read is doubled, one that none reads is lost."""
    write(living, *((key, b"v") for key in KEYS))
    living.cluster.split(encode_bytes(b"k05"))
    make = factory(living, Span(b"k01", b"k15"), split_keys=[b"k04", b"k11"])
    found = []
    for index in range(3):
        reader = make(context(index=index, count=3))
        await reader.open(Position(0))
        found.append([row["key"] for row in rows(await read_to(reader, living.cluster.tso()))])
        await reader.close()

    assert found == [KEYS[1:4], KEYS[4:11], KEYS[11:15]]


async def test_readers_share_one_client_and_the_last_one_closes_it(living: LivingCluster) -> None:
    """A client that stays open keeps streams and tokens at every store; one closed too early ends its neighbours."""
    make = factory(living, split_keys=[b"k10"])
    readers = [make(context(index=index, count=2)) for index in range(2)]
    for reader in readers:
        await reader.open(Position(0))
    client = make.shared().client

    await readers[0].close()
    last = write(living, (b"k11", b"v"))
    assert [row["key"] for row in rows(await read_to(readers[1], last))] == [b"k11"]
    was_usable = client.is_usable
    await readers[1].close()

    assert was_usable
    assert not client.is_usable
    assert make.shared().client is not client
    await make.shared().client.close()


async def test_a_cancelled_next_loses_nothing(living: LivingCluster) -> None:
    """The datanode cancels reads when it is asked to drain."""
    reader = factory(living)(context())
    await reader.open(Position(0))
    commits = []
    found: list[SourceEvent] = []
    for key in KEYS:
        commits.append(write(living, (key, b"v")))
        for _ in range(10):
            with suppress(TimeoutError):
                found.append(await asyncio.wait_for(reader.next(), 0.001))
    found += await read_to(reader, living.cluster.tso())
    await reader.close()

    assert [row[TIMESTAMP_COLUMN] for row in rows(found)] == commits


async def test_what_waits_goes_to_disk_and_comes_back(living: LivingCluster, tmp_path: Path) -> None:
    """Changes wait for the slowest region; memory must not be what ends the feed."""
    workload = Workload(living.cluster, random.Random(1), KEYS, deaths=0)
    for _ in range(600):
        workload.step()
    workload.finish()
    reader = factory(living, sorter_memory_bytes=1000, sorter_directory=tmp_path)(context(TIKV_CHANGES_SCHEMA))
    await reader.open(Position(0))

    found = rows(await read_to(reader, living.cluster.tso()))
    await reader.close()

    expected = living.cluster.changes(0, 2**63)
    assert [(row["commit_ts"], row["key"]) for row in found] == [(each.commit_ts, each.key) for each in expected]
    assert len(found) > 50


async def test_batches_are_of_bounded_size_and_end_between_messages(
    living: LivingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first scan of a large table resolves all of it at once."""
    monkeypatch.setattr(tikv, "BATCH_ROWS", 5)
    last = 0
    for number in range(12):
        last = write(living, *((key, b"%d" % number) for key in KEYS[:3]))
    reader = factory(living)(context(TIKV_CHANGES_SCHEMA))
    await reader.open(Position(0))

    batches = [event for event in await read_to(reader, last) if isinstance(event, MessageBatch)]
    await reader.close()

    assert [batch.rows.num_rows for batch in batches] == [6] * 6
    assert [batch.rows.column(TIMESTAMP_COLUMN)[-1].as_py() for batch in batches] == [
        batch.position.timestamp for batch in batches
    ]


async def test_a_position_of_another_cluster_or_key_range_is_refused(living: LivingCluster) -> None:
    """Timestamps of two clusters compare well and mean nothing to each other; keys of another range were never read."""
    make = factory(living)
    stranger = make(context())
    with pytest.raises(SourceLostError, match="belongs to 'tikv-1-abc'"):
        await stranger.open(Position(5, b"5", "tikv-1-abc"))
    await stranger.close()

    reader = make(context())
    await reader.open(Position(0))
    position = (await read_to(reader, 1))[-1].position
    await reader.close()
    narrower = factory(living, Span(b"a", b"b"))(context())
    with pytest.raises(SourceLostError, match="split keys it had"):
        await narrower.open(position)
    await narrower.close()
    forged = make(context())
    with pytest.raises(SourceLostError, match="not given by this reader"):
        await forged.open(Position(5, b"five", position.msg_group))
    await forged.close()


SERVICE = b"datacoord-t_1v0"


async def test_history_is_kept_while_a_channel_is_read_and_some_time_after(living: LivingCluster) -> None:
    """Garbage collection removes deletes; a scan from behind would leave deleted keys in the collection for ever."""
    make = factory(living, gc_hold_back_seconds=10.0, gc_ttl_seconds=3600.0)
    reader = make(context())
    await reader.open(Position(0))
    first = write(living, (b"a", b"1"))
    position = (await read_to(reader, first))[-1].position
    await reader.close()

    again = make(context())
    await again.open(position)
    living.cluster.gc(living.cluster.tso())
    assert living.cluster.gc_safe_point == int(position.msg_id) == position.timestamp
    async with asyncio.timeout(20):  # what is handed out later takes the place of where it began
        while living.cluster.service_safe_points[SERVICE] <= position.timestamp:
            write(living, (b"a", b"2"))
            await again.next()
    await again.close()


class RecordingPD:
    """PD, as far as it keeps history; each answer may be a failure."""

    def __init__(self, *answers: int | Exception) -> None:
        self.registered: list[int] = []
        self._answers = list(answers)

    async def update_service_gc_safe_point(self, service_id: str, ttl_seconds: int, safe_point: int) -> int:
        answer = self._answers.pop(0) if self._answers else safe_point
        if isinstance(answer, Exception):
            raise answer
        self.registered.append(safe_point)
        return answer


async def test_what_was_handed_out_lately_stays_kept() -> None:
    """It may still wait in a buffer: then a restart begins before it."""
    clock, pd = SteppedClock(), RecordingPD(100, PDUnavailableError("away"))
    keeper = GCSafePointKeeper(pd, "s", hold_back_seconds=10, ttl_seconds=100, clock=clock)  # type: ignore[arg-type]
    await keeper.begin(100)
    running = asyncio.create_task(keeper.run())
    for ts, step_seconds in ((200, 10), (200, RETRY_SECONDS), (300, 10), (400, 10)):
        await asyncio.sleep(0)
        keeper.handed_out(ts)
        clock.advance(step_seconds)
        for _ in range(5):
            await asyncio.sleep(0)
    running.cancel()

    assert pd.registered == [100, 100, 200, 300]


async def test_what_was_handed_out_stays_kept_as_long_as_was_said_however_often_it_is_renewed() -> None:
    """A short time to live means many renewals; each of them must not move the registration to what is still in a buffer."""
    clock, pd = SteppedClock(), RecordingPD()
    keeper = GCSafePointKeeper(pd, "s", hold_back_seconds=10, ttl_seconds=12, clock=clock)  # type: ignore[arg-type]
    await keeper.begin(0)
    running = asyncio.create_task(keeper.run())
    for _ in range(40):
        for _ in range(5):
            await asyncio.sleep(0)
        clock.advance(1)
        keeper.handed_out(int(clock.monotonic()))
    running.cancel()

    renewed_at = range(3, 40, 3)
    assert pd.registered[1:] == [max(0, (at - 10) // 3 * 3) for at in renewed_at]


async def test_a_first_scan_may_begin_again_anywhere_in_it(living: LivingCluster) -> None:
    """Its messages are older than the safe point; what they delete must be there as it was when the scan began."""
    for key in KEYS:
        write(living, (key, b"v"))
    living.cluster.gc(write(living, (KEYS[0], None)))
    began = living.cluster.gc_safe_point
    deleted = write(living, (KEYS[1], None))
    make = factory(living)
    reader = make(context())
    await reader.open(Position(0))
    events = await read_to(reader, deleted)
    await reader.close()
    early = rows(events)[0]
    position = Position(early[TIMESTAMP_COLUMN], str(began).encode(), events[0].position.msg_group)
    living.cluster.gc(living.cluster.tso())

    again = make(context())
    await again.open(position)
    found = rows(await read_to(again, deleted))
    await again.close()

    assert early["key"] == KEYS[1]
    assert early[TIMESTAMP_COLUMN] < began == living.cluster.gc_safe_point
    assert int(events[0].position.msg_id) == max(began, events[0].position.timestamp)
    assert [row["key"] for row in found] == [*KEYS[2:], KEYS[1]]


@pytest.mark.parametrize("registers", [True, False])
async def test_a_channel_does_not_begin_where_history_is_gone(living: LivingCluster, registers: bool) -> None:
    """The deletes that were removed would be missed without a word."""
    reader = factory(living, gc_ttl_seconds=0)(context())
    await reader.open(Position(0))
    position = (await read_to(reader, write(living, (b"a", b"1"))))[-1].position
    await reader.close()
    write(living, (b"a", None))
    living.cluster.gc(living.cluster.tso())

    late = factory(living, gc_ttl_seconds=3600 if registers else 0)(context())
    with pytest.raises(SourceLostError, match="removed history"):
        await late.open(position)
    await late.close()
    early = factory(living, start_ts=position.timestamp)(context())
    with pytest.raises(SourceLostError, match="removed history"):
        await early.open(Position(0))
    await early.close()


async def test_a_feed_that_fails_says_so_behind_what_was_ready(living: LivingCluster) -> None:
    """A reader that waits for ever looks like a quiet table."""
    reader = factory(living)(context())
    await reader.open(Position(0))
    await read_to(reader, write(living, (b"a", b"1")))

    for feed in living.cluster.feeds.values():
        feed.cluster_id = 1
    living.cluster.split(encode_bytes(b"m"))
    with pytest.raises(SourceInvalidError, match="check the addresses of PD"):
        await read_to(reader, 2**63)
    with pytest.raises(SourceInvalidError):
        await reader.next()
    await reader.close()


async def test_no_pd_is_a_fault_that_passes(living: LivingCluster) -> None:
    """PD restarts; a channel that failed for good because of that would need a person."""
    living.cluster.pd_down = {0, 1}
    reader = factory(living)(context())

    with pytest.raises(SourceUnavailableError, match="no member of PD"):
        await reader.open(Position(0))
    await reader.close()


async def test_the_factory_travels_without_its_client(living: LivingCluster) -> None:
    """Executors get it by pickle."""
    make = TikvReaderFactory(TiKVSettings(tuple(living.server.pd_addresses)), Span(b"a", b"b"), start_ts=7)
    make.shared()

    copy = pickle.loads(pickle.dumps(make))

    assert copy._shared is None
    assert (copy.spans, copy.settings, copy.start_ts) == (make.spans, make.settings, make.start_ts)
    await make.shared().client.close()


async def test_proposed_split_keys_divide_the_regions_of_now(living: LivingCluster) -> None:
    """Channels of very different size end one after the other."""
    for key in KEYS:
        living.cluster.split(encode_bytes(key))
    living.cluster.split(b"k05-inside")
    living.cluster.topology.tell_pd()
    settings = TiKVSettings(tuple(living.server.pd_addresses), region_load_limit=3)

    assert await propose_split_keys(settings, Span(b"k00", b"k12"), 4) == [b"k03", b"k06", b"k09"]
    assert await propose_split_keys(settings, Span(b"k02", b"k04"), 9) == [b"k03"]
    assert await propose_split_keys(settings, Span(b"k02", b"k03"), 9) == []
    assert len(await propose_split_keys(settings, Span(), 5)) == 4


@pytest.mark.parametrize("split_keys", [[b"b", b"a"], [b"c", b"c"], [b"a"], [b"z"]])
def test_split_keys_must_cut_the_key_range(split_keys: list[bytes]) -> None:
    """A channel of no keys, or of keys outside, is a mistake in a setting."""
    with pytest.raises(SourceInvalidError, match="ascend inside"):
        TikvReaderFactory(TiKVSettings(("127.0.0.1:1",)), Span(b"a", b"z"), split_keys=split_keys)


@pytest.mark.parametrize("times", [{"gc_hold_back_seconds": 0.0}, {"gc_ttl_seconds": -1.0}])
def test_times_of_the_garbage_collection_are_checked(times: dict[str, Any]) -> None:
    """Holding nothing back would renew without a pause, and keep nothing."""
    with pytest.raises(SourceInvalidError, match="the first must be above 0"):
        TikvReaderFactory(TiKVSettings(("127.0.0.1:1",)), **times)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"channel_count": 2}, "cut into 1 parts"),
        ({"schema": pa.schema([("key", pa.binary()), ("name", pa.string())])}, "has the column name"),
        ({"schema": pa.schema([("key", pa.string())])}, "has the column key"),
        ({"primary_key": ("value",)}, "primary key"),
    ],
)
def test_a_collection_that_changes_do_not_fit_into_is_refused(changes: dict[str, Any], what: str) -> None:
    """Better at the start than at the first row."""
    with pytest.raises(SourceInvalidError, match=what):
        TikvReaderFactory(TiKVSettings(("127.0.0.1:1",)))(context(**changes))
