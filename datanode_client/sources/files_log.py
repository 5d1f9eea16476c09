"""A directory of files as a log: files in the order of their names, and what may not happen to them.

A file is consumed from its beginning to its end, then the next. Nothing may change at or before what was consumed: a file there
that is changed, removed or added would be rows that nobody reads, or rows that no longer are what was landed. A running reader
compares each listing with the one before; over restarts a position carries two digests of all files before its own.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, Self

from pyarrow import fs as pafs

from datacoord.errors import SourceInvalidError, SourceLostError, SourceUnavailableError
from datacoord.limits import MSG_GROUP_CHARS_MAX, MSG_ID_BYTES_MAX
from datacoord.positions import Position

_HIDDEN: Final = ("_", ".")
_DIGEST_BYTES: Final = 8
_ADVICE: Final = (
    "Bring the directory back to what it was; or, if what is there now is right, load it into a new collection. New files belong "
    "at the end: their names must sort behind all others"
)


class FileEntry(NamedTuple):
    """One file of a listing.

    Attributes:
        name: its path relative to the channel's directory.
        size_bytes: its size.
        mtime_ns: when it was last written; 0 = the store does not say.
    """

    name: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Chain:
    """What the files before one are, in a few bytes.

    Attributes:
        files: how many.
        names: digest of their names and sizes, in order.
        times: the same with the times they were written at.
    """

    files: int = 0
    names: str = ""
    times: str = ""

    def then(self, entry: FileEntry) -> "Chain":
        """The chain with one more file behind."""
        named = f"{self.names}\0{entry.name}\0{entry.size_bytes}"
        timed = f"{self.times}\0{entry.name}\0{entry.size_bytes}\0{entry.mtime_ns}"
        return Chain(self.files + 1, digest(named.encode()), digest(timed.encode()))


@dataclass(frozen=True, slots=True)
class FilePosition:
    """What a position's `msg_id` says: a place in a file, and what that file and the ones before it were.

    Attributes:
        file: name of the file.
        offset: rows or (uncompressed) bytes of it that are consumed.
        line: lines of it that are consumed; 0 where there are none.
        size: its size in bytes as last listed.
        mtime: when it was last written, nanoseconds.
        done: nothing more of it was known.
        tail: digest of the last bytes before `offset`, of a file that may grow; else empty.
        chain: of the files before it.
    """

    file: str
    offset: int
    line: int
    size: int
    mtime: int
    done: bool
    tail: str
    chain: Chain

    def encode(self) -> bytes:
        """The position as a `msg_id`.

        Raises:
            SourceInvalidError: the file's name is too long for one.
        """
        encoded = json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()
        if len(encoded) > MSG_ID_BYTES_MAX:
            raise SourceInvalidError(f"the name of file {self.file[:80]!r}… is too long: shorten it", file=self.file)
        return encoded

    @classmethod
    def decode(cls, position: Position) -> Self:
        """Reads the `msg_id` of a position.

        Raises:
            SourceLostError: another reader made it.
        """
        try:
            fields = json.loads(position.msg_id)
            return cls(**{**fields, "chain": Chain(**fields["chain"])})
        except (ValueError, TypeError, KeyError):
            raise SourceLostError(
                f"position {position.timestamp} was not given by this reader: {position.msg_id[:200]!r}. Give the collection the "
                "source it had, or begin a new one",
                timestamp=position.timestamp,
            ) from None


def digest(data: bytes) -> str:
    """A short digest: it finds accidents, not attackers."""
    return hashlib.blake2s(data, digest_size=_DIGEST_BYTES).hexdigest()


def log_name(kind: str, directory: str) -> str:
    """The `msg_group` of positions: the format and the channel's directory, without the place it is at, which may change."""
    name = f"{kind}:{directory or '.'}"
    return name if len(name) <= MSG_GROUP_CHARS_MAX else f"{kind}:{digest(directory.encode())}"


