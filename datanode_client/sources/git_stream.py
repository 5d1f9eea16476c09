"""Blocks of a git history: consecutive commits, read from a running `git diff-tree`, parsed and sharded."""

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, cast

import numpy as np
import pyarrow as pa

from datacoord.errors import SourceInvalidError, SourceUnavailableError
from datacoord.git_command import start_git
from datanode_client.sources.git_history import GitHistory, failure_of
from datanode_client.sources.git_parse import RawCommits, ShardedRows, find_commits, header_ids, shard_rows

_DIFF_TREE = (
    "diff-tree", "--stdin", "-r", "--root", "--raw", "-z", "--no-abbrev", "--no-renames", "--always",
    "--ignore-submodules=none", "--no-ext-diff", "--no-textconv",
)  # fmt: skip
"""Plumbing, so no setting of a user changes what it prints. Merges are compared with their first parent because standard input
names it; the root is compared with nothing (`--root`); commits without a change still print their id (`--always`)."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """The changes of the commits after number `after` up to number `to`, for all channels.

    Attributes:
        after: exclusive.
        to: inclusive.
        changes: their rows.
    """

    after: int
    to: int
    changes: ShardedRows

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return int(self.changes.rows.nbytes) + self.changes.timestamps.nbytes + self.changes.bounds.nbytes

    def channel_rows(self, channel_index: int, after: int, to: int, rows_max: int) -> tuple[pa.RecordBatch, int]:
        """A view of one channel's rows from `after`, exclusive; it keeps the whole block in memory.

        Args:
            channel_index: which channel.
            after: a timestamp.
            to: another one, inclusive; beyond the block's end counts as its end.
            rows_max: end with the message that reaches so many rows.

        Returns:
            the rows, and the timestamp up to which these are all the channel has.
        """
        low, high = self.changes.bounds[channel_index : channel_index + 2]
        timestamps = self.changes.timestamps[low:high]
        to = min(to, self.to)
        begin, end = (int(row) for row in np.searchsorted(timestamps, [after, to], side="right"))
        if end - begin > rows_max:
            to = int(timestamps[begin + rows_max - 1])
            end = int(np.searchsorted(timestamps, to, side="right"))
        return self.changes.rows.slice(int(low) + begin, end - begin), to


class DiffTreeStream:
    """One `git diff-tree` process and how far it has been read. Back-pressure is the pipe's: git waits when nobody reads.

    Args:
        history: what to read.
        after: the number of the commit before the first one to read.
        block_bytes: how much to read for one block, if it is there within `linger_seconds`.
        linger_seconds: how long to wait for more once there is a whole commit.
        clock: monotonic seconds.
    """

    def __init__(
        self, history: GitHistory, after: int, *, block_bytes: int, linger_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._history = history
        self._id_bytes = history.commit_ids.shape[1]
        self._block_bytes = block_bytes
        self._linger_seconds = linger_seconds
        self._clock = clock
        self._rest = b""
        self._ended = False
        self.position = after
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 — lives as long as the process
        # Git reads its orders from a file, not a pipe: nobody then has to write while somebody reads.
        with tempfile.TemporaryFile() as orders:
            orders.write(_orders(history, after))
            orders.seek(0)
            self._process = start_git(history.git_dir, _DIFF_TREE, stdin=orders, stderr=self._stderr)
        self._output = cast("IO[bytes]", self._process.stdout)  # it was asked for as a pipe
        with contextlib.suppress(
            AttributeError, OSError
        ):  # where it can be larger, git goes on while a block is parsed
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _READ_BYTES)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def read(self) -> tuple[int, RawCommits]:
        """Reads about a block's worth of commits, at least one. Blocks.

        Returns:
            the number of the commit before the first one read, and the commits.

        Raises:
            SourceLostError, SourceUnavailableError: git failed; the stream is of no use any more.
            SourceInvalidError: git prints something else than it should.
        """
        found = self._whole_commits()
        ids = header_ids(found, self._id_bytes)
        after = self.position
        if not np.array_equal(ids, self._history.commit_ids[after : after + len(ids)]):
            raise SourceInvalidError(
                "git diff-tree answered for other commits than it was asked for: report it with `git --version`"
            )
        self._rest = self._rest[found.end :]
        self.position = after + len(ids)
        return after, found

    def kill(self) -> None:
        """Ends the process; a thread that reads gets an error. May be called from any thread, any number of times."""
        self._process.kill()

    def close(self) -> None:
        """Ends the process and frees what it held. Not while another thread reads."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._stderr.close()

    def _whole_commits(self) -> RawCommits:
        """Reads until there is a whole commit, and for a while on until there is a block's worth."""
        wanted_bytes = self._block_bytes
        while True:
            self._fill(wanted_bytes)
            found = find_commits(self._rest, self._id_bytes, at_end=self._ended)
            if len(found.headers):
                return found
            if self._ended:
                raise SourceUnavailableError(f"git diff-tree ended after commit number {self.position}, too early")
            # One commit larger than a block: double, so that looking for its end stays linear.
            wanted_bytes = max(wanted_bytes, 2 * len(self._rest))

    def _fill(self, wanted_bytes: int) -> None:
        chunks, size = [self._rest], len(self._rest)
        descriptor = self._output.fileno()
        give_up = self._clock() + self._linger_seconds
        while size < wanted_bytes and not self._ended:
            chunk = os.read(descriptor, _READ_BYTES)
            chunks.append(chunk)
            size += len(chunk)
            self._ended = not chunk
            if self._clock() > give_up:
                break
        self._rest = b"".join(chunks)
        if self._ended:
            self._check_exit()

    def _check_exit(self) -> None:
        status = self._process.wait()
        if status != 0:
            self._stderr.seek(0)
            raise failure_of(self._history.git_dir, "diff-tree", status, self._stderr.read())


