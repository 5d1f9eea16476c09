"""What is asked of a Kafka cluster about one topic, for all readers of a process: its id, its partitions, where they begin and end.

The client library carries on with a topic that was deleted and made again under its name as if nothing had happened, in the
middle of other messages. So messages are handed out only after the topic's id was asked for once more after they were fetched;
readers that ask at the same time share one question.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from datacoord.errors import DatacoordError, SourceInvalidError, SourceLostError, SourceUnavailableError
from datacoord.positions import Position

try:
    import confluent_kafka as ck
    from confluent_kafka import admin as ck_admin
except ImportError as error:
    raise ImportError(
        "Kafka as a source needs its client; in a checkout of Datacoord: pip install '.[kafka]' (`make setup` brings it)"
    ) from error

__all__ = [
    "KafkaPosition",
    "KafkaTopic",
    "PartitionOffsets",
    "TopicInfo",
    "ck",
    "client_log",
    "out_of_range",
    "refused_settings",
    "typed",
]

_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers answer that know no topic ids (before 2.8)."""

client_log = logging.getLogger("datacoord.kafka")
client_log.addHandler(logging.NullHandler())  # what matters comes as a typed error

_GONE: Final = {ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError._UNKNOWN_TOPIC, ck.KafkaError._UNKNOWN_PARTITION}
_OUT_OF_RANGE: Final = {
    ck.KafkaError._AUTO_OFFSET_RESET,
    ck.KafkaError.OFFSET_OUT_OF_RANGE,
    ck.KafkaError._LOG_TRUNCATION,
}
_REFUSED: Final = {
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
    ck.KafkaError.SASL_AUTHENTICATION_FAILED,
    ck.KafkaError._AUTHENTICATION,
    ck.KafkaError._SSL,
}


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    """What a position's `msg_id` says.

    Attributes:
        offset: of the next message.
        topic_id: of the topic; empty = the brokers know none.
        leader_epoch: of the last message; -1 = not known. With it a broker can say that the log was cut off and grew anew.
    """

    offset: int
    topic_id: str
    leader_epoch: int

    def encode(self) -> bytes:
        """The position as a `msg_id`."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, position: Position) -> Self:
        """Reads the `msg_id` of a position.

        Raises:
            SourceLostError: another reader made it.
        """
        try:
            return cls(**json.loads(position.msg_id))
        except (ValueError, TypeError):
            raise SourceLostError(
                f"position {position.timestamp} was not given by this reader: {position.msg_id[:200]!r}. Give the collection the "
                "source it had, or begin a new one",
                timestamp=position.timestamp,
            ) from None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a topic is now.

    Attributes:
        topic_id: given when it was made; empty = the brokers know none.
        partitions: how many it has.
    """

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where a partition begins and ends now.

    Attributes:
        earliest: the first offset that it still has.
        latest: the one behind the last that may be read: behind it is nothing, or a transaction that is not decided.
    """

    earliest: int
    latest: int


class KafkaTopic:
    """Asks about one topic. Made inside of the process that uses it, on a running event loop.

    Args:
        config: of librdkafka.
        topic: the topic.
        timeout_seconds: of one question.
        read_committed: aborted and undecided transactions do not count.

    Raises:
        SourceInvalidError: the client refuses its settings.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, *, timeout_seconds: float, read_committed: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.topic = topic
        self._timeout_seconds = timeout_seconds
        level = ck.IsolationLevel.READ_COMMITTED if read_committed else ck.IsolationLevel.READ_UNCOMMITTED
        self._isolation = level
        try:
            self._admin: Any = ck_admin.AdminClient(dict(config), logger=client_log)
        except ck.KafkaException as error:
            raise refused_settings(error) from error
        self._running: asyncio.Task[TopicInfo] | None = None
        self._waiting: asyncio.Task[TopicInfo] | None = None
        self._readers = 0

    def acquire(self) -> "KafkaTopic":
        """One more reader."""
        self._readers += 1
        return self

    async def release(self) -> bool:
        """One reader less; the last one closes the client.

        Returns:
            whether it is closed.
        """
        self._readers -= 1
        if self._readers:
            return False
        admin = [self._admin]
        self._admin = None
        await asyncio.to_thread(admin.clear)  # its end may wait for its threads
        return True

    async def describe(self) -> TopicInfo:
        """What the topic is, asked after this call.

        Raises:
            SourceLostError: there is no such topic.
            SourceInvalidError: the cluster refuses this client.
            SourceUnavailableError: the cluster does not answer.
        """
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._describe_after(self._running))
        return await asyncio.shield(self._waiting)

    async def offsets(self, partition: int) -> PartitionOffsets:
        """Where a partition begins and ends.

        Raises:
            SourceLostError, SourceInvalidError, SourceUnavailableError: as for `describe`.
        """
        place = ck.TopicPartition(self.topic, partition)
        found = []
        for spec in (ck_admin.OffsetSpec.earliest(), ck_admin.OffsetSpec.latest()):
            futures = self._admin.list_offsets(
                {place: spec}, isolation_level=self._isolation, request_timeout=self._timeout_seconds
            )
            found.append((await self._answer(futures[place])).offset)
        return PartitionOffsets(*found)

    async def _describe_after(self, running: asyncio.Task[TopicInfo] | None) -> TopicInfo:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._waiting = asyncio.current_task(), None
        futures = self._admin.describe_topics(ck.TopicCollection([self.topic]), request_timeout=self._timeout_seconds)
        description = await self._answer(futures[self.topic])
        topic_id = str(description.topic_id)
        return TopicInfo("" if topic_id == _NO_TOPIC_ID else topic_id, len(description.partitions))

    async def _answer(self, future: Any) -> Any:
        try:
            # The client's own time-out comes first; the other one is for a client that hangs.
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_seconds + 5)
        except ck.KafkaException as error:
            raise typed(error.args[0], self.topic) from error
        except TimeoutError as error:
            raise SourceUnavailableError(
                f"the cluster of topic {self.topic!r} does not answer", topic=self.topic
            ) from error


def typed(error: Any, topic: str) -> DatacoordError:
    """The typed error of one of the client's.

    Args:
        error: the client's.
        topic: what it is about.
    """
    said = f"{error.name()}: {error.str()}"
    if error.code() in _OUT_OF_RANGE:
        return SourceLostError(f"{out_of_range(topic)} ({said})", topic=topic)
    if error.code() in _GONE:
        return SourceLostError(
            f"there is no topic {topic!r}, or not this partition of it ({said}): correct the name, or make it; if it was deleted, "
            "begin a new collection",
            topic=topic,
        )
    if error.code() in _REFUSED:
        return SourceInvalidError(
            f"the cluster refuses to show topic {topic!r} to this client ({said}): correct its credentials or its rights",
            topic=topic,
        )
    return SourceUnavailableError(
        f"topic {topic!r} cannot be read now ({said}); reading goes on by itself when the cluster is back", topic=topic
    )


def refused_settings(error: Any) -> SourceInvalidError:
    """The client takes a setting for wrong.

    Args:
        error: the client's.
    """
    return SourceInvalidError(f"the client refuses its settings: {error.args[0].str()}")


def out_of_range(where: str) -> str:
    """What to do about messages that are not there any more.

    Args:
        where: topic or partition.
    """
    return (
        f"{where} does not have the messages any more that are to be read next: retention or a deletion removed them, or the log "
        "was cut off. Nothing was skipped. Bring them back, or begin a new collection with what there is; a longer retention, or a "
        "datanode that is not stopped for so long, keeps this from happening"
    )
