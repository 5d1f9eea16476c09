"""Kafka's messages become rows: values and keys as JSON by the collection's columns, or as the bytes they are.

librdkafka hands messages over one by one; taking their parts out of them is the only work per message here.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datacoord.errors import SourceInvalidError
from datanode_client.sources.base import ChannelContext
from datanode_client.sources.files_rows import BadRowError, RowMaker
from datanode_client.sources.jsonl_parse import BadLineError, LineParser

_HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

KAFKA_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
    ]
)
"""Columns of a collection that keeps the newest message of each key (`value="raw"`)."""

KAFKA_PRIMARY_KEY: Final = ("key",)

KAFKA_CHANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("offset", pa.int64(), nullable=False),
    ]
)
"""Columns of a collection without a primary key that keeps every message (`value="raw"`)."""


class KafkaMessage(Protocol):
    """What is used of a message of the client."""

    def key(self) -> bytes | None:
        """Its key."""

    def value(self) -> bytes | None:
        """Its value; None = a tombstone."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Its headers."""

    def timestamp(self) -> tuple[int, int]:
        """Kind and milliseconds."""

    def offset(self) -> int | None:
        """Its offset."""


class MessageDecoder(Protocol):
    """Makes rows of messages of one partition."""

    def decode(self, messages: Sequence[KafkaMessage]) -> pa.RecordBatch:
        """Rows for a `MessageBatch`; the timestamp of a message is its offset + 1.

        Raises:
            BadRowError: a message is not what the collection takes; the ones before it may be wrong, too.
        """
        ...


def timestamps_of(messages: Sequence[KafkaMessage]) -> npt.NDArray[np.int64]:
    """The timestamps of messages."""
    return np.fromiter((message.offset() for message in messages), np.int64, len(messages)) + 1


class RawDecoder:
    """Takes messages as they are.

    Args:
        context: of the channel; its columns are some of `key`, `value`, `headers`, `timestamp` and `offset`.

    Raises:
        SourceInvalidError: it has others, or of other types, or another primary key than `key`.
    """

    def __init__(self, context: ChannelContext) -> None:
        self._rows = RowMaker(context)
        self._schema = context.schema
        self._deletes = bool(context.primary_key)
        known = {field.name: field.type for field in KAFKA_CHANGES_SCHEMA}
        for field in context.schema:
            kind = pa.binary() if pa.types.is_large_binary(field.type) else field.type
            if known.get(field.name) != kind:
                raise SourceInvalidError(
                    f"collection {context.collection_name!r} has the column {field.name} ({field.type}), but raw messages have "
                    f"{', '.join(f'{name} ({kind})' for name, kind in known.items())}",
                    column=field.name,
                )
        if context.primary_key not in {(), KAFKA_PRIMARY_KEY}:
            raise SourceInvalidError(
                f"collection {context.collection_name!r} has the primary key {', '.join(context.primary_key)}; raw messages have "
                "the primary key `key`, or none",
                collection=context.collection_name,
            )

    def decode(self, messages: Sequence[KafkaMessage]) -> pa.RecordBatch:
        """See `MessageDecoder.decode`."""
        timestamps = timestamps_of(messages)
        values = [message.value() for message in messages]
        columns = {"key": [message.key() for message in messages], "value": values, "offset": timestamps - 1}
        if "headers" in self._schema.names:
            columns["headers"] = [
                [{"key": key, "value": value} for key, value in message.headers() or ()] for message in messages
            ]
        if "timestamp" in self._schema.names:
            columns["timestamp"] = [at if at >= 0 else None for _, at in (message.timestamp() for message in messages)]
        rows = pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in self._schema], names=self._schema.names
        )
        deletes = np.fromiter((value is None for value in values), np.bool_, len(values)) if self._deletes else None
        return self._rows.make(rows, timestamps, deletes)


