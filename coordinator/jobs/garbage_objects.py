"""Objects as the garbage collector sees them: a storage root walked directory by directory, and the deletions (PROTOCOL S1).

Everything here blocks and runs in worker threads. Memory is bounded by the largest directory of one kind, channel, partition and
epoch: 48 bytes for each of its objects, and while it is sorted about twice that.
"""

import heapq
import os
import stat
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs as pafs

from datacoord import failpoints
from datacoord.errors import ObjectStoreError, PathNotAllowedError
from datacoord.limits import ALL_PARTITIONS_ID, TIMESTAMP_MAX
from datacoord.objectstore import (
    OWNER_MARK,
    LocalObjectStore,
    ObjectMissingError,
    ObjectStore,
    is_temporary,
    translated,
)
from datacoord.paths import BinlogKind, BinlogPath

T = TypeVar("T")

REMOTE_DELETES = 8
"""Deletions in flight on an object store: each is a round trip or two."""

ListedObject = tuple[int, int, int, int, int]
"""from, to, field id, log id and bytes of an object."""

_COLUMNS = 5
_MARK_BYTES_MAX = 4096
_RUN = 1000
_ITEMS_AT_ONCE = 32
_KINDS = {kind.value: kind for kind in BinlogKind}


class HaltedError(Exception):
    """The round ends: what is listed or deleted stops where it is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands in a directory. `size_bytes` is 0 for a directory."""

    name: str
    is_directory: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """A name that is none of ours; a directory's ends with a slash, and what is in it is not looked at."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A directory that could not be listed: nothing of it is deleted."""

    path: str
    error: ObjectStoreError


@dataclass(slots=True)
class Leaf:
    """The objects of one kind, channel, partition and epoch, all listed. Without an epoch: an empty directory above one.

    Attributes:
        kind: of the objects.
        channel_id: of the path.
        partition_id: of the path; None = the directory of the channel.
        epoch: of the path; None = the directory of the partition or channel.
        temporaries: what interrupted writers left, each with the path its object would have had.
    """

    kind: BinlogKind
    channel_id: int
    partition_id: int | None = None
    epoch: int | None = None
    temporaries: list[tuple[str, BinlogPath, int]] = field(default_factory=list)
    _numbers: "array[int]" = field(default_factory=lambda: array("q"))
    _order: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, path: BinlogPath, size_bytes: int) -> None:
        """Adds an object."""
        self._numbers.extend((path.timestamp_from, path.timestamp_to, path.field_id, path.log_id, size_bytes))

    def __len__(self) -> int:
        """How many objects it has."""
        return len(self._numbers) // _COLUMNS

    @property
    def directory(self) -> str:
        """Its path below the storage root."""
        partition = "all" if self.partition_id == ALL_PARTITIONS_ID else self.partition_id
        parts = (self.kind.value, self.channel_id, partition, self.epoch)
        return "/".join(str(part) for part in parts if part is not None)

    def parents(self) -> list["Leaf"]:
        """The directories of its partition and its channel."""
        above = [Leaf(self.kind, self.channel_id)]
        return [Leaf(self.kind, self.channel_id, self.partition_id), *above] if self.epoch is not None else above

    def sort(self) -> None:
        """Puts its objects into the order of their ranges, so that a part of them has its rows side by side in SQL."""
        start_of = self._numbers.__getitem__
        indexes = range(0, len(self._numbers), _COLUMNS)
        # One long sort would keep every other thread of the process waiting.
        runs = [sorted(indexes[first : first + _RUN], key=start_of) for first in range(0, len(indexes), _RUN)]
        self._order = array("q", polite(heapq.merge(*runs, key=start_of)))

    def batches(self, size: int) -> Iterator[list[ListedObject]]:
        """Its objects, once they are sorted."""
        for start in range(0, len(self._order), size):
            rows = (self._numbers[index : index + _COLUMNS] for index in self._order[start : start + size])
            yield [(row[0], row[1], row[2], row[3], row[4]) for row in rows]


Listed = Leaf | Unknown | Failed


class Objects:
    """One storage root.

    Args:
        store: the objects below it.
        halt: set by whoever wants it to stop.
    """

    def __init__(self, store: ObjectStore, halt: threading.Event) -> None:
        self._store = store
        self._filesystem = store._filesystem  # the one module besides its own that may: it alone deletes (S1)
        self._local = isinstance(store, LocalObjectStore)
        self._halt = halt

    # ---- whose it is --------------------------------------------------------------------------------------------------------

    def owner(self) -> bytes | None:
        """What the mark of its owner says; None = it has none.

        Raises:
            ObjectStoreError: it cannot be read.
        """
        try:
            with self._store.open_input(OWNER_MARK) as source:
                return bytes(source.read(_MARK_BYTES_MAX))
        except ObjectMissingError:
            return None

    def take_ownership(self, mark: bytes) -> bytes | None:
        """Writes the mark where there is none, and reads what stands there then: somebody else may have been faster.

        Raises:
            ObjectStoreError: it can be neither written nor read.
        """
        self._store.create(OWNER_MARK, pa.py_buffer(mark))
        return self.owner()

    # ---- listing ------------------------------------------------------------------------------------------------------------

    def walk(self) -> Iterator[Listed]:
        """Everything below the root, one directory at a time; a directory that fails does not end the walk.

        Raises:
            HaltedError: somebody wants it to stop.
        """
        for kind_name in (yield from self._directories("", _KINDS.__contains__)):
            kind = _KINDS[kind_name]
            for channel in (yield from self._directories(kind_name, _is_number)):
                yield from self._walk_channel(kind, int(channel))

    def _walk_channel(self, kind: BinlogKind, channel_id: int) -> Iterator[Listed]:
        of_channel = Leaf(kind, channel_id)
        partitions = yield from self._directories(of_channel.directory, _is_partition)
        if not partitions:
            yield of_channel
        for partition in partitions:
            of_partition = Leaf(kind, channel_id, ALL_PARTITIONS_ID if partition == "all" else int(partition))
            epochs = yield from self._directories(of_partition.directory, _is_number)
            if not epochs:
                yield of_partition
            for epoch in epochs:
                yield from self._list_leaf(Leaf(kind, channel_id, of_partition.partition_id, int(epoch)))

    def _directories(self, path: str, is_ours: Callable[[str], bool]) -> Generator[Unknown | Failed, None, list[str]]:
        """Names of the directories of ours in a directory; reports the rest."""
        names: list[str] = []
        others: list[Unknown] = []
        try:
            for entry in self._entries(path):
                if entry.is_directory and is_ours(entry.name):
                    names.append(entry.name)
                elif path or entry.name != OWNER_MARK:
                    others.append(_unknown(path, entry))
        except ObjectStoreError as error:
            yield Failed(path, error)
            return []
        yield from others
        return sorted(names)

    def _list_leaf(self, leaf: Leaf) -> Iterator[Listed]:
        """Lists a directory to its end before anything of it is judged: half of a listing counts for nothing."""
        others: list[Unknown] = []
        directory = leaf.directory
        try:
            for entry in self._entries(directory):
                path = None if entry.is_directory else _parse(directory, entry.name)
                if path is None:
                    others.append(_unknown(directory, entry))
                elif is_temporary(entry.name):
                    leaf.temporaries.append((f"{directory}/{entry.name}", path, entry.size_bytes))
                else:
                    leaf.add(path, entry.size_bytes)
        except ObjectStoreError as error:
            yield Failed(directory, error)
            return
        leaf.sort()
        failpoints.hit("coordinator.gc_listed")
        yield from others
        yield leaf

    def _entries(self, path: str) -> Iterator[Entry]:
        base = f"{self._store.root}/{path}" if path else self._store.root
        with translated("list", path or self._store.root):
            for entry in polite(self._scan(base) if self._local else self._select(base)):
                if self._halt.is_set():
                    raise HaltedError("the round was stopped")
                yield entry

    @staticmethod
    def _scan(base: str) -> Iterator[Entry]:
        try:
            found = os.scandir(base)
        except FileNotFoundError:
            return
        with found:
            for entry in found:
                try:
                    is_directory = entry.is_dir()
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # renamed or gone since
                yield Entry(entry.name, is_directory, status.st_size if stat.S_ISREG(status.st_mode) else 0)

    def _select(self, base: str) -> Iterator[Entry]:
        # Asked for level by level: a recursive listing of pyarrow is whole in memory.
        for info in self._filesystem.get_file_info(pafs.FileSelector(base, allow_not_found=True)):
            is_directory = info.type == pafs.FileType.Directory
            yield Entry(info.base_name, is_directory, 0 if is_directory else info.size or 0)

    # ---- deleting -----------------------------------------------------------------------------------------------------------

    def delete(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Deletes objects (or temporaries) that are garbage. One that is gone already counts as deleted.

        Args:
            paths: relative to the root, of this listing.

        Returns:
            the ones that are gone, and a sentence for each that could not be deleted.
        """
        if self._local:
            results = [self._delete_one(path) for path in paths]
        else:
            with ThreadPoolExecutor(REMOTE_DELETES, thread_name_prefix="gc-delete") as pool:
                results = list(pool.map(self._delete_one, paths))
        gone = [path for path, error in zip(paths, results, strict=True) if error == ""]
        return gone, [error for error in results if error]

    def _delete_one(self, path: str) -> str | None:
        """Empty: it is gone; None: the round ends, nothing was done; else why not."""
        failpoints.hit("coordinator.gc_delete")
        if self._halt.is_set():
            return None
        try:
            with translated("delete", path):
                if self._local:
                    os.unlink(f"{self._store.root}/{path}")
                else:
                    self._filesystem.delete_file(f"{self._store.root}/{path}")
        except ObjectStoreError as error:
            return "" if isinstance(error.__cause__, FileNotFoundError) else error.message
        return ""

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory of a local disk that no valid writer will use again; leaves one that is not empty.

        Only of an epoch that is over, a dropped partition or a dropped channel: a valid writer makes and syncs the directories
        of its own epoch once and then relies on them, and so must nobody take them away.
        """
        if not self._local:
            return  # object stores have none
        try:
            os.rmdir(f"{self._store.root}/{path}")
        except OSError:
            return  # not empty, gone, or not ours to remove: it costs nothing to stay


def polite(items: Iterable[T]) -> Iterator[T]:
    """The same items; lets other threads in every few of them.

    A thread that computes keeps Python's lock for 5 ms at a time; the thread that serves asks for it with every row of SQLite.
    """
    for number, item in enumerate(items):
        if number % _ITEMS_AT_ONCE == 0:
            time.sleep(0)
        yield item


def _is_number(name: str) -> bool:
    canonical = name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")
    return canonical and len(name) <= 19 and int(name) <= TIMESTAMP_MAX


def _is_partition(name: str) -> bool:
    return name == "all" or _is_number(name)


def _unknown(directory: str, entry: Entry) -> Unknown:
    # A name need not be text.
    name = entry.name.encode("utf-8", "backslashreplace").decode()
    path = f"{directory}/{name}" if directory else name
    return Unknown(f"{path}/" if entry.is_directory else path, entry.size_bytes)


def _parse(directory: str, name: str) -> BinlogPath | None:
    """The path of an object, or the one that a temporary would have had; None: the name is none of ours."""
    leaf = name[1:].rsplit(".", 2)[0] if is_temporary(name) else name
    try:
        return BinlogPath.parse(f"{directory}/{leaf}")
    except PathNotAllowedError:
        return None
