"""Writes the objects of one channel: Arrow rows in, Parquet objects out, durable when it returns. Runs in worker threads."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.column_groups import (
    ROW_FIELD_IDS,
    SHARED_FIELD_ID,
    ColumnGroup,
    column_groups,
    key_bloom_filter,
    storage_version,
)
from datacoord.key_statistics import has_bloom_filter
from datacoord.limits import TIMESTAMP_MAX
from datacoord.manifest import entries_of, times_of, write_manifest
from datacoord.object_metadata import MANIFEST_PART, BinlogMetadata, encoded, part_name
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogKind
from datacoord.positions import START, Position
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.sources.base import TIMESTAMP_COLUMN

BLOOM_FILTER_FPP: Final = 0.05
"""Share of foreign keys that a key's bloom filter lets through: about a byte per key."""

Part = tuple[BinlogKind, int]
"""Kind and group of one object of a range."""

LOG_FIELDS: Final = {BinlogKind.INSERT: "insert_logs", BinlogKind.DELTA: "delta_logs", BinlogKind.STATS: "stats_logs"}
"""Where the objects of a kind stand in a save."""


@dataclass(slots=True)
class RangeRows:
    """The rows of one range of one lane, and what of them is written already.

    Attributes:
        partition_id: the lane.
        timestamp_from: start of the range, exclusive.
        timestamp_to: end of the range, inclusive.
        rows: per kind the batches in the order of their timestamps; kinds without rows are absent.
        checkpoint: a checkpoint of the channel that is stored already.
        written: per kind and group the object, once it is durable. A repetition after a failure writes only what is missing:
            orphans of every attempt would fill a disk that is full already.
        write_id: identity of these rows, the same in all their objects; 0 = nothing was written yet.
    """

    partition_id: int
    timestamp_from: int
    timestamp_to: int
    rows: dict[BinlogKind, list[pa.RecordBatch]]
    checkpoint: Position = START
    written: dict[Part, common_pb2.Binlog] = field(default_factory=dict)
    write_id: int = 0

    def to_proto(self) -> data_coord_pb2.LaneBinlogs:
        """The range and its objects as they stand in a save."""
        lane = data_coord_pb2.LaneBinlogs(
            partition_id=self.partition_id, timestamp_from=self.timestamp_from, timestamp_to=self.timestamp_to
        )
        for (kind, field_id), binlog in self.written.items():
            logs = getattr(lane, LOG_FIELDS[kind])
            logs.append(common_pb2.FieldBinlog(field_id=field_id, binlogs=[binlog]))
        return lane


