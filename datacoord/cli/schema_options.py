"""Columns and properties as they are typed: `NAME:TYPE`, `KEY=VALUE`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from datacoord.errors import InvalidFieldError

if TYPE_CHECKING:
    import pyarrow as pa

_VECTOR = re.compile(r"(?P<of>[a-z0-9]+)\[(?P<length>[1-9][0-9]*)\]")


def read_columns(typed: Iterable[str]) -> "list[pa.Field]":
    """Columns: `NAME:TYPE`, with `!` behind it for one that is never null.

    Types are Arrow's short names (int64, string, float32, bool, date32, timestamp[us], …); TYPE[N] is a vector of N of them.

    Raises:
        InvalidFieldError: with what is allowed.
    """
    import pyarrow as pa

    columns = []
    for one in typed:
        name, separator, kind = one.partition(":")
        required = kind.endswith("!")
        kind = kind.removesuffix("!")
        vector = _VECTOR.fullmatch(kind)
        try:
            of = pa.type_for_alias(vector["of"] if vector else kind)
        except ValueError:
            of = None
        if not separator or not name or of is None:
            message = (
                f"column {one!r} is not NAME:TYPE with a type of Arrow, such as id:int64!, name:string, at:timestamp[us] or "
                "embedding:float32[128]; for others take the schema from a file"
            )
            raise InvalidFieldError(message, field="column")
        columns.append(pa.field(name, pa.list_(of, int(vector["length"])) if vector else of, nullable=not required))
    return columns


def schema_of_file(path: Path) -> "pa.Schema":
    """The schema of a Parquet file.

    Raises:
        InvalidFieldError: it is none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(path).remove_metadata()
    except (OSError, pa.ArrowException) as error:
        raise InvalidFieldError(f"{path} is not a Parquet file: {error}", field="schema_from") from error


def read_properties(typed: Iterable[str]) -> dict[str, str]:
    """Properties: `KEY=VALUE`.

    Raises:
        InvalidFieldError: one is not.
    """
    properties = {}
    for one in typed:
        key, separator, value = one.partition("=")
        if not separator or not key:
            raise InvalidFieldError(f"property {one!r} is not KEY=VALUE", field="property")
        properties[key] = value
    return properties
