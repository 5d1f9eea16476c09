"""A closed loop of callers with requests that were encoded before the clock starts: the same client for every side."""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import grpc

from benchmarks.harness.rounds import Sample
from benchmarks.harness.servers import cpu_seconds
from datacoord.transport import CALLER_METADATA_KEY, client_options

TIMEOUT_SECONDS = 60.0


class RawClient:
    """Unencoded calls of one method to servers, over one connection each.

    Args:
        addresses: host:port of each.
        method: full path, such as `/datacoord.v1.DataCoordService/SaveBinlogPaths`.
        pids: the servers' processes, whose processor time counts beside this one's.
    """

    def __init__(self, addresses: Sequence[str], method: str, pids: Sequence[int] = ()) -> None:
        self._pids = [*pids, os.getpid()]
        # Connections of one process to one address would otherwise be one connection.
        self._channels = [
            grpc.aio.insecure_channel(address, options=[*client_options(), ("benchmark.connection", number)])
            for number, address in enumerate(addresses)
        ]
        self._calls: list[Any] = [channel.unary_unary(method) for channel in self._channels]
        self._metadata = ((CALLER_METADATA_KEY, "benchmark"),)

    async def drive(self, callers: Sequence[Sequence[bytes]], items_per_call: int) -> tuple[Sample, list[bytes]]:
        """Every caller sends its requests one after the other; all callers at once.

        Returns:
            what was measured, and the replies.
        """
        latencies_ms: list[float] = []
        replies: list[bytes] = []

        async def caller(number: int, bodies: Sequence[bytes]) -> None:
            call = self._calls[number % len(self._calls)]
            for body in bodies:
                started = time.perf_counter()
                replies.append(await call(body, timeout=TIMEOUT_SECONDS, metadata=self._metadata))
                latencies_ms.append((time.perf_counter() - started) * 1000)

        cpu_before = cpu_seconds(self._pids)
        started = time.perf_counter()
        await asyncio.gather(*(caller(number, bodies) for number, bodies in enumerate(callers)))
        seconds = time.perf_counter() - started
        used = cpu_seconds(self._pids) - cpu_before
        return Sample(len(replies) * items_per_call, seconds, latencies_ms, used), replies

    async def call(self, body: bytes, timeout_seconds: float) -> bytes:
        """One call, over one of the connections at random."""
        call = random.choice(self._calls)
        reply: bytes = await call(body, timeout=timeout_seconds, metadata=self._metadata)
        return reply

    async def close(self) -> None:
        """Closes the connections."""
        for channel in self._channels:
            await channel.close()
