"""Time as the datanode sees it: a monotonic clock that tests can hold still and move."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Elapsed time. Nothing of safety depends on it."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits so long, by this clock."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """Seconds since the machine started, or so."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Waits on the running event loop."""
        await asyncio.sleep(seconds)
