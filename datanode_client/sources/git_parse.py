"""From the bytes of `git diff-tree --stdin --raw -z --always` to Arrow, without a step per row.

The bytes are tokens, each ended by NUL: per commit its id, then per changed path two tokens,

    :<old mode> <new mode> <old id> <new id> <status letter>
    <path>

Modes have 6 characters and ids 40 or 64, so the first token has one width and its fields stand at fixed places. What makes a
token a path is that it follows such a token; a path may itself begin with a colon or look like an id.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datacoord.errors import SourceInvalidError
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, OP_UPSERT, TIMESTAMP_COLUMN

GIT_SCHEMA = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("mode", pa.string()),
        pa.field("blob_id", pa.binary()),
        pa.field("commit_id", pa.binary()),
        pa.field("committed_at", pa.timestamp("ms", tz="UTC")),
    ]
)
"""One row per path: the path's bytes, its mode as git prints it ("100644"), the id of its blob (of the commit, for a submodule),
and the commit that changed it last with its committer time."""

_ROW_SCHEMA = GIT_SCHEMA.append(pa.field(TIMESTAMP_COLUMN, pa.int64(), nullable=False)).append(
    pa.field(OP_COLUMN, pa.int8(), nullable=False)
)
_MODE_BYTES = 6
_BUFFER_BYTES_MAX = 2**31 - 1
_NIBBLES = np.zeros(256, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RawCommits:
    """Whole commits found in a buffer.

    Attributes:
        data: the buffer, uint8.
        headers: starts of the commits' id tokens in the buffer, shape (commits,).
        metas: starts of the tokens that precede a path, shape (changes,).
        paths: starts of the paths, shape (changes,).
        path_ends: ends of the paths, exclusive, shape (changes,).
        end: where the last whole commit ends in the buffer.
    """

    data: Bytes
    headers: Numbers
    metas: Numbers
    paths: Numbers
    path_ends: Numbers
    end: int

    def first(self, commits: int) -> "RawCommits":
        """Only the first so many commits."""
        if commits >= len(self.headers):
            return self
        end = int(self.headers[commits])
        changes = int(np.searchsorted(self.metas, end))
        return RawCommits(
            self.data, self.headers[:commits], self.metas[:changes], self.paths[:changes], self.path_ends[:changes], end
        )


@dataclass(frozen=True, slots=True)
class ShardedRows:
    """Rows of consecutive commits, ordered by channel and within a channel as git printed them.

    Attributes:
        rows: GIT_SCHEMA and the system's columns.
        timestamps: the column `_timestamp`, int64, shape (rows,).
        bounds: shape (channels + 1,): the rows of channel c are `bounds[c]` to `bounds[c + 1]`.
    """

    rows: pa.RecordBatch
    timestamps: Numbers
    bounds: Numbers


def find_commits(buffer: bytes | bytearray, id_bytes: int, *, at_end: bool) -> RawCommits:
    """Finds the whole commits at the start of a buffer.

    Args:
        buffer: begins with a commit's id token.
        id_bytes: 20 or 32.
        at_end: nothing follows the buffer; otherwise a commit is whole only when the next one has begun.

    Raises:
        SourceInvalidError: the buffer is not what git prints, or one commit is beyond what a message can be.
    """
    if len(buffer) > _BUFFER_BYTES_MAX:
        raise SourceInvalidError("one commit changes more than 2 GiB of paths: a message cannot be that large")
    data = np.frombuffer(buffer, np.uint8)
    ends = np.flatnonzero(data == 0)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    # Tokens that begin with a colon come in runs; a run begins with a meta token, because what precedes it is no meta token, and
    # from there on metas and paths take turns.
    colon = data[starts] == ord(":")
    index = np.arange(len(ends))
    run_begins = colon.copy()
    run_begins[1:] &= ~colon[:-1]
    run_start = np.maximum.accumulate(np.where(run_begins, index, 0))
    is_meta = colon & ((index - run_start) % 2 == 0)
    is_path = np.zeros_like(is_meta)
    is_path[1:] = is_meta[:-1]
    is_header = ~(is_meta | is_path)
    widths = ends - starts
    expected = np.where(is_meta, 4 * id_bytes + 2 * _MODE_BYTES + 6, 2 * id_bytes)
    cut_off = at_end and len(data) > 0 and (data[-1] != 0 or is_meta[-1])
    if cut_off or (len(ends) > 0 and (not is_header[0] or np.any((widths != expected) & ~is_path))):
        raise SourceInvalidError(
            "git diff-tree printed what this version of Datacoord cannot read: report it with `git --version`"
        )
    headers = starts[is_header]
    paths, path_ends = starts[is_path], ends[is_path]
    # A meta token at the very end has no path yet; its commit is not whole, so both are cut below.
    found = RawCommits(data, headers, starts[is_meta], paths, path_ends, len(data) if at_end else 0)
    return found if at_end or not len(headers) else found.first(len(headers) - 1)


def header_ids(found: RawCommits, id_bytes: int) -> Bytes:
    """The commits' ids, shape (commits, id_bytes)."""
    return _unhex(_windows(found.data, found.headers, 2 * id_bytes))


