"""Reads directories of JSON Lines files, also compressed: every line is one object, one message and one row.

A line's timestamp is where it ends: the bytes of all files before it, and of its own file up to and including it (uncompressed).
The last file may still be written to, unless it is compressed; a line is consumed when its newline is there, or a file behind it.
"""

import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import pyarrow as pa

from datacoord.errors import SourceInvalidError, SourceUnavailableError
from datacoord.limits import LINE_BYTES_MAX
from datanode_client.clock import Clock
from datanode_client.sources.files import FilePlace, FilesReaderFactory, Make
from datanode_client.sources.files_log import digest, lost, unavailable
from datanode_client.sources.files_rows import BadRowError, RowMaker
from datanode_client.sources.jsonl_parse import BadLineError, LineParser

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_COMPRESSED: Final = (".gz", ".bz2", ".lz4", ".zst")
_TAIL_BYTES: Final = 256


class JsonlReaderFactory(FilesReaderFactory):
    """Makes readers of JSON Lines directories. `FilesReaderFactory` explains what is common to all formats.

    Args:
        uri: the directory.
        directories: the sub-directory of each channel.
        suffixes: of the files that are read; `.gz`, `.bz2`, `.lz4` or `.zst` may follow.
        until_head: end with what is there when reading begins.
        operation_column: the field that says what a row does.
        partition_column: the field that names a row's partition.
        check_times: a file that was written again counts as changed.
        accept_removed: files may be removed once they are consumed.
        poll_seconds: how often the directory is listed.
        block_bytes: so much is read and parsed at a time.
        clock: elapsed time.
    """

    kind = "jsonl"
    measuring_reads = False

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        directories: Sequence[str] | None = None,
        suffixes: Sequence[str] = JSONL_SUFFIXES,
        until_head: bool = False,
        operation_column: str = "",
        partition_column: str = "",
        check_times: bool = True,
        accept_removed: bool = False,
        poll_seconds: float = 1.0,
        block_bytes: int = 1 << 20,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            uri,
            directories=directories,
            suffixes=suffixes,
            until_head=until_head,
            operation_column=operation_column,
            partition_column=partition_column,
            check_times=check_times,
            accept_removed=accept_removed,
            poll_seconds=poll_seconds,
            clock=clock,
        )
        self.block_bytes = block_bytes

    def accepts(self, name: str) -> bool:
        """As in the base class."""
        for ending in _COMPRESSED:
            name = name.removesuffix(ending)
        return name.endswith(self.suffixes)

    def may_grow(self, name: str) -> bool:
        """As in the base class."""
        return not name.endswith(_COMPRESSED)

    def open_file(self, place: FilePlace, rows: RowMaker, make: Make) -> "LinesCursor":
        """As in the base class."""
        source = GrowingFile(place) if self.may_grow(place.entry.name) else CompressedFile(place)
        return LinesCursor(source, place, LineParser(rows.schema), make, self.block_bytes)

    def measure(self, place: FilePlace) -> int:
        """As in the base class. Of a compressed file it is the size it has in the store: it is longer than that."""
        return place.entry.size_bytes


