"""Reads the first-parent history of a git repository as a change stream over channels.

Every commit from the root to a pinned head is one message: its number is the timestamp (root = 1), its id the `msg_id`, the head's
id the `msg_group`, its committer time the event time. Every path it changes against its first parent is a row, upserted or
deleted; a rename is a delete and an upsert. Paths are spread over channels by a hash, so the messages of a channel are the commits
that touch one of its paths, and the others are ticks. The state of all channels at commit n is exactly `git ls-tree -r n`.
"""

import asyncio
import os
from typing import Any

import pyarrow as pa

from datacoord.errors import SourceInvalidError
from datacoord.git_command import locate_git_dir
from datacoord.limits import CHANNEL_COUNT_MAX
from datacoord.positions import Position
from datanode_client.sources.base import TIMESTAMP_COLUMN, ChannelContext, EndOfChannel, MessageBatch, SourceEvent, Tick
from datanode_client.sources.git_history import GitHistory, PinnedHistory
from datanode_client.sources.git_parse import GIT_SCHEMA
from datanode_client.sources.git_stream import BlockReader
from datanode_client.sources.git_window import BlockWindow, Cursor
from datanode_client.sources.head_limit import HeadLimit

__all__ = ["GIT_PRIMARY_KEY", "GIT_SCHEMA", "GitChannelReader", "GitHistory", "GitReaderFactory", "PinnedHistory"]

GIT_PRIMARY_KEY = ("path",)


