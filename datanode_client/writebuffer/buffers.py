"""The buffers of one lane. They hold whole messages as Arrow record batches and are emptied together (PROTOCOL R3, cut)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from datacoord.paths import BinlogKind
from datacoord.positions import Position

_SMALL_BATCH_ROWS = 1024
_SMALL_BATCHES_MAX = 128


@dataclass(frozen=True, slots=True)
class LaneRows:
    """Rows of whole messages for one lane.

    Attributes:
        partition_id: the lane.
        inserts: rows to insert, schema of insert logs; None = none.
        deletes: keys to delete, schema of delta logs; None = none.
        ts_min: smallest timestamp in either.
    """

    partition_id: int
    inserts: pa.RecordBatch | None
    deletes: pa.RecordBatch | None
    ts_min: int


class RowBuffer:
    """An insert buffer or a delta buffer.

    Args:
        size_limit_bytes: from so many bytes on it is full.
    """

    __slots__ = ("_batches", "_size_limit_bytes", "_small_batches", "rows", "size_bytes")

    def __init__(self, size_limit_bytes: int) -> None:
        self._size_limit_bytes = size_limit_bytes
        self._batches: list[pa.RecordBatch] = []
        self._small_batches = 0
        self.rows = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it holds as much as it should."""
        return self.size_bytes >= self._size_limit_bytes

    def buffer(self, batch: pa.RecordBatch) -> int:
        """Appends a batch and returns how many bytes it added."""
        size_bytes: int = batch.nbytes
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.size_bytes += size_bytes
        self._small_batches = self._small_batches + 1 if batch.num_rows < _SMALL_BATCH_ROWS else 0
        if self._small_batches >= _SMALL_BATCHES_MAX:
            self._merge_small_batches()
        return size_bytes

    def take(self) -> list[pa.RecordBatch]:
        """Empties the buffer and returns what was in it, in order."""
        batches, self._batches = self._batches, []
        self.rows = self.size_bytes = self._small_batches = 0
        return batches

    def _merge_small_batches(self) -> None:
        # A batch of a few rows costs far more memory than its rows; merging keeps the measured size near the real one.
        small = self._batches[-_SMALL_BATCHES_MAX:]
        self._batches[-_SMALL_BATCHES_MAX:] = pa.Table.from_batches(small).combine_chunks().to_batches()
        self._small_batches = 0


@dataclass(slots=True)
class LaneBuffer:
    """What a lane has consumed and not cut: insert buffer and delta buffer, with one pin.

    Attributes:
        partition_id: the lane.
        insert_buffer: rows to insert.
        delta_buffer: keys to delete.
        pin_id: unique; the pin moves to the sync when the lane is cut.
        pin: position consumed before the first buffered message: the checkpoint must not pass it.
        ts_min: smallest buffered timestamp.
        stale_at: monotonic time from which the lane has waited too long.
    """

    partition_id: int
    insert_buffer: RowBuffer
    delta_buffer: RowBuffer
    pin_id: int
    pin: Position
    ts_min: int
    stale_at: float
    _buffers: dict[BinlogKind, RowBuffer] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._buffers = {BinlogKind.INSERT: self.insert_buffer, BinlogKind.DELTA: self.delta_buffer}

    @property
    def is_full(self) -> bool:
        """Whether one of the buffers is full."""
        return self.insert_buffer.is_full or self.delta_buffer.is_full

    @property
    def rows(self) -> int:
        """Rows in both buffers."""
        return self.insert_buffer.rows + self.delta_buffer.rows

    @property
    def size_bytes(self) -> int:
        """Bytes in both buffers."""
        return self.insert_buffer.size_bytes + self.delta_buffer.size_bytes

    def buffer(self, lane_rows: LaneRows) -> int:
        """Appends whole messages and returns how many bytes they added."""
        added = 0
        if lane_rows.inserts is not None:
            added += self.insert_buffer.buffer(lane_rows.inserts)
        if lane_rows.deletes is not None:
            added += self.delta_buffer.buffer(lane_rows.deletes)
        return added

    def take(self) -> Iterator[tuple[BinlogKind, list[pa.RecordBatch]]]:
        """Empties both buffers; kinds without rows are left out."""
        for kind, buffer in self._buffers.items():
            batches = buffer.take()
            if batches:
                yield kind, batches
