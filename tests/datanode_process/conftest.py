"""A coordinator and a datanode of it."""

from collections.abc import AsyncIterator

import pytest
from broker.contract_server import ContractServer

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
