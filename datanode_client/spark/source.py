"""`spark.read.format("datacoord")`: a collection as Arrow batches, read by Python tasks.

It does not implement `pushFilters`: Spark 4.3 keeps what a reader was planned with per `load()` and not per scan, so a frame that
is used with two filters, or once with a filter and once without, would be answered for the wrong one. Filters of the option
`filters` are the frame's own and are pushed down; so is everything in the native frames of `datanode_client.spark.frame`.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from datacoord.client import CoordinatorClient
from datacoord.column_groups import TIMESTAMP_COLUMN
from datacoord.errors import InvalidFieldError
from datacoord.objectstore import ObjectStore
from datacoord.reading import UNIT_BYTES_MAX, CollectionSchema, ReadUnit, read_unit, read_units
from datanode_client.conversions import misfit
from datanode_client.spark.options import Condition, ReadOptions
from datanode_client.spark.types import spark_schema

_BATCH_ROWS = 65_536


class UnitsPartition(InputPartition):
    """What one task reads.

    Args:
        units: of one or of several channels.
    """

    def __init__(self, units: list[ReadUnit]) -> None:
        super().__init__(None)
        self.units = units


class CollectionReader(DataSourceReader):
    """Reads the columns of a schema.

    Spark does not tell a Python data source which columns a query uses: who wants fewer says so with `.schema(…)`.

    Args:
        options: of the reader.
        schema: what to give; a schema of the user's may have fewer columns, in any order, of types they can be cast to.

    Raises:
        InvalidFieldError: the collection has no such column, or one that cannot be of the type asked for, or a filter compares a
            column with what it cannot be.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._collection = _describe(options)
        self._given = to_arrow_schema(schema, timezone="UTC")
        columns = (*self._collection.columns.names, TIMESTAMP_COLUMN)
        # As it is written, and else by whatever case: Spark knows columns that differ by case only if it is told to.
        stored = {**{name.lower(): name for name in reversed(columns)}, **{name: name for name in columns}}
        names = [stored.get(name, stored.get(name.lower())) for name in schema.fieldNames()]
        for name, found in zip(schema.fieldNames(), names, strict=True):
            if found is None:
                raise InvalidFieldError(
                    f"collection {options.collection!r} has no column {name!r}; it has "
                    f"{', '.join(self._collection.columns.names)}",
                    column=name,
                )
        self._wanted = self._collection.select([name for name in names if name], with_timestamp=False)
        for given, own in zip(self._given, to_arrow_schema(spark_schema(self._wanted), timezone="UTC"), strict=True):
            if why := misfit(own.type, given.type):
                raise InvalidFieldError(
                    f"column {given.name!r} of collection {options.collection!r} is {own.type} and cannot be given as "
                    f"{given.type}: {why}; name another type in the schema, or none, and cast in the query",
                    column=given.name,
                )
        self._where = to_expression(options.filters, self._collection.columns)

    def partitions(self) -> list[InputPartition]:
        """Fixes which objects count, and packs them into tasks of about the same size."""
        with CoordinatorClient(
            self._options.coordinator,
            caller="reader",
            timeout_seconds=self._options.timeout_seconds,
            credentials=self._options.credentials,
        ) as client:
            channels = list(client.list_binlogs(self._options.collection))
        packed: list[list[ReadUnit]] = [[]]
        size_bytes = 0
        for channel in channels:
            for unit in read_units(channel, self._options.max_partition_bytes):
                unit_bytes = sum(log.memory_bytes for log in unit.inserts)
                if packed[-1] and size_bytes + unit_bytes > self._options.max_partition_bytes:
                    packed.append([])
                    size_bytes = 0
                packed[-1].append(unit)
                size_bytes += unit_bytes
        return [UnitsPartition(units) for units in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: reads its units."""
        assert isinstance(partition, UnitsPartition)  # noqa: S101 - Spark gives back what `partitions` gave
        yield from batches_of_units(
            partition.units,
            self._collection,
            self._wanted,
            self._given,
            self._where,
            block_bytes_max=self._options.max_partition_bytes,
        )


def batches_of_units(
    units: Iterable[ReadUnit],
    collection: CollectionSchema,
    wanted: pa.Schema,
    given: pa.Schema,
    where: pc.Expression | None = None,
    *,
    block_bytes_max: int = UNIT_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """Reads units as Spark takes rows. Runs in a task.

    Args:
        units: what to read.
        collection: the collection.
        wanted: columns, as the collection has them.
        given: the same columns as Spark has them.
        where: only rows for which this is true.
        block_bytes_max: rows that are together in memory.
    """
    store = ObjectStore.from_uri(collection.storage_root)
    blocks = (read_unit(store, unit, collection, wanted, where, block_bytes_max=block_bytes_max) for unit in units)
    for rows in chain.from_iterable(blocks):
        columns = [_as_given(column, field) for column, field in zip(rows.columns, given, strict=True)]
        yield from pa.Table.from_arrays(columns, schema=given).to_batches(max_chunksize=_BATCH_ROWS)


def _as_given(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """A column in the type that Spark shall have.

    Raises:
        InvalidFieldError: a value does not fit.
    """
    # Finer units of time than Spark's are cut off, as its own Parquet reader does. Nothing else is.
    time_of = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_date64)
    exact = not any(is_one(column.type) for is_one in time_of)
    try:
        return column.cast(field.type, safe=exact)
    except pa.ArrowInvalid as error:
        message = f"a value of column {field.name!r} ({column.type}) cannot be given as {field.type}: {error}"
        raise InvalidFieldError(message, column=field.name) from error


def collection_schema(options: ReadOptions) -> StructType:
    """Columns of the collection as Spark has them.

    Raises:
        CollectionNotFoundError: there is no such collection.
        InvalidFieldError: a column is of a type that Spark does not have.
    """
    return spark_schema(_describe(options).select(None, with_timestamp=options.with_timestamp))


def _describe(options: ReadOptions) -> CollectionSchema:
    with CoordinatorClient(
        options.coordinator, caller="reader", timeout_seconds=options.timeout_seconds, credentials=options.credentials
    ) as client:
        return CollectionSchema.of(client.describe_collection(options.collection))


def to_expression(filters: tuple[Condition, ...], columns: pa.Schema) -> pc.Expression | None:
    """What the option `filters` means; None = every row.

    Args:
        filters: conditions that must all be true.
        columns: of the collection.

    Raises:
        InvalidFieldError: there is no such column, or it cannot be compared with the value.
    """
    if not filters:
        return None
    typed = []
    for name, operator, value in filters:
        index = columns.get_field_index(name)
        if index < 0:
            raise InvalidFieldError(
                f"option filters names column {name!r}, but the collection has {', '.join(columns.names)}", column=name
            )
        kind = columns.field(index).type
        try:
            many = operator in {"in", "not in"}
            typed.append((name, operator, [_typed(item, kind) for item in value] if many else _typed(value, kind)))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise InvalidFieldError(
                f"option filters compares column {name!r} with {value!r}, which is no {kind}: {error}", column=name
            ) from error
    return pq.filters_to_expression(typed)


def _typed(value: object, kind: pa.DataType) -> pa.Scalar:
    """A value of JSON as one of the column's type: dates, timestamps and decimals are written as text there."""
    return pa.scalar(value).cast(kind)
