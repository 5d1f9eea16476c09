"""Filters that Spark offers to a reader, as expressions of Arrow: only those that mean exactly the same there.

A filter that is not translated is left to Spark, so that no answer ever changes: floating point numbers, whose zeros and NaNs
compare in another way; types that are widened for Spark; lists with a null in them; parts of nested columns.
"""

import datetime as dt
import decimal
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource
from pyspark.sql.datasource import Filter

_PYTHON_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], type], ...]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_signed_integer, int),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_date32, dt.date),
    (pa.types.is_timestamp, dt.datetime),
    (pa.types.is_decimal128, decimal.Decimal),
)

_COMPARISONS: Final[Mapping[type, Callable[[pc.Expression, Any], pc.Expression]]] = {
    datasource.EqualTo: lambda column, value: column == value,
    datasource.GreaterThan: lambda column, value: column > value,
    datasource.GreaterThanOrEqual: lambda column, value: column >= value,
    datasource.LessThan: lambda column, value: column < value,
    datasource.LessThanOrEqual: lambda column, value: column <= value,
}

_TEXTS: Final[Mapping[type, Callable[[pc.Expression, str], pc.Expression]]] = {
    datasource.StringStartsWith: pc.starts_with,
    datasource.StringEndsWith: pc.ends_with,
    datasource.StringContains: pc.match_substring,
}


def to_expression(wanted: Filter, columns: pa.Schema) -> pc.Expression | None:
    """Translates a filter.

    Args:
        wanted: the filter.
        columns: columns whose stored type is the one Spark sees.

    Returns:
        an expression that is true for exactly the rows for which the filter is; None = it is for Spark to judge.
    """
    negated = isinstance(wanted, datasource.Not)
    positive: Any = wanted.child if isinstance(wanted, datasource.Not) else wanted
    attribute: tuple[str, ...] = getattr(positive, "attribute", ())
    index = columns.get_field_index(attribute[0]) if len(attribute) == 1 else -1
    if index < 0:
        return None
    column, kind = pc.field(attribute[0]), columns.field(index).type
    expression = _positive(positive, column, kind)
    if expression is None or not negated:
        return expression
    if isinstance(positive, datasource.IsNull | datasource.IsNotNull | datasource.EqualNullSafe):
        return ~expression  # never null itself
    # For null the filter is neither true nor false, and so is its negation; Arrow's `isin` knows no third value.
    return ~expression & column.is_valid()


def _positive(wanted: Any, column: pc.Expression, kind: pa.DataType) -> pc.Expression | None:
    if isinstance(wanted, datasource.IsNull):
        return column.is_null()
    if isinstance(wanted, datasource.IsNotNull):
        return column.is_valid()
    if isinstance(wanted, datasource.In):
        values = [_scalar(value, kind) for value in wanted.value]
        return None if None in values else column.isin(pa.array([value.as_py() for value in values if value], kind))
    if type(wanted) in _TEXTS:
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return _TEXTS[type(wanted)](column, wanted.value) if is_text and isinstance(wanted.value, str) else None
    return _comparison(wanted, column, _scalar(getattr(wanted, "value", None), kind))


def _comparison(wanted: Filter, column: pc.Expression, scalar: pa.Scalar | None) -> pc.Expression | None:
    if scalar is None:
        return None
    if isinstance(wanted, datasource.EqualNullSafe):
        return (column == scalar) & column.is_valid()
    compare = _COMPARISONS.get(type(wanted))
    return None if compare is None else compare(column, scalar)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A literal as a value of the column's type; None = it is not exactly one."""
    if not any(is_kind(kind) and type(value) is python for is_kind, python in _PYTHON_TYPES):
        return None
    if pa.types.is_timestamp(kind) and (kind.unit != "us" or (kind.tz is None) != (value.tzinfo is None)):
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return None
