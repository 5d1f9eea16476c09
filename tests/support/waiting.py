"""Waiting for what another thread or process does: bounded, and a wait in vain says what was waited for."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable

WAIT_SECONDS_MAX = 60.0
"""For what takes a moment, on a machine that is busy with something else."""
POLL_SECONDS = 0.02


def eventually(condition: Callable[[], object], timeout_seconds: float = 20.0) -> None:
    """Waits until a condition holds.

    Args:
        condition: asked again and again.
        timeout_seconds: fails after that, with the condition's source.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, _in_vain(condition, timeout_seconds)
        time.sleep(POLL_SECONDS)


async def eventually_in_thread(
    condition: Callable[[], object],
    timeout_seconds: float = WAIT_SECONDS_MAX,
    said_as: Callable[..., object] | None = None,
) -> None:
    """The same for a test that is a coroutine; the condition may block, and is asked in a thread.

    Args:
        condition: asked again and again.
        timeout_seconds: fails after that.
        said_as: whose source is shown then; None = the condition's.
    """
    deadline = time.monotonic() + timeout_seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, _in_vain(said_as or condition, timeout_seconds)
        await asyncio.sleep(POLL_SECONDS)


def joined(thread: threading.Thread, timeout_seconds: float = WAIT_SECONDS_MAX) -> None:
    """Waits for the end of a thread; fails, with its name, when it does not end."""
    thread.join(timeout_seconds)
    assert not thread.is_alive(), f"thread {thread.name} has not ended after {timeout_seconds:g} s"


def _in_vain(condition: Callable[..., object], seconds: float) -> str:
    try:
        source = inspect.getsource(condition).strip()
    except OSError:
        source = repr(condition)
    return f"waited {seconds:g} s in vain for: {source}"
