"""How the schema of a collection may change: nullable columns are added at its end, and nothing else, ever.

Objects that are written are read by the names and types they have; rows written before a column was added have null in it.
"""

import pyarrow as pa

from datacoord.errors import InvalidFieldError
from datacoord.limits import SCHEMA_BYTES_MAX, SCHEMA_COLUMNS_MAX


def with_added_columns(stored: bytes, added: pa.Schema) -> bytes:
    """The schema with more columns at its end; the very same bytes where all of them are there already.

    Args:
        stored: Arrow IPC schema message, as it is stored.
        added: nullable columns with names of good shape, none twice.

    Raises:
        InvalidFieldError: a column is there already with another type, or the schema would be too large.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(stored))
    new = []
    for field in added:
        at = schema.get_field_index(field.name)
        if at < 0:
            new.append(field)
        elif not schema.field(at).type.equals(field.type):
            raise InvalidFieldError(
                f"column {field.name!r} is there already, as {schema.field(at).type}, and cannot become {field.type}; add a "
                "column of another name",
                field="add_columns",
                column=field.name,
            )
    if not new:
        return stored
    columns = len(schema) + len(new)
    if columns > SCHEMA_COLUMNS_MAX:
        raise InvalidFieldError(
            f"the collection would have {columns} columns, more than the {SCHEMA_COLUMNS_MAX} that are allowed",
            field="add_columns",
            limit=SCHEMA_COLUMNS_MAX,
        )
    encoded: bytes = pa.schema([*schema, *new], metadata=schema.metadata).serialize().to_pybytes()
    if len(encoded) > SCHEMA_BYTES_MAX:
        raise InvalidFieldError(
            f"the schema would have {len(encoded)} bytes, more than the {SCHEMA_BYTES_MAX} that are allowed",
            field="add_columns",
            limit=SCHEMA_BYTES_MAX,
        )
    return encoded