class FileLog:
    """The files of one channel. All calls may block.

    Args:
        filesystem: where.
        root: the channel's directory.
        accepts: whether a file of this name belongs to the log.
        may_grow: whether the last file may still be written to, and changes legally by that.
        check_times: a file that was written again counts as changed, whatever its size.
        accept_removed: consumed files may be removed.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        root: str,
        *,
        accepts: Callable[[str], bool],
        may_grow: Callable[[str], bool],
        check_times: bool,
        accept_removed: bool,
    ) -> None:
        self._filesystem = filesystem
        self._root = root
        self._accepts = accepts
        self._may_grow = may_grow
        self._check_times = check_times
        self._accept_removed = accept_removed
        self.entries: list[FileEntry] = []
        self.index = -1
        """Of the current file in `entries`; -1 = before the first."""
        self.chain = Chain()
        """Of the files before the current one."""

    @property
    def current(self) -> FileEntry | None:
        """The file that is being consumed, or was last; None = before the first."""
        return self.entries[self.index] if self.index >= 0 else None

    @property
    def has_later(self) -> bool:
        """Whether there are files behind the current one: then it is complete."""
        return self.index + 1 < len(self.entries)

    def path(self, name: str) -> str:
        """Where a file is in the file system."""
        return f"{self._root}/{name}"

    def list_files(self) -> list[FileEntry]:
        """Lists the directory, in order.

        Raises:
            SourceUnavailableError: it cannot be listed now.
        """
        try:
            infos = self._filesystem.get_file_info(pafs.FileSelector(self._root, recursive=True))
            # A bucket that does not exist is listed as an empty one.
            if not infos and self._filesystem.get_file_info(self._root).type == pafs.FileType.NotFound:
                raise FileNotFoundError(f"{self._root} does not exist")
        except OSError as error:
            raise unavailable("list", self._root, error) from error
        skip = len(self._root.rstrip("/")) + 1
        found = [
            FileEntry(info.path[skip:], info.size, info.mtime_ns or 0)
            for info in infos
            if info.type == pafs.FileType.File
        ]
        return sorted(entry for entry in found if self._belongs(entry.name))

    def begin(self) -> None:
        """Takes the first listing, before the first file."""
        self.entries, self.index, self.chain = self.list_files(), -1, Chain()

    def resume(self, position: FilePosition) -> bool:
        """Takes the first listing and finds a position in it.

        Returns:
            whether its file is the current one; if not, it was removed with permission, and reading goes on behind it.

        Raises:
            SourceLostError: what lies at or before the position is not what it was.
            SourceUnavailableError: see `list_files`.
        """
        entries = self.list_files()
        index = bisect_left(entries, (position.file,))
        chain = _chain_of(entries[:index])
        self._compare_chains(chain, position)
        there = index < len(entries) and entries[index].name == position.file
        if not there:
            if not (self._accept_removed and position.done):
                raise lost(f"{position.file} was removed, and it is where reading was to go on", position.file)
            index -= 1
            chain = _chain_of(entries[: max(index, 0)])
        elif not self._may_grow(position.file):
            self._compare(FileEntry(position.file, position.size, position.mtime), entries[index])
        self.entries, self.index, self.chain = entries, index, chain
        return there

    def advance(self) -> FileEntry:
        """The current file is consumed to its end: goes on to the next."""
        if (current := self.current) is not None:
            self.chain = self.chain.then(current)
        self.index += 1
        return self.entries[self.index]

    def refresh(self, *, done: bool) -> bool:
        """Lists again, and compares with the listing before.

        Args:
            done: the current file is consumed to the end that is known.

        Returns:
            whether there may be more to read now.

        Raises:
            SourceLostError: what was there has changed.
            SourceUnavailableError: see `list_files`.
        """
        before, after = self.entries, self.list_files()
        if after == before:
            return False
        listed = {entry.name: entry for entry in after}
        for place, old in enumerate(before):
            new = listed.get(old.name)
            if new is None:
                if self._accept_removed and (place < self.index or (place == self.index and done)):
                    continue
                raise lost(f"{old.name} was removed{'' if place <= self.index else ' before it was read'}", old.name)
            if place < self.index or (place == self.index and not self._may_grow(old.name)):
                self._compare(old, new)
        self._refuse_added(before, after)
        if (current := self.current) is not None:
            index = bisect_left(after, (current.name,))
            self.index = index if current.name in listed else index - 1
            if self.index != self.chain.files:
                self.chain = _chain_of(after[: max(self.index, 0)])
        self.entries = after
        return True

    def _refuse_added(self, before: list[FileEntry], after: list[FileEntry]) -> None:
        current = self.current
        if current is None:
            return
        known = {entry.name for entry in before}
        for new in after[: bisect_left(after, (current.name,))]:
            if new.name not in known:
                raise lost(f"{new.name} was added before {current.name}, which was read already", new.name)

    def look_again(self) -> bool:
        """Looks at the current file once more: it is complete by now, and may have grown since it was listed.

        Returns:
            whether it has grown.

        Raises:
            SourceLostError: it is gone, or shorter.
            SourceUnavailableError: the store cannot be asked now.
        """
        old = self.entries[self.index]
        try:
            info = self._filesystem.get_file_info(self.path(old.name))
        except OSError as error:
            raise unavailable("look at", self.path(old.name), error) from error
        if info.type != pafs.FileType.File:
            raise lost(f"{old.name} was removed while it was read", old.name)
        new = FileEntry(old.name, info.size, info.mtime_ns or 0)
        if new.size_bytes < old.size_bytes:
            raise lost(f"{old.name} has {new.size_bytes} bytes, and had {old.size_bytes}", old.name)
        self.entries[self.index] = new
        return new.size_bytes > old.size_bytes

    def position(self, offset: int, line: int, tail: str, *, done: bool) -> FilePosition:
        """A place in the current file."""
        entry = self.entries[self.index]
        return FilePosition(entry.name, offset, line, entry.size_bytes, entry.mtime_ns, done, tail, self.chain)

    def _belongs(self, name: str) -> bool:
        return self._accepts(name) and not any(part.startswith(_HIDDEN) for part in name.split("/"))

    def _compare(self, old: FileEntry, new: FileEntry) -> None:
        if new.size_bytes != old.size_bytes:
            raise lost(f"{old.name} has {new.size_bytes} bytes, and had {old.size_bytes} when it was read", old.name)
        if self._check_times and new.mtime_ns != old.mtime_ns:
            raise lost(f"{old.name} was written again after it was read{_TIMES_HINT}", old.name)

    def _compare_chains(self, found: Chain, position: FilePosition) -> None:
        kept = position.chain
        where = f"before {position.file}, where reading was to go on,"
        if found.files > kept.files:
            raise lost(f"{where} are {found.files} files, and there were {kept.files}: some were added", position.file)
        if found.files < kept.files:
            if self._accept_removed:
                return
            raise lost(
                f"{where} are {found.files} files, and there were {kept.files}: some were removed", position.file
            )
        if found.names != kept.names:
            raise lost(f"{where} are as many files as there were, but a name or a size is another one", position.file)
        if self._check_times and found.times != kept.times:
            raise lost(f"{where} a file was written again after it was read{_TIMES_HINT}", position.file)


def _chain_of(entries: list[FileEntry]) -> Chain:
    chain = Chain()
    for entry in entries:
        chain = chain.then(entry)
    return chain


_TIMES_HINT: Final = " (if all were only copied, say check_times=False)"


def lost(what: str, file: str) -> SourceLostError:
    """What was consumed is not there any more as it was.

    Args:
        what: what has happened.
        file: the file it is about.
    """
    return SourceLostError(f"{what}. {_ADVICE}", file=file)


def unavailable(action: str, path: str, error: OSError) -> SourceUnavailableError:
    """The store fails for now: reading goes on by itself when it is back."""
    return SourceUnavailableError(
        f"cannot {action} {path!r}: {error}. Reading goes on by itself when that works again; if it never did, correct the path, "
        "the credentials or the permissions",
        path=path,
        cause=str(error),
    )
