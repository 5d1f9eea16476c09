"""Filters that are pushed down give the rows that Spark's own rules give, with their three-valued logic."""

import datetime as dt
import decimal
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource
from pyspark.sql.datasource import Filter

from datanode_client.spark.pushdown import to_expression

DOMAINS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-1, 0, 1, 2, 2**31 - 1]),
    "s": (pa.string(), ["", "a", "ab", "abc", "b", "ä", "a%"]),
    "l": (pa.large_string(), ["a", "ab", "z"]),
    "y": (pa.binary(), [b"", b"\x00", b"\x00\xff", b"a"]),
    "o": (pa.bool_(), [True, False]),
    "d": (pa.date32(), [dt.date(1960, 1, 1), dt.date(2020, 2, 29), dt.date(2020, 3, 1)]),
    "t": (
        pa.timestamp("us", "Europe/Berlin"),
        [dt.datetime(2020, 3, 29, hour, tzinfo=dt.UTC) for hour in range(3)],
    ),
    "n": (pa.timestamp("us"), [dt.datetime(2020, 3, 29, hour) for hour in range(3)]),
    "m": (pa.decimal128(10, 2), [decimal.Decimal("-1.20"), decimal.Decimal("0.00"), decimal.Decimal("1.23")]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in DOMAINS.items()])

COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    datasource.EqualTo: lambda a, b: a == b,
    datasource.GreaterThan: lambda a, b: a > b,
    datasource.GreaterThanOrEqual: lambda a, b: a >= b,
    datasource.LessThan: lambda a, b: a < b,
    datasource.LessThanOrEqual: lambda a, b: a <= b,
}
TEXTS: dict[Any, Callable[[str, str], bool]] = {
    datasource.StringStartsWith: str.startswith,
    datasource.StringEndsWith: str.endswith,
    datasource.StringContains: str.__contains__,
}


def meaning(wanted: Any, row: dict[str, Any]) -> bool | None:  # noqa: PLR0911 - a table
    """What a filter says of a row in SQL; None = unknown."""
    if isinstance(wanted, datasource.Not):
        inner = meaning(wanted.child, row)
        return None if inner is None else not inner
    value = row[wanted.attribute[0]]
    if isinstance(wanted, datasource.IsNull):
        return value is None
    if isinstance(wanted, datasource.IsNotNull):
        return value is not None
    if isinstance(wanted, datasource.EqualNullSafe):
        return bool(value == wanted.value)
    if value is None:
        return None
    if isinstance(wanted, datasource.In):
        return value in wanted.value
    if type(wanted) in TEXTS:
        return TEXTS[type(wanted)](value, wanted.value)
    return COMPARISONS[type(wanted)](value, wanted.value)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """A filter on one of the columns, with a value of its domain."""
    name = draw(st.sampled_from(sorted(DOMAINS)))
    value = st.sampled_from(DOMAINS[name][1])
    kinds = [*COMPARISONS, datasource.EqualNullSafe, datasource.In, datasource.IsNull, datasource.IsNotNull]
    kind: Any = draw(st.sampled_from([*kinds, *TEXTS] if name in {"s", "l"} else kinds))
    if kind in {datasource.IsNull, datasource.IsNotNull}:
        made = kind((name,))
    elif kind is datasource.In:
        made = kind((name,), tuple(draw(st.lists(value, min_size=1, max_size=3))))
    else:
        made = kind((name,), draw(value))
    return datasource.Not(made) if draw(st.booleans()) else made


rows = st.fixed_dictionaries({name: st.none() | st.sampled_from(values) for name, (_, values) in DOMAINS.items()})


@given(wanted=filters(), data=st.lists(rows, max_size=20))
def test_a_filter_that_is_pushed_down_gives_the_rows_that_spark_would(
    wanted: Filter, data: list[dict[str, Any]]
) -> None:
    """A pushdown that changes an answer is found by the customer, months later. Row groups of 3 make statistics matter."""
    expression = to_expression(wanted, SCHEMA)
    assert expression is not None
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(data, SCHEMA), file, row_group_size=3)

    read = pq.read_table(pa.BufferReader(file.getvalue()), schema=SCHEMA, filters=expression)

    expected = [row for row in data if meaning(wanted, row)]
    assert read.equals(pa.Table.from_pylist(expected, SCHEMA))


@pytest.mark.parametrize(
    "wanted",
    [
        datasource.EqualTo(("f",), 1.0),
        datasource.EqualTo(("f",), float("nan")),
        datasource.EqualTo(("i",), 1.0),
        datasource.EqualTo(("i",), True),
        datasource.EqualTo(("i",), 2**31),
        datasource.EqualTo(("i",), None),
        datasource.EqualNullSafe(("i",), None),
        datasource.In(("i",), (1, None)),
        datasource.Not(datasource.In(("i",), (1, None))),
        datasource.EqualTo(("m",), decimal.Decimal("1.234")),
        datasource.EqualTo(("n",), dt.datetime(2020, 3, 29, tzinfo=dt.UTC)),
        datasource.EqualTo(("fine",), dt.datetime(2020, 3, 29)),
        datasource.EqualTo(("d",), dt.datetime(2020, 3, 29)),
        datasource.EqualTo(("u",), 1),
        datasource.EqualTo(("x", "y"), 1),
        datasource.IsNull(("x", "y")),
        datasource.EqualTo(("nobody",), 1),
        datasource.StringStartsWith(("y",), "a"),
    ],
    ids=repr,
)
def test_what_does_not_mean_exactly_the_same_is_left_to_spark(wanted: Filter) -> None:
    """NaN equals itself in Spark and not in Arrow; a finer timestamp is cut off after the filter; a null in a list is neither."""
    schema = SCHEMA
    for name, kind in (
        ("f", pa.float64()),
        ("u", pa.uint32()),
        ("x", pa.struct([("y", pa.int32())])),
        ("fine", pa.timestamp("ns")),
    ):
        schema = schema.append(pa.field(name, kind))

    assert to_expression(wanted, schema) is None
