"""The reader of a directory of files, whatever their format.

It does its blocking work in a thread, one step at a time. A step whose caller was cancelled goes on, and its event waits for the
next call.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog
from pyarrow import fs as pafs

from datacoord.errors import ConfigInvalidError, SourceInvalidError
from datacoord.positions import Position
from datacoord.s3 import open_s3
from datanode_client.sources.base import EndOfChannel, MessageBatch, SourceEvent, Tick, check_group
from datanode_client.sources.files_log import FileEntry, FileLog, FilePosition, log_name, unavailable
from datanode_client.sources.files_rows import RowMaker
from datanode_client.sources.threads import in_thread

if TYPE_CHECKING:
    from datanode_client.sources.files import FilesReaderFactory

_log = structlog.get_logger(__name__)

MEASURED_PER_STEP: Final = 16
"""Files ahead whose length is looked up in one step, where that is a read each."""

Make = Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]
"""Makes rows for the datanode of a file's rows and of the offsets behind each of them."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where reading a file begins.

    Attributes:
        filesystem: where the file is.
        path: its place there.
        entry: as listed.
        after: what is consumed of it; None = nothing.
        last: there is no file behind it yet: it may be one that is still being written.
    """

    filesystem: pafs.FileSystem
    path: str
    entry: FileEntry
    after: FilePosition | None = None
    last: bool = False


class FileCursor(Protocol):
    """Reads one file from a place in it on. All calls may block."""

    name: str
    """Of the file."""
    offset: int
    """How much of it is consumed, in what the format counts."""
    line: int
    """Lines that are consumed; 0 where there are none."""

    def read(self, *, complete: bool) -> pa.RecordBatch | None:
        """The next rows, perhaps none of them, and `offset` behind them; None = there is nothing more that is known.

        Args:
            complete: the file will not grow any more.

        Raises:
            SourceInvalidError: what comes next is not what the collection takes.
            SourceUnavailableError: the store cannot be read now.
        """
        ...

    def grow(self, size_bytes: int) -> None:
        """The file has this size now."""
        ...

    @property
    def length(self) -> int:
        """How long it is, as far as that is known."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more is known of the file."""
        ...

    @property
    def tail(self) -> str:
        """What a position keeps of the bytes before the offset; empty for a file that does not grow."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


class FilesChannelReader:
    """Reads one directory: the `ChannelReader` of `FilesReaderFactory`.

    Args:
        factory: the settings, and the format.
        directory: below the factory's URI; empty = that itself.
        rows: makes the rows.
    """

    def __init__(self, factory: "FilesReaderFactory", directory: str, rows: RowMaker) -> None:
        self._factory = factory
        self._directory = directory
        self._rows = rows
        self._step: asyncio.Task[SourceEvent | None] | None = None
        self._steps: FileSteps | None = None

    async def open(self, after: Position) -> None:
        """Seeks right after a row; see `ChannelReader.open`.

        Raises:
            SourceInvalidError: the URI is none.
            SourceLostError: what was consumed is not what it was: a file was changed, removed, or added before its end.
            SourceUnavailableError: the directory cannot be read now.
        """
        await self.close()
        self._steps = await in_thread(lambda: FileSteps(self._factory, self._directory, self._rows, after))

    async def next(self) -> SourceEvent:
        """The next rows; see `ChannelReader.next`.

        Raises:
            SourceInvalidError: a file, a line or a row is not what the collection takes; the sentence says which.
            SourceLostError: as for `open`.
            SourceUnavailableError: the directory cannot be read now.
        """
        if self._steps is None:
            raise SourceInvalidError(f"the reader of {self._factory.uri!r} is not open")
        while True:
            if self._step is None:
                self._step = asyncio.create_task(asyncio.to_thread(self._steps.step))
            await asyncio.wait({self._step})
            step, self._step = self._step, None
            if (event := step.result()) is not None:
                return event
            await self._factory.clock.sleep(self._factory.poll_seconds)

    def head(self) -> int | None:
        """Where the newest row that is known of ends; None before `open`."""
        return None if self._steps is None else self._steps.head

    async def close(self) -> None:
        """Closes the file that is open."""
        steps, self._steps = self._steps, None
        step, self._step = self._step, None
        if step is not None:
            await asyncio.wait({step})
            step.cancelled() or step.exception()  # seen, whatever it was
        if steps is not None:
            await in_thread(steps.close)


class FileSteps:
    """The blocking part of a reader: one event, or a look for more, at a time.

    Args:
        factory: the settings, and the format.
        directory: below the factory's URI.
        rows: makes the rows.
        after: where to begin.
    """

    def __init__(self, factory: "FilesReaderFactory", directory: str, rows: RowMaker, after: Position) -> None:
        self._factory = factory
        self._rows = rows
        self._filesystem, root = open_filesystem(factory.uri)
        self._files = FileLog(
            self._filesystem,
            f"{root}/{directory}" if directory else root,
            accepts=factory.accepts,
            may_grow=factory.may_grow,
            check_times=factory.check_times,
            accept_removed=factory.accept_removed,
        )
        self._group = log_name(factory.kind, directory)
        self._last = after
        self._base = after.timestamp
        """Timestamp at the beginning of the current file."""
        self._cursor: FileCursor | None = None
        self._ahead: deque[int] = deque()
        """Lengths of the next files behind the current one."""
        self._ahead_sum = 0
        if after.timestamp:
            self._resume(after)
        else:
            self._files.begin()
        self.head = after.timestamp
        self._measure()

    def step(self) -> SourceEvent | None:
        """The next event; None = everything that is there has been read."""
        while True:
            cursor = self._cursor
            if cursor is None:
                if self._files.has_later:
                    self._advance()
                elif self._factory.until_head:
                    return EndOfChannel(self._last)
                elif not self._refresh():
                    return None
                continue
            # Lines that end with the file are complete only if nothing can be added to them any more.
            event = self._event(cursor, cursor.read(complete=False))
            if event is not None:
                self._measure()
                return event
            if self._files.has_later:
                event = self._finish(cursor)
                if event is not None:
                    return event
            elif self._factory.until_head:
                return self._end(cursor)
            elif not self._refresh():
                self._measure()
                return None

    def close(self) -> None:
        """Closes the file that is open."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def _resume(self, after: Position) -> None:
        check_group(after, self._group, "the format and directories it had, in the same order")
        position = FilePosition.decode(after)
        if self._files.resume(position):
            self._base = after.timestamp - position.offset
            self._cursor = self._open_cursor(self._files.entries[self._files.index], position)

    def _open_cursor(self, entry: FileEntry, after: FilePosition | None) -> FileCursor:
        base = self._base
        place = FilePlace(self._filesystem, self._files.path(entry.name), entry, after, not self._files.has_later)
        return self._factory.open_file(place, self._rows, lambda rows, ends: self._rows.make(rows, base + ends))

    def _event(self, cursor: FileCursor, rows: pa.RecordBatch | None) -> SourceEvent | None:
        timestamp = self._base + cursor.offset
        if rows is None or timestamp == self._last.timestamp:
            return None
        entry = self._files.entries[self._files.index]
        msg_id = self._files.position(cursor.offset, cursor.line, cursor.tail, done=cursor.done).encode()
        self._last = Position(timestamp, msg_id, self._group, entry.mtime_ns // 1_000_000)
        return MessageBatch(rows, self._last) if rows.num_rows else Tick(self._last)

    def _finish(self, cursor: FileCursor) -> SourceEvent | None:
        """There are files behind the current one. What it still has, or None after it is left for the next one."""
        if self._factory.may_grow(cursor.name) and self._files.look_again():
            cursor.grow(self._files.entries[self._files.index].size_bytes)
            return None
        event = self._event(cursor, cursor.read(complete=True))
        if event is None:
            self._leave(cursor)
        return event

    def _end(self, cursor: FileCursor) -> SourceEvent:
        """Everything that was there has been read, but for a last line that may be unfinished: taken if it is whole.

        Only a file that may grow has anything left here: others are complete, and `read` has taken them to their ends.
        """
        try:
            event = self._event(cursor, cursor.read(complete=True))
        except SourceInvalidError as error:
            _log.warning("unfinished_last_line", file=cursor.name, offset=cursor.offset, error=error.message)
            event = None
        return event or EndOfChannel(self._last)

    def _leave(self, cursor: FileCursor) -> None:
        self._base += cursor.offset
        self.close()

    def _refresh(self) -> bool:
        cursor = self._cursor
        if not self._files.refresh(done=cursor is None or cursor.done):
            return False
        self._ahead.clear()
        self._ahead_sum = 0
        current = self._files.current
        if cursor is not None and (current is None or current.name != cursor.name):
            self._leave(cursor)  # removed, with permission
        elif cursor is not None and current is not None and self._factory.may_grow(cursor.name):
            cursor.grow(current.size_bytes)
        return True

    def _measure(self) -> None:
        """Looks how long the files ahead are: a few more with each step, for that may be a read each."""
        entries, cursor = self._files.entries, self._cursor
        looked = 0
        while (index := self._files.index + 1 + len(self._ahead)) < len(entries) and looked < MEASURED_PER_STEP:
            place = FilePlace(self._filesystem, self._files.path(entries[index].name), entries[index])
            length = self._factory.measure(place)
            if length is None:
                break
            self._ahead.append(length)
            self._ahead_sum += length
            looked += self._factory.measuring_reads
        self.head = self._base + self._ahead_sum + (0 if cursor is None else max(cursor.offset, cursor.length))

    def _advance(self) -> None:
        if self._ahead:
            self._ahead_sum -= self._ahead.popleft()
        self._cursor = self._open_cursor(self._files.advance(), None)


def open_filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI, and the place in it; may talk to the store.

    Raises:
        SourceInvalidError: the URI is none.
        SourceUnavailableError: the store cannot be reached now.
    """
    try:
        filesystem, root = open_s3(uri) if uri.startswith("s3://") else pafs.FileSystem.from_uri(uri)
    except ConfigInvalidError as error:
        raise SourceInvalidError(error.message, **error.metadata) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise SourceInvalidError(
            f"{uri!r} is neither an absolute path nor a URI that pyarrow.fs understands: {error}", uri=uri
        ) from error
    except OSError as error:
        raise unavailable("open", uri, error) from error
    return filesystem, root.rstrip("/")