class BlockReader:
    """Reads blocks from any number on, keeping few processes where reading may go on. One thread at a time, except `kill`.

    Args:
        history: what to read.
        channel_count: how many channels its paths are sharded over.
        block_bytes: about how much of git's output makes a block.
        linger_seconds: how long a block waits for more commits.
        streams_max: processes kept.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        history: GitHistory,
        channel_count: int,
        *,
        block_bytes: int = 1 << 20,
        linger_seconds: float = 0.25,
        streams_max: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._channel_count = channel_count
        self._block_bytes = block_bytes
        self._linger_seconds = linger_seconds
        self._streams_max = streams_max
        self._clock = clock
        self._streams: list[DiffTreeStream] = []
        self._killed = threading.Event()
        self.started_count = 0

    @property
    def pids(self) -> list[int]:
        """The processes kept."""
        return [stream.pid for stream in self._streams]

    def read(self, after: int) -> Block:
        """Reads the block that begins after number `after`. Blocks.

        Raises:
            SourceLostError, SourceUnavailableError, SourceInvalidError: git failed.
        """
        stream = self._stream_at(after)
        try:
            begin, found = stream.read()
        except BaseException:
            self._streams.remove(stream)
            stream.close()
            raise
        numbers = np.arange(begin + 1, begin + 1 + len(found.headers))
        history = self._history
        commits = slice(begin, begin + len(numbers))
        changes = shard_rows(
            found,
            history.commit_ids.shape[1],
            numbers,
            history.committed_at_ms[commits],
            history.commit_ids[commits],
            channel_count=self._channel_count,
        )
        return Block(begin, begin + len(numbers), changes)

    def kill(self) -> None:
        """Ends all processes and any `read` that waits for one. From any thread; `close` follows."""
        self._killed.set()
        for stream in tuple(self._streams):
            stream.kill()

    def close(self) -> None:
        """Ends all processes and frees what they held; the next `read` starts anew."""
        while self._streams:
            self._streams.pop().close()
        self._killed.clear()

    def _stream_at(self, after: int) -> DiffTreeStream:
        if self._killed.is_set():
            raise SourceUnavailableError("the reader of the git history is closed")
        for stream in self._streams:
            if stream.position == after:
                self._streams.remove(stream)
                self._streams.append(stream)  # the end of the list is the most recently used
                return stream
        while len(self._streams) >= self._streams_max:
            self._streams.pop(0).close()
        stream = DiffTreeStream(
            self._history, after, block_bytes=self._block_bytes, linger_seconds=self._linger_seconds, clock=self._clock
        )
        self._streams.append(stream)
        self.started_count += 1
        if self._killed.is_set():
            stream.kill()  # `kill` came while the process started and did not see it
        return stream


def _orders(history: GitHistory, after: int) -> bytes:
    """One line per commit: its id, and the id of its first parent (none for the root)."""
    width = history.commit_ids.shape[1]
    first = max(after - 1, 0)
    ids = history.commit_ids[first:].tobytes().hex("\n", width).split("\n")
    root = [] if after else [ids[0]]
    lines = [*root, *map(" ".join, zip(ids[1:], ids[:-1], strict=True))]
    return "\n".join([*lines, ""]).encode("ascii")