class GitReaderFactory:
    """Makes the readers of one datanode. They share one reading of the history; it is pickled without it.

    Args:
        repository: the top directory of a work tree, or a bare repository, on every machine that reads.
        head: the pinned head, hexadecimal (`GitHistory.describe`).
        limit_path: a file with the largest timestamp to emit yet, see `HeadLimit`; None = no limit.
        limit_poll_seconds: how often that file is read.
        window_bytes: memory for blocks of the history, per datanode.
        block_bytes: about how much of git's output is read at a time.
        batch_rows: a batch ends with the message that reaches so many rows; blocks that are there already are joined up to it,
            because what follows costs per batch and not per row. A datanode cuts between batches only.
        patience_seconds: how long the others wait for a channel that does not move, once the window is full.
    """

    def __init__(
        self,
        repository: str | os.PathLike[str],
        head: str,
        *,
        limit_path: str | os.PathLike[str] | None = None,
        limit_poll_seconds: float = 0.2,
        window_bytes: int = 64 << 20,
        block_bytes: int = 1 << 20,
        batch_rows: int = 8192,
        patience_seconds: float = 1.0,
    ) -> None:
        self.repository = os.fspath(repository)
        self.head = head
        self.limit_path = None if limit_path is None else os.fspath(limit_path)
        self.limit_poll_seconds = limit_poll_seconds
        self.window_bytes = window_bytes
        self.block_bytes = block_bytes
        self.batch_rows = max(batch_rows, 1)
        self.patience_seconds = patience_seconds
        self._shared: SharedHistory | None = None

    def __call__(self, context: ChannelContext) -> "GitChannelReader":
        """Makes the reader of a channel; nothing is read before `open`."""
        return GitChannelReader(self, context)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to executors: the settings."""
        return self.__dict__ | {"_shared": None}

    def shared(self, channel_count: int) -> "SharedHistory":
        """The history as all readers of this process, event loop and channel count share it."""
        loop = asyncio.get_running_loop()
        if self._shared is None or self._shared.loop is not loop or self._shared.channel_count != channel_count:
            self._shared = SharedHistory(self, loop, channel_count)
        return self._shared


class SharedHistory:
    """What the readers of one process share: the commits' numbers, the window of blocks, the limit.

    Args:
        settings: the factory.
        loop: the event loop of the readers.
        channel_count: how many channels paths are spread over.
    """

    def __init__(self, settings: GitReaderFactory, loop: asyncio.AbstractEventLoop, channel_count: int) -> None:
        self.loop = loop
        self.channel_count = channel_count
        self.limit = HeadLimit(settings.limit_path, poll_seconds=settings.limit_poll_seconds)
        self._settings = settings
        self._loading = asyncio.Lock()
        self._loaded: tuple[GitHistory, BlockWindow] | None = None
        self.blocks: BlockReader | None = None

    async def load(self) -> tuple[GitHistory, BlockWindow]:
        """Reads the numbers of the commits, once.

        Raises:
            SourceInvalidError, SourceLostError, SourceUnavailableError: see `GitHistory.load`.
        """
        async with self._loading:
            if self._loaded is None:
                history = await asyncio.to_thread(self._load)
                settings = self._settings
                self.blocks = BlockReader(history, self.channel_count, block_bytes=settings.block_bytes)
                window = BlockWindow(
                    self.blocks,
                    capacity_bytes=settings.window_bytes,
                    patience_seconds=settings.patience_seconds,
                )
                self._loaded = history, window
            return self._loaded

    def _load(self) -> GitHistory:
        return GitHistory.load(locate_git_dir(self._settings.repository), self._settings.head)


class GitChannelReader:
    """Reads one channel of a history: the `ChannelReader` of `GitReaderFactory`.

    Args:
        factory: settings, and what the readers of a process share.
        context: the channel.
    """

    def __init__(self, factory: GitReaderFactory, context: ChannelContext) -> None:
        if not 0 <= context.channel_index < context.channel_count <= CHANNEL_COUNT_MAX:
            raise SourceInvalidError(
                f"channel {context.channel_index} of {context.channel_count} does not exist",
                channel=context.channel_name,
            )
        self._factory = factory
        self._context = context
        self._shared: SharedHistory | None = None
        self._opened: tuple[GitHistory, BlockWindow, Cursor] | None = None
        self._told = 0

    async def open(self, after: Position) -> None:
        """Seeks right after a commit; see `ChannelReader.open`."""
        await self.close()
        shared = self._factory.shared(self._context.channel_count)
        history, window = await shared.load()
        history.check(after)
        self._shared = shared
        self._opened = history, window, await window.attach(after.timestamp)
        self._told = after.timestamp

    async def next(self) -> SourceEvent:
        """The next rows; a tick before it waits, if it has passed commits without any; see `ChannelReader.next`."""
        history, window, cursor, shared = self._state()
        await asyncio.sleep(0)  # many batches may be there already, and other channels have a turn too
        while True:
            limit = min(shared.limit.value(), history.commit_count)
            rows = self._take(window, cursor, limit)
            if rows is not None:
                self._told = rows.column(TIMESTAMP_COLUMN)[-1].as_py()
                return MessageBatch(rows, history.position(self._told))
            if cursor.after == history.commit_count:
                self._told = cursor.after
                return EndOfChannel(history.position(self._told))
            if cursor.after > self._told:
                self._told = cursor.after
                return Tick(history.position(self._told))
            if cursor.after >= limit:
                await shared.limit.wait()
            else:
                await window.wait(cursor)

    def head(self) -> int | None:
        """The number of the pinned head; None before `open`."""
        return None if self._opened is None else self._opened[0].commit_count

    async def close(self) -> None:
        """Frees what the reader holds; the last reader of a process ends git."""
        opened, self._opened, self._shared = self._opened, None, None
        if opened is not None:
            _, window, cursor = opened
            await window.detach(cursor)

    def _state(self) -> tuple[GitHistory, BlockWindow, Cursor, SharedHistory]:
        if self._opened is None or self._shared is None:
            raise SourceInvalidError(
                f"the reader of {self._context.channel_name!r} is not open", channel=self._context.channel_name
            )
        return *self._opened, self._shared

    def _take(self, window: BlockWindow, cursor: Cursor, limit: int) -> pa.RecordBatch | None:
        """Takes what is in memory, up to the limit and a batch; None = no rows."""
        taken: list[pa.RecordBatch] = []
        after = cursor.after
        left = self._factory.batch_rows
        while after < limit and left > 0 and (block := window.peek(after)) is not None:
            rows, after = block.channel_rows(self._context.channel_index, after, limit, left)
            if rows.num_rows:
                taken.append(rows)
                left -= rows.num_rows
        if after != cursor.after:
            window.advance(cursor, after)
        if not taken:
            return None
        # Always a copy: a view of a few rows would keep the whole block in memory for as long as they are buffered.
        return pa.concat_batches(taken) if len(taken) > 1 else taken[0].take(pa.arange(0, taken[0].num_rows))
