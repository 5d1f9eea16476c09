"""What becomes of a value in a column of another type: itself, or an error."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from server.running_coordinator import CoordinatorThread, definition

from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError
from datacoord.v1 import common_pb2
from datanode_client.conversions import converted, misfit
from sink.rig import Query

Pair = tuple[pa.DataType, pa.DataType]

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

ZONED, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")

LEAVES = [
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal128(3, 0), pa.decimal128(20, 0), pa.decimal128(12, 2), pa.decimal128(38, 30), pa.decimal256(60, 4)),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.date32(), pa.date64()),
]


def fitting(pairs: list[Pair]) -> list[Pair]:
    """Those that the rule lets through."""
    return [(one, other) for one, other in pairs if not misfit(one, other)]


LEAF_PAIRS = fitting([(one, other) for one in LEAVES for other in LEAVES if not one.equals(other)])


def lists(inner: Pair) -> st.SearchStrategy[Pair]:
    """Pairs of lists of such a pair."""
    one, other = inner
    shapes: list[Callable[[pa.DataType], pa.DataType]] = [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)]
    return st.tuples(st.sampled_from(shapes), st.sampled_from(shapes)).map(lambda two: (two[0](one), two[1](other)))


def structs(inner: list[Pair]) -> Pair:
    """A pair of structs of such pairs."""
    return tuple(pa.struct([(f"f{at}", pair[side]) for at, pair in enumerate(inner)]) for side in (0, 1))


def maps(inner: Pair) -> Pair:
    """A pair of maps to such a pair."""
    return pa.map_(pa.int32(), inner[0]), pa.map_(pa.int64(), inner[1])


PAIRS: st.SearchStrategy[Pair] = st.recursive(
    st.sampled_from(LEAF_PAIRS),
    lambda inner: st.one_of(
        inner.flatmap(lists), st.lists(inner, min_size=1, max_size=3).map(structs), inner.map(maps)
    ),
    max_leaves=4,
)


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The values and null."""
    return st.one_of(st.none(), values)


def numbers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    """Integers of so many bits, many of them small: only those fit into something narrower."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.integers(low, high), st.integers(max(low, -200), min(high, 200)))


def times(highest: int) -> st.SearchStrategy[int]:
    """Times of a day, many of them whole seconds."""
    step = max(1, (highest + 1) // 86_400)
    return st.one_of(st.integers(0, highest), st.integers(0, 86_399).map(lambda second: second * step))


def decimals(kind: pa.DataType) -> st.SearchStrategy[Decimal]:
    """Decimals of a type, many of them short."""
    digits = st.one_of(st.integers(1, kind.precision), st.integers(1, 3)).flatmap(
        lambda count: st.lists(st.integers(0, 9), min_size=count, max_size=count)
    )
    return st.tuples(st.integers(0, 1), digits).map(lambda one: Decimal((one[0], tuple(one[1]), -kind.scale)))


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - a line per kind of type
    """Values of a type as `pa.array` takes them."""
    if pa.types.is_integer(kind):
        return nullable(numbers(kind.bit_width, signed=pa.types.is_signed_integer(kind)))
    if pa.types.is_floating(kind):
        return nullable(st.floats(width=kind.bit_width, allow_nan=False))
    if pa.types.is_decimal(kind):
        return nullable(decimals(kind))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return nullable(st.one_of(numbers(64), numbers(30).map(lambda number: number * 10**9)))
    if pa.types.is_time(kind):
        return nullable(times(86_400 * 10**9 // NANOSECONDS[kind.unit] - 1))
    if pa.types.is_date(kind):
        return nullable(numbers(32) if pa.types.is_date32(kind) else numbers(24).map(lambda day: day * 86_400_000))
    if pa.types.is_fixed_size_binary(kind):
        return nullable(st.binary(min_size=kind.byte_width, max_size=kind.byte_width))
    if pa.types.is_struct(kind):
        return nullable(st.fixed_dictionaries({field.name: values_of(field.type) for field in kind}))
    if pa.types.is_map(kind):
        return nullable(
            st.dictionaries(numbers(32), values_of(kind.item_type), max_size=3).map(lambda one: list(one.items()))
        )
    if pa.types.is_fixed_size_list(kind):
        return nullable(st.lists(values_of(kind.value_type), min_size=kind.list_size, max_size=kind.list_size))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return nullable(st.lists(values_of(kind.value_type), max_size=3))
    if pa.types.is_boolean(kind):
        return nullable(st.booleans())
    texts = st.text(st.characters(codec="utf-8"), max_size=4)
    return nullable(st.one_of(texts.map(str.encode), st.binary(max_size=4)) if "binary" in str(kind) else texts)


def plain(value: pa.Scalar) -> Any:
    """What a value says, whatever its type: numbers by their size, times in nanoseconds, text as bytes."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {name: plain(one) for name, one in value.items()}
    if pa.types.is_nested(kind):  # lists; a map is one of structs
        return [plain(one) for one in value.values]
    if pa.types.is_date(kind):
        return value.value * (86_400_000 if pa.types.is_date32(kind) else 1)
    if pa.types.is_temporal(kind):
        return value.value * NANOSECONDS[kind.unit]
    said = value.as_py()
    return said.encode() if isinstance(said, str) else said


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_the_rule_lets_through_survives_or_is_refused(data: st.DataObject) -> None:
    """A value that is another one afterwards is lost, and nobody is told."""
    one, other = data.draw(PAIRS)
    assume(not misfit(one, other))
    rows = data.draw(st.lists(values_of(one), max_size=6))
    try:
        values = pa.array(rows, one)
    except OverflowError:
        assume(False)
    values = values.slice(data.draw(st.integers(0, len(rows))))
    try:
        became = converted(values, other)
    except pa.ArrowException:
        return  # said of the value, and a test below sees by whom
    became.validate()
    assert became.type.equals(other)
    assert [plain(value) for value in became] == [plain(value) for value in values]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.int64()),
        (pa.float64(), pa.bool_()),
        (pa.int64(), pa.bool_()),
        (pa.bool_(), pa.int8()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.decimal128(18, 0)),
        (pa.decimal128(10, 4), pa.int64()),
        (pa.decimal128(30, 20), pa.float64()),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (NAIVE, pa.string()),
        (NAIVE, ZONED),
        (ZONED, NAIVE),
        (NAIVE, pa.date32()),
        (ZONED, pa.date32()),
        (NAIVE, pa.time64("us")),
        (pa.date32(), NAIVE),
        (pa.binary(3), pa.binary(2)),
        (pa.struct([("a", pa.int32()), ("b", pa.int32())]), pa.struct([("a", pa.int32())])),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
        (pa.struct([("x", pa.int32())]), pa.struct([("a", pa.int32())])),
        (pa.list_(pa.struct([("t", NAIVE)])), pa.list_(pa.struct([("t", ZONED)]))),
        (pa.list_(pa.float64(), 3), pa.list_(pa.float32(), 3)),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8(), 2)),
        (pa.map_(pa.string(), NAIVE), pa.map_(pa.string(), ZONED)),
        (pa.map_(pa.int64(), pa.int8()), pa.map_(pa.string(), pa.int8())),
        (pa.dictionary(pa.int32(), pa.float64()), pa.float32()),
        (pa.list_(pa.int8()), pa.int8()),
    ],
    ids=str,
)
def test_what_would_be_another_value_is_refused_by_its_type(one: pa.DataType, other: pa.DataType) -> None:
    """Arrow casts most of these: 1e300 becomes infinite, noon a whole day, a field is gone."""
    assert misfit(one, other)


