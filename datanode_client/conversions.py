"""Which type may become which other one: one rule for the columns of sources and of the sink.

What a value says never changes. Types of another kind are refused before a row is read (a number is no truth, the reading of a
clock no point in time, a struct no part of it). Of one kind, Arrow checks every value, and one that the other type does not hold is
refused. Floating point numbers only widen: Arrow does not check what they lose.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

_INTEGER_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""Decimal digits of an integer by its bits; an unsigned one of 64 bits has one more."""

_MANTISSA_BITS: Final = {16: 11, 32: 24, 64: 53}
"""Bits of an integer that a floating point number holds exactly, by its own bits."""


def misfit(given: pa.DataType, wanted: pa.DataType) -> str:
    """Why values of one type cannot become values of another one; empty = they can, as far as each of them fits.

    Args:
        given: what there is.
        wanted: what it is to be.
    """
    why = _misfit(given, wanted)
    if why or given.equals(wanted):
        return why
    try:
        pa.array([], given).cast(wanted)
    except pa.ArrowException as error:
        return f"Arrow {pa.__version__} does not know how: {error}"
    return ""


def converted(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The same values in another type that they may become (see `misfit`).

    Args:
        values: the values.
        wanted: their new type.

    Raises:
        pyarrow.ArrowException: a value does not fit.
    """
    if values.type.equals(wanted):
        return values
    if pa.types.is_nested(wanted):
        # pyarrow 26 dies on lists without a single element, which have no memory for them (as Spark sends a column of nulls), where
        # they are to become lists of a fixed size. Joined with others they have some.
        values = pa.concat_arrays([values, values.slice(0, 0)])
    return values.cast(wanted)


def _misfit(given: pa.DataType, wanted: pa.DataType) -> str:
    if given.equals(wanted) or pa.types.is_null(given):
        return ""
    if pa.types.is_dictionary(given):
        return _misfit(given.value_type, wanted)
    if pa.types.is_dictionary(wanted):
        return _misfit(given, wanted.value_type)
    for belongs, check in _KINDS:
        if belongs(given) and belongs(wanted):
            return check(given, wanted)
    return "" if _holds_all(given, wanted) else f"{wanted} does not hold every {given}"


def _holds_all(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type of another kind holds the same values; whole decimals are checked one by one, as integers are."""
    if pa.types.is_integer(given) and pa.types.is_floating(wanted):
        return bool(given.bit_width <= _MANTISSA_BITS[wanted.bit_width])
    if pa.types.is_integer(given) and pa.types.is_decimal(wanted):
        digits = _INTEGER_DIGITS[given.bit_width] + given.equals(pa.uint64())
        return bool(digits <= wanted.precision - wanted.scale)
    if pa.types.is_decimal(given) and pa.types.is_integer(wanted):
        return bool(given.scale == 0)
    return bool(pa.types.is_date32(given) and pa.types.is_date64(wanted))


def _any(given: pa.DataType, wanted: pa.DataType) -> str:  # noqa: ARG001
    return ""


def _floats(given: pa.DataType, wanted: pa.DataType) -> str:
    return "" if given.bit_width <= wanted.bit_width else f"{wanted} is less exact than {given}"


def _timestamps(given: pa.DataType, wanted: pa.DataType) -> str:
    if (given.tz is None) == (wanted.tz is None):
        return ""
    return "without a zone it is the reading of a clock, with one a point in time, and only you know which clock"


def _fixed_bytes(given: pa.DataType, wanted: pa.DataType) -> str:
    widths = {kind.byte_width for kind in (given, wanted) if pa.types.is_fixed_size_binary(kind)}
    return "" if len(widths) == 1 else "their lengths differ"


def _lists(given: pa.DataType, wanted: pa.DataType) -> str:
    sizes = {kind.list_size for kind in (given, wanted) if pa.types.is_fixed_size_list(kind)}
    if len(sizes) > 1:
        return "their lengths differ"
    return _misfit(given.value_type, wanted.value_type)


def _structs(given: pa.DataType, wanted: pa.DataType) -> str:
    names, expected = ([field.name for field in kind] for kind in (given, wanted))
    if names != expected:
        return f"the fields must be {', '.join(expected)}, in this order, but are {', '.join(names)}"
    for one, other in zip(given, wanted, strict=True):
        if why := _misfit(one.type, other.type):
            return f"in field {one.name!r}, {why}"
    return ""


def _maps(given: pa.DataType, wanted: pa.DataType) -> str:
    return _misfit(given.key_type, wanted.key_type) or _misfit(given.item_type, wanted.item_type)


def _is_bytes(kind: pa.DataType) -> bool:
    # Bytes become text, too: Arrow checks that they are UTF-8, and files of old writers do not say that they are.
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_fixed_size_binary(kind) or (_is_bytes(kind) and not _is_text(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], str]], ...]] = (
    (pa.types.is_integer, _any),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _any),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_time, _any),
    (pa.types.is_duration, _any),
    (_is_bytes, _any),
    (_is_binary, _fixed_bytes),
    (_is_list, _lists),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
)
"""Kinds of types, and what else two types of one kind must have in common."""
