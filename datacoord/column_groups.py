"""Which columns of a collection share an object (StorageV2), or that each has one of its own (StorageV1).

A group is named by the `field id` of the path grammar. It follows from the schema alone, so that every object of a range is cut
the same way: group 0 holds every column that has no group of its own, with `_timestamp`; a column's own group has the number of
the column. Columns are only ever added at the end, so their numbers never change.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from datacoord.errors import InvalidFieldError

SHARED_FIELD_ID: Final = 0
"""Every column without a group of its own, and `_timestamp`: all columns, where none is wide."""

TIMESTAMP_FIELD_ID: Final = 1
"""`_timestamp` alone (StorageV1), as in Milvus."""

FIRST_COLUMN_FIELD_ID: Final = 100
"""The first column's own group, as in Milvus; the others follow in the order of the schema."""

ROW_FIELD_IDS: Final = frozenset({SHARED_FIELD_ID, TIMESTAMP_FIELD_ID})
"""Groups with `_timestamp`: in one of them, once, stands every row. Rows are counted there."""

STORAGE_VERSION_PROPERTY: Final = "storage_version"
"""Property of a collection: `1` = an object per column, `2` = column groups (the default)."""

BLOOM_FILTER_PROPERTY: Final = "key_bloom_filter"
"""Property of a collection: `false` = objects have no bloom filters of their keys (the default is `true`)."""

GROUP_METADATA: Final = b"datacoord.group"
"""Metadata of a column: `own` or `shared`, where its type says otherwise."""

WIDE_BYTES_MIN: Final = 256
"""A value of a fixed size from which on its column is wide."""

TIMESTAMP_COLUMN: Final = "_timestamp"


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """Columns that are stored together.

    Attributes:
        field_id: names the group in paths.
        columns: their names, in the order of the schema; `_timestamp` may be among them, at the end.
    """

    field_id: int
    columns: tuple[str, ...]


def storage_version(properties: Mapping[str, str]) -> int:
    """What a collection's properties say, 2 if nothing.

    Raises:
        InvalidFieldError: neither 1 nor 2.
    """
    version = properties.get(STORAGE_VERSION_PROPERTY, "2")
    if version not in {"1", "2"}:
        raise InvalidFieldError(
            f"property {STORAGE_VERSION_PROPERTY} is {version[:80]!r}, but must be 1 (an object per column) or 2 (column groups)",
            field="properties",
        )
    return int(version)


def key_bloom_filter(properties: Mapping[str, str]) -> bool:
    """What a collection's properties say, yes if nothing.

    Raises:
        InvalidFieldError: neither true nor false.
    """
    said = properties.get(BLOOM_FILTER_PROPERTY, "true")
    if said not in {"true", "false"}:
        raise InvalidFieldError(
            f"property {BLOOM_FILTER_PROPERTY} is {said[:80]!r}, but must be true or false", field="properties"
        )
    return said == "true"


def column_groups(columns: pa.Schema, primary_key: Collection[str], version: int) -> tuple[ColumnGroup, ...]:
    """The groups of a collection's insert logs, the one with `_timestamp` last: it is written when the others are there.

    Args:
        columns: of the collection.
        primary_key: names of key columns: they are read with the rows, never apart from them (StorageV2).
        version: 1 or 2.
    """
    own = [name for name in columns.names if version == 1 or (name not in primary_key and is_wide(columns.field(name)))]
    groups = [ColumnGroup(FIRST_COLUMN_FIELD_ID + columns.get_field_index(name), (name,)) for name in own]
    shared = tuple(name for name in columns.names if name not in own)
    last = TIMESTAMP_FIELD_ID if version == 1 else SHARED_FIELD_ID
    return (*groups, ColumnGroup(last, (*shared, TIMESTAMP_COLUMN)))


def columns_of(columns: pa.Schema, field_ids: Collection[int]) -> dict[str, int]:
    """The group of every column, from the groups that are there: what has none of its own is in the shared one.

    Args:
        columns: of the collection, now; the objects may be older than the last of them.
        field_ids: groups of one set of objects.
    """
    shared = TIMESTAMP_FIELD_ID if TIMESTAMP_FIELD_ID in field_ids else SHARED_FIELD_ID
    found = {TIMESTAMP_COLUMN: shared}
    for index, name in enumerate(columns.names):
        own = FIRST_COLUMN_FIELD_ID + index
        found[name] = own if own in field_ids else shared
    return found


def is_wide(column: pa.Field) -> bool:
    """Whether a column gets a group of its own: float vectors, long binary of fixed size, binary declared large, or as it says."""
    said = (column.metadata or {}).get(GROUP_METADATA)
    if said is not None:
        return bool(said == b"own")
    kind = column.type
    if pa.types.is_fixed_size_list(kind) and pa.types.is_primitive(kind.value_type):
        return bool(kind.list_size * kind.value_type.bit_width >= WIDE_BYTES_MIN * 8)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return bool(pa.types.is_floating(kind.value_type))
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width >= WIDE_BYTES_MIN)
    return bool(pa.types.is_large_binary(kind))
