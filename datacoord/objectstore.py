"""Objects of one collection below its storage root: create once, read, list. Nobody deletes here (PROTOCOL S1).

`create` returns only when the object is complete and durable, because its path is named in SQL right after: on a local file
system the file and every directory on its path are synced, on an object store a finished upload is what the store promises to keep.
All calls block: call them from worker threads.
"""

import errno
import os
import posixpath
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs as pafs

from datacoord.errors import ConfigInvalidError, ObjectStoreError, PathNotAllowedError
from datacoord.limits import PATH_BYTES_MAX
from datacoord.s3 import open_s3

_TEMPORARY_SUFFIX = ".tmp"

OWNER_MARK = "_datacoord.json"
"""At a storage root: which database its objects belong to (docs/garbage.md). No object: listings leave it out."""


class DiskFullError(ObjectStoreError):
    """No space, or no quota, is left: free some. What was not registered is kept in memory and written again."""


class StorePermissionError(ObjectStoreError):
    """The process may not write or read there: change the rights, the credentials or the storage root."""


class StoreCredentialsError(ObjectStoreError):
    """There are no credentials, or the store does not accept them: correct what the process was given."""


class StoreUnreachableError(ObjectStoreError):
    """The store did not answer, or was too busy, however often it was asked: usually it comes back."""


class BucketMissingError(ObjectStoreError):
    """The bucket of the storage root does not exist: create it, or correct the storage root."""


class ObjectMissingError(ObjectStoreError):
    """No object has this path."""


class ObjectExistsError(ObjectStoreError):
    """An object has this path already; objects are immutable, so a second writer has a bug."""


_BY_ERRNO: dict[int, tuple[type[ObjectStoreError], str]] = {
    errno.ENOSPC: (DiskFullError, "the disk is full: free some space"),
    errno.EDQUOT: (DiskFullError, "the disk quota is used up: free some space or raise the quota"),
    errno.EACCES: (StorePermissionError, "permission is denied: change the rights of the storage root"),
    errno.EPERM: (StorePermissionError, "permission is denied: change the rights of the storage root"),
    errno.EROFS: (StorePermissionError, "the file system is read-only: mount it writable or move the storage root"),
    errno.ENOENT: (ObjectMissingError, "there is no such object"),
    errno.EEXIST: (ObjectExistsError, "an object of this name exists already"),
}

