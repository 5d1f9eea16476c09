"""The types of a collection as Spark knows them."""

from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from datacoord.errors import InvalidFieldError

_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
}
"""What Spark does not have, and the next larger type that it has; the same as its Parquet reader takes."""

_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def spark_schema(columns: pa.Schema) -> StructType:
    """The schema as Spark has it. Every column may be null there, as with any file source.

    Raises:
        InvalidFieldError: a column is of a type that Spark does not have.
    """
    fields = []
    for column in columns:
        try:
            kind = from_arrow_type(widened(column.type))
            to_arrow_type(kind, timezone="UTC")  # refuses decimals of more digits than Spark has
            fields.append(StructField(column.name, kind))
        except (PySparkException, ValueError) as error:
            raise InvalidFieldError(
                f"column {column.name!r} is {column.type}, which Spark does not have; read the other columns, or read with "
                "datacoord.to_arrow",
                column=column.name,
            ) from error
    return StructType(fields)


def widened(kind: pa.DataType) -> pa.DataType:
    """The type, or the next larger one that Spark has."""
    if pa.types.is_dictionary(kind):
        return widened(kind.value_type)
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(kind.value_field.with_type(widened(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(widened(kind.key_type)), kind.item_field.with_type(widened(kind.item_type))
        )
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(widened(field.type)) for field in kind])
    return _WIDER.get(kind, kind)


def parquet_reader_knows(kind: pa.DataType) -> bool:
    """Whether Spark's own Parquet reader gives the values of a type; every duration it takes for microseconds."""
    if any(is_nested(kind) for is_nested in (*_LISTS, pa.types.is_map, pa.types.is_struct)):
        return all(parquet_reader_knows(kind.field(index).type) for index in range(kind.num_fields))
    unknown = (
        pa.types.is_float16(kind)
        or pa.types.is_time(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "ns")
        or (pa.types.is_duration(kind) and kind.unit != "us")
    )
    return not unknown
