"""A Kafka topic landed into a collection: a real broker, and kills of everything where they hurt."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.kafka import KafkaBroker

from datacoord.reading import to_arrow
from datanode_client.sources.kafka import KafkaReaderFactory

from .landing_stage import LandingStage

TOPIC = "end-to-end"
PARTITIONS = 3
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
SEED = 20261123


class Input:
    """Writes the topic in transactions, some of them aborted, and knows what was committed."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self._kafka = kafka
        self._rng = random.Random(SEED)
        self._writers = 0
        self.committed: list[list[tuple[int, str | None]]] = [[] for _ in range(PARTITIONS)]
        """By partition: id and text of each message in order; no text = a tombstone."""

    def write(self, transactions: int) -> None:
        """More messages in every partition."""
        self._writers += 1
        producer = self._kafka.producer(**{"transactional.id": f"writer-{self._writers}"})
        producer.init_transactions()
        for number in range(transactions):
            producer.begin_transaction()
            aborted = number % 4 == 3
            for partition in range(PARTITIONS):
                for _ in range(100):
                    key = self._rng.randrange(100)
                    text = None if self._rng.random() < 0.2 else f"{number}/" + "x" * self._rng.randrange(60)
                    value = None if text is None else json.dumps({"id": key, "text": text}).encode()
                    producer.produce(TOPIC, value, json.dumps({"id": key}).encode(), partition)
                    if not aborted:
                        self.committed[partition].append((key, text))
                producer.poll(0)
            producer.flush()  # what is only queued is not even written when it is aborted
            producer.abort_transaction() if aborted else producer.commit_transaction()


@pytest.fixture
async def stage(tmp_path: Path, kafka: KafkaBroker) -> AsyncIterator[LandingStage]:
    """A coordinator with a collection for the topic."""
    kafka.create_topic(TOPIC, PARTITIONS)
    factory = KafkaReaderFactory(
        kafka.bootstrap, TOPIC, batch_messages=90, check_seconds=0.3, timeout_seconds=2.0, config={"log_level": 0}
    )
    made = LandingStage(tmp_path, {"t": factory})
    try:
        await made.start()
        await made.create("t", SCHEMA, ["id"], PARTITIONS)
        yield made
    finally:
        await made.close()


@pytest.mark.timeout(420)  # the first test that needs a broker fetches it
async def test_a_topic_lands_exactly_once_whatever_is_killed(stage: LandingStage, kafka: KafkaBroker) -> None:
    """Objects written and not registered, a commit made and not answered, the broker gone: no message twice, none lost."""
    source = Input(kafka)
    await stage.start_datanode()
    await stage.kill_datanode_at("datanode.objects_written", lambda: source.write(8))
    await stage.until_registered({"t": 1})

    faults = stage.log().count("source_failed")
    await asyncio.to_thread(kafka.kill)
    await stage.until_said("source_failed", faults + PARTITIONS)
    await asyncio.to_thread(kafka.start)

    await stage.kill_coordinator_at("coordinator.after_commit", lambda: source.write(6))
    await stage.kill_datanode_at("datanode.objects_written", lambda: source.write(4))
    # 18 transactions of 100 messages and a marker each; the last was aborted, and its end is passed, too.
    await stage.until(lambda channels: all(each.report.timestamp == 18 * 101 for each in channels))
    await stage.stop_datanode()

    registered = await asyncio.to_thread(stage.registered, "t", "id")
    assert set(registered.values()) == {1}
    for partition, messages in enumerate(source.committed):
        landed = sorted((ts, key) for index, ts, key in registered if index == partition)
        assert [key for _, key in landed] == [key for key, text in messages if text is not None]
    seen = await asyncio.to_thread(lambda: to_arrow(stage.client, "t").to_pylist())
    expected: list[tuple[int, str]] = []
    for messages in source.committed:
        state: dict[int, str] = {}
        for key, text in messages:
            state.pop(key, None)
            if text is not None:
                state[key] = text
        expected += state.items()
    assert sorted((row["id"], row["text"]) for row in seen) == sorted(expected)