# pyarrow hands errors of object stores on as text. Checked in this order: a missing bucket is also "not found".
_BY_TEXT: tuple[tuple[tuple[str, ...], type[ObjectStoreError], str], ...] = (
    (
        ("NO_SUCH_BUCKET", "NoSuchBucket", "bucket does not exist", "Bucket not found", "ContainerNotFound"),
        BucketMissingError,
        "the bucket does not exist: create it or correct the storage root",
    ),
    (
        (
            *("INVALID_ACCESS_KEY_ID", "InvalidAccessKeyId", "SIGNATURE_DOES_NOT_MATCH", "SignatureDoesNotMatch"),
            *("INVALID_CLIENT_TOKEN_ID", "UNRECOGNIZED_CLIENT", "MISSING_AUTHENTICATION_TOKEN", "CREDENTIALS"),
            *("ExpiredToken", "InvalidToken", "EXPIRED_TOKEN", "InvalidSecurity", "AuthFailure", "INVALID_SIGNATURE"),
        ),
        StoreCredentialsError,
        "the store does not accept the credentials: check them, and the clock of this machine",
    ),
    (
        ("ACCESS_DENIED", "AccessDenied", "PERMISSION_DENIED", "Forbidden", "AuthorizationPermissionMismatch"),
        StorePermissionError,
        "permission is denied: check the credentials and the bucket's policy",
    ),
    (
        (
            *("NETWORK_CONNECTION", "REQUEST_TIMEOUT", "curlCode", "SLOW_DOWN", "SlowDown", "THROTTLING"),
            *("SERVICE_UNAVAILABLE", "INTERNAL_FAILURE", "InternalError", "HTTP status 5"),
        ),
        StoreUnreachableError,
        "the store does not answer, or is too busy",
    ),
)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing.

    Attributes:
        path: relative to the storage root.
        size_bytes: its size.
    """

    path: str
    size_bytes: int


class ObjectStore:
    """The objects below one storage root, on any file system of pyarrow. Thread-safe.

    Args:
        filesystem: the file system.
        root: directory (or bucket and prefix) in it, without a trailing slash.
    """

    def __init__(self, filesystem: pafs.FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self.root = root

    @classmethod
    def from_uri(cls, storage_root: str) -> "ObjectStore":
        """Opens a storage root; may talk to the store. Local ones come as LocalObjectStore, those in S3 as S3ObjectStore.

        Args:
            storage_root: a URI of pyarrow.fs (`file:///…`, `s3://bucket/prefix?…`, `gs://…`) or an absolute local path.

        Raises:
            ConfigInvalidError: pyarrow does not understand it.
            ObjectStoreError: the store cannot be reached, or refuses.
        """
        if storage_root.startswith("s3://"):
            with translated("open", storage_root):
                file_system, place = open_s3(storage_root)
            return S3ObjectStore(file_system, place)
        try:
            with translated("open", storage_root):
                filesystem, root = pafs.FileSystem.from_uri(storage_root)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise ConfigInvalidError(
                f"storage root {storage_root!r} is neither an absolute path nor a URI that pyarrow.fs understands: {error}",
                storage_root=storage_root,
            ) from error
        if isinstance(filesystem, pafs.LocalFileSystem):
            return LocalObjectStore(root)
        return cls(filesystem, root.rstrip("/"))

    def create(self, path: str, data: pa.Buffer) -> None:
        """Writes one immutable object; it is complete and durable when this returns.

        Args:
            path: relative to the storage root; never used before.
            data: the whole object.

        Raises:
            DiskFullError, StorePermissionError, BucketMissingError, ObjectExistsError, ObjectStoreError: it is not written. The
                path must not be used again: what became of it is not always known.
        """
        with translated("write", path), self._filesystem.open_output_stream(self._absolute(path)) as stream:
            stream.write(data)

    def open_input(self, path: str) -> pa.NativeFile:
        """Opens an object for reading at any place in it; use it as a context manager.

        Raises:
            ObjectMissingError, StorePermissionError, BucketMissingError, ObjectStoreError: it cannot be read.
        """
        with translated("read", path):
            return self._filesystem.open_input_file(self._absolute(path))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Lists the objects below a directory of the storage root; what does not exist is empty.

        Args:
            prefix: the directory, relative; empty = all.

        Raises:
            StorePermissionError, BucketMissingError, ObjectStoreError: the store cannot be listed.
        """
        base = self._absolute(prefix) if prefix else self.root
        with translated("list", prefix or self.root):
            infos = self._filesystem.get_file_info(pafs.FileSelector(base, allow_not_found=True, recursive=True))
        for info in infos:
            is_ours = not is_temporary(info.path) and info.base_name != OWNER_MARK
            if info.type == pafs.FileType.File and is_ours:
                yield ObjectInfo(info.path[len(self.root) :].lstrip("/"), info.size)

    def _absolute(self, path: str) -> str:
        # Storage roots are shared with others' data: nothing may reach outside, whatever a path from the network says.
        parts = path.split("/")
        if len(path) > PATH_BYTES_MAX or any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise PathNotAllowedError(f"object path {path[:80]!r} does not stay below the storage root", path=path[:80])
        return f"{self.root}/{path}"


