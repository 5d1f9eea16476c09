"""Blocking work of readers, in threads."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """Runs work in a thread, and waits for its end also when it is cancelled.

    Else a file would be opened and forgotten, or two threads would work on what one may touch at a time.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
