"""A cluster that goes on by itself, in a time that runs faster than ours."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from .cluster import TiKVCluster
from .server import TiKVServer


class FastClock:
    """The machine's clock, sped up: what waits for seconds takes fractions of them.

    Args:
        factor: how many times.
    """

    def __init__(self, factor: float = 20.0) -> None:
        self._factor = factor
        self._began = time.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * self._factor

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._factor)

    def skip(self, seconds: float) -> None:
        """Moves it on at once; whoever sleeps does not notice."""
        self._began -= seconds / self._factor


class LivingCluster:
    """What a test holds of it.

    Attributes:
        server: its sockets.
        clock: its time.
        scanning: whether incremental scans go on.
    """

    def __init__(self, server: TiKVServer, clock: FastClock) -> None:
        self.server = server
        self.clock = clock
        self.scanning = True

    @property
    def cluster(self) -> TiKVCluster:
        return self.server.cluster

    async def live(self) -> None:
        """What stores do by themselves, until it is cancelled."""
        while True:
            while self.scanning and self.cluster.step_scans(100):
                pass
            self.cluster.report_resolved()
            self.cluster.topology.tell_pd()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def living_cluster(seed: int = 0) -> AsyncIterator[LivingCluster]:
    """A cluster of three stores and two members of PD, behind sockets, that lives until the block ends."""
    clock = FastClock()
    async with TiKVServer(TiKVCluster(random.Random(seed), clock.now_ms)) as server:
        living = LivingCluster(server, clock)
        life = asyncio.create_task(living.live())
        try:
            yield living
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until something that other tasks do has happened."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is waited for happens behind sockets
            await asyncio.sleep(0.005)
