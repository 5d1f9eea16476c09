"""Manifests: an object (`stats_log`, group 0) that names the objects of a range, written when all of them are durable.

Readers need none: SQL says the same. It is what makes a range of several objects whole where SQL is lost, because without it
nobody could tell all of a range's objects from some of them, or the attempt of a task that counts from one that does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.errors import InvalidFieldError
from datacoord.object_metadata import BinlogMetadata
from datacoord.paths import BinlogPath
from datacoord.v1 import common_pb2, data_coord_pb2

_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("range_to", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("ts_min", pa.int64(), nullable=False),
        pa.field("ts_max", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("memory_bytes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One object of a range.

    Attributes:
        path: of the object.
        range_to: end of the range it is registered with; the object's own may lie before it.
        rows: rows in it.
        ts_min: smallest timestamp of a row.
        ts_max: largest timestamp of a row.
        size_bytes: size of the object.
        memory_bytes: size of its rows in memory.
    """

    path: str
    range_to: int
    rows: int
    ts_min: int
    ts_max: int
    size_bytes: int
    memory_bytes: int


def entries_of(lane: data_coord_pb2.LaneBinlogs) -> list[ManifestEntry]:
    """The objects of a range as a save names them."""
    return [
        ManifestEntry(
            path=binlog.log_path,
            range_to=lane.timestamp_to,
            rows=binlog.entries_num,
            ts_min=binlog.timestamp_from,
            ts_max=binlog.timestamp_to,
            size_bytes=binlog.log_size_bytes,
            memory_bytes=binlog.memory_size_bytes,
        )
        for logs in (lane.insert_logs, lane.delta_logs)
        for field in logs
        for binlog in field.binlogs
    ]


def times_of(entries: Sequence[ManifestEntry]) -> tuple[int, int]:
    """Smallest and largest timestamp of the rows of objects."""
    return min(entry.ts_min for entry in entries), max(entry.ts_max for entry in entries)


def write_manifest(entries: Sequence[ManifestEntry], metadata: BinlogMetadata) -> tuple[common_pb2.Binlog, pa.Buffer]:
    """Builds a manifest.

    Args:
        entries: the objects of a range; in the first manifest of a sink's part of a channel those of all of its lanes.
        metadata: of the manifest; its times are of its own lane's objects, which is where it stands in SQL.

    Returns:
        what stands in the save, and the object.
    """
    rows = [[getattr(entry, name) for entry in entries] for name in _SCHEMA.names]
    table = pa.table([pa.array(row, field.type) for row, field in zip(rows, _SCHEMA, strict=True)], schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata.to_key_values()), sink, compression="zstd")
    data = sink.getvalue()
    binlog = common_pb2.Binlog(
        log_id=metadata.log_id,
        log_path=str(metadata.path),
        entries_num=len(entries),
        timestamp_from=metadata.ts_min,
        timestamp_to=metadata.ts_max,
        log_size_bytes=data.size,
        memory_size_bytes=table.nbytes,
    )
    return binlog, data


def read_manifest(file: pa.NativeFile) -> list[ManifestEntry]:
    """Reads a manifest.

    Raises:
        InvalidFieldError: it is none, or names what is no path.
    """
    table = pq.read_table(file)
    if table.schema.names != _SCHEMA.names:
        raise InvalidFieldError("the object is no manifest", field="manifest")
    entries = [ManifestEntry(**row) for row in table.to_pylist()]
    for entry in entries:
        BinlogPath.parse(entry.path)
    return entries
