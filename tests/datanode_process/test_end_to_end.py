"""The whole path with real parts: a coordinator process on SQLite that is killed, datanodes, Parquet files, rows read back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, RetryConfig, SessionConfig
from datanode_client.datanode import DataNode
from datanode_process.landing import MESSAGES, SMALL_BUFFERS, Landing, finished


class Datanodes:
    """Datanodes of this process."""

    def __init__(self, landing: Landing) -> None:
        self._landing = landing
        self._running: dict[int, tuple[DataNode, asyncio.Task[Any], Broker]] = {}

    def start(self, slot: int) -> None:
        """Starts a datanode in a slot."""
        target = self._landing.coordinator.target
        broker = Broker(BrokerConfig(target, retry=RetryConfig(0.02, 0.3)))
        datanode = DataNode(
            job="end-to-end",
            slot=slot,
            collection_names=["t"],
            reader_factory=self._landing.source.reader,
            broker=broker,
            config=SMALL_BUFFERS,
            session_config=SessionConfig(farewell_seconds=2.0, restart=RetryConfig(0.05, 1.0)),
        )
        self._running[slot] = datanode, asyncio.create_task(datanode.run()), broker

    async def kill(self, slot: int) -> None:
        """Ends a datanode without any goodbye, as far as the coordinator can tell."""
        _, task, broker = self._running.pop(slot)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await broker.close()

    async def stop(self) -> None:
        """Stops all of them in order."""
        await asyncio.wait_for(asyncio.gather(*(datanode.stop() for datanode, _, _ in self._running.values())), 60)

    async def close(self) -> None:
        for slot in list(self._running):
            await self.kill(slot)


@pytest.fixture
async def landing(tmp_path: Path) -> AsyncIterator[Landing]:
    """A coordinator with one collection of 8 channels of 400 messages each."""
    made = Landing(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


@pytest.fixture
async def datanodes(landing: Landing) -> AsyncIterator[Datanodes]:
    """No datanodes yet."""
    made = Datanodes(landing)
    yield made
    await made.close()


async def test_rows_land_exactly_once_though_coordinator_and_datanode_are_killed(
    landing: Landing, datanodes: Datanodes
) -> None:
    """The promise of the whole project, with every part real and the kills where they hurt: rows buffered, saves under way."""
    landing.source.set_limit(MESSAGES // 2)
    datanodes.start(0)
    datanodes.start(1)
    await landing.until_consumed(MESSAGES // 2)
    await landing.until(lambda channels: len({channel.node_id for channel in channels}) == 2)

    landing.source.set_limit(MESSAGES * 3 // 4)
    await landing.coordinator.kill()
    await landing.coordinator.start()
    await landing.until_consumed(MESSAGES * 3 // 4)
    await datanodes.kill(0)
    datanodes.start(0)
    landing.source.set_limit(MESSAGES)
    await landing.until(finished)
    await datanodes.stop()

    await landing.check()


async def test_stopping_makes_everything_read_so_far_visible(landing: Landing, datanodes: Datanodes) -> None:
    """Rows that only wait in buffers when a job is stopped would have to be read again, from a source that may forget them."""
    landing.source.set_limit(MESSAGES // 2)
    datanodes.start(0)
    await landing.until_consumed(MESSAGES // 2)

    await datanodes.stop()

    await landing.check(MESSAGES // 2)
