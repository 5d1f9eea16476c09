"""Reads a Kafka topic: each partition is a channel, each message a row, its offset + 1 the timestamp.

There is no consumer group and nothing is committed to Kafka: the coordinator keeps the positions, a reader is assigned its
partition and seeks. Offsets without a message are legal (control records, aborted transactions, compaction); offsets that were
there and are not any more are an error.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from datacoord.errors import SourceInvalidError, SourceLostError
from datacoord.limits import MSG_GROUP_CHARS_MAX
from datacoord.positions import Position
from datanode_client.clock import Clock, SystemClock
from datanode_client.sources.base import ChannelContext, EndOfChannel, MessageBatch, SourceEvent, Tick, check_group
from datanode_client.sources.files_rows import BadRowError, RowMaker
from datanode_client.sources.kafka_rows import (
    KAFKA_CHANGES_SCHEMA,
    KAFKA_PRIMARY_KEY,
    KAFKA_SCHEMA,
    JsonDecoder,
    MessageDecoder,
    RawDecoder,
)
from datanode_client.sources.kafka_topic import (
    KafkaPosition,
    KafkaTopic,
    PartitionOffsets,
    TopicInfo,
    ck,
    client_log,
    out_of_range,
    refused_settings,
    typed,
)

__all__ = ["KAFKA_CHANGES_SCHEMA", "KAFKA_PRIMARY_KEY", "KAFKA_SCHEMA", "KafkaChannelReader", "KafkaReaderFactory"]

_OURS: Final[Mapping[str, Any]] = {
    "group.id": "datacoord",  # the client wants one; nothing joins it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
"""Settings that decide whether anything is lost."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 1024 * 1024,
    "reconnect.backoff.ms": 200,
    "reconnect.backoff.max.ms": 2000,
}

_IDLE_SECONDS_FIRST: Final = 0.002


class KafkaReaderFactory:
    """Makes the readers of one datanode. They share what is asked about the topic; each has a consumer of its own.

    Args:
        bootstrap_servers: some brokers, host:port with commas between them, as executors reach them.
        topic: the topic.
        value: `json`: values are objects of the collection's columns; `raw`: keys and values are landed as bytes (`KAFKA_SCHEMA`,
            `KAFKA_CHANGES_SCHEMA`).
        key: what the keys of messages are where they are needed, with `json`: `json` = objects with the primary key's columns,
            `text` = its only column in UTF-8.
        primary_key_from: `value`, or `key` where values do not repeat it. A tombstone always has it in its key.
        operation_column: the field that says in words what a row does: insert, upsert or delete.
        partition_column: the field with the name of a row's partition.
        until_head: end with what is there when reading begins; else go on.
        skip: offsets to leave out, by Kafka partition: the way out when a message cannot be read.
        config: more settings of librdkafka (security.protocol, sasl.…). Shipped to executors with the factory, secrets included.
        batch_messages: so many messages are handed over at a time.
        idle_seconds: how long at most between two looks at a partition without new messages.
        check_seconds: how often the partition's end and the topic are asked for.
        timeout_seconds: how long the cluster may take to answer before it counts as away.
        clock: elapsed time; the machine's unless a test brings its own.

    Raises:
        SourceInvalidError: an argument is none of these, or `config` sets what the reader has to.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        value: str = "json",
        key: str = "json",
        primary_key_from: str = "value",
        operation_column: str = "",
        partition_column: str = "",
        until_head: bool = False,
        skip: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, Any] | None = None,
        batch_messages: int = 8192,
        idle_seconds: float = 0.05,
        check_seconds: float = 5.0,
        timeout_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        _one_of("value", value, "json", "raw")
        _one_of("key", key, "json", "text")
        _one_of("primary_key_from", primary_key_from, "value", "key")
        for name in config or {}:
            if name in _OURS or name == "bootstrap.servers":
                raise SourceInvalidError(f"{name} is the reader's to set: leave it out of config", setting=name)
        self.topic = topic
        self.value = value
        self.key = key
        self.primary_key_from = primary_key_from
        self.operation_column = operation_column
        self.partition_column = partition_column
        self.until_head = until_head
        self.skip = {partition: frozenset(offsets) for partition, offsets in (skip or {}).items()}
        self.config = {"bootstrap.servers": bootstrap_servers, **(config or {})}
        self.batch_messages = batch_messages
        self.idle_seconds = idle_seconds
        self.check_seconds = check_seconds
        self.timeout_seconds = timeout_seconds
        self.clock = clock or SystemClock()
        self._shared: KafkaTopic | None = None

    def __call__(self, context: ChannelContext) -> "KafkaChannelReader":
        """Makes the reader of a channel; nothing is called before `open`.

        Raises:
            SourceInvalidError: the collection's columns do not go with the messages.
        """
        decoder: MessageDecoder
        if self.value == "raw":
            if self.operation_column or self.partition_column:
                raise SourceInvalidError("raw messages have no fields that could say an operation or a partition")
            decoder = RawDecoder(context)
        else:
            rows = RowMaker(context, self.operation_column, self.partition_column)
            decoder = JsonDecoder(context, rows, key=self.key, key_columns_from_key=self.primary_key_from == "key")
        return KafkaChannelReader(self, context, decoder)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to executors: the settings."""
        return self.__dict__ | {"_shared": None}

    def shared(self) -> KafkaTopic:
        """What all readers of this process and event loop ask about the topic with; to be acquired and released."""
        if self._shared is None or self._shared.loop is not asyncio.get_running_loop():
            self._shared = KafkaTopic(
                self.config,
                self.topic,
                timeout_seconds=self.timeout_seconds,
                read_committed=self.config.get("isolation.level", "read_committed") == "read_committed",
            )
        return self._shared.acquire()

    async def release(self, shared: KafkaTopic) -> None:
        """Gives back what `shared` gave."""
        if await shared.release() and self._shared is shared:
            self._shared = None


class KafkaChannelReader:
    """Reads one partition: the `ChannelReader` of `KafkaReaderFactory`.

    Args:
        factory: the settings.
        context: of the channel; its index is the partition.
        decoder: makes the rows.
    """

    def __init__(self, factory: KafkaReaderFactory, context: ChannelContext, decoder: MessageDecoder) -> None:
        self._factory = factory
        self._context = context
        self._decoder = decoder
        self._partition = context.channel_index
        self._where = f"{factory.topic}/{self._partition}"
        name = f"kafka:{self._where}"
        self._group = (
            name if len(name) <= MSG_GROUP_CHARS_MAX else f"kafka:{hashlib.blake2s(name.encode()).hexdigest()}"
        )
        self._skip = factory.skip.get(self._partition, frozenset())
        self._topic: KafkaTopic | None = None
        self._consumer: Any = None
        self._topic_id = ""
        self._last = Position(0)
        self._epoch = -1
        self._end: int | None = None
        self._head: int | None = None
        self._messages: list[Any] = []
        self._step: asyncio.Task[SourceEvent] | None = None
        self._check: asyncio.Task[None] | None = None
        self._checked_at = 0.0

    async def open(self, after: Position) -> None:
        """Seeks right after a message; see `ChannelReader.open`.

        Raises:
            SourceLostError: the topic is another one, or does not have the next messages any more.
            SourceInvalidError: the topic has another number of partitions than the collection has channels.
            SourceUnavailableError: the cluster does not answer.
        """
        await self.close()
        factory = self._factory
        topic = self._topic = factory.shared()
        self._check_partitions(await topic.describe(), first=True)
        offsets = await topic.offsets(self._partition)
        start = self._start(after, offsets)
        self._last = after
        self._epoch = start.leader_epoch
        self._head = offsets.latest
        self._end = offsets.latest if factory.until_head else None
        self._checked_at = factory.clock.monotonic()
        try:
            self._consumer = ck.Consumer({**_DEFAULTS, **factory.config, **_OURS}, logger=client_log)
        except ck.KafkaException as error:
            raise refused_settings(error) from error
        place = ck.TopicPartition(factory.topic, self._partition, start.offset, leader_epoch=start.leader_epoch)
        self._consumer.assign([place])

    async def next(self) -> SourceEvent:
        """The next messages; see `ChannelReader.next`.

        Raises:
            SourceLostError: messages are gone that were not read, or the topic was deleted or made anew.
            SourceInvalidError: a message is not what the collection takes, or partitions were added.
            SourceUnavailableError: the cluster does not answer.
        """
        if self._consumer is None:
            raise SourceInvalidError(f"the reader of {self._where} is not open")
        if self._step is None:
            # Goes on when the caller is cancelled: what it has taken from the client waits for the next call.
            self._step = asyncio.create_task(self._next_event())
        await asyncio.wait({self._step})
        step, self._step = self._step, None
        return step.result()

    def head(self) -> int | None:
        """The partition's end, as last asked for; None before `open`."""
        return None if self._head is None else max(self._head, self._last.timestamp)

    async def close(self) -> None:
        """Frees the consumer."""
        tasks = [task for task in (self._step, self._check) if task is not None]
        self._step = self._check = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._messages = []
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await asyncio.to_thread(consumer.close)
        topic, self._topic = self._topic, None
        if topic is not None:
            await self._factory.release(topic)

    def _start(self, after: Position, offsets: PartitionOffsets) -> KafkaPosition:
        """Where to begin, checked against what there is."""
        if not after.timestamp:
            return KafkaPosition(offsets.earliest, self._topic_id, -1)
        check_group(after, self._group, "the topic it had")
        position = KafkaPosition.decode(after)
        if position.topic_id and self._topic_id and position.topic_id != self._topic_id:
            raise self._recreated(position.topic_id, self._topic_id)
        if not offsets.earliest <= position.offset <= offsets.latest:
            raise SourceLostError(
                f"{out_of_range(self._where)}. Offset {position.offset} is next, and there are {offsets.earliest} to "
                f"{offsets.latest}",
                topic=self._factory.topic,
                partition=self._partition,
                offset=position.offset,
                earliest=offsets.earliest,
                latest=offsets.latest,
            )
        return position

    async def _next_event(self) -> SourceEvent:
        idle_seconds = _IDLE_SECONDS_FIRST
        while True:
            if self._end is not None and self._last.timestamp >= self._end:
                return EndOfChannel(self._last)
            self._check_now_and_then()
            self._messages = self._messages or self._consumer.consume(self._factory.batch_messages, 0)
            event = await self._event() if self._messages else None
            if event is not None:
                return event
            if not self._messages:
                await asyncio.sleep(idle_seconds)
                idle_seconds = min(2 * idle_seconds, self._factory.idle_seconds)

    async def _event(self) -> SourceEvent | None:
        """Takes the messages up to the first that says something of the client's, or that one."""
        messages = self._messages
        count = next((index for index, message in enumerate(messages) if message.error() is not None), len(messages))
        if not count:
            return await self._client_event(messages.pop(0))
        # Kept until they are handed out: what fails now fails again, and nothing is skipped.
        good = [message for message in messages[:count] if self._wanted(message)]
        rows, used = await asyncio.to_thread(self._decode, good) if good else (None, 0)
        await self._confirm()
        last = good[used - 1] if good else messages[count - 1]
        self._messages = messages[messages.index(last) + 1 :]
        offset = min(last.offset() + 1, self._end) if self._end is not None else last.offset() + 1
        if offset <= self._last.timestamp:
            return None
        if last.leader_epoch() is not None:
            self._epoch = last.leader_epoch()
        self._last = self._position(offset, max(last.timestamp()[1], 0))
        return MessageBatch(rows, self._last) if rows is not None else Tick(self._last)

    def _wanted(self, message: Any) -> bool:
        offset = message.offset()
        return offset not in self._skip and (self._end is None or offset < self._end)

    def _decode(self, messages: list[Any]) -> tuple[pa.RecordBatch, int]:
        """Rows of the messages before the first bad one, and how many messages these are."""
        count = len(messages)
        while True:
            try:
                return self._decoder.decode(messages[:count]), count
            except BadRowError as error:
                if not error.index:
                    offset = messages[0].offset()
                    raise SourceInvalidError(
                        f"{self._where}, offset {offset}: the message {error.why}. Everything before it is read. Correct the "
                        f"collection, or leave the message out with skip={{{self._partition}: [{offset}]}}",
                        topic=self._factory.topic,
                        partition=self._partition,
                        offset=offset,
                    ) from None
                count = error.index

    async def _client_event(self, message: Any) -> SourceEvent | None:
        error = message.error()
        if error.code() != ck.KafkaError._PARTITION_EOF:
            raise typed(error, self._where)
        offset = message.offset()
        await self._confirm()
        self._head = max(self._head or 0, offset)
        if offset <= self._last.timestamp:
            return None
        # Behind the last message are control records or aborted ones: nothing will come at these offsets any more.
        offset = min(offset, self._end) if self._end is not None else offset
        self._last = self._position(offset, self._last.event_time_ms)
        return Tick(self._last)

    def _position(self, offset: int, event_time_ms: int) -> Position:
        msg_id = KafkaPosition(offset, self._topic_id, self._epoch).encode()
        return Position(offset, msg_id, self._group, event_time_ms)

    # ── is it still the same topic ──────────────────────────────────────────────────────────────────────────────────────────

    async def _confirm(self) -> None:
        assert self._topic is not None, "open has got one"  # noqa: S101
        self._check_partitions(await self._topic.describe())

    def _check_partitions(self, info: TopicInfo, *, first: bool = False) -> None:
        if first:
            self._topic_id = info.topic_id
        elif info.topic_id and self._topic_id and info.topic_id != self._topic_id:
            raise self._recreated(self._topic_id, info.topic_id)
        if info.partitions != self._context.channel_count:
            raise SourceInvalidError(
                f"topic {self._factory.topic!r} has {info.partitions} partitions, and collection "
                f"{self._context.collection_name!r} has {self._context.channel_count} channels: each partition needs one, or "
                f"nobody reads it. Begin a new collection with {info.partitions} channels",
                topic=self._factory.topic,
                partitions=info.partitions,
                channels=self._context.channel_count,
            )

    def _recreated(self, before: str, now: str) -> SourceLostError:
        return SourceLostError(
            f"topic {self._factory.topic!r} was deleted and made again: its id was {before} and is {now}. Its messages are others; "
            "begin a new collection for them",
            topic=self._factory.topic,
            topic_id=now,
            position_topic_id=before,
        )

    def _check_now_and_then(self) -> None:
        """Also where no messages come: has the cluster gone away, the topic changed, the end moved?"""
        if self._check is not None and self._check.done():
            check, self._check = self._check, None
            check.result()
        now = self._factory.clock.monotonic()
        if self._check is None and now - self._checked_at >= self._factory.check_seconds:
            self._checked_at = now
            self._check = asyncio.create_task(self._look_around())

    async def _look_around(self) -> None:
        await self._confirm()
        assert self._topic is not None, "open has got one"  # noqa: S101
        self._head = (await self._topic.offsets(self._partition)).latest


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise SourceInvalidError(f"{name} is {value!r}, but must be {' or '.join(known)}", setting=name)
