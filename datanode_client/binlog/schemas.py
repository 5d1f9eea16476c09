"""The schemas of a collection's rows: as readers hand them over, in insert logs and in delta logs."""

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from datacoord.errors import InvalidFieldError
from datacoord.v1 import data_coord_pb2
from datanode_client.sources.base import TIMESTAMP_COLUMN


@dataclass(frozen=True, slots=True)
class CollectionSchema:
    """What a collection's rows and binlogs consist of.

    Attributes:
        columns: the collection's columns.
        primary_key: names of its key columns; empty = append-only.
        insert_log: the columns and `_timestamp`.
        delta_log: the key columns and `_timestamp`; the timestamp alone where there is no key (never written).
    """

    columns: pa.Schema
    primary_key: tuple[str, ...]
    insert_log: pa.Schema
    delta_log: pa.Schema

    @classmethod
    def of(cls, columns: pa.Schema, primary_key: tuple[str, ...]) -> Self:
        """Derives the binlogs' schemas.

        Raises:
            InvalidFieldError: a key column is not among the columns.
        """
        missing = [name for name in primary_key if columns.get_field_index(name) < 0]
        if missing:
            raise InvalidFieldError(
                f"primary key column {missing[0]!r} is not one of the collection's columns {columns.names}",
                field="primary_key",
                column=missing[0],
            )
        timestamp = pa.field(TIMESTAMP_COLUMN, pa.int64(), nullable=False)
        # Field metadata and schema metadata of the collection travel into its objects; Arrow keeps them with the schema.
        insert_log = columns.append(timestamp)
        delta_log = pa.schema([*(columns.field(name) for name in primary_key), timestamp])
        return cls(columns, primary_key, insert_log, delta_log)

    @classmethod
    def from_info(cls, info: data_coord_pb2.ChannelRecoveryInfo) -> Self:
        """Reads the schema out of a channel's recovery info."""
        return cls.of(pa.ipc.read_schema(pa.py_buffer(info.arrow_schema)), tuple(info.primary_key))