class LocalObjectStore(ObjectStore):
    """Objects on a local file system, durable against loss of power.

    Args:
        root: an absolute directory; created with the first object.
    """

    def __init__(self, root: str) -> None:
        super().__init__(pafs.LocalFileSystem(), posixpath.normpath(root))
        self._known_directories: set[str] = set()
        self._lock = threading.Lock()

    def create(self, path: str, data: pa.Buffer) -> None:
        """As ObjectStore.create: written under a temporary name, synced, renamed, and the directory synced."""
        final = self._absolute(path)
        directory, leaf = posixpath.split(final)
        temporary = f"{directory}/.{leaf}.{secrets.token_hex(4)}{_TEMPORARY_SUFFIX}"
        with translated("write", path):
            try:
                self._make_directory(directory)
                _write_synced(temporary, data)
                if os.path.lexists(final):
                    raise FileExistsError(errno.EEXIST, "object exists", final)
                os.rename(temporary, final)
                _sync_directory(directory)
            except OSError:
                with suppress(OSError):  # not an object yet, so this is no deletion in the sense of S1
                    os.unlink(temporary)
                with self._lock:
                    self._known_directories.clear()  # whatever went wrong, look again
                raise

    def _make_directory(self, directory: str) -> None:
        """Makes a directory and makes its own name durable, once per process and directory."""
        with self._lock:
            if directory in self._known_directories:
                return
        parent = posixpath.dirname(directory)
        below_root = directory.startswith(f"{self.root}/")
        made = False
        if below_root or not os.path.isdir(directory):
            self._make_directory(parent)
            with suppress(FileExistsError):
                os.mkdir(directory)
                made = True
        # Below the root also when it was there: whoever made it may not have come to syncing it.
        if below_root or made:
            _sync_directory(parent)
        elif directory == self.root:
            with suppress(PermissionError):  # of an administrator's making, then, and long durable
                _sync_directory(parent)
        with self._lock:
            self._known_directories.add(directory)


class S3ObjectStore(ObjectStore):
    """Objects in a bucket. An upload that has ended is durable; one that has not leaves nothing that anybody sees.

    pyarrow takes a bucket that does not exist for an empty one where it reads, so whoever finds nothing looks for the bucket.
    """

    def open_input(self, path: str) -> pa.NativeFile:
        """As ObjectStore.open_input."""
        try:
            return super().open_input(path)
        except ObjectMissingError:
            self.check_bucket()
            raise

    def list_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """As ObjectStore.list_objects; the pages of a listing are joined."""
        found = False
        for info in super().list_objects(prefix):
            found = True
            yield info
        if not found:
            self.check_bucket()

    def check_bucket(self) -> None:
        """Asks for the bucket.

        Raises:
            BucketMissingError, StorePermissionError, StoreCredentialsError, StoreUnreachableError: it cannot be used.
        """
        bucket = self.root.partition("/")[0]
        with translated("open", bucket):
            missing = self._filesystem.get_file_info(bucket).type == pafs.FileType.NotFound
        if missing:
            raise BucketMissingError(
                f"cannot open {bucket!r}: the bucket does not exist: create it or correct the storage root", path=bucket
            )


def is_temporary(path: str) -> bool:
    """Whether a file is what an interrupted `create` left behind; such a file is not an object and may be deleted at any time."""
    leaf = posixpath.basename(path)
    return leaf.startswith(".") and leaf.endswith(_TEMPORARY_SUFFIX)


def _write_synced(path: str, data: pa.Buffer) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated(action: str, path: str) -> Iterator[None]:
    """Around everything that asks the file system: its errors become typed ones that say what to do.

    Args:
        action: what is done, as a verb.
        path: with what.

    Raises:
        ObjectStoreError: of the kind that fits.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, ObjectStoreError):
            raise
        kind, advice = _classify(error, action)
        raise kind(f"cannot {action} {path!r}: {advice}", action=action, path=path, cause=str(error)) from error


def _classify(error: OSError, action: str) -> tuple[type[ObjectStoreError], str]:
    text = str(error)
    for needles, kind, advice in _BY_TEXT:
        if any(needle in text for needle in needles):
            return kind, advice
    if error.errno == errno.ENOENT and action == "write":
        return ObjectStoreError, "a directory of the path was removed meanwhile"
    if error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    return ObjectStoreError, f"the object store failed: {text}"
