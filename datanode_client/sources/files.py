"""Directories of files as logs: what JSONL and Parquet have in common. The order and its rules are in `files_log`.

Rows come in the order of the files' names and of the rows within each. What moves the timestamp is the format's: bytes for lines,
rows for Parquet; either way it is the count of everything before, so it stays when files are added at the end.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from pyarrow import fs as pafs

from datacoord.errors import SourceInvalidError
from datanode_client.clock import Clock, SystemClock
from datanode_client.sources.base import ChannelContext
from datanode_client.sources.files_log import unavailable
from datanode_client.sources.files_reader import FileCursor, FilePlace, FilesChannelReader, Make, open_filesystem
from datanode_client.sources.files_rows import RowMaker

__all__ = ["FileCursor", "FilePlace", "FilesReaderFactory", "Make", "list_directories"]


class FilesReaderFactory(ABC):
    """Makes the readers of one datanode.

    Args:
        uri: the directory: an absolute local path, or a URI as for storage roots (`s3://bucket/prefix`, `file:///…`, `gs://…`).
        directories: the sub-directory of each channel, in their order; None = the directory itself is the one channel.
        suffixes: files of other names are not read, nor is what has a name or a directory that begins with `_` or `.`.
        until_head: end with the files that are there when reading begins; else go on with what is added.
        operation_column: the column that says in words what a row does: insert, upsert or delete; empty = all rows are upserted, or
            inserted where the collection has no primary key.
        partition_column: the column with the name of a row's partition.
        check_times: a file that was written again counts as changed also when its size is the same.
        accept_removed: files may be removed once they are consumed.
        poll_seconds: how often the directory is listed when everything is read.
        clock: elapsed time; the machine's unless a test brings its own.
    """

    kind: str
    """Of the format."""
    measuring_reads: bool
    """Whether `measure` reads something of the file."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        directories: Sequence[str] | None,
        suffixes: Sequence[str],
        until_head: bool,
        operation_column: str,
        partition_column: str,
        check_times: bool,
        accept_removed: bool,
        poll_seconds: float,
        clock: Clock | None,
    ) -> None:
        self.uri = os.fspath(uri)
        self.directories = None if directories is None else tuple(directories)
        self.suffixes = tuple(suffixes)
        self.until_head = until_head
        self.operation_column = operation_column
        self.partition_column = partition_column
        self.check_times = check_times
        self.accept_removed = accept_removed
        self.poll_seconds = poll_seconds
        self.clock = clock or SystemClock()
        for directory in self.directories or ():
            if any(part in {"", ".", ".."} for part in directory.split("/")):
                raise SourceInvalidError(
                    f"sub-directory {directory!r} is no relative path below {self.uri!r}", directory=directory
                )
        if len(set(self.directories or ())) != len(self.directories or ()):
            raise SourceInvalidError(f"a sub-directory is named twice: {', '.join(self.directories or ())}")

    def __call__(self, context: ChannelContext) -> "FilesChannelReader":
        """Makes the reader of a channel; nothing is read before `open`.

        Raises:
            SourceInvalidError: the collection has another number of channels than there are directories, or a column that the
                format does not have.
        """
        count = 1 if self.directories is None else len(self.directories)
        if context.channel_count != count:
            raise SourceInvalidError(
                f"collection {context.collection_name!r} has {context.channel_count} channels, and {self.uri!r} is read "
                f"as {count}: name as many sub-directories as there are channels (directories=[…])",
                channel=context.channel_name,
            )
        rows = RowMaker(context, self.operation_column, self.partition_column)
        directory = "" if self.directories is None else self.directories[context.channel_index]
        return FilesChannelReader(self, directory, rows)

    @abstractmethod
    def accepts(self, name: str) -> bool:
        """Whether a file of this name is read."""

    @abstractmethod
    def may_grow(self, name: str) -> bool:
        """Whether a file of this name may be written to while it is the last one."""

    @abstractmethod
    def open_file(self, place: FilePlace, rows: RowMaker, make: Make) -> FileCursor:
        """Opens a file.

        Args:
            place: where to begin.
            rows: says which columns to read.
            make: makes rows for the datanode.

        Raises:
            SourceInvalidError: it is not of the format.
            SourceLostError: it is shorter than the position, or was written anew.
            SourceUnavailableError: it cannot be read now.
        """

    @abstractmethod
    def measure(self, place: FilePlace) -> int | None:
        """How long a file is, as far as that is to be had without reading it; None = it cannot be told now."""


def list_directories(uri: str | os.PathLike[str]) -> list[str]:
    """The sub-directories that there are now, by name: a proposal for `directories`, to be kept with the collection.

    Raises:
        SourceInvalidError: the URI is none.
        SourceUnavailableError: the directory cannot be listed now.
    """
    filesystem, root = open_filesystem(os.fspath(uri))
    try:
        infos = filesystem.get_file_info(pafs.FileSelector(root))
    except OSError as error:
        raise unavailable("list", root, error) from error
    names = (info.base_name for info in infos if info.type == pafs.FileType.Directory)
    return sorted(name for name in names if not name.startswith(("_", ".")))
