"""Many cursors on one history: everybody gets everything, nobody waits for ever, memory stays bounded."""

import asyncio
import random
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from datacoord.errors import SourceUnavailableError
from datanode_client.sources.git_parse import ShardedRows
from datanode_client.sources.git_stream import Block
from datanode_client.sources.git_window import BlockWindow

ROWS_PER_COMMIT = 10
COMMIT_BYTES = ROWS_PER_COMMIT * 8 * 2 + 16


class Numbers:
    """A history without git: commit n has ten rows."""

    def __init__(self, commits_per_block: int, end: int) -> None:
        self.commits_per_block = commits_per_block
        self.end = end
        self.reads: list[tuple[int, int]] = []
        self.failures = 0
        self.hangs = False
        self.entered = threading.Event()
        self.released = threading.Event()
        self.closed_count = 0

    def read(self, after: int) -> Block:
        if self.hangs:
            self.entered.set()
            self.released.wait(60)
            raise SourceUnavailableError("killed")
        if self.failures:
            self.failures -= 1
            raise SourceUnavailableError("for now")
        to = min(after + self.commits_per_block, self.end)
        self.reads.append((after, to))
        timestamps = np.repeat(np.arange(after + 1, to + 1), ROWS_PER_COMMIT)
        rows = pa.record_batch([pa.array(timestamps)], names=["_timestamp"])
        return Block(after, to, ShardedRows(rows, timestamps, np.array([0, len(timestamps)])))

    def kill(self) -> None:
        self.released.set()

    def close(self) -> None:
        self.closed_count += 1


async def walk(
    window: BlockWindow, after: int, end: int, pause_seconds: float = 0.0, rng: random.Random | None = None
) -> list[int]:
    """Reads like a channel; the timestamps it saw."""
    cursor = await window.attach(after)
    seen: list[int] = []
    while cursor.after < end:
        block = window.peek(cursor.after)
        if block is None:
            await window.wait(cursor)
            continue
        rows, _ = block.channel_rows(0, cursor.after, block.to, 10**9)
        seen += rows.column(0).to_pylist()
        window.advance(cursor, block.to)
        await asyncio.sleep(pause_seconds * (rng.random() if rng else 1))
    await window.detach(cursor)
    return seen


def everything(after: int, end: int) -> list[int]:
    """What a channel must have seen."""
    return [number for number in range(after + 1, end + 1) for _ in range(ROWS_PER_COMMIT)]


async def test_channels_that_keep_together_read_every_block_once() -> None:
    """The walk over the history is what costs; it must not be repeated per channel."""
    blocks = Numbers(5, 300)
    window = BlockWindow(blocks, capacity_bytes=20 * 5 * COMMIT_BYTES, patience_seconds=60)

    seen = await asyncio.gather(*(walk(window, 0, 300, pause_seconds=0.0001 * index) for index in range(10)))

    assert seen == [everything(0, 300)] * 10
    assert blocks.reads == [(after, after + 5) for after in range(0, 300, 5)]


async def test_the_fast_wait_for_the_slow_only_while_these_move() -> None:
    """One channel that stands still must cost the others one patience, not their life."""
    blocks = Numbers(1, 500)
    window = BlockWindow(blocks, capacity_bytes=10 * COMMIT_BYTES, patience_seconds=0.05)
    stuck = await window.attach(0)
    await window.wait(stuck)
    began = time.monotonic()

    assert await walk(window, 0, 500) == everything(0, 500)

    assert 0.04 < time.monotonic() - began < 10
    assert len(blocks.reads) == 500
    await window.wait(stuck)  # it comes back, and its block is read again
    assert window.peek(0) is not None
    await window.detach(stuck)


async def test_memory_holds_no_more_than_the_window_and_one_block() -> None:
    """A leader without rows of its own would otherwise pull the whole history into memory."""
    blocks = Numbers(3, 400)
    capacity_bytes = 10 * COMMIT_BYTES
    window = BlockWindow(blocks, capacity_bytes=capacity_bytes, patience_seconds=0.02)
    largest = 0

    async def watch() -> None:
        nonlocal largest
        while True:
            largest = max(largest, sum(block.size_bytes for block in window.blocks))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    fast, slow = await asyncio.gather(walk(window, 0, 400), walk(window, 0, 400, pause_seconds=0.001))
    watching.cancel()

    assert fast == slow == everything(0, 400)
    assert capacity_bytes <= largest <= capacity_bytes + 3 * COMMIT_BYTES + 16
    assert window.blocks == []  # nothing is kept for nobody


