"""Whether a key stands in two objects of a batch at one timestamp: both rows would be seen, for none hides the other.

Within an object the last row of a key has won already. So only rows at times that several objects have are compared, and of
those the driver keeps a fingerprint of 8 bytes each, never the keys. Rows whose fingerprints are equal are read again and compared
as they are.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datacoord.errors import BatchTooLargeError
from datacoord.limits import COMPARED_ROWS_MAX
from datacoord.objectstore import ObjectStore
from datanode_client.sources.base import TIMESTAMP_COLUMN

Numbers = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]

_BATCH_ROWS: Final = 4096
_SUSPECTS: Final = 1000
_THREADS: Final = 8
_FACTOR: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class KeyedObject:
    """A delta log, which has every key of its rows.

    Attributes:
        path: of the object.
        rows: in it.
        ts_min: smallest timestamp.
        ts_max: largest timestamp.
    """

    path: str
    rows: int
    ts_min: int
    ts_max: int


def find_doubled_key(
    store: ObjectStore, objects: Sequence[KeyedObject], primary_key: Sequence[str]
) -> dict[str, Any] | None:
    """A key, with its timestamp, that stands in several of the objects; None = there is none.

    Args:
        store: where they lie.
        objects: those of one channel.
        primary_key: key columns.

    Raises:
        BatchTooLargeError: too many rows stand at times that several objects have.
        ObjectStoreError: one cannot be read.
    """
    starts, ends = shared_times(objects)
    if not len(starts):
        return None
    reading = _Reading(store, (*primary_key, TIMESTAMP_COLUMN), starts, ends)
    touched = [one for one in objects if reading.touches(one)]
    suspects = _repeated(_all_fingerprints(reading, touched))
    for first in range(0, len(suspects), _SUSPECTS):
        found = reading.rows_with(touched, suspects[first : first + _SUSPECTS])
        counted = found.append_column("_one", pa.repeat(1, found.num_rows)).group_by(list(reading.columns))
        doubled = counted.aggregate([("_one", "count")]).filter(pc.field("_one_count") > 1)
        if doubled.num_rows:
            key: dict[str, Any] = doubled.select(list(reading.columns)).slice(0, 1).to_pylist()[0]
            return key
    return None


def shared_times(objects: Sequence[KeyedObject]) -> tuple[Times, Times]:
    """First and last timestamps of the windows that two objects or more have in common, in order and apart from each other."""
    windows: list[list[int]] = []
    reach = -1
    for one in sorted(objects, key=lambda one: one.ts_min):
        end = min(one.ts_max, reach)
        if one.ts_min <= end:
            if windows and one.ts_min <= windows[-1][1]:
                windows[-1][1] = max(windows[-1][1], end)
            else:
                windows.append([one.ts_min, end])
        reach = max(reach, one.ts_max)
    bounds = np.array(windows, np.int64).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads keys at shared times, a few rows at a time."""

    store: ObjectStore
    columns: tuple[str, ...]
    starts: Times
    ends: Times

    def touches(self, one: KeyedObject) -> bool:
        """Whether an object has a part in a window."""
        place = np.searchsorted(self.ends, one.ts_min)
        return bool(place < len(self.ends) and self.starts[place] <= one.ts_max)

    def batches(self, one: KeyedObject) -> Iterator[pa.RecordBatch]:
        """The rows of an object in the windows."""
        with self.store.open_input(one.path) as file:
            for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS, columns=list(self.columns), use_threads=False):
                times = batch.column(TIMESTAMP_COLUMN).to_numpy()
                place = np.minimum(np.searchsorted(self.ends, times), len(self.ends) - 1)
                inside = (self.starts[place] <= times) & (times <= self.ends[place])
                if inside.any():
                    yield batch.select(list(self.columns)).filter(pa.array(inside))

    def rows_with(self, objects: Sequence[KeyedObject], suspects: Numbers) -> pa.Table:
        """The rows that have one of some fingerprints."""

        def read(one: KeyedObject) -> list[pa.RecordBatch]:
            return [batch.filter(pa.array(np.isin(fingerprints(batch), suspects))) for batch in self.batches(one)]

        with ThreadPoolExecutor(_THREADS) as threads:
            return pa.Table.from_batches([batch for batches in threads.map(read, objects) for batch in batches])


def _all_fingerprints(reading: _Reading, objects: Sequence[KeyedObject]) -> Numbers:
    found = np.empty(min(sum(one.rows for one in objects), COMPARED_ROWS_MAX), np.uint64)
    lock = threading.Lock()
    count = 0

    def read(one: KeyedObject) -> None:
        nonlocal count
        for batch in reading.batches(one):
            made = fingerprints(batch)
            with lock:
                if count + len(made) > len(found):
                    raise BatchTooLargeError(
                        f"more than {len(found)} rows stand at times that several tasks wrote, and the driver would have to "
                        "compare their keys; let each task write times of its own (repartitionByRange and sortWithinPartitions "
                        "by the timestampColumn), or land less in a batch (maxOffsetsPerTrigger, maxFilesPerTrigger)",
                        rows_max=len(found),
                    )
                found[count : count + len(made)] = made
                count += len(made)

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(read, objects):
            pass
    return found[:count]


def _repeated(numbers: Numbers) -> Numbers:
    """Those that stand more than once, each once; sorts in place."""
    numbers.sort()
    return np.unique(numbers[1:][numbers[1:] == numbers[:-1]])


def fingerprints(rows: pa.RecordBatch) -> Numbers:
    """A number for each row that is the same for the same values, and seldom for others."""
    found = np.zeros(rows.num_rows, np.uint64)
    for values in rows.columns:
        found = _mixed(found * np.uint64(_FACTOR) + _numbers(values))
    return found


def _numbers(values: pa.Array) -> Numbers:
    """A number of the bytes of each value: a polynomial modulo 2⁶⁴."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if (
        pa.types.is_primitive(values.type)
        or pa.types.is_decimal(values.type)
        or pa.types.is_fixed_size_binary(values.type)
    ):
        width = values.type.byte_width
        data = np.frombuffer(values.buffers()[1] or b"", np.uint8)[values.offset * width :][: len(values) * width]
        return _mixed(data.reshape(len(values), width).astype(np.uint64) @ _powers(width))
    values = values.cast(pa.large_binary())
    bounds = np.frombuffer(values.buffers()[1], np.int64)[values.offset :][: len(values) + 1]
    lengths, starts = np.diff(bounds), bounds[:-1] - bounds[0]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[bounds[0] : bounds[-1]].astype(np.uint64)
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    data *= _powers(int(lengths.max(initial=0)))[places]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(data, dtype=np.uint64)])
    return _mixed(sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64))


def _powers(count: int) -> Numbers:
    return np.cumprod(np.full(count, _FACTOR, np.uint64), dtype=np.uint64)


def _mixed(numbers: Numbers) -> Numbers:
    """The last step of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
