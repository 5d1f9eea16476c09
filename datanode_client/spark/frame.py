"""A collection as a native DataFrame: Spark's own Parquet reader over the registered objects, deletes as an anti join."""

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from datacoord.column_groups import TIMESTAMP_COLUMN
from datacoord.errors import InvalidFieldError
from datacoord.paths import BinlogPath
from datacoord.reading import UNIT_BYTES_MAX, CollectionSchema, read_units
from datacoord.reading_objects import LogObject, log_objects
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.spark.source import batches_of_units
from datanode_client.spark.types import parquet_reader_knows, spark_schema

_CHANNEL = "_channel_id"
_CHECKPOINT = "_checkpoint"
_DELETED_AT = "_deleted_at"

_CHANNEL_OF_PATH: Final = r"/([0-9]+)/[^/]+/[0-9]+/[^/]+$"
"""Group 1 is the channel id of an object's path, wherever its storage root lies."""

_HADOOP_SCHEMES: Final = {"s3": "s3a", "gcs": "gs"}
"""Where Hadoop, which Spark reads by, names a scheme of pyarrow.fs otherwise."""

_AS_WRITTEN: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
"""Options of Spark's Parquet reader, each of which it would else take from the session: a missing object of deletes must fail the
read, not bring rows back, and dates are the calendar's that Arrow writes, not a session's older one."""

_Logs = list[tuple[int, LogObject]]
"""Objects, each with the checkpoint of its channel."""


def collection_frame(
    spark: SparkSession,
    collection: CollectionSchema,
    channels: Sequence[collection_pb2.ChannelBinlogList],
    *,
    with_timestamp: bool = False,
) -> DataFrame:
    """The surviving rows of a collection.

    Args:
        spark: the session.
        collection: its columns, key and storage root.
        channels: its objects and checkpoints, of one listing.
        with_timestamp: give `_timestamp` too.

    Raises:
        InvalidFieldError: a column is of a type that Spark's Parquet reader does not know.
    """
    if any(log.groups for channel in channels for log in log_objects(channel, common_pb2.BINLOG_KIND_INSERT)):
        return _frame_of_groups(spark, collection, channels, with_timestamp=with_timestamp)
    _refuse_unknown_types(collection.columns)
    inserts: _Logs = []
    deletes: _Logs = []
    for channel in channels:
        rows = log_objects(channel, common_pb2.BINLOG_KIND_INSERT)
        oldest = min((log.ts_min for log in rows), default=0)
        inserts += [(channel.checkpoint.timestamp, log) for log in rows]
        deletes += [
            (channel.checkpoint.timestamp, log)
            for log in log_objects(channel, common_pb2.BINLOG_KIND_DELTA)
            if rows and log.ts_max > oldest
        ]
    root, keys = hadoop_uri(collection.storage_root), list(collection.primary_key)
    columns = list(collection.select(None, with_timestamp=with_timestamp).names)
    frame = _read(spark, root, spark_schema(collection.columns), inserts, with_channel=bool(deletes))
    if deletes:
        key_schema = spark_schema(pa.schema([collection.columns.field(name) for name in keys]))
        newest = (
            _read(spark, root, key_schema, deletes, with_channel=True)
            .groupBy(_CHANNEL, *(F.col(_quoted(name)) for name in keys))
            .agg(F.max(TIMESTAMP_COLUMN).alias(_DELETED_AT))
        )
        hidden = [frame[_quoted(name)] == newest[_quoted(name)] for name in (_CHANNEL, *keys)]
        frame = frame.join(newest, [*hidden, frame[TIMESTAMP_COLUMN] < newest[_DELETED_AT]], "left_anti")
    return frame.select(*(F.col(_quoted(name)) for name in columns))


def _frame_of_groups(
    spark: SparkSession,
    collection: CollectionSchema,
    channels: Sequence[collection_pb2.ChannelBinlogList],
    *,
    with_timestamp: bool,
) -> DataFrame:
    """The same where columns of a row stand in several objects: Arrow tasks put them side by side, Spark's reader cannot."""
    wanted = collection.select(None, with_timestamp=with_timestamp)
    schema = spark_schema(wanted)
    given = to_arrow_schema(schema, timezone="UTC")
    units = [unit for channel in channels for unit in read_units(channel, UNIT_BYTES_MAX)]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = [pickle.loads(unit) for unit in batch.column(0).to_pylist()]  # noqa: S301 - what this frame pickled
            yield from batches_of_units(chosen, collection, wanted, given)

    pickled = spark.createDataFrame([(pickle.dumps(unit),) for unit in units], "unit binary")
    return pickled.repartition(max(1, len(units))).mapInArrow(read, schema)


def hadoop_uri(storage_root: str) -> str:
    """A storage root as Hadoop names it: other schemes, and no options of pyarrow.fs (Hadoop has its own configuration)."""
    scheme, separator, rest = storage_root.partition("://")
    if not separator:
        return storage_root.rstrip("/")
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{rest.partition('?')[0].rstrip('/')}"


def _read(spark: SparkSession, root: str, schema: StructType, logs: _Logs, *, with_channel: bool) -> DataFrame:
    """Rows of these objects up to the checkpoint of their channel, with `_timestamp` and, if asked for, the channel's id."""
    stamped = StructType([*schema.fields, StructField(TIMESTAMP_COLUMN, LongType())])
    whole = [log for checkpoint, log in logs if log.ts_max <= checkpoint]
    straddling = [(checkpoint, log) for checkpoint, log in logs if log.ts_max > checkpoint]
    frames = [_parquet(spark, root, stamped, whole, with_channel)] if whole else []
    if straddling:
        checkpoints = {BinlogPath.parse(log.path).channel_id: checkpoint for checkpoint, log in straddling}
        limits = spark.createDataFrame(list(checkpoints.items()), f"{_CHANNEL} long, {_CHECKPOINT} long")
        rows = _parquet(spark, root, stamped, [log for _, log in straddling], with_channel=True)
        seen = rows.join(F.broadcast(limits), _CHANNEL).where(F.col(TIMESTAMP_COLUMN) <= F.col(_CHECKPOINT))
        names = [*stamped.names, *([_CHANNEL] if with_channel else [])]
        frames.append(seen.select(*(F.col(_quoted(name)) for name in names)))
    if not frames:
        return spark.createDataFrame([], stamped)
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _parquet(
    spark: SparkSession, root: str, schema: StructType, logs: Sequence[LogObject], with_channel: bool
) -> DataFrame:
    # Spark takes paths for patterns.
    literal = re.sub(r"([{}\[\]*?\\])", r"\\\1", root)
    frame = spark.read.schema(schema).options(**_AS_WRITTEN).parquet(*(f"{literal}/{log.path}" for log in logs))
    if not with_channel:
        return frame
    path = F.col("_metadata.file_path")
    return frame.select("*", F.regexp_extract(path, _CHANNEL_OF_PATH, 1).cast("long").alias(_CHANNEL))


def _quoted(name: str) -> str:
    return "`" + re.sub("`", "``", name) + "`"


def _refuse_unknown_types(columns: pa.Schema) -> None:
    for column in columns:
        if not parquet_reader_knows(column.type):
            raise InvalidFieldError(
                f"column {column.name!r} is {column.type}, which Spark's Parquet reader does not know; read with "
                'spark.read.format("datacoord") or datacoord.to_arrow',
                column=column.name,
            )