class BinlogWriter:
    """Encodes and creates the objects of one channel at one epoch. Thread-safe.

    Args:
        info: names and numbers of the channel, and its collection.
        schema: of the collection.
        open_store: the object store of the collection; called in the worker thread, because opening may talk to the store.
        compression: Parquet codec.
        compression_level: its level; None = the default.
        channel_mode: of the collection.
        manifest_follows: somebody else names the objects in a manifest, with others of their range (a sink's commit).
    """

    def __init__(
        self,
        info: data_coord_pb2.ChannelRecoveryInfo,
        schema: CollectionSchema,
        open_store: Callable[[], ObjectStore],
        compression: str,
        compression_level: int | None = None,
        *,
        channel_mode: common_pb2.ChannelMode = common_pb2.CHANNEL_MODE_MANAGED,
        manifest_follows: bool = False,
    ) -> None:
        self._info = info
        self._open_store = open_store
        self._compression = compression
        self._compression_level = compression_level
        self._manifest_follows = manifest_follows
        self._collection = encoded(describe_collection(info, channel_mode))
        self._filtered_keys = schema.primary_key if key_bloom_filter(info.properties) else ()
        groups = column_groups(schema.columns, schema.primary_key, storage_version(info.properties))
        self._groups: Mapping[BinlogKind, tuple[ColumnGroup, ...]] = {
            BinlogKind.INSERT: groups,
            BinlogKind.DELTA: (ColumnGroup(SHARED_FIELD_ID, tuple(schema.delta_log.names)),),
        }
        self._schemas: Mapping[Part, pa.Schema] = {
            (kind, group.field_id): _sub_schema(full, group.columns)
            for kind, full in ((BinlogKind.INSERT, schema.insert_log), (BinlogKind.DELTA, schema.delta_log))
            for group in self._groups[kind]
        }

    def write(self, lane: RangeRows) -> None:
        """Writes every object of a range that is not written yet and notes it in `lane.written`.

        Raises:
            ObjectStoreError: an object could not be written; call again.
            pyarrow.ArrowException, TypeError: the rows cannot be Parquet: a bug of the reader, or a type Parquet has not.
        """
        store = self._open_store()
        lane.write_id = lane.write_id or _new_id()
        parts = [(kind, group) for kind in lane.rows for group in self._groups[kind]]
        names = [part_name(kind, group.field_id) for kind, group in parts]
        several = len(parts) > len(lane.rows)
        if several or self._manifest_follows:
            names.append(MANIFEST_PART)
        for kind, batches in lane.rows.items():
            missing = [group for group in self._groups[kind] if (kind, group.field_id) not in lane.written]
            if missing:
                table = pa.Table.from_batches(batches).combine_chunks()
                timestamps = table.column(TIMESTAMP_COLUMN)
                times = timestamps[0].as_py(), timestamps[-1].as_py()  # rows are in the order of their messages
                for group in missing:
                    metadata = self._metadata(lane, kind, group.field_id, times, ",".join(names))
                    lane.written[kind, group.field_id] = self._write_object(store, table, group, metadata)
        manifest = (BinlogKind.STATS, SHARED_FIELD_ID)
        if several and not self._manifest_follows and manifest not in lane.written:
            entries = entries_of(lane.to_proto())
            metadata = self._metadata(lane, *manifest, times_of(entries), ",".join(names))
            binlog, data = write_manifest(entries, metadata)
            store.create(binlog.log_path, data)
            lane.written[manifest] = binlog

    def _metadata(
        self, lane: RangeRows, kind: BinlogKind, field_id: int, times: tuple[int, int], parts: str
    ) -> BinlogMetadata:
        return BinlogMetadata(
            kind=kind,
            collection_id=self._info.collection_id,
            collection_name=self._info.collection_name,
            channel_id=self._info.channel_id,
            channel_name=self._info.channel_name,
            partition_id=lane.partition_id,
            epoch=self._info.epoch,
            timestamp_from=lane.timestamp_from,
            timestamp_to=lane.timestamp_to,
            ts_min=times[0],
            ts_max=times[1],
            field_id=field_id,
            # A new identity for every attempt: what became of a path that failed is not always known.
            log_id=_new_id(),
            channel_index=self._info.channel_index,
            write_id=lane.write_id,
            parts=parts,
            collection=self._collection,
            checkpoint=encoded(lane.checkpoint.to_proto(self._info.channel_name)),
        )

    def _write_object(
        self, store: ObjectStore, table: pa.Table, group: ColumnGroup, metadata: BinlogMetadata
    ) -> common_pb2.Binlog:
        schema = self._schemas[metadata.kind, group.field_id]
        # By name and position the columns are the schema's; only nullability, which readers may state wider, differs.
        columns = table.columns if len(schema) == table.num_columns else [table.column(name) for name in group.columns]
        memory_bytes = sum(column.nbytes for column in columns)
        data = self._encode(columns, schema, replace(metadata, memory_bytes=memory_bytes))
        path = str(metadata.path)
        store.create(path, data)
        return common_pb2.Binlog(
            log_id=metadata.log_id,
            log_path=path,
            entries_num=table.num_rows,
            timestamp_from=metadata.ts_min,
            timestamp_to=metadata.ts_max,
            log_size_bytes=data.size,
            memory_size_bytes=memory_bytes,
        )

    def _encode(self, columns: Sequence[pa.ChunkedArray], schema: pa.Schema, metadata: BinlogMetadata) -> pa.Buffer:
        described = schema.with_metadata({**(schema.metadata or {}), **metadata.to_key_values()})
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink,
            described,
            compression=self._compression,
            compression_level=self._compression_level,
            # Dictionaries pay for repeated texts; for numbers and vectors they cost time and are given up half-way.
            use_dictionary=_texts(schema),
            bloom_filter_options=self._bloom_filters(columns, schema),
        ) as writer:
            writer.write_table(pa.Table.from_arrays(list(columns), schema=described))
        return sink.getvalue()

    def _bloom_filters(self, columns: Sequence[pa.ChunkedArray], schema: pa.Schema) -> dict[str, dict[str, Any]] | None:
        """Of the key's columns, where readers can look into them: which objects a key is certainly not in."""
        keys = [
            name for name in self._filtered_keys if name in schema.names and has_bloom_filter(schema.field(name).type)
        ]
        if not keys or not len(columns[0]):
            return None
        return {name: {"ndv": len(columns[0]), "fpp": BLOOM_FILTER_FPP} for name in keys}


def describe_collection(
    info: data_coord_pb2.ChannelRecoveryInfo, channel_mode: common_pb2.ChannelMode
) -> collection_pb2.CollectionInfo:
    """The collection of a channel, as its objects carry it."""
    return collection_pb2.CollectionInfo(
        collection_id=info.collection_id,
        collection_name=info.collection_name,
        arrow_schema=info.arrow_schema,
        primary_key=info.primary_key,
        channel_count=info.channel_count,
        channel_mode=channel_mode,
        timestamp_kind=info.timestamp_kind,
        properties=dict(info.properties),
        partitions=dict(info.partitions),
    )


def rows_of(written: Mapping[Part, common_pb2.Binlog], kind: BinlogKind) -> int:
    """How many rows of a kind were written, however many objects they take."""
    return sum(log.entries_num for (one, field_id), log in written.items() if one is kind and field_id in ROW_FIELD_IDS)


def _new_id() -> int:
    return 1 + secrets.randbelow(TIMESTAMP_MAX)


def _sub_schema(full: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([full.field(name) for name in names], metadata=full.metadata)


def _texts(schema: pa.Schema) -> list[str]:
    def is_text(kind: pa.DataType) -> bool:
        return bool(
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
        )

    return [column.name for column in schema if is_text(column.type)]
