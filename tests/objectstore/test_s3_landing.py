"""Landing in S3 and reading back, every part real: a datanode and a sink, over a network that resets, refuses and loses replies."""

import asyncio
import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from datanode_process.landing import SMALL_BUFFERS, finished, managed
from datanode_process.lists import ListSource, operations, state
from server.running_coordinator import CoordinatorThread, running
from sink.rig import KEYED, ORDERED, Query, Row
from support.s3 import S3Server, s3_server

import datacoord
from datacoord.client import CoordinatorClient
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, RetryConfig
from datanode_client.datanode import DataNode

SEED = 20261121
MESSAGES = 120
CHANNELS = 2


@pytest.fixture
def server() -> Iterator[S3Server]:
    """A service of its own."""
    with s3_server() as started:
        yield started


@pytest.fixture
def coordinator(server: S3Server, tmp_path: Path) -> Iterator[CoordinatorThread]:
    """A coordinator whose collections live in a bucket."""
    with running(tmp_path / "data", storage_root=server.make_bucket("landing")) as thread:
        yield thread


def now_and_then(server: S3Server, *faults: str) -> None:
    """About every tenth upload meets a fault; the seed is fixed, the threads are not."""
    rng, lock = random.Random(SEED), threading.Lock()

    def choose(method: str, path: str) -> str | None:
        with lock:
            return rng.choice(faults) if method == "PUT" and rng.random() < 1 / 10 else None

    server.choose = choose


async def test_a_datanode_lands_in_s3_exactly_once(
    server: S3Server, coordinator: CoordinatorThread, tmp_path: Path
) -> None:
    """Uploads that fail, and uploads that succeed without the client hearing of it: nothing lost, nothing doubled."""
    source = ListSource([operations(index, MESSAGES, SEED) for index in range(CHANNELS)], tmp_path / "limit")
    source.set_limit(MESSAGES)
    now_and_then(server, "reset", "500", "503", "lost_reply")
    with CoordinatorClient(coordinator.address) as client:
        collection = await asyncio.to_thread(client.create_collection, managed(CHANNELS))
        assert collection.storage_root == f"s3://landing/objects/{collection.collection_id}"
        broker = Broker(BrokerConfig(coordinator.address, retry=RetryConfig(0.02, 0.3)))
        datanode = DataNode(
            job="s3", slot=0, collection_names=["t"], reader_factory=source.reader, broker=broker, config=SMALL_BUFFERS
        )
        ended = asyncio.create_task(datanode.run())
        async with asyncio.timeout(90):
            while not finished(list(await asyncio.to_thread(client.list_channels, "t"))):  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0.05)
            await datanode.stop()
            await ended
            await broker.close()

    server.heal()
    table = await asyncio.to_thread(datacoord.to_arrow, coordinator.address, "t", with_timestamp=True)
    rows = sorted((row["key"], row["_timestamp"], row["value"]) for row in table.to_pylist())
    states = [state(channel) for channel in source.channels]
    assert rows == sorted((key, *value) for seen in states for key, value in seen.items())


def test_a_sink_lands_in_s3_exactly_once(server: S3Server, coordinator: CoordinatorThread) -> None:
    """The same for the other way in; a repeated batch is not doubled."""
    query = Query(coordinator.address, "orders", **KEYED, **ORDERED)
    now_and_then(server, "reset", "503", "lost_reply")
    log: list[Row] = [(n % 30, f"v{n}", n % 2, n, "upsert" if n % 5 else "delete") for n in range(1, 181)]
    for batch_id, start in enumerate(range(0, 180, 60)):
        query.run(batch_id, log[start : start + 60], tasks=3)
    query.run(2, log[120:], tasks=3)
    server.heal()

    last: dict[int, Row] = {}
    for row in itertools.chain(log):
        last[row[0]] = row
    expected = sorted((row[0], row[1]) for row in last.values() if row[4] == "upsert")
    table = datacoord.to_arrow(coordinator.address, "orders")
    assert sorted(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected
