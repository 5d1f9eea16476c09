"""Objects: complete and durable before they are named, immutable, below their root, with errors that say what to do."""

import errno
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from datacoord.errors import ConfigInvalidError, ObjectStoreError, PathNotAllowedError
from datacoord.objectstore import (
    DiskFullError,
    LocalObjectStore,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    StorePermissionError,
)

DATA = pa.py_buffer(b"0123456789")
PATH = "insert_log/7/1/3/0-10-0-99.parquet"


class Trace:
    """Records the system calls that durability rests on, in order, and lets them through or fails one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail: dict[tuple[str, str], OSError] = {}
        self._open: dict[int, str] = {}
        self._patch(monkeypatch)

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real_open, real_write, real_fsync, real_rename, real_mkdir = os.open, os.write, os.fsync, os.rename, os.mkdir

        def traced_open(path: str, flags: int, mode: int = 0o777) -> int:
            descriptor = real_open(path, flags, mode)
            self._open[descriptor] = str(path)
            return descriptor

        def traced_write(descriptor: int, data: memoryview) -> int:
            self._note("write", self._open[descriptor])
            return real_write(descriptor, data[:4])

        def traced_fsync(descriptor: int) -> None:
            self._note("fsync", self._open[descriptor])
            real_fsync(descriptor)

        def traced_rename(source: str, target: str) -> None:
            self._note("rename", target)
            real_rename(source, target)

        def traced_mkdir(path: str, mode: int = 0o777) -> None:
            real_mkdir(path, mode)
            self._note("mkdir", str(path))

        monkeypatch.setattr(os, "open", traced_open)
        monkeypatch.setattr(os, "write", traced_write)
        monkeypatch.setattr(os, "fsync", traced_fsync)
        monkeypatch.setattr(os, "rename", traced_rename)
        monkeypatch.setattr(os, "mkdir", traced_mkdir)

    def _note(self, call: str, path: str) -> None:
        name = "temporary" if path.endswith(".tmp") else path
        if (call, name) in self.fail:
            raise self.fail[call, name]
        self.calls.append((call, name))


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The system calls of the test."""
    return Trace(monkeypatch)


def files_below(root: Path) -> list[str]:
    """Every file of a directory tree, relative."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_created_object_is_read_back_and_listed(tmp_path: Path) -> None:
    """What is named in SQL must be found again, by the same relative path."""
    store = ObjectStore.from_uri(str(tmp_path))
    store.create(PATH, DATA)

    with store.open_input(PATH) as file:
        assert file.read() == b"0123456789"
    assert list(store.list_objects()) == [ObjectInfo(PATH, 10)]
    assert list(store.list_objects("insert_log")) == [ObjectInfo(PATH, 10)]
    assert list(store.list_objects("delta_log")) == []


def test_file_and_every_new_directory_are_synced_before_the_object_counts(tmp_path: Path, trace: Trace) -> None:
    """A name in a directory that was never synced is gone after loss of power, although the file itself was synced."""
    root = tmp_path / "root"
    LocalObjectStore(str(root)).create(PATH, DATA)

    directory = str(root / "insert_log/7/1/3")
    assert trace.calls[-6:] == [
        ("write", "temporary"),
        ("write", "temporary"),
        ("write", "temporary"),
        ("fsync", "temporary"),
        ("rename", f"{directory}/0-10-0-99.parquet"),
        ("fsync", directory),
    ]
    made = [root, root / "insert_log", root / "insert_log/7", root / "insert_log/7/1", root / "insert_log/7/1/3"]
    assert trace.calls[:-6] == [call for one in made for call in (("mkdir", str(one)), ("fsync", str(one.parent)))]


def test_a_directory_that_another_process_made_is_synced_too(tmp_path: Path, trace: Trace) -> None:
    """Whoever made it may be killed between making and syncing it; our object must not vanish with it."""
    (tmp_path / "insert_log/7/1/3").mkdir(parents=True)
    trace.calls.clear()
    LocalObjectStore(str(tmp_path)).create(PATH, DATA)

    assert ("fsync", str(tmp_path / "insert_log/7/1")) in trace.calls
    assert ("fsync", str(tmp_path.parent)) in trace.calls


def test_a_root_in_a_directory_that_cannot_be_read_is_usable(tmp_path: Path, trace: Trace) -> None:
    """A mount point below a directory of somebody else's is a good storage root."""
    trace.fail["fsync", str(tmp_path.parent)] = PermissionError(errno.EACCES, "denied")
    LocalObjectStore(str(tmp_path)).create(PATH, DATA)

    assert files_below(tmp_path) == [PATH]


def test_a_known_directory_is_synced_once_per_object_only(tmp_path: Path, trace: Trace) -> None:
    """Syncing the whole chain for every object would halve the rate of small syncs."""
    store = LocalObjectStore(str(tmp_path))
    store.create(PATH, DATA)
    trace.calls.clear()
    store.create(PATH.replace("-99", "-98"), DATA)

    assert [call for call, _ in trace.calls] == ["write", "write", "write", "fsync", "rename", "fsync"]


@pytest.mark.parametrize("point", ["write", "fsync", "rename", "directory"])
def test_a_full_disk_leaves_no_object_and_the_next_attempt_succeeds(tmp_path: Path, trace: Trace, point: str) -> None:
    """A truncated object under its final name would be registered as good by a retry."""
    store = LocalObjectStore(str(tmp_path))
    final = str(tmp_path / PATH)
    key = {
        "write": ("write", "temporary"),
        "fsync": ("fsync", "temporary"),
        "rename": ("rename", final),
        "directory": ("fsync", os.path.dirname(final)),
    }[point]
    trace.fail[key] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DiskFullError, match="free some space") as caught:
        store.create(PATH, DATA)
    trace.fail.clear()
    store.create(PATH.replace("-99", "-98"), DATA)

    assert caught.value.metadata["path"] == PATH
    # After the rename the object is complete, only not certainly durable: nobody names it, and only the collector deletes.
    complete = [PATH] if point == "directory" else []
    assert files_below(tmp_path) == sorted([*complete, PATH.replace("-99", "-98")])
    assert all((tmp_path / name).read_bytes() == b"0123456789" for name in files_below(tmp_path))


def test_the_kernel_says_disk_full_the_way_we_understand_it() -> None:
    """Injected errors prove nothing if the real one looks different: /dev/full is a real full disk."""
    store = ObjectStore(pafs.LocalFileSystem(), "/dev")
    with pytest.raises(DiskFullError):
        store.create("full", pa.py_buffer(b"x" * 100_000))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_missing_rights_are_told_from_other_failures(tmp_path: Path, trace: Trace, number: int) -> None:
    """Waiting does not give rights: an operator must be told what to change."""
    trace.fail["write", "temporary"] = OSError(number, os.strerror(number))
    with pytest.raises(StorePermissionError):
        LocalObjectStore(str(tmp_path)).create(PATH, DATA)


def test_an_object_is_never_overwritten(tmp_path: Path) -> None:
    """Registered bytes are immutable; a second writer of a path has a bug and must hear of it."""
    store = LocalObjectStore(str(tmp_path))
    store.create(PATH, DATA)
    with pytest.raises(ObjectExistsError):
        store.create(PATH, pa.py_buffer(b"other"))

    assert (tmp_path / PATH).read_bytes() == b"0123456789"
    assert files_below(tmp_path) == [PATH]


def test_a_root_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """An operator who clears the wrong directory must not force every datanode to be restarted."""
    store = LocalObjectStore(str(tmp_path / "root"))
    store.create(PATH, DATA)
    os.rename(tmp_path / "root", tmp_path / "gone")
    with pytest.raises(ObjectStoreError, match="removed meanwhile"):
        store.create(PATH, DATA)
    store.create(PATH, DATA)

    assert files_below(tmp_path / "root") == [PATH]


def test_what_a_killed_process_left_is_not_an_object(tmp_path: Path) -> None:
    """A temporary file in a listing would be reported as a foreign or orphaned object."""
    store = LocalObjectStore(str(tmp_path))
    store.create(PATH, DATA)
    (tmp_path / "insert_log/7/1/3/.0-10-0-98.parquet.abcd.tmp").write_bytes(b"half")

    assert [info.path for info in store.list_objects()] == [PATH]


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a//b", "a/./b", "a/../../b", "", "a\0b", "a/" + "b" * 600]
)
def test_no_path_reaches_outside_the_storage_root(tmp_path: Path, path: str) -> None:
    """Paths come over the network; one that climbs out would read or write other people's files."""
    store = ObjectStore.from_uri(str(tmp_path))
    with pytest.raises(PathNotAllowedError):
        store.create(path, DATA)
    with pytest.raises(PathNotAllowedError):
        store.open_input(path)


def test_a_missing_object_is_told_from_a_missing_right(tmp_path: Path) -> None:
    """`verify` must tell lost objects from a wrong mount."""
    with pytest.raises(ObjectMissingError):
        ObjectStore.from_uri(str(tmp_path)).open_input(PATH)


@pytest.mark.parametrize("root", ["relative/path", "nosuchscheme://x/y", "", "http://host/x"])
def test_a_storage_root_that_is_none_is_a_typed_refusal(root: str) -> None:
    """A typo in a setting must not show as a traceback of pyarrow."""
    with pytest.raises(ConfigInvalidError):
        ObjectStore.from_uri(root)


def test_a_file_uri_and_a_path_mean_the_same_place(tmp_path: Path) -> None:
    """The collection's root is a URI; people type paths."""
    ObjectStore.from_uri((tmp_path / "a b").as_uri()).create(PATH, DATA)

    assert (tmp_path / "a b" / PATH).read_bytes() == b"0123456789"


def test_errors_cross_the_process_borders_of_spark() -> None:
    """An error that does not survive pickling hides its cause behind a pickling error."""
    error = DiskFullError("cannot write 'x': the disk is full", path="x")
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), copy.metadata) == (DiskFullError, str(error), {"path": "x"})
