"""Shape of a collection's definition: schema, primary key, channels, storage root, properties; and of a change of it."""

from collections.abc import Mapping

import pyarrow as pa

from coordinator.core.save import check_distinct
from coordinator.rpc import validation
from coordinator.store import CollectionChange
from datacoord import limits
from datacoord.column_groups import key_bloom_filter, storage_version
from datacoord.errors import InvalidFieldError
from datacoord.storage_roots import problem_of
from datacoord.v1 import collection_pb2, common_pb2


def check_definition(request: collection_pb2.CreateCollectionRequest) -> bytes:
    """Checks a definition.

    Returns:
        the schema in one canonical encoding, so that equal definitions are equal bytes.

    Raises:
        InvalidFieldError: with the field and what is allowed.
    """
    validation.collection_name(request.collection_name)
    validation.number(request.channel_count, "channel_count", 1, limits.CHANNEL_COUNT_MAX)
    for field, enum, value in (
        ("channel_mode", common_pb2.ChannelMode, request.channel_mode),
        ("timestamp_kind", common_pb2.TimestampKind, request.timestamp_kind),
    ):
        if value == 0 or value not in enum.values():
            names = ", ".join(name for name, known in enum.items() if known != 0)
            raise InvalidFieldError(f"{field} is {value}, but must be one of {names}", field=field)
    if request.storage_root:
        check_storage_root(request.storage_root)
    check_properties(request.properties, "properties")
    schema = read_schema(request.arrow_schema)
    _check_columns(schema, list(request.primary_key))
    canonical: bytes = schema.serialize().to_pybytes()
    return canonical


def read_schema(encoded: bytes, where: str = "arrow_schema") -> pa.Schema:
    """Reads an Arrow IPC schema message, which stands in the field `where` of a request.

    Raises:
        InvalidFieldError: it is too large or none.
    """
    if len(encoded) > limits.SCHEMA_BYTES_MAX:
        raise InvalidFieldError(
            f"{where} has {len(encoded)} bytes, but at most {limits.SCHEMA_BYTES_MAX} are allowed",
            field=where,
        )
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(encoded))
        # Arrow decodes names when they are asked for: one that is not UTF-8 must be found here, not by a reader.
        for field in schema:
            _decode_names(field)
        return schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidFieldError(
            f"{where} is not an Arrow IPC schema message; send schema.serialize().to_pybytes()",
            field=where,
        ) from error


def _decode_names(field: pa.Field) -> None:
    assert isinstance(field.name, str)  # noqa: S101 - asking is what decodes it
    for index in range(field.type.num_fields):
        _decode_names(field.type.field(index))


def _check_names(schema: pa.Schema, where: str) -> None:
    validation.count(schema.names, where, limits.SCHEMA_COLUMNS_MAX, minimum=1)
    for name in schema.names:
        validation.label(name, where, limits.NAME_CHARS_MAX)
        if not name or name.startswith("_"):
            raise InvalidFieldError(
                f"column {validation.shown(name)} is empty or begins with an underscore; those names are the system's",
                field=where,
            )
    check_distinct(schema.names, "column", where)


def _check_columns(schema: pa.Schema, primary_key: list[str]) -> None:
    _check_names(schema, "arrow_schema")
    for name in primary_key:
        if name not in schema.names:
            raise InvalidFieldError(
                f"primary key column {validation.shown(name)} is not in arrow_schema", field="primary_key"
            )
        kind = schema.field(name).type
        if not _can_be_key(kind):
            raise InvalidFieldError(
                f"primary key column {name!r} is of type {kind}; keys are integers, text, binary, booleans, dates, times or "
                "decimals, because equal keys must be equal bytes",
                field="primary_key",
            )
    check_distinct(primary_key, "column", "primary_key")


def _can_be_key(kind: pa.DataType) -> bool:
    checks = (
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_date,
        pa.types.is_time,
        pa.types.is_timestamp,
        pa.types.is_decimal,
    )
    return any(check(kind) for check in checks)


def check_storage_root(root: str) -> None:
    """Checks where a collection wants its objects: an absolute directory or a URI of a known scheme, without `..`.

    Raises:
        InvalidFieldError: with what is allowed.
    """
    validation.label(root, "storage_root", limits.STORAGE_ROOT_CHARS_MAX)
    problem = problem_of(root)
    if problem is not None:
        # The root itself is not told again: it may hold what must not be.
        raise InvalidFieldError(f"storage_root {problem}", field="storage_root")


def check_properties(properties: Mapping[str, str], field: str) -> None:
    """Checks free properties: not too many, keys and values not too long.

    Raises:
        BatchTooLargeError: too many.
        InvalidFieldError: with what is allowed.
    """
    validation.count(properties, field, limits.PROPERTIES_MAX)
    storage_version(properties)
    key_bloom_filter(properties)
    for key, value in properties.items():
        for text in (key, value):
            if len(text.encode()) > limits.PROPERTY_BYTES_MAX or "\0" in text:
                raise InvalidFieldError(
                    f"property {validation.shown(key)} is longer than {limits.PROPERTY_BYTES_MAX} bytes or holds a NUL",
                    field=field,
                )


def check_change(request: collection_pb2.AlterCollectionRequest) -> CollectionChange:
    """Checks a change of a collection, as far as that can be done without knowing the collection.

    Raises:
        BatchTooLargeError: too many properties.
        InvalidFieldError: with the field and what is allowed.
    """
    validation.collection_name(request.collection_name)
    check_properties(request.set_properties, "set_properties")
    validation.count(request.remove_properties, "remove_properties", limits.PROPERTIES_MAX)
    for key in request.remove_properties:
        if key in request.set_properties:
            raise InvalidFieldError(
                f"property {validation.shown(key)} is to be set and removed at once", field="remove_properties"
            )
    added = None
    if request.add_columns:
        added = read_schema(request.add_columns, "add_columns")
        _check_names(added, "add_columns")
        for column in added:
            if not column.nullable:
                raise InvalidFieldError(
                    f"column {validation.shown(column.name)} is not nullable; rows that are written already have no value "
                    "for it",
                    field="add_columns",
                )
    return CollectionChange(added, dict(request.set_properties), frozenset(request.remove_properties))