class ByteSource(Protocol):
    """The bytes of a file, in order."""

    grows: bool
    """Whether there may be more later."""

    def read(self, count: int) -> bytes:
        """The next bytes; none = nothing more that is known."""
        ...

    def grow(self, size_bytes: int) -> None:
        """The file has this size now."""
        ...

    def consume(self, data: bytes) -> None:
        """These bytes, read before, are consumed."""
        ...

    @property
    def tail(self) -> str:
        """What a position keeps of the consumed bytes."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


class LinesCursor:
    """Reads a file's lines: the `FileCursor` of `JsonlReaderFactory`.

    Args:
        source: the bytes, from where it begins.
        place: where that is.
        parser: of the lines.
        make: makes rows for the datanode.
        block_bytes: so much is read at a time.
    """

    def __init__(
        self, source: "ByteSource", place: FilePlace, parser: LineParser, make: Make, block_bytes: int
    ) -> None:
        after = place.after
        self.name = place.entry.name
        self.offset = 0 if after is None else after.offset
        self.line = 0 if after is None else after.line
        self._size_bytes = place.entry.size_bytes
        self._source = source
        self._parser = parser
        self._make = make
        self._block_bytes = block_bytes
        self._rest = b""
        self._ended = False

    def read(self, *, complete: bool) -> pa.RecordBatch | None:
        """The next lines; see `FileCursor.read`."""
        block = self._next_block(complete=complete or not self._source.grows)
        if not block:
            return None
        good = block
        while True:
            try:
                rows, end = self._rows(good)
                break
            except BadLineError as error:  # lines before it are parsed, but their rows are not looked at yet
                if not error.index:
                    raise self._bad_line(error) from None
                good = block[: _end_of(block, error.index)]
        self._rest = block[end:] + self._rest
        block = block[:end]
        self.offset += len(block)
        self.line += block.count(b"\n")
        self._source.consume(block)
        return rows

    def grow(self, size_bytes: int) -> None:
        """The file has this size now."""
        self._size_bytes = size_bytes
        self._source.grow(size_bytes)

    @property
    def length(self) -> int:
        """How long the file is; of a compressed one, the size it has in the store until its end is reached."""
        return self.offset if self.done else self._size_bytes

    @property
    def done(self) -> bool:
        """Whether nothing more is known of the file."""
        return not self._rest and (self.offset >= self._size_bytes if self._source.grows else self._ended)

    @property
    def tail(self) -> str:
        """A digest of the bytes before the offset; empty for a file that does not grow."""
        return self._source.tail

    def close(self) -> None:
        """Closes the file."""
        self._source.close()

    def _next_block(self, *, complete: bool) -> bytes:
        """Whole lines, about a block of them; none = there are no more."""
        block, count = self._rest, self._block_bytes
        self._rest = b""
        while not (end := block.rfind(b"\n") + 1):
            read = self._source.read(count)
            if not read:
                if complete:
                    self._ended = True
                    return block
                self._rest = block
                return b""
            block += read
            count = len(block)
            if count > LINE_BYTES_MAX + self._block_bytes:
                raise self._bad_line(BadLineError(0, f"is longer than {LINE_BYTES_MAX} bytes"))
        self._rest = block[end:]
        if not self._rest and not self._source.grows:
            self._rest = self._source.read(1)
            self._ended = not self._rest
        return block[:end]

    def _rows(self, block: bytes) -> tuple[pa.RecordBatch, int]:
        """The rows of a block, and where the last of them ends; a block without any ends at its end."""
        rows, lines, ends = self._parser.parse(block)
        try:
            made = self._make(rows, self.offset + ends[lines])
        except BadRowError as error:
            raise BadLineError(int(lines[error.index]), error.why) from None
        return made, int(ends[lines[-1]]) if len(lines) else len(block)

    def _bad_line(self, error: BadLineError) -> SourceInvalidError:
        line = self.line + 1
        return SourceInvalidError(
            f"{self.name}, line {line} (at byte {self.offset}) {error.why}. Everything before it is read; correct the line, or the "
            "collection, and reading goes on there",
            file=self.name,
            line=line,
            offset=self.offset,
        )


class GrowingFile:
    """An uncompressed file: the bytes up to the size it was listed with.

    Args:
        place: where to begin.

    Raises:
        SourceLostError: it is shorter than that, or other bytes stand before it.
    """

    grows = True

    def __init__(self, place: FilePlace) -> None:
        entry, after = place.entry, place.after
        self._filesystem = place.filesystem
        self._path = place.path
        self._name = entry.name
        self._size_bytes = entry.size_bytes
        self._offset = 0 if after is None else after.offset
        self._file: pa.NativeFile | None = None
        self._tail = b""
        if self._offset > entry.size_bytes:
            raise lost(f"{entry.name} has {entry.size_bytes} bytes, and {self._offset} of it were read", entry.name)
        if after is not None:
            begin = max(self._offset - _TAIL_BYTES, 0)
            self._tail = self._read_at(begin, self._offset - begin)
            if self.tail != after.tail:
                raise lost(
                    f"{entry.name} was written anew: before byte {self._offset} stands something else", entry.name
                )

    def read(self, count: int) -> bytes:
        """As in ByteSource."""
        data = self._read_at(self._offset, min(count, self._size_bytes - self._offset))
        self._offset += len(data)
        return data

    def grow(self, size_bytes: int) -> None:
        """As in ByteSource. What is open may not see the new bytes."""
        if size_bytes < self._size_bytes:
            raise lost(f"{self._name} has {size_bytes} bytes, and had {self._size_bytes}", self._name)
        self._size_bytes = size_bytes
        self.close()

    def consume(self, data: bytes) -> None:
        """As in ByteSource."""
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    @property
    def tail(self) -> str:
        """As in ByteSource."""
        return digest(self._tail)

    def close(self) -> None:
        """As in ByteSource."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read_at(self, offset: int, count: int) -> bytes:
        if not count:
            return b""
        try:
            if self._file is None:
                self._file = self._filesystem.open_input_file(self._path)
            data: bytes = self._file.read_at(count, offset)
        except FileNotFoundError as error:
            raise SourceUnavailableError(
                f"{self._name} was there and cannot be opened any more", file=self._name
            ) from error
        except OSError as error:
            raise unavailable("read", self._path, error) from error
        return data


class CompressedFile:
    """A compressed file, which is complete as soon as it is there. To begin in the middle it is decompressed up to there.

    Args:
        place: where to begin.
    """

    grows = False
    tail = ""

    def __init__(self, place: FilePlace) -> None:
        self._path = path = place.path
        offset = 0 if place.after is None else place.after.offset
        self._stream: pa.NativeFile | None = None
        self._stream = self._guarded(lambda: place.filesystem.open_input_stream(path, compression="detect"))
        while offset:
            skipped = len(self.read(min(offset, 1 << 20)))
            offset -= skipped
            if not skipped:
                self.close()
                raise lost(f"{path} ends before the place where reading was to go on", path)

    def read(self, count: int) -> bytes:
        """As in ByteSource."""
        stream = self._stream
        return b"" if stream is None else self._guarded(lambda: bytes(stream.read(count)))

    def grow(self, size_bytes: int) -> None:
        """As in ByteSource; it does not."""

    def consume(self, data: bytes) -> None:
        """As in ByteSource; nothing is kept."""

    def close(self) -> None:
        """As in ByteSource."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _guarded(self, action: Callable[[], pa.NativeFile | bytes]) -> pa.NativeFile | bytes:
        try:
            return action()
        except OSError as error:
            # Cut off, or still being written: only its writer knows.
            raise unavailable("decompress", self._path, error) from error


def _end_of(block: bytes, lines: int) -> int:
    """Where the n-th line of a block ends."""
    end = 0
    for _ in range(lines):
        end = block.index(b"\n", end) + 1
    return end
