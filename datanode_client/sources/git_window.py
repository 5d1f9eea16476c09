"""Many channels read one history: each block is read once, as long as they keep together, and nobody waits for ever.

The channels of a datanode do not share a stream that is pushed to them: one slow channel would stall it, and a queue per channel
would either grow without bound or stall the others. Instead every channel pulls the block it needs next from a window of blocks
in memory, and one worker reads the blocks that are asked for and not there, the lowest first. So

- a channel that is alone anywhere (opened late, or left behind) gets its blocks, and costs a second process while it catches up;
- the fast wait for the slow, but only for those that are on their way: a block stays until every channel that moved within the
  last `patience_seconds` has passed it. A channel that does not come back keeps nobody and no memory; its blocks are read again;
- memory is bounded by the window and one block.
"""

import asyncio
import time
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from datanode_client.sources.git_stream import Block


class ReadsBlocks(Protocol):
    """What the window needs below it; `git_stream.BlockReader` is the real one."""

    def read(self, after: int) -> Block:
        """Reads the block after a number. Called in a worker thread, one call at a time."""
        ...

    def kill(self) -> None:
        """Makes a running `read` fail soon. Called in the event loop."""
        ...

    def close(self) -> None:
        """Frees everything; `read` may follow. Called in a worker thread, not during `read`."""
        ...


@dataclass(eq=False, slots=True)
class Cursor:
    """Where one channel stands.

    Attributes:
        after: everything up to this number has been taken.
        moved_at: when it last took something or was given the chance to, monotonic seconds.
        waiter: what it waits on; None = it is busy with what it took.
    """

    after: int
    moved_at: float
    waiter: asyncio.Future[None] | None = None

    @property
    def waits(self) -> bool:
        """It waits for a block that is not there."""
        return self.waiter is not None and not self.waiter.done()


class BlockWindow:
    """The blocks in memory and the cursors that move over them. Belongs to one event loop.

    Args:
        blocks: reads blocks.
        capacity_bytes: blocks kept in memory.
        patience_seconds: how long a block is kept for a channel that does not move.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        blocks: ReadsBlocks,
        *,
        capacity_bytes: int = 64 << 20,
        patience_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = blocks
        self._capacity_bytes = capacity_bytes
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._blocks: dict[int, Block] = {}  # by `after`, in the order they were read
        self._starts: list[int] = []  # their keys, sorted
        self._kept_bytes = 0
        self._cursors: set[Cursor] = set()
        self._worker: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._door = asyncio.Lock()

    @property
    def blocks(self) -> list[Block]:
        """What is in memory, in the order it was read."""
        return list(self._blocks.values())

    async def attach(self, after: int) -> Cursor:
        """Adds a channel that has everything up to a number."""
        async with self._door:
            cursor = Cursor(after, self._clock())
            self._cursors.add(cursor)
            return cursor

    async def detach(self, cursor: Cursor) -> None:
        """Removes a channel. The last one switches off the light: no process and no memory is left."""
        async with self._door:
            self._cursors.discard(cursor)
            self._stirred.set()
            if self._cursors:
                return
            worker = self._worker
            if worker is not None:
                self._reader.kill()
                await asyncio.wait([worker])
            self._blocks.clear()
            self._starts.clear()
            self._kept_bytes = 0
            await asyncio.to_thread(self._reader.close)

    def peek(self, after: int) -> Block | None:
        """The block that holds the commit after a number, if it is there."""
        index = bisect_right(self._starts, after) - 1
        if index < 0:
            return None
        block = self._blocks[self._starts[index]]
        return block if after < block.to else None

    def advance(self, cursor: Cursor, after: int) -> None:
        """A channel has taken everything up to a number."""
        cursor.after = after
        cursor.moved_at = self._clock()
        self._stirred.set()

    async def wait(self, cursor: Cursor) -> None:
        """Waits until `peek` has the block a channel needs next. May be cancelled.

        Raises:
            DatacoordError: the block cannot be read.
        """
        while self.peek(cursor.after) is None:
            cursor.waiter = asyncio.get_running_loop().create_future()
            if self._worker is None:
                self._worker = asyncio.create_task(self._work(), name="git-blocks")
            try:
                await cursor.waiter
            finally:
                cursor.waiter = None

    async def _work(self) -> None:
        """Reads blocks as long as somebody waits for one."""
        try:
            while (after := self._lowest_wanted()) is not None:
                self._stirred.clear()
                if not self._make_room():
                    await self._until_stirred()
                    continue
                block = await asyncio.to_thread(self._reader.read, after)
                self._keep(block)
        except Exception as error:  # noqa: BLE001 — it is the channels' to say, each to its datanode
            for cursor in self._cursors:
                if cursor.waits and cursor.waiter is not None:
                    cursor.waiter.set_exception(error)
        finally:
            self._worker = None

    def _lowest_wanted(self) -> int | None:
        return min((cursor.after for cursor in self._cursors if cursor.waits), default=None)

    def _keep(self, block: Block) -> None:
        self._blocks[block.after] = block
        insort(self._starts, block.after)
        self._kept_bytes += block.size_bytes
        for cursor in self._cursors:
            if cursor.waits and cursor.waiter is not None and block.after <= cursor.after < block.to:
                # It is not yet running, but from now on it is its turn: the block must not go before it has had the time.
                cursor.moved_at = self._clock()
                cursor.waiter.set_result(None)

    def _make_room(self) -> bool:
        """Drops blocks nobody is on the way to, the oldest first, until there is room; False = there is none yet."""
        if self._kept_bytes < self._capacity_bytes:
            return True
        needed = self._needed()
        for start in [start for start in self._blocks if start not in needed]:
            self._kept_bytes -= self._blocks.pop(start).size_bytes
            self._starts.remove(start)
            if self._kept_bytes < self._capacity_bytes:
                return True
        return False

    def _needed(self) -> set[int]:
        """The blocks that channels on their way will ask for: the one each needs next, and those that follow without a gap."""
        now = self._clock()
        needed: set[int] = set()
        for cursor in self._cursors:
            if cursor.waits or now - cursor.moved_at >= self._patience_seconds:
                continue
            block = self.peek(cursor.after)
            while block is not None and block.after not in needed:
                needed.add(block.after)
                block = self.peek(block.to)
        return needed

    async def _until_stirred(self) -> None:
        """Waits until a channel moves, comes or goes, or has lost our patience."""
        now = self._clock()
        moved = [cursor.moved_at for cursor in self._cursors if not cursor.waits]
        left = [at + self._patience_seconds - now for at in moved if at + self._patience_seconds > now]
        try:
            await asyncio.wait_for(self._stirred.wait(), min(left, default=0.0))
        except TimeoutError:
            return