class JsonDecoder:
    """Reads values as JSON objects by the collection's columns. A tombstone deletes the key that the message has.

    Args:
        context: of the channel.
        rows: makes the rows.
        key: `json`: keys are objects with the columns of the primary key; `text`: they are its only column, in UTF-8.
        key_columns_from_key: the primary key is always taken from the message's key; otherwise only for tombstones.

    Raises:
        SourceInvalidError: a column is not read from JSON, or `text` does not go with the primary key.
    """

    def __init__(self, context: ChannelContext, rows: RowMaker, *, key: str, key_columns_from_key: bool) -> None:
        self._rows = rows
        self._primary_key = context.primary_key
        self._from_key = key_columns_from_key
        key_schema = pa.schema([context.schema.field(name) for name in context.primary_key])
        self._key_field = key_schema.field(0) if key == "text" and len(key_schema) else None
        if self._key_field is not None and len(key_schema) > 1:
            raise SourceInvalidError(
                f"collection {context.collection_name!r} has the primary key {', '.join(context.primary_key)}: a key that is one "
                'text cannot give it; say key="json"',
                collection=context.collection_name,
            )
        if key_columns_from_key and not context.primary_key:
            raise SourceInvalidError(
                f"collection {context.collection_name!r} has no primary key that could be taken from the messages' keys",
                collection=context.collection_name,
            )
        self._values = LineParser(rows.schema)
        self._keys = LineParser(key_schema)

    def decode(self, messages: Sequence[KafkaMessage]) -> pa.RecordBatch:
        """See `MessageDecoder.decode`."""
        values = [message.value() for message in messages]
        deletes = np.fromiter((value is None for value in values), np.bool_, len(values))
        rows = self._parse(
            self._values, [value for value in values if value is not None], np.flatnonzero(~deletes), "value"
        )
        if deletes.any():
            # The tombstones' rows stand behind the others, without values, and are then put where they belong.
            nulls = [pa.nulls(int(deletes.sum()), field.type) for field in rows.schema]
            rows = pa.concat_batches([rows, pa.RecordBatch.from_arrays(nulls, names=rows.schema.names)])
            rows = rows.take(pa.array(np.argsort(np.argsort(deletes, kind="stable"), kind="stable")))
        if self._primary_key and (self._from_key or deletes.any()):
            rows = self._with_keys(rows, messages, np.ones(len(messages), np.bool_) if self._from_key else deletes)
        return self._rows.make(rows, timestamps_of(messages), deletes)

    def _with_keys(
        self, rows: pa.RecordBatch, messages: Sequence[KafkaMessage], wanted: npt.NDArray[np.bool_]
    ) -> pa.RecordBatch:
        """The rows with the primary key of some of them taken from their messages' keys."""
        indexes = np.flatnonzero(wanted)
        keys = self._parse_keys([messages[int(index)].key() for index in indexes], indexes)
        # Row i has key places[i], or none.
        places = pa.array(np.cumsum(wanted) - 1, mask=~wanted)
        for name in self._primary_key:
            field = rows.schema.field(name)
            values = keys.column(name).take(places)
            if not wanted.all():
                values = _either(wanted, values, rows.column(name))
            rows = rows.set_column(rows.schema.get_field_index(name), field, values)
        return rows

    def _parse_keys(self, keys: list[bytes | None], indexes: npt.NDArray[np.int64]) -> pa.RecordBatch:
        for place, key in enumerate(keys):
            if key is None:
                raise BadRowError(int(indexes[place]), "has no key, and the primary key is to be taken from there")
        if self._key_field is None:
            return self._parse(self._keys, [key for key in keys if key is not None], indexes, "key")
        try:
            column = pa.array(keys, pa.binary()).cast(pa.string()).cast(self._key_field.type)
        except pa.ArrowException as error:
            if len(keys) > 1:
                for place in range(len(keys)):
                    self._parse_keys(keys[place : place + 1], indexes[place : place + 1])
            raise BadRowError(
                int(indexes[0]), f"has a key that cannot become {self._key_field.type}: {error}"
            ) from None
        return pa.RecordBatch.from_arrays([column], names=[self._key_field.name])

    @staticmethod
    def _parse(parser: LineParser, texts: list[bytes], indexes: npt.NDArray[np.int64], what: str) -> pa.RecordBatch:
        block = b"\n".join(texts)
        if block.count(b"\n") >= max(len(texts), 1):
            # In JSON a line end is white space; inside of a text it is not legal.
            texts = [text.replace(b"\n", b" ") for text in texts]
            block = b"\n".join(texts)
        try:
            rows, lines, _ = parser.parse(block)
        except BadLineError as error:
            raise BadRowError(int(indexes[error.index]), f"has a {what} that {error.why}") from None
        if len(lines) != len(texts):
            missing = np.setdiff1d(np.arange(len(texts)), lines)
            raise BadRowError(int(indexes[missing[0]]), f"has a {what} that is empty")
        return rows


def _either(chosen: npt.NDArray[np.bool_], values: pa.Array, others: pa.Array) -> pa.Array:
    """Values where they are chosen, else the others; for any type."""
    both = pa.concat_arrays([values, others])
    indexes = np.arange(len(chosen)) + np.where(chosen, 0, len(chosen))
    return both.take(pa.array(indexes))
