"""Sorted runs of changes on disk: Arrow IPC in files that have no name, so that nothing is left behind, whatever happens."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa

from datanode_client.puller.events import OpType, RawKVEntry

ENTRY_OVERHEAD_BYTES = 256
"""What a change costs in memory besides its key and values, measured roughly."""

BLOCK_BYTES = 256 * 1024
"""Changes are written and read back in blocks of about this size: what a run that is being read keeps in memory."""

RAW_KV_SCHEMA = pa.schema(
    [
        ("op_type", pa.uint8()),
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("old_value", pa.large_binary()),
        ("start_ts", pa.uint64()),
        ("commit_ts", pa.uint64()),
        ("region_id", pa.uint64()),
    ]
)
"""Changes as columns."""


def entry_bytes(entry: RawKVEntry) -> int:
    """What a change weighs in memory."""
    return len(entry.key) + len(entry.value) + len(entry.old_value) + ENTRY_OVERHEAD_BYTES


def entries_to_batch(entries: Sequence[RawKVEntry]) -> pa.RecordBatch:
    """Changes as an Arrow record batch of RAW_KV_SCHEMA."""
    columns = [[getattr(entry, name) for entry in entries] for name in RAW_KV_SCHEMA.names]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW_KV_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_KV_SCHEMA)


def batch_to_entries(batch: pa.RecordBatch) -> list[RawKVEntry]:
    """The changes of a record batch of RAW_KV_SCHEMA."""
    op_types, *columns = (column.to_pylist() for column in batch.columns)
    return [RawKVEntry(OpType(op_type), *rest) for op_type, *rest in zip(op_types, *columns, strict=True)]


class SpillRun:
    """Changes in commit order on disk, read once from front to back.

    The file has no name in the directory (O_TMPFILE where the system has it, unlinked at once elsewhere): it goes away with its
    last descriptor, also when the process is killed.

    Args:
        entries: ordered by commit_ts; consumed at once.
        directory: where the file goes; None = the system's place for temporary files.
        level: how often its changes were merged.

    Attributes:
        level: likewise.
        bytes: size of the file.
        head_ts: commit_ts of the next change; None at the end.

    Raises:
        OSError: the disk is full or fails.
    """

    def __init__(self, entries: Iterable[RawKVEntry], directory: Path | None, level: int = 0) -> None:
        self.level = level
        self.head_ts: int | None = None
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory, prefix="datacoord-puller-")  # noqa: SIM115
        try:
            with pa.ipc.new_file(self._file, RAW_KV_SCHEMA) as writer:
                for block in _blocks(entries):
                    self.head_ts = block[0].commit_ts if self.head_ts is None else self.head_ts
                    writer.write_batch(entries_to_batch(block))
            self.bytes = self._file.tell()
            self._reader = pa.ipc.open_file(self._file)
        except BaseException:
            self._file.close()
            raise
        self._next_block = 0
        self._block: list[RawKVEntry] = []
        self._next_entry = 0

    def take(self, commit_ts: int) -> list[RawKVEntry]:
        """Reads the next changes as long as they have this timestamp, in the order in which they were written."""
        taken = []
        while self.head_ts == commit_ts:
            if self._next_entry == len(self._block):
                self._read_block()
            taken.append(self._block[self._next_entry])
            self._next_entry += 1
            if self._next_entry == len(self._block) and self._next_block < self._reader.num_record_batches:
                self._read_block()
            at_end = self._next_entry == len(self._block)
            self.head_ts = None if at_end else self._block[self._next_entry].commit_ts
        return taken

    def _read_block(self) -> None:
        self._block = batch_to_entries(self._reader.get_batch(self._next_block))
        self._next_block += 1
        self._next_entry = 0

    def close(self) -> None:
        """Deletes the file; nothing can be read any more."""
        self._file.close()


def merge_runs(runs: Sequence[SpillRun]) -> Iterator[RawKVEntry]:
    """What is left of some runs as one sequence in commit order; runs must be in the order of arrival of their changes."""
    while heads := [run.head_ts for run in runs if run.head_ts is not None]:
        commit_ts = min(heads)
        for run in runs:
            yield from run.take(commit_ts)


def _blocks(entries: Iterable[RawKVEntry]) -> Iterator[list[RawKVEntry]]:
    block: list[RawKVEntry] = []
    block_bytes = 0
    for entry in entries:
        block.append(entry)
        block_bytes += entry_bytes(entry)
        if block_bytes >= BLOCK_BYTES:
            yield block
            block, block_bytes = [], 0
    if block:
        yield block