@pytest.mark.parametrize(
    ("rows", "one", "other"),
    [
        ([300], pa.int64(), pa.int8()),
        ([-1], pa.int64(), pa.uint64()),
        ([1500], pa.timestamp("ns"), NAIVE),
        ([2**62], pa.timestamp("s"), pa.timestamp("ns")),
        ([Decimal("1.2345")], pa.decimal128(10, 4), pa.decimal128(10, 2)),
        ([b"\xff"], pa.binary(), pa.string()),
        ([[1.0]], pa.list_(pa.float32()), pa.list_(pa.float32(), 2)),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_where_others_do(
    rows: list[Any], one: pa.DataType, other: pa.DataType
) -> None:
    """What Spark or a file has no narrow type for must be landed, but never cut."""
    assert misfit(one, other) == ""
    with pytest.raises(pa.ArrowInvalid):
        converted(pa.array(rows, one), other)


def test_the_sink_names_column_types_and_what_to_do(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """Before a row is written: a cast that loses something is the user's to say."""
    name = new_name()
    schema = pa.schema([("key", pa.int64()), ("deep", pa.struct([("at", ZONED), ("size", pa.float32())]))])
    with CoordinatorClient(coordinator.address) as client:
        client.create_collection(
            definition(
                name,
                arrow_schema=schema.serialize().to_pybytes(),
                primary_key=[],
                channel_mode=common_pb2.CHANNEL_MODE_CLAIMED,
            )
        )
    frame = pa.schema([("key", pa.int64()), ("deep", pa.struct([("at", ZONED), ("size", pa.float64())]))])

    with pytest.raises(InvalidFieldError) as caught:
        Query(coordinator.address, name).plan(frame)

    said = caught.value.message
    assert "column 'deep' of the frame is struct<at: timestamp[us, tz=UTC], size: double>" in said
    assert "cannot become the struct<at: timestamp[us, tz=UTC], size: float>" in said
    assert "in field 'size', float is less exact than double" in said
    assert "cast it in the frame" in said
    assert caught.value.metadata["column"] == "deep"
