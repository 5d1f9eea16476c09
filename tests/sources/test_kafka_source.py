"""Kafka partitions as channels, against a real broker: order, gaps, seeking, and everything that must not pass in silence."""

import asyncio
import itertools
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.kafka import KafkaBroker

from datacoord.errors import SourceInvalidError, SourceLostError, SourceUnavailableError
from datacoord.positions import START, Position
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, ChannelContext, EndOfChannel, MessageBatch
from datanode_client.sources.kafka import KAFKA_CHANGES_SCHEMA, KafkaChannelReader, KafkaReaderFactory

from .files_reading import channel, ids, timestamps
from .replay import read_channel

pytestmark = pytest.mark.timeout(420)  # the first test that needs a broker fetches it
_NUMBERS = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name that no topic had."""
    return f"topic-{next(_NUMBERS)}"


def values(first: int, count: int, partition: int = 0) -> list[dict[str, Any]]:
    """Messages with the ids from `first` on."""
    return [
        {"key": b'{"id":%d}' % number, "value": b'{"id":%d,"name":"x"}' % number, "partition": partition}
        for number in range(first, first + count)
    ]


def make(kafka: KafkaBroker, topic: str, **options: Any) -> KafkaReaderFactory:
    """A factory that reads a few messages at a time, and gives up late: a broker on a busy machine is slow."""
    settings: dict[str, Any] = {"batch_messages": 7, "timeout_seconds": 30.0, "check_seconds": 0.2} | options
    return KafkaReaderFactory(kafka.bootstrap, topic, **settings)


async def take(reader: KafkaChannelReader, count: int) -> tuple[list[int], Position]:
    """The ids of the next rows, and where the reader is."""
    found: list[int] = []
    position = START
    async with asyncio.timeout(60):
        while len(found) < count:
            event = await reader.next()
            position = event.position
            if isinstance(event, MessageBatch):
                found += event.rows.column("id").to_pylist()
    return found, position


async def take_when_it_answers(reader: KafkaChannelReader, after: Position, count: int) -> tuple[list[int], Position]:
    """The same from a position on, of a cluster that may be away: opened again until it answers, as a datanode does."""
    async with asyncio.timeout(60):
        while True:
            with suppress(SourceUnavailableError):
                await reader.open(after)
                return await take(reader, count)


async def fails(reader: KafkaChannelReader, found: list[int] | None = None) -> None:
    """Reads until something is raised; what comes before goes into `found`."""
    async with asyncio.timeout(60):
        while True:
            event = await reader.next()
            assert not isinstance(event, EndOfChannel)
            if isinstance(event, MessageBatch) and found is not None:
                found += event.rows.column("id").to_pylist()


async def test_transactions_leave_gaps_and_what_is_not_decided_is_not_read(kafka: KafkaBroker, topic: str) -> None:
    """An aborted message that lands was never sent; an undecided one may never have been; and a gap is no loss."""
    kafka.create_topic(topic, 1)
    kafka.produce(topic, values(0, 20))
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions()
    for first, commit in ((100, False), (20, True), (200, False)):
        producer.begin_transaction()
        for message in values(first, 10):
            producer.produce(topic, **message)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.begin_transaction()
    for message in values(300, 5):
        producer.produce(topic, **message)
    producer.flush()

    factory = make(kafka, topic, until_head=True)
    whole = await read_channel(factory, channel())
    assert ids(whole) == list(range(30))
    assert timestamps(whole) == [*range(1, 21), *range(32, 42)]  # 20 to 29 were aborted, 30 says so
    assert whole.positions[-1].timestamp == 53  # and 41 to 52 are the commit and another aborted transaction
    for place, position in enumerate(whole.positions[1:], 1):
        rest = await read_channel(factory, channel(), after=position)
        assert ids(rest) == ids(whole)[sum(batch.num_rows for batch in whole.batches[:place]) :]
        assert timestamps(rest) == timestamps(whole)[len(ids(whole)) - len(ids(rest)) :]
    assert ids(await read_channel(factory, channel(), stops=[1] * 100)) == list(range(30))

    producer.commit_transaction()  # which is answered before the end of what may be read moves
    reader = make(kafka, topic)(channel())
    await reader.open(whole.positions[-1])
    assert (await take(reader, 5))[0] == list(range(300, 305))
    await reader.close()
    everything = make(kafka, topic, until_head=True, config={"isolation.level": "read_uncommitted"})
    assert len(ids(await read_channel(everything, channel()))) == 55


async def test_a_reader_follows_and_says_where_the_end_is(kafka: KafkaBroker, topic: str) -> None:
    """Lag is what operators look at; and the channels of a topic must not get each other's messages."""
    kafka.create_topic(topic, 2)
    kafka.produce(topic, values(0, 10) + values(50, 3, partition=1))
    factory: KafkaReaderFactory = pickle.loads(pickle.dumps(make(kafka, topic)))
    readers = [factory(channel(index, 2)) for index in range(2)]
    for reader in readers:
        await reader.open(START)
    assert [reader.head() for reader in readers] == [10, 3]
    assert (await take(readers[0], 10))[0] == list(range(10))
    assert (await take(readers[1], 3))[0] == [50, 51, 52]
    kafka.produce(topic, values(10, 5))
    found, position = await take(readers[0], 5)
    assert (found, position.timestamp, readers[0].head()) == ([10, 11, 12, 13, 14], 15, 15)
    assert position.event_time_ms > 1_700_000_000_000
    for reader in readers:
        await reader.close()
        await reader.close()
    with pytest.raises(SourceInvalidError, match="not open"):
        await readers[0].next()


