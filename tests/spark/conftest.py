"""One Spark session for all tests of this directory, and a coordinator beside it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from broker.contract_server import ContractServer
from pyspark.sql import SparkSession

from datanode_client.spark import local_session, register

T = TypeVar("T")


class ServerThread:
    """A ContractServer in a thread with a loop of its own, for tests that block on Spark."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = self.run(self._make())

    async def _make(self) -> ContractServer:
        server = ContractServer(["c000", "c001"], heartbeat_interval_ms=50)
        await server.listen()
        return server

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the server's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def until(self, condition: Callable[[], Any], seconds: float = 40.0) -> None:
        """Waits until a condition over the server's state holds."""
        self.run(self.server.until(condition, seconds))

    def close(self) -> None:
        self.run(self.server.vanish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with room for two datanodes."""
    session = local_session(app_name="datacoord-tests", cores=2, quick_start=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def session(spark: SparkSession) -> SparkSession:
    """The same, with the data source."""
    register(spark)
    return spark


@pytest.fixture
def coordinator() -> Iterator[ServerThread]:
    """A coordinator that knows sessions and no rows."""
    running = ServerThread()
    yield running
    running.close()