def shard_rows(
    found: RawCommits,
    id_bytes: int,
    timestamps: Numbers,
    committed_at_ms: Numbers,
    commit_ids: Bytes,
    *,
    channel_count: int,
) -> ShardedRows:
    """Makes the rows of commits and sorts them by channel.

    A path belongs to channel crc32(path) % channels, for good: this is part of the stored format.

    Args:
        found: the commits.
        id_bytes: 20 or 32.
        timestamps: the commits' numbers, shape (commits,).
        committed_at_ms: their committer times, shape (commits,).
        commit_ids: their ids, shape (commits, id_bytes).
        channel_count: how many channels the collection has.
    """
    changes = len(found.metas)
    spans = np.column_stack((found.paths, found.path_ends)).ravel().astype(np.int32)
    # The offsets path, gap, path, gap, …: taking every second value copies just the paths.
    spaced = _binary(max(2 * changes - 1, 0), spans, found.data)
    paths = spaced.take(pa.array(np.arange(changes) * 2))
    channels = np.fromiter(map(zlib.crc32, paths.to_pylist()), np.uint32, changes) % channel_count
    order = np.argsort(channels.astype(np.uint16), kind="stable")
    bounds = np.searchsorted(channels[order], np.arange(channel_count + 1))

    metas = _windows(found.data, found.metas[order], 4 * id_bytes + 2 * _MODE_BYTES + 6)
    deleted = metas[:, -1] == ord("D")
    mode_at, id_at = _MODE_BYTES + 2, 2 * _MODE_BYTES + 2 * id_bytes + 4
    modes = metas[:, mode_at : mode_at + _MODE_BYTES]
    blob_ids = _unhex(metas[:, id_at : id_at + 2 * id_bytes])
    commit = np.searchsorted(found.headers, found.metas[order]) - 1
    row_timestamps = timestamps[commit]
    columns = [
        paths.take(pa.array(order)),
        _fixed_width(modes, pa.string(), valid=~deleted),
        _fixed_width(blob_ids, pa.binary(), valid=~deleted),
        _fixed_width(commit_ids[commit], pa.binary()),
        pa.array(committed_at_ms[commit], pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
        pa.array(row_timestamps),
        pa.array(np.where(deleted, OP_DELETE, OP_UPSERT).astype(np.int8)),
    ]
    return ShardedRows(pa.record_batch(columns, schema=_ROW_SCHEMA), row_timestamps, bounds)


def _windows(data: Bytes, starts: Numbers, width: int) -> Bytes:
    """Copies of `width` bytes from each start, shape (starts, width)."""
    if not len(starts):
        return np.zeros((0, width), np.uint8)
    windows: Bytes = np.lib.stride_tricks.sliding_window_view(data, width)[starts]
    return windows


def _unhex(digits: Bytes) -> Bytes:
    """Decodes lower-case hexadecimal, shape (n, 2 m), to bytes, shape (n, m)."""
    nibbles: Bytes = _NIBBLES[digits]
    return nibbles[:, 0::2] * np.uint8(16) + nibbles[:, 1::2]


def _binary(length: int, offsets: npt.NDArray[np.int32], data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), length, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _fixed_width(values: Bytes, kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of strings or binaries that all have the same width, from shape (n, width)."""
    count, width = values.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        kind, count, [validity, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    )