async def test_a_late_channel_catches_up_and_then_shares() -> None:
    """Channels of a lost datanode start behind; once they have caught up there must again be one walk."""
    blocks = Numbers(4, 1000)
    window = BlockWindow(blocks, capacity_bytes=40 * COMMIT_BYTES, patience_seconds=60)
    keeps_open = await window.attach(1000)
    await walk(window, 0, 300)

    ahead, late = await asyncio.gather(walk(window, 300, 1000, pause_seconds=0.0005), walk(window, 3, 1000))
    await window.detach(keeps_open)

    assert ahead == everything(300, 1000)
    assert late == everything(3, 1000)
    twice = {number for number in range(1000) if sum(after <= number < to for after, to in blocks.reads) > 1}
    assert 3 in twice
    assert max(twice) < 900


@pytest.mark.parametrize("seed", range(12))
async def test_any_mixture_of_slow_fast_late_and_vanishing_channels_gets_everything(seed: int) -> None:
    """Deadlocks hide in mixtures: small windows, stalls beyond the patience, channels that come and go."""
    rng = random.Random(seed)
    end = 200
    blocks = Numbers(rng.choice([1, 3, 50]), end)
    window = BlockWindow(blocks, capacity_bytes=rng.choice([1, 5, 60]) * COMMIT_BYTES, patience_seconds=0.003)

    async def leave(after: int) -> None:
        asking = asyncio.create_task(walk(window, after, end, 0.002, rng))
        await asyncio.sleep(rng.random() * 0.05)
        asking.cancel()
        await asyncio.wait([asking])

    starts = [rng.randrange(end) for _ in range(12)]
    walks = [walk(window, start, end, rng.choice([0, 0, 0.0005, 0.01]), rng) for start in starts]
    *_, seen = await asyncio.wait_for(asyncio.gather(*map(leave, starts[:4]), asyncio.gather(*walks)), timeout=60)

    assert seen == [everything(start, end) for start in starts]


@pytest.mark.parametrize("leaves", [False, True])
async def test_room_is_made_as_soon_as_the_last_one_has_passed(leaves: bool) -> None:
    """Whoever waits for room must be told when the slow one moves or leaves, not when its patience is over."""
    blocks = Numbers(1, 100)
    window = BlockWindow(blocks, capacity_bytes=4 * COMMIT_BYTES, patience_seconds=60)
    slow = await window.attach(0)
    ahead = asyncio.create_task(walk(window, 0, 100))
    await window.wait(slow)
    while len(window.blocks) < 4:  # noqa: ASYNC110 — there is no event for "full"
        await asyncio.sleep(0)
    for _ in range(20):  # now the one ahead and the worker go to sleep
        await asyncio.sleep(0)

    for number in range(1, 101):
        if leaves:
            await window.detach(slow)
            break
        while (block := window.peek(slow.after)) is None:  # noqa: ASYNC110 — `wait` would stir the worker itself
            await asyncio.sleep(0)
        window.advance(slow, block.to)
        assert slow.after == number

    assert await asyncio.wait_for(ahead, 20) == everything(0, 100)
    assert len(blocks.reads) == 100
    await window.detach(slow)


async def test_the_channel_furthest_behind_is_served_first() -> None:
    """Those ahead always want more: served first, they would leave the late ones behind for good."""
    blocks = Numbers(10, 1000)
    window = BlockWindow(blocks)
    cursors = [await window.attach(after) for after in (500, 900, 20, 300)]

    await asyncio.gather(*map(window.wait, cursors))

    assert [after for after, _ in blocks.reads] == [20, 300, 500, 900]


async def test_a_failed_read_is_told_to_those_who_wait_and_tried_again_by_the_next() -> None:
    """A failure kept to itself by the worker would leave every channel waiting for ever."""
    blocks = Numbers(2, 10)
    blocks.failures = 1
    window = BlockWindow(blocks)

    results = await asyncio.gather(walk(window, 0, 10), walk(window, 4, 10), return_exceptions=True)
    again = await walk(window, 0, 10)

    assert [type(result) for result in results] == [SourceUnavailableError] * 2
    assert again == everything(0, 10)


async def test_the_last_channel_that_leaves_ends_what_runs_and_frees_the_memory() -> None:
    """A datanode that has released its channels must not keep a process and 64 MiB for them."""
    blocks = Numbers(2, 10)
    window = BlockWindow(blocks)
    first, second = await window.attach(0), await window.attach(0)
    await window.wait(first)

    await window.detach(first)
    assert blocks.closed_count == 0
    await window.detach(second)

    assert blocks.closed_count == 1
    assert window.blocks == []
    assert await walk(window, 0, 10) == everything(0, 10)


async def test_leaving_does_not_wait_for_a_git_that_hangs() -> None:
    """A file system that does not answer must not keep a datanode from handing its channels back."""
    blocks = Numbers(2, 10)
    blocks.hangs = True
    window = BlockWindow(blocks)
    cursor = await window.attach(0)
    waiting = asyncio.create_task(window.wait(cursor))
    await asyncio.to_thread(blocks.entered.wait, 20)
    waiting.cancel()

    await asyncio.wait_for(window.detach(cursor), 20)

    assert blocks.closed_count == 1
    blocks.hangs = False
    assert await walk(window, 0, 10) == everything(0, 10)