async def test_a_bounded_read_ends_where_the_topic_ended_when_it_began(kafka: KafkaBroker, topic: str) -> None:
    """A topic that is written to all the time would never end; and a row behind the end would be landed under a wrong position."""
    kafka.create_topic(topic, 1)
    kafka.produce(topic, values(0, 10))
    reader = make(kafka, topic, until_head=True)(channel())
    await reader.open(START)
    kafka.produce(topic, values(10, 10))
    found: list[int] = []
    async with asyncio.timeout(60):
        while not isinstance(event := await reader.next(), EndOfChannel):
            found += event.rows.column("id").to_pylist()  # type: ignore[union-attr]
    assert (found, event.position.timestamp) == (list(range(10)), 10)
    await reader.close()


async def test_a_cancelled_wait_loses_nothing(kafka: KafkaBroker, topic: str) -> None:
    """The datanode cancels a wait whenever a graph drains; what the client has handed over must come with the next call."""
    kafka.create_topic(topic, 1)
    kafka.produce(topic, values(0, 100))
    reader = make(kafka, topic)(channel())
    await reader.open(START)
    found: list[int] = []
    async with asyncio.timeout(60):
        for round_ in itertools.count():
            waiting = asyncio.create_task(reader.next())
            await asyncio.sleep(0.001)
            if round_ % 2:
                waiting.cancel()
            (event,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(event, MessageBatch):
                found += event.rows.column("id").to_pylist()
            if len(found) == 100:
                break
    assert found == list(range(100))
    await reader.close()


async def test_tombstones_delete_and_raw_messages_stay_what_they_are(kafka: KafkaBroker, topic: str) -> None:
    """A compacted topic is a table: a key whose delete is not understood stays for ever."""
    kafka.create_topic(topic, 1, **{"cleanup.policy": "compact"})
    messages = [*values(1, 2), {"key": b'{"id":1}', "value": None, "partition": 0}]
    kafka.produce(topic, messages)
    reading = await read_channel(make(kafka, topic, until_head=True), channel(primary_key=("id",)))
    assert [(row["id"], row[OP_COLUMN] == OP_DELETE) for row in reading.table().to_pylist()] == [
        (1, False),
        (2, False),
        (1, True),
    ]
    raw = await read_channel(make(kafka, topic, until_head=True, value="raw"), channel(schema=KAFKA_CHANGES_SCHEMA))
    assert raw.table().column("value").to_pylist() == [b'{"id":1,"name":"x"}', b'{"id":2,"name":"x"}', None]
    assert raw.table().column("offset").to_pylist() == [0, 1, 2]


async def test_messages_that_retention_removed_unread_are_an_error(kafka: KafkaBroker, topic: str) -> None:
    """To go on with what is left is how consumers of Kafka lose data without anybody knowing."""
    kafka.create_topic(topic, 1)
    large = [{**message, "headers": [("x", bytes(4000))]} for message in values(0, 200)]
    kafka.produce(topic, large, **{"batch.num.messages": 1})
    little = {"fetch.message.max.bytes": 1000, "queued.min.messages": 1, "queued.max.messages.kbytes": 1}
    reader = make(kafka, topic, config=little)(channel())
    await reader.open(START)
    found, position = await take(reader, 7)
    kafka.delete_records(topic, 0, 199)
    with pytest.raises(SourceLostError, match="Nothing was skipped"):
        await fails(reader, found)
    assert found == list(range(len(found)))
    assert len(found) < 199
    await reader.close()
    with pytest.raises(SourceLostError, match=f"Offset {position.timestamp} is next, and there are 199 to 200"):
        await reader.open(position)
    await reader.close()

    fresh = await read_channel(make(kafka, topic, until_head=True), channel())
    assert ids(fresh) == [199]


async def test_a_topic_made_again_is_noticed_before_a_message_of_it_is_handed_out(
    kafka: KafkaBroker, topic: str
) -> None:
    """The client goes on at the old offset, in the middle of other messages: rows lost and rows of somebody else."""
    kafka.create_topic(topic, 1)
    kafka.produce(topic, values(0, 10))
    reader = make(kafka, topic, check_seconds=3600.0)(channel())
    await reader.open(START)
    _, position = await take(reader, 10)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 1)
    kafka.produce(topic, values(1000, 40))
    found: list[int] = []
    with pytest.raises(SourceLostError, match=r"made again|does not have the messages"):
        await fails(reader, found)
    assert found == []
    await reader.close()
    with pytest.raises(SourceLostError, match="made again"):
        await reader.open(position)
    await reader.close()


