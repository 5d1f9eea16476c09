"""Writes the objects of one channel: Arrow rows in, Parquet objects out, durable when it returns. Runs in worker threads."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.limits import TIMESTAMP_MAX
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogKind
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.binlog.metadata import BinlogMetadata
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.sources.base import TIMESTAMP_COLUMN

ALL_COLUMNS_FIELD_ID = 0


@dataclass(slots=True)
class RangeRows:
    """The rows of one range of one lane, and what of them is written already.

    Attributes:
        partition_id: the lane.
        timestamp_from: start of the range, exclusive.
        timestamp_to: end of the range, inclusive.
        rows: per kind the batches in the order of their timestamps; kinds without rows are absent.
        written: per kind the object, once it is durable. A repetition after a failure writes only what is missing: orphans of
            every attempt would fill a disk that is full already.
    """

    partition_id: int
    timestamp_from: int
    timestamp_to: int
    rows: dict[BinlogKind, list[pa.RecordBatch]]
    written: dict[BinlogKind, common_pb2.Binlog] = field(default_factory=dict)


class BinlogWriter:
    """Encodes and creates the objects of one channel at one epoch. Thread-safe.

    Args:
        info: names and numbers of the channel.
        schema: of the collection.
        open_store: the object store of the collection; called in the worker thread, because opening may talk to the store.
        compression: Parquet codec.
        compression_level: its level; None = the default.
    """

    def __init__(
        self,
        info: data_coord_pb2.ChannelRecoveryInfo,
        schema: CollectionSchema,
        open_store: Callable[[], ObjectStore],
        compression: str,
        compression_level: int | None = None,
    ) -> None:
        self._info = info
        self._schemas = {BinlogKind.INSERT: schema.insert_log, BinlogKind.DELTA: schema.delta_log}
        self._open_store = open_store
        self._compression = compression
        self._compression_level = compression_level

    def write(self, lane: RangeRows) -> None:
        """Writes every object of a range that is not written yet and notes it in `lane.written`.

        Raises:
            ObjectStoreError: an object could not be written; call again.
            pyarrow.ArrowException, TypeError: the rows cannot be Parquet: a bug of the reader, or a type Parquet has not.
        """
        store = self._open_store()
        for kind, batches in lane.rows.items():
            if kind not in lane.written:
                lane.written[kind] = self._write_object(store, lane, kind, batches)

    def _write_object(
        self, store: ObjectStore, lane: RangeRows, kind: BinlogKind, batches: Sequence[pa.RecordBatch]
    ) -> common_pb2.Binlog:
        table = pa.Table.from_batches(batches).combine_chunks()
        timestamps = table.column(TIMESTAMP_COLUMN)
        metadata = BinlogMetadata(
            kind=kind,
            collection_id=self._info.collection_id,
            collection_name=self._info.collection_name,
            channel_id=self._info.channel_id,
            channel_name=self._info.channel_name,
            partition_id=lane.partition_id,
            epoch=self._info.epoch,
            timestamp_from=lane.timestamp_from,
            timestamp_to=lane.timestamp_to,
            # Rows are in the order of their messages.
            ts_min=timestamps[0].as_py(),
            ts_max=timestamps[-1].as_py(),
            field_id=ALL_COLUMNS_FIELD_ID,
            # A new identity for every attempt: what became of a path that failed is not always known.
            log_id=1 + secrets.randbelow(TIMESTAMP_MAX),
        )
        data = self._encode(table, self._schemas[kind], metadata)
        path = str(metadata.path)
        store.create(path, data)
        return common_pb2.Binlog(
            log_id=metadata.log_id,
            log_path=path,
            entries_num=table.num_rows,
            timestamp_from=metadata.ts_min,
            timestamp_to=metadata.ts_max,
            log_size_bytes=data.size,
            memory_size_bytes=table.nbytes,
        )

    def _encode(self, table: pa.Table, schema: pa.Schema, metadata: BinlogMetadata) -> pa.Buffer:
        described = schema.with_metadata({**(schema.metadata or {}), **metadata.to_key_values()})
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink,
            described,
            compression=self._compression,
            compression_level=self._compression_level,
            # Dictionaries pay for repeated texts; for numbers and vectors they cost time and are given up half-way.
            use_dictionary=_texts(schema),
        ) as writer:
            # By name and position the columns are the schema's; only nullability, which readers may state wider, differs.
            writer.write_table(pa.Table.from_arrays(table.columns, schema=described))
        return sink.getvalue()


def _texts(schema: pa.Schema) -> list[str]:
    def is_text(kind: pa.DataType) -> bool:
        return bool(
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
        )

    return [column.name for column in schema if is_text(column.type)]
