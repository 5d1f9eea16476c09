"""What Parquet's own statistics say of keys: smallest, largest, and bloom filters (split-block, xxHash64) of the key's columns.

They are written by the datanode into every object that holds key columns, by the rules of the Parquet format, so that any engine
may use them. Here readers ask: may this object hold one of these keys? No means certainly not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datacoord.errors import InvalidFieldError

PROBED_KEYS_MAX: Final = 4096
"""So many distinct keys are looked up in a bloom filter; with more of them it would hardly ever say no."""

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_BLOCK_BYTES: Final = 32
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_MASK: Final = (1 << 64) - 1


def has_bloom_filter(kind: pa.DataType) -> bool:
    """Whether key columns of a type get bloom filters: signed integers, text and binary."""
    return bool(pa.types.is_signed_integer(kind) or _is_text(kind))


class KeyProbe:
    """Keys that are looked for, prepared once and asked of many objects.

    Args:
        keys: columns of the primary key, of the types of the collection, without nulls.
    """

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys
        self._columns = {name: _Probe.of(keys.column(name)) for name in keys.column_names}

    @cached_property
    def condition(self) -> pc.Expression:
        """True for rows with one of the keys; of a key of several columns also for rows with parts of several keys."""
        parts = (pc.field(name).isin(self.keys.column(name).combine_chunks()) for name in self.keys.column_names)
        return reduce(and_, parts)

    def may_be_in(self, file: pa.NativeFile) -> bool:
        """Whether an object may hold a row with one of the keys; no keys = no."""
        if not self.keys.num_rows:
            return False
        metadata = pq.ParquetFile(file).metadata
        places = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
        tested = [(probe, places[name]) for name, probe in self._columns.items() if name in places]
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        return any(all(_chunk_may_hold(file, group.column(i), probe) for probe, i in tested) for group in groups)


@dataclass(frozen=True, slots=True)
class _Probe:
    """Values of one key column that are looked for.

    Attributes:
        lowest: the smallest; None = Parquet's order of the type is not Python's.
        highest: the largest.
        hashes: of each distinct one as Parquet has it; None = too many, or of a type without bloom filters.
    """

    lowest: Any
    highest: Any
    hashes: np.ndarray | None

    @classmethod
    def of(cls, values: pa.ChunkedArray) -> "_Probe":
        extent = pc.min_max(values).as_py() if _is_ordered(values.type) else {"min": None, "max": None}
        hashes = None
        if has_bloom_filter(values.type):
            distinct = pc.unique(values)
            if len(distinct) <= PROBED_KEYS_MAX:
                hashes = np.array([xxh64(raw) for raw in _plain(distinct)], np.uint64)
        return cls(extent["min"], extent["max"], hashes)


def _chunk_may_hold(file: pa.NativeFile, chunk: pq.ColumnChunkMetaData, probe: _Probe) -> bool:
    statistics = chunk.statistics
    if statistics is not None and statistics.has_min_max and probe.lowest is not None:
        # Statistics of long texts may be cut off, by rules that keep them outer bounds.
        smallest, largest = _as_like(statistics.min, probe.lowest), _as_like(statistics.max, probe.highest)
        comparable = type(smallest) is type(probe.lowest) and type(largest) is type(probe.highest)
        if comparable and (largest < probe.lowest or smallest > probe.highest):
            return False
    if probe.hashes is None or chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
        return True
    file.seek(chunk.bloom_filter_offset)
    return _bloom_may_hold(file.read(chunk.bloom_filter_length), probe.hashes)


def _as_like(value: Any, like: Any) -> Any:
    """Statistics give text of some types as bytes."""
    if isinstance(value, bytes) and isinstance(like, str):
        return value.decode(errors="surrogateescape")
    return value


def _bloom_may_hold(raw: bytes, hashes: np.ndarray) -> bool:
    """Looks values up in a split-block bloom filter, as the Parquet format has it: header in Thrift, then blocks of 256 bits."""
    # The header's length stands nowhere, but it is below a block's (19 bytes at most), and the blocks fill the rest.
    blocks = np.frombuffer(raw, np.uint32, offset=len(raw) % _BLOCK_BYTES).reshape(-1, 8)
    index = ((hashes >> np.uint64(32)) * np.uint64(len(blocks))) >> np.uint64(32)
    low = hashes.astype(np.uint32)
    with np.errstate(over="ignore"):
        bits = np.uint32(1) << ((low[:, None] * _SALT[None, :]) >> np.uint32(27))
    return bool(((blocks[index.astype(np.int64)] & bits) == bits).all(axis=1).any())


def _plain(values: pa.Array) -> list[bytes]:
    """Values as Parquet stores them plainly, which is what its bloom filters hash."""
    if _is_text(values.type):
        return [value.encode() if isinstance(value, str) else value for value in values.to_pylist()]
    wide = values.type.bit_width == 64
    return [value.to_bytes(8 if wide else 4, "little", signed=True) for value in values.to_pylist()]


def _is_text(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in checks)


def _is_ordered(kind: pa.DataType) -> bool:
    """Types of which Parquet's order is Python's."""
    return bool(pa.types.is_signed_integer(kind) or _is_text(kind) or pa.types.is_date32(kind))


def xxh64(data: bytes) -> int:
    """The hash of Parquet's bloom filters, seed 0 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md)."""
    length = len(data)
    position = 0
    if length >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while position + 32 <= length:
            for lane in range(4):
                word = int.from_bytes(data[position : position + 8], "little")
                lanes[lane] = _round(lanes[lane], word)
                position += 8
        found = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = _P5
    found = (found + length) & _MASK
    while position + 8 <= length:
        found ^= _round(0, int.from_bytes(data[position : position + 8], "little"))
        found = (_rotated(found, 27) * _P1 + _P4) & _MASK
        position += 8
    if position + 4 <= length:
        found ^= int.from_bytes(data[position : position + 4], "little") * _P1 & _MASK
        found = (_rotated(found, 23) * _P2 + _P3) & _MASK
        position += 4
    for byte in data[position:]:
        found = (_rotated(found ^ byte * _P5 & _MASK, 11) * _P1) & _MASK
    for shift, factor in ((33, _P2), (29, _P3), (32, 1)):
        found = (found ^ found >> shift) * factor & _MASK
    return found


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def table_of_keys(keys: pa.Table | Sequence[object], columns: pa.Schema, primary_key: Sequence[str]) -> pa.Table:
    """Keys as a table of the primary key's columns, each once.

    Args:
        keys: a table with the key's columns, or values of a key of one column.
        columns: of the collection.
        primary_key: its key columns.

    Raises:
        InvalidFieldError: the collection has no key, a column is missing, or a value cannot be one of its key.
    """
    if not primary_key:
        raise InvalidFieldError("the collection has no primary key; use `where`", field="keys")
    schema = pa.schema([columns.field(name) for name in primary_key])
    try:
        if not isinstance(keys, pa.Table):
            if len(primary_key) != 1:
                raise InvalidFieldError(
                    f"the key has columns {', '.join(primary_key)}; give a table of them", field="keys"
                )
            keys = pa.table({primary_key[0]: pa.array(list(keys), schema.field(0).type)})
        found = keys.select(list(primary_key)).cast(schema).drop_null()
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidFieldError):
            raise
        raise InvalidFieldError(f"keys are none of this collection: {error}", field="keys") from error
    return found.group_by(list(primary_key)).aggregate([]).select(list(primary_key))