async def test_a_topic_that_is_deleted_or_grows_is_noticed_where_no_messages_come(
    kafka: KafkaBroker, topic: str
) -> None:
    """A partition that nobody reads loses every message in it, and looks like nothing at all."""
    kafka.create_topic(topic, 1)
    kafka.produce(topic, values(0, 3))
    reader = make(kafka, topic)(channel())
    await reader.open(START)
    _, position = await take(reader, 3)
    kafka.add_partitions(topic, 2)
    with pytest.raises(SourceInvalidError, match="has 2 partitions, and collection 'c' has 1 channels"):
        await fails(reader)
    await reader.close()
    with pytest.raises(SourceInvalidError, match="has 2 partitions"):
        await reader.open(position)
    await reader.close()

    reader = make(kafka, topic)(channel(0, 2))
    await reader.open(position)
    kafka.delete_topic(topic)
    with pytest.raises(SourceLostError, match=f"there is no topic '{topic}"):
        await fails(reader)
    await reader.close()
    with pytest.raises(SourceLostError, match=f"there is no topic '{topic}'"):
        await reader.open(START)
    await reader.close()


async def test_a_bad_message_is_named_and_can_be_left_out_by_name(kafka: KafkaBroker, topic: str) -> None:
    """A message cannot be corrected in Kafka: without a way out, one bad one stops a channel for ever."""
    kafka.create_topic(topic, 1)
    kafka.produce(topic, [*values(0, 5), {"value": b"oops", "partition": 0}, *values(6, 5)])
    reader = make(kafka, topic)(channel())
    await reader.open(START)
    found: list[int] = []
    with pytest.raises(SourceInvalidError, match=rf"{topic}/0, offset 5: the message .*skip=\{{0: \[5\]\}}") as error:
        await fails(reader, found)
    assert found == [0, 1, 2, 3, 4]
    assert error.value.metadata["offset"] == "5"
    await reader.close()
    left = await read_channel(make(kafka, topic, until_head=True, skip={0: [5]}), channel())
    assert ids(left) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    last = await read_channel(make(kafka, topic, until_head=True, skip={0: range(3, 11)}), channel())
    assert (ids(last), last.positions[-1].timestamp) == ([0, 1, 2], 11)


async def test_a_broker_that_is_killed_is_waited_for(kafka: KafkaBroker, topic: str) -> None:
    """A cluster that is away for a minute must neither end a channel, nor let a message come twice or not at all."""
    kafka.create_topic(topic, 1)
    kafka.produce(topic, values(0, 10))
    reader = make(kafka, topic, timeout_seconds=1.0)(channel())
    _, position = await take_when_it_answers(reader, START, 10)
    await asyncio.to_thread(kafka.kill)
    try:
        with pytest.raises(SourceUnavailableError, match="goes on by itself"):
            await fails(reader)
        await reader.close()
        with pytest.raises(SourceUnavailableError, match="goes on by itself"):
            await reader.open(position)
        await reader.close()
    finally:
        await asyncio.to_thread(kafka.start)
    kafka.produce(topic, values(10, 5))
    assert (await take_when_it_answers(reader, position, 5))[0] == [10, 11, 12, 13, 14]
    await reader.close()


@pytest.mark.parametrize(
    ("attempt", "what"),
    [
        (lambda: KafkaReaderFactory("b", "t", value="avro"), "value is 'avro', but must be json or raw"),
        (
            lambda: KafkaReaderFactory("b", "t", config={"enable.auto.commit": True}),
            "enable.auto.commit is the reader's",
        ),
        (lambda: KafkaReaderFactory("b", "t", value="raw", operation_column="op")(channel()), "no fields"),
    ],
)
def test_settings_that_would_lose_messages_are_refused(attempt: Callable[[], object], what: str) -> None:
    """Auto-commit, a reset to the latest offset: what consumers usually do, and what loses messages."""
    with pytest.raises(SourceInvalidError, match=what):
        attempt()


async def test_a_position_of_another_log_is_refused(kafka: KafkaBroker, topic: str) -> None:
    """An offset means nothing in another partition."""
    kafka.create_topic(topic, 2)
    kafka.produce(topic, values(0, 5) + values(5, 5, partition=1))
    context: ChannelContext = channel(1, 2)
    position = (await read_channel(make(kafka, topic, until_head=True), channel(0, 2))).positions[-1]
    reader = make(kafka, topic)(context)
    with pytest.raises(SourceLostError, match="belongs to"):
        await reader.open(position)
    await reader.close()
    for msg_id in (b"", b"[]", b"{}", b'{"offset":1}'):
        with pytest.raises(SourceLostError, match="not given by this reader"):
            await reader.open(Position(3, msg_id, f"kafka:{topic}/1"))
        await reader.close()
    with pytest.raises(SourceInvalidError, match="the client refuses its settings"):
        await make(kafka, topic, config={"isolation.level": "none"})(context).open(START)
