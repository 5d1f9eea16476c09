"""How a schema may change: what is written already must stay readable by the names and types it has."""

import pyarrow as pa
import pytest

from coordinator.core.schemas import with_added_columns
from datacoord.errors import InvalidFieldError
from datacoord.limits import SCHEMA_COLUMNS_MAX

STORED = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())], metadata={"a": "b"})


def encoded(schema: pa.Schema) -> bytes:
    """As it is stored."""
    message: bytes = schema.serialize().to_pybytes()
    return message


def test_columns_are_added_at_the_end_and_nothing_else_moves() -> None:
    """A column that changed its place or its nulls would make objects that are written unreadable."""
    added = pa.schema([pa.field("w", pa.list_(pa.float32(), 4)), pa.field("x", pa.string())])

    assert with_added_columns(encoded(STORED), added) == encoded(pa.schema([*STORED, *added], metadata={"a": "b"}))


def test_a_column_that_is_there_with_its_type_is_left_alone() -> None:
    """A repetition must change nothing, not even a byte; a column that cannot be null stays so."""
    added = pa.schema([pa.field("k", pa.int64()), pa.field("w", pa.int8())])
    once = with_added_columns(encoded(STORED), added)

    assert with_added_columns(once, added) == once
    assert not pa.ipc.read_schema(pa.py_buffer(once)).field("k").nullable


def test_a_column_cannot_change_its_type() -> None:
    """Objects with the old type would be read as the new one."""
    with pytest.raises(InvalidFieldError, match="'v' is there already, as string"):
        with_added_columns(encoded(STORED), pa.schema([pa.field("v", pa.large_string())]))


def test_a_schema_does_not_grow_without_bound() -> None:
    """One call within the limit after the other would pass it."""
    added = pa.schema([pa.field(f"c{number}", pa.int8()) for number in range(SCHEMA_COLUMNS_MAX - 2)])
    full = with_added_columns(encoded(STORED), added)

    with pytest.raises(InvalidFieldError, match="columns"):
        with_added_columns(full, pa.schema([pa.field("one_more", pa.int8())]))


def test_a_schema_message_stays_within_its_bytes() -> None:
    """It travels in every recovery info."""
    added = pa.schema([pa.field("w", pa.int8(), metadata={"big": "x" * 1024 * 1024})])

    with pytest.raises(InvalidFieldError, match="bytes"):
        with_added_columns(encoded(STORED), added)
