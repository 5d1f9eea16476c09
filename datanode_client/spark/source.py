"""`spark.read.format("datacoord")`: a collection as Arrow batches, read by Python tasks."""

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError
from datacoord.objectstore import ObjectStore
from datacoord.reading import TIMESTAMP_COLUMN, CollectionSchema, ReadUnit, read_unit, read_units
from datanode_client.spark.options import ReadOptions
from datanode_client.spark.pushdown import to_expression
from datanode_client.spark.types import spark_schema, widened

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
        InvalidFieldError: the collection has no such column.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._collection = _describe(options)
        self._given = to_arrow_schema(schema, timezone="UTC")
        stored = {name.lower(): name for name in (*self._collection.columns.names, TIMESTAMP_COLUMN)}
        names = [stored.get(name.lower()) for name in schema.fieldNames()]
        for name, found in zip(schema.fieldNames(), names, strict=True):
            if found is None:
                raise InvalidFieldError(
                    f"collection {options.collection!r} has no column {name!r}; it has "
                    f"{', '.join(self._collection.columns.names)}",
                    column=name,
                )
        self._wanted = self._collection.select([name for name in names if name], with_timestamp=False)
        self._filters: list[pc.Expression] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Takes the filters that mean exactly the same here, and gives back the others."""
        pushable = pa.schema(
            [
                stored.with_name(given.name)
                for stored, given in zip(self._wanted, self._given, strict=True)
                if _seen_as(stored.type).equals(given.type) and stored.name == given.name
            ]
        )
        for offered in filters:
            expression = to_expression(offered, pushable)
            if expression is None:
                yield offered
            else:
                self._filters.append(expression)

    def partitions(self) -> list[InputPartition]:
        """Fixes which objects count, and packs them into tasks of about the same size."""
        with CoordinatorClient(
            self._options.coordinator, caller="reader", timeout_seconds=self._options.timeout_seconds
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
        where = reduce(and_, self._filters) if self._filters else None
        store = ObjectStore.from_uri(self._collection.storage_root)
        for unit in partition.units:
            rows = read_unit(store, unit, self._collection, self._wanted, where)
            columns = [
                # Finer units than Spark's are cut off, as its own Parquet reader does.
                column.cast(field.type, safe=False)
                for column, field in zip(rows.columns, self._given, strict=True)
            ]
            yield from pa.Table.from_arrays(columns, schema=self._given).to_batches(max_chunksize=_BATCH_ROWS)


def collection_schema(options: ReadOptions) -> StructType:
    """Columns of the collection as Spark has them.

    Raises:
        CollectionNotFoundError: there is no such collection.
        InvalidFieldError: a column is of a type that Spark does not have.
    """
    return spark_schema(_describe(options).select(None, with_timestamp=options.with_timestamp))


def _describe(options: ReadOptions) -> CollectionSchema:
    with CoordinatorClient(options.coordinator, caller="reader", timeout_seconds=options.timeout_seconds) as client:
        return CollectionSchema.of(client.describe_collection(options.collection))


def _seen_as(stored: pa.DataType) -> pa.DataType:
    """The type that Spark sees where nothing is widened or cut off; the type of text and time zones does not matter."""
    if pa.types.is_large_string(stored):
        return pa.string()
    if pa.types.is_large_binary(stored):
        return pa.binary()
    if pa.types.is_timestamp(stored) and stored.tz is not None:
        return pa.timestamp(stored.unit, "UTC")
    return widened(stored)
