"""Holding a source back on purpose: a file with the largest timestamp that its readers may emit yet.

The demo uses it to stop all channels at fixed points of progress, whatever the machine's speed.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from datacoord.limits import TIMESTAMP_MAX


class HeadLimit:
    """The limit of one process, shared by its readers.

    Args:
        path: the file; None = there is never a limit. Its content is a decimal number; no file = no limit. Whoever changes the
            limit should replace the file in one step (write another, rename); what is no number counts as not yet changed, or,
            with nothing known before, as 0.
        poll_seconds: how often the file is read at most.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        poll_seconds: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._read_at: float | None = None
        self._value = TIMESTAMP_MAX if path is None else 0

    def value(self) -> int:
        """The largest timestamp that may be emitted; TIMESTAMP_MAX = no limit."""
        if self._path is None:
            return self._value
        now = self._clock()
        if self._read_at is None or now - self._read_at >= self._poll_seconds:
            self._read_at = now
            try:
                self._value = int(self._path.read_text(encoding="ascii"))
            except FileNotFoundError:
                self._value = TIMESTAMP_MAX
            except (ValueError, OSError):
                pass
        return self._value

    async def wait(self) -> None:
        """Waits for as long as it makes no sense to look again."""
        await asyncio.sleep(self._poll_seconds)
