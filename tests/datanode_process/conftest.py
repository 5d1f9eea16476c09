"""A coordinator and a datanode of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker.contract_server import ContractServer

from datanode_process.landing import Landing
from datanode_process.running import CHANNELS, Running


@pytest.fixture
async def server() -> AsyncIterator[ContractServer]:
    """A coordinator with 16 channels."""
    async with ContractServer(CHANNELS) as running:
        yield running


@pytest.fixture
async def running(server: ContractServer) -> AsyncIterator[Running]:
    """A datanode of that coordinator."""
    made = Running(server)
    yield made
    await made.close()


@pytest.fixture
async def landing(tmp_path: Path) -> AsyncIterator[Landing]:
    """A coordinator process with one collection of 8 channels of 400 messages each, and no datanodes yet."""
    async with Landing(tmp_path) as made:
        yield made
