"""A made-up change log: every row is a pure function of the seed, the channel and the number of its block.

So any position can be sought without generating what lies before, every process sees the same log, and the log can be written
down as plain files for a judge. All random bits come raw from a bit generator, whose stream numpy keeps for good.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.errors import SourceInvalidError
from datacoord.limits import CHANNEL_COUNT_MAX, TIMESTAMP_MAX
from datacoord.positions import Position
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, OP_UPSERT, TIMESTAMP_COLUMN

VECTOR_SIZE = 32
GENERATOR_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), VECTOR_SIZE)),
        pa.field("title", pa.string()),
        pa.field("token", pa.string()),
        pa.field("note", pa.string()),
        pa.field("quantity", pa.int32()),
        pa.field("seen_at", pa.timestamp("us", tz="UTC")),
    ]
)
GENERATOR_PRIMARY_KEY = ("id",)

CHANNEL_COLUMN = "_channel"
ORDINAL_COLUMN = "_ordinal"

_TIMESTAMPS_PER_ROW = 16
_WORDS_PER_ROW = 7
_SPARSE_ROWS_MAX = 8
_EPOCH_MS = 1_735_689_600_000  # 2025-01-01: an event time looks like one
_SHARES = 256
_ROW_GROUP_ROWS = 65_536
_SYLLABLES = ("ka", "lo", "mi", "né", "ru", "šo", "ta", "vö", "xi", "yu", "zá", "ça", "日本", "🌿", "o'", '"q"')

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_HEX_DIGITS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_FLOATS = ((np.arange(256) - 128) / 128).astype(np.float32)


class GeneratedLog:
    """The log as a whole.

    Every channel's timestamps run from 1 to `last_timestamp` and are cut into `block_count` blocks of equal width. Most channels
    have rows in every block, one in `sparse_every` has none to eight rows in all. A key belongs to one channel: id % channels.

    Args:
        seed: any number of 64 bits.
        rows: operations in all channels together.
        channels: how many channels.
        sparse_every: every how many channels one is sparse; 0 = none.
        keys: size of the key space; None = a third of the rows. Low keys are used more often.
        block_rows: rows of a block at most, which is also what a reader yields at once.
        message_rows_max: messages have one to so many rows; some hold a key twice.
        delete_share: share of the operations that are deletes, also of keys that do not exist.

    Raises:
        SourceInvalidError: an argument is out of range.
    """

    def __init__(
        self,
        seed: int,
        rows: int,
        channels: int = 256,
        *,
        sparse_every: int = 8,
        keys: int | None = None,
        block_rows: int = 2048,
        message_rows_max: int = 8,
        delete_share: float = 0.15,
    ) -> None:
        self.seed = seed
        self.rows = rows
        self.channels = channels
        self.keys = max(rows // 3, channels) if keys is None else keys
        self.block_rows = block_rows
        self.message_rows_max = message_rows_max
        self.delete_share = delete_share
        self._check()
        sparse = np.arange(channels) % sparse_every == sparse_every - 1 if sparse_every else np.zeros(channels, bool)
        self._sparse = sparse if channels > 1 else np.zeros(1, bool)
        self.channel_rows = self._spread()
        self.block_count = max(-(-int(self.channel_rows.max()) // block_rows), 1)
        self.block_width = block_rows * _TIMESTAMPS_PER_ROW
        self.last_timestamp = self.block_count * self.block_width
        options = f"{sparse_every}-{self.keys}-{block_rows}-{message_rows_max}-{delete_share}"
        self.name = f"generator-{seed}-{rows}-{channels}-{options}"

    def block_counts(self, channel: int) -> Numbers:
        """How many rows each block of a channel has, shape (block_count,)."""
        rows = int(self.channel_rows[channel])
        if self._sparse[channel]:
            where = self._bits(channel, self.block_count).random_raw(rows) % np.uint64(self.block_count)
            return np.bincount(where.astype(np.int64), minlength=self.block_count)
        edges = np.arange(self.block_count + 1) * rows // self.block_count
        return np.diff(edges)

    def block(self, channel: int, index: int, count: int) -> pa.RecordBatch:
        """Generates a block.

        Args:
            channel: which channel.
            index: which of its blocks; it holds timestamps from index * block_width + 1 to (index + 1) * block_width.
            count: its rows, from `block_counts`.

        Returns:
            GENERATOR_SCHEMA and the system's columns `_timestamp` and `_op`, in the order of the log.
        """
        words = self._bits(channel, index).random_raw(count * _WORDS_PER_ROW).reshape(_WORDS_PER_ROW, count)
        message, timestamps = self._messages(index, words[0])
        ids = self._keys(message, words[0], words[1]) * self.channels + channel
        deleted = (words[0] >> np.uint64(8)) % np.uint64(_SHARES) < round(self.delete_share * _SHARES)
        columns = [
            pa.array(ids),
            pa.FixedSizeListArray.from_arrays(pa.array(_FLOATS[words[3:].ravel().view(np.uint8)]), VECTOR_SIZE),
            *_texts(words[1], words[2]),
            pa.array(words[2].astype(np.int32), mask=words[2] >> np.uint64(61) == 0),
            _seen_at(timestamps, words[2]),
            pa.array(timestamps),
            pa.array(np.where(deleted, OP_DELETE, OP_UPSERT).astype(np.int8)),
        ]
        return pa.record_batch(columns, schema=_ROW_SCHEMA)

    def position(self, timestamp: int) -> Position:
        """The position right after a timestamp."""
        return Position(timestamp, b"%d" % timestamp, self.name, _EPOCH_MS + timestamp)

    def write_files(
        self,
        directory: str | os.PathLike[str],
        *,
        channels_per_file: int = 32,
        progress: Callable[[int], None] = lambda _rows: None,
    ) -> list[Path]:
        """Writes the operations of all channels down as plain Parquet files, for a judge.

        Columns: `_channel` (int32), `_ordinal` (int64, 1, 2, … within the channel, in the order of the log), `_timestamp`,
        `_op`, and GENERATOR_SCHEMA.

        Args:
            directory: made if it is not there.
            channels_per_file: how many channels share a file.
            progress: told how many rows were written, now and then.

        Returns:
            the files.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        paths = []
        for first in range(0, self.channels, channels_per_file):
            paths.append(target / f"operations-{first:05d}.parquet")
            # Random bits do not compress, dictionaries of them cost time and memory for nothing.
            with pq.ParquetWriter(
                paths[-1], _FILE_SCHEMA, compression="lz4", use_dictionary=["title", "note"], write_statistics=False
            ) as writer:
                for channel in range(first, min(first + channels_per_file, self.channels)):
                    self._write_channel(writer, channel, progress)
        return paths

    def _write_channel(self, writer: pq.ParquetWriter, channel: int, progress: Callable[[int], None]) -> None:
        waiting: list[pa.RecordBatch] = []
        waiting_rows, ordinal = 0, 1
        counts = self.block_counts(channel)
        for index in np.flatnonzero(counts):
            count = int(counts[index])
            rows = self.block(channel, int(index), count)
            columns = [
                pa.array(np.full(count, channel, np.int32)),
                pa.array(np.arange(ordinal, ordinal + count)),
                rows.column(TIMESTAMP_COLUMN),
                rows.column(OP_COLUMN),
                *rows.columns[: len(GENERATOR_SCHEMA)],
            ]
            ordinal += count
            waiting.append(pa.record_batch(columns, schema=_FILE_SCHEMA))
            waiting_rows += count
            if waiting_rows >= _ROW_GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting))
                progress(waiting_rows)
                waiting, waiting_rows = [], 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
            progress(waiting_rows)

    def _check(self) -> None:
        checks = {
            "seed": 0 <= self.seed < 2**64,
            "rows": 0 <= self.rows <= 10**12,
            "channels": 1 <= self.channels <= CHANNEL_COUNT_MAX,
            "keys": self.channels <= self.keys <= TIMESTAMP_MAX // 2,
            "block_rows": 1 <= self.block_rows <= 2**20,
            "message_rows_max": 1 <= self.message_rows_max <= 256,
            "delete_share": 0 <= self.delete_share <= 1,
        }
        wrong = [name for name, is_right in checks.items() if not is_right]
        if wrong:
            raise SourceInvalidError(
                f"the generator cannot make a log of {wrong[0]} = {getattr(self, wrong[0])}: it is out of range",
                setting=wrong[0],
            )

    def _bits(self, channel: int, index: int) -> np.random.SFC64:
        return np.random.SFC64(np.random.SeedSequence([self.seed, channel, index]))

    def _spread(self) -> Numbers:
        """Rows per channel: a few for the sparse, the rest by random weights of 0.5 to 1.5 for the others."""
        draws = self._bits(self.channels, 0).random_raw(self.channels)
        counts = np.where(self._sparse, (draws % np.uint64(_SPARSE_ROWS_MAX + 1)).astype(np.int64), 0)
        counts[np.cumsum(counts) > self.rows // 2] = 0
        weights = np.where(self._sparse, 0, (draws >> np.uint64(44)).astype(np.int64) + 2**19)
        # Edges of exact integers: what a channel gets is rounded, what all get is not.
        edges = np.cumsum(weights)
        left = self.rows - int(counts.sum())
        shares = np.array([left * int(edge) // int(edges[-1]) for edge in edges], np.int64)
        return counts + np.diff(shares, prepend=0)

    def _messages(self, index: int, words: Words) -> tuple[Numbers, Numbers]:
        """Cuts a block into messages: per row the number of its message, and its timestamp."""
        sizes = 1 + (words % np.uint64(self.message_rows_max)).astype(np.int64)
        message = np.searchsorted(np.cumsum(sizes), np.arange(len(words)), side="right")
        width = self.block_width // max(int(message[-1]) + 1 if len(message) else 1, 1)
        offsets = ((words >> np.uint64(16)) % np.uint64(width)).astype(np.int64)
        # One stratum of timestamps per message: strictly increasing, and spread over the block with gaps.
        return message, index * self.block_width + 1 + message * width + offsets[message]

    def _keys(self, message: Numbers, words: Words, more: Words) -> Numbers:
        """Keys within the channel, low ones more often; one in 16 rows repeats the key before it in its message."""
        draws = (words >> np.uint64(32)).astype(np.float64) / 2.0**32
        keys = (draws * draws * (self.keys // self.channels)).astype(np.int64)
        repeats = more >> np.uint64(60) == 0
        repeats[:1] = False
        repeats[1:] &= message[1:] == message[:-1]
        origin = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(keys))))
        repeated: Numbers = keys[origin]
        return repeated


@cache
def _vocabulary() -> pa.Array:
    """4096 titles of several lengths and scripts; the first is empty."""
    pairs = [first + second for first in _SYLLABLES for second in _SYLLABLES]
    words = [pair + last for pair in pairs for last in _SYLLABLES]
    return pa.array(["", *words[1:]])


def _texts(words: Words, more: Words) -> list[pa.Array]:
    """Title, token and note: from a vocabulary, all different, and one in four null."""
    vocabulary = _vocabulary()
    title = vocabulary.take(pa.array((words % np.uint64(len(vocabulary))).astype(np.int32)))
    digits = _HEX_DIGITS[words.view(np.uint8)]
    offsets = np.arange(0, 16 * len(words) + 1, 16, dtype=np.int32)
    token = pa.Array.from_buffers(pa.string(), len(words), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
    note_at = ((more >> np.uint64(32)) % np.uint64(len(vocabulary))).astype(np.int32)
    note = vocabulary.take(pa.array(note_at, mask=more >> np.uint64(59) < np.uint64(8)))
    return [title, token, note]


def _seen_at(timestamps: Numbers, words: Words) -> pa.Array:
    microseconds = (_EPOCH_MS + timestamps) * 1000 + (words % np.uint64(1000)).astype(np.int64)
    return pa.array(microseconds).cast(pa.timestamp("us", tz="UTC"))


_ROW_SCHEMA = pa.schema(
    [
        *GENERATOR_SCHEMA,
        pa.field(TIMESTAMP_COLUMN, pa.int64(), nullable=False),
        pa.field(OP_COLUMN, pa.int8(), nullable=False),
    ]
)
_FILE_SCHEMA = pa.schema(
    [
        pa.field(CHANNEL_COLUMN, pa.int32(), nullable=False),
        pa.field(ORDINAL_COLUMN, pa.int64(), nullable=False),
        pa.field(TIMESTAMP_COLUMN, pa.int64(), nullable=False),
        pa.field(OP_COLUMN, pa.int8(), nullable=False),
        *GENERATOR_SCHEMA,
    ]
)
