"""Every type a column may have, with values at its edges."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

_DAY_MIN, _DAY_MAX = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970: the dates that Spark has."""
_MICROS_MIN, _MICROS_MAX = _DAY_MIN * 86_400_000_000, (_DAY_MAX + 1) * 86_400_000_000 - 1
_NANOS_MIN, _NANOS_MAX = -(2**63) // 1000 * 1000 + 1000, (2**63 - 1) // 1000 * 1000
"""Spark has microseconds, so what is finer is cut off: these have none to lose."""

_INF = float("inf")
_NAN = float("nan")
_DEEP = pa.list_(
    pa.struct(
        [
            pa.field("name", pa.string()),
            pa.field("at", pa.timestamp("us", "Europe/Berlin")),
            pa.field("price", pa.decimal128(38, 9)),
            pa.field("inner", pa.list_(pa.struct([("x", pa.uint64()), ("y", pa.map_(pa.string(), pa.float32()))]))),
        ]
    )
)
_DEEP_VALUE: list[Any] = [
    {
        "name": "",
        "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
        "price": Decimal("-99999999999999999999999999999.999999999"),
        "inner": [None, {"x": 2**64 - 1, "y": [("", -_INF), ("k", None)]}, {"x": None, "y": None}],
    },
    None,
    {"name": None, "at": None, "price": None, "inner": []},
]


def _integers(kind: pa.DataType, bits: int, *, signed: bool) -> tuple[pa.DataType, list[Any]]:
    return kind, [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0] if signed else [0, 2**bits - 1, 1]


def _times(unit: str, zone: str | None = None) -> tuple[pa.DataType, list[Any]]:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    lowest, highest = (_NANOS_MIN, _NANOS_MAX) if unit == "ns" else (_MICROS_MIN, _MICROS_MAX)
    scale = 1 if unit == "ns" else 10**6 // per_second
    return pa.timestamp(unit, zone), [-(-lowest // scale), highest // scale, -1000 if unit == "ns" else -1, 0]


NATIVE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "int8": _integers(pa.int8(), 8, signed=True),
    "int16": _integers(pa.int16(), 16, signed=True),
    "int32": _integers(pa.int32(), 32, signed=True),
    "int64": _integers(pa.int64(), 64, signed=True),
    "uint8": _integers(pa.uint8(), 8, signed=False),
    "uint16": _integers(pa.uint16(), 16, signed=False),
    "uint32": _integers(pa.uint32(), 32, signed=False),
    "uint64": _integers(pa.uint64(), 64, signed=False),
    "float32": (pa.float32(), [_NAN, -_INF, -0.0, 1.401298464324817e-45, 3.4028234663852886e38]),
    "float64": (pa.float64(), [_NAN, _INF, -0.0, 5e-324, 1.7976931348623157e308]),
    "decimal32": (pa.decimal32(9, 2), [Decimal("-9999999.99"), Decimal("0.01"), Decimal("0.00")]),
    "decimal64": (pa.decimal64(18, 18), [Decimal("-0.999999999999999999"), Decimal("0")]),
    "decimal_whole": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)]),
    "decimal_part": (pa.decimal128(38, 38), [Decimal(f"0.{'9' * 38}"), Decimal(f"-0.{1:038}")]),
    "decimal256": (pa.decimal256(38, 5), [Decimal(f"-{'9' * 33}.99999"), Decimal("1.00000")]),
    "text": (pa.string(), ["", "\0", "ä\U0001f600", "x" * 70_000]),
    "large_text": (pa.large_string(), ["", "ä"]),
    "bytes": (pa.binary(), [b"", b"\0\xff" * 9]),
    "fixed": (pa.binary(3), [b"\0\0\0", b"\xff\xff\xff"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "", "a"]),
    "day": (pa.date32(), [_DAY_MIN, _DAY_MAX, -1, 0]),
    "day_of_millis": (pa.date64(), [_DAY_MIN * 86_400_000, _DAY_MAX * 86_400_000, -86_400_000, 0]),
    "clock_s": _times("s"),
    "clock_ms": _times("ms"),
    "clock_us": _times("us"),
    "instant_s": _times("s", "UTC"),
    "instant_ms": _times("ms", "+05:30"),
    "instant_us": _times("us", "America/New_York"),
    "list": (pa.list_(pa.int64()), [[], [None], [1, None, -(2**63)]]),
    "list_of_never_null": (pa.list_(pa.field("element", pa.int32(), nullable=False)), [[], [1, 2]]),
    "large_list": (pa.large_list(pa.large_string()), [[], ["", None]]),
    "small_vector": (pa.list_(pa.float32(), 2), [[_NAN, -0.0], [None, _INF]]),
    "list_of_vectors": (pa.list_(pa.list_(pa.uint8(), 2)), [[[1, 255], None], []]),
    "struct": (
        pa.struct([("a", pa.uint32()), ("b", pa.large_string())]),
        [{"a": None, "b": None}, {"a": 2**32 - 1, "b": ""}],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[], [("", None), ("k", 1)]]),
    "map_widened": (pa.map_(pa.uint32(), pa.uint64()), [[], [(2**32 - 1, 2**64 - 1), (0, None)]]),
    "map_of_lists": (pa.map_(pa.date32(), pa.list_(pa.bool_())), [[(dt.date(1, 1, 1), [True, None])], []]),
    "deep": (_DEEP, [_DEEP_VALUE, []]),
}
"""Types that Spark's own Parquet reader gives as they are, and values of them."""

OTHERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "nothing": (pa.null(), []),
    "time_s": (pa.time32("s"), [0, 86_399]),
    "time_ms": (pa.time32("ms"), [0, 86_399_999]),
    "time_us": (pa.time64("us"), [0, 86_399_999_999]),
    "time_ns": (pa.time64("ns"), [0, 86_399_999_999_000]),
    "clock_ns": _times("ns"),
    "instant_ns": _times("ns", "Asia/Tokyo"),
    "duration_s": (pa.duration("s"), [-(10**9), 0, 10**9]),
    "duration_ms": (pa.duration("ms"), [-1, 0, 1]),
    "duration_us": (pa.duration("us"), [-(2**63), 0, 2**63 - 1]),
    "duration_ns": (pa.duration("ns"), [-1000, 0, 1000]),
    "nested_nanos": (pa.struct([("at", pa.timestamp("ns"))]), [{"at": None}, {"at": dt.datetime(1970, 1, 1)}]),
    "vector": (pa.list_(pa.float32(), 64), [[_NAN] * 64, [0.5, None] * 32]),
    "free_vector": (pa.list_(pa.float64()), [[], [_INF, None]]),
    "large_bytes": (pa.large_binary(), [b"", b"\xff" * 70_000]),
    "wide_fixed": (pa.binary(256), [bytes(256), b"\xff" * 256]),
}
"""Types that it does not know, or whose columns have objects of their own."""


def column(kind: pa.DataType, values: list[Any], rows: int) -> pa.Array:
    """The values and then nulls, as a column of so many rows."""
    padded = [*values, *[None] * (rows - len(values))]
    numbers = any(isinstance(value, int) for value in values) and not pa.types.is_dictionary(kind)
    if numbers and pa.types.is_temporal(kind):
        raw = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(padded, raw).view(kind)
    return pa.array(padded, kind)
