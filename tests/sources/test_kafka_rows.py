"""What becomes of a Kafka message's key and value."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import SourceInvalidError
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, OP_INSERT, OP_UPSERT, TIMESTAMP_COLUMN
from datanode_client.sources.files_rows import BadRowError, RowMaker
from datanode_client.sources.kafka_rows import (
    KAFKA_CHANGES_SCHEMA,
    KAFKA_PRIMARY_KEY,
    KAFKA_SCHEMA,
    JsonDecoder,
    RawDecoder,
)

from .files_reading import SCHEMA, channel


@dataclass
class Message:
    """A message, as the client hands it over."""

    key_: bytes | None
    value_: bytes | None
    offset_: int = 0
    headers_: list[tuple[str, bytes | None]] | None = None
    timestamp_: tuple[int, int] = field(default=(1, 1_700_000_000_000))

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.headers_

    def timestamp(self) -> tuple[int, int]:
        return self.timestamp_

    def offset(self) -> int:
        return self.offset_


def decoder(
    *, key: str = "json", from_key: bool = False, primary_key: tuple[str, ...] = ("id",), schema: pa.Schema = SCHEMA
) -> JsonDecoder:
    """A decoder of the collection of these tests."""
    context = channel(schema=schema, primary_key=primary_key)
    return JsonDecoder(
        context, RowMaker(context, "op" if "op" in schema.names else ""), key=key, key_columns_from_key=from_key
    )


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows without the timestamp."""
    return [{name: value for name, value in row.items() if name != TIMESTAMP_COLUMN} for row in batch.to_pylist()]


def test_a_tombstone_deletes_the_key_it_has_in_its_place_among_the_others() -> None:
    """Out of its place it would delete what came after it, or leave what came before."""
    messages = [
        Message(b'{"id":1}', b'{"id":1,"name":"a"}', 10),
        Message(b'{"id":1}', None, 12),
        Message(b'{"id":2}', None, 13),
        Message(b'{"id":1}', b'{\n  "id": 1,\n  "name": "b"\n}', 17),
    ]
    batch = decoder().decode(messages)
    assert batch.column(TIMESTAMP_COLUMN).to_pylist() == [11, 13, 14, 18]
    assert rows_of(batch) == [
        {"id": 1, "name": "a", OP_COLUMN: OP_UPSERT},
        {"id": 1, "name": None, OP_COLUMN: OP_DELETE},
        {"id": 2, "name": None, OP_COLUMN: OP_DELETE},
        {"id": 1, "name": "b", OP_COLUMN: OP_UPSERT},
    ]


def test_keys_may_be_text_and_values_may_leave_the_key_out() -> None:
    """Compacted topics often have the key in the key only."""
    messages = [Message(b"7", b'{"name":"a"}', 0), Message(b"8", None, 1), Message(b"-9", b'{"id":3,"name":"c"}', 2)]
    batch = decoder(key="text", from_key=True).decode(messages)
    assert [(row["id"], row["name"], row[OP_COLUMN]) for row in batch.to_pylist()] == [
        (7, "a", OP_UPSERT),
        (8, None, OP_DELETE),
        (-9, "c", OP_UPSERT),
    ]
    batch = decoder(from_key=True).decode([Message(b'{"id":5}', b"{}", 0)])
    assert rows_of(batch) == [{"id": 5, "name": None, OP_COLUMN: OP_UPSERT}]


GOOD = Message(b'{"id":1}', b'{"id":1}')


@pytest.mark.parametrize(
    ("options", "messages", "index", "why"),
    [
        ({}, [GOOD, Message(None, b"")], 1, "value that is empty"),
        ({}, [GOOD, Message(None, b"  "), Message(None, b'{"id":1}{"id":2}')], 1, "empty|not one JSON|cannot be read"),
        ({}, [GOOD, Message(None, b'{"id":1}{"a"'), Message(None, b":2}")], 1, "not one JSON"),
        ({}, [GOOD, Message(None, b"[1]"), GOOD], 1, "not one JSON"),
        ({}, [GOOD, GOOD, Message(None, b'{"name":"x"}')], 2, "has no 'id'"),
        ({}, [GOOD, Message(None, None)], 1, "has no key"),
        ({}, [GOOD, Message(b"7", None)], 1, "key that is not one JSON"),
        ({}, [GOOD, Message(b"{}", None)], 1, "has no 'id'"),
        ({"key": "text"}, [GOOD, Message(b"7", None), Message(b"x", None)], 2, "cannot become int64"),
        ({"key": "text"}, [Message(b"\xff", None)], 0, "cannot become"),
        ({"primary_key": ()}, [GOOD, Message(b"{}", None)], 1, "has no 'id'|no primary key"),
        ({"from_key": True}, [Message(None, b'{"id":1}')], 0, "has no key"),
    ],
)
def test_a_message_that_the_collection_cannot_take_is_named(
    options: dict[str, Any], messages: list[Message], index: int, why: str
) -> None:
    """A message left out, or joined with the next, is a row lost or made up."""
    said = []
    for count in (len(messages), index + 1):  # what follows it may be worse
        with pytest.raises(BadRowError) as error:
            decoder(**options).decode(messages[:count])
        said.append(error.value)
    assert said[0].index >= index
    assert said[1].index == index
    assert re.search(why, said[1].why)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.none() | st.dictionaries(st.sampled_from(["name", "x"]), st.text(max_size=3))),
        min_size=1,
        max_size=30,
    )
)
def test_rows_are_what_another_parser_finds(content: list[tuple[int, dict[str, str] | None]]) -> None:
    """Any mixture of values and tombstones: each row is its own message's."""
    messages = [
        Message(
            json.dumps({"id": key}).encode(),
            None if value is None else json.dumps({"id": key, **value}, indent=key or None).encode(),
            3 * number,
        )
        for number, (key, value) in enumerate(content)
    ]
    batch = decoder().decode(messages)
    assert batch.to_pylist() == [
        {
            "id": key,
            "name": None if value is None else value.get("name"),
            TIMESTAMP_COLUMN: 3 * number + 1,
            OP_COLUMN: OP_DELETE if value is None else OP_UPSERT,
        }
        for number, (key, value) in enumerate(content)
    ]


def test_raw_messages_are_landed_as_they_are() -> None:
    """What is not understood must at least not be changed."""
    messages = [
        Message(b"\xff", b"\x00", 5, [("h", b"\xfe"), ("h", None)]),
        Message(b"k", None, 7, None, (0, -1)),
    ]
    state = RawDecoder(channel(schema=KAFKA_SCHEMA, primary_key=KAFKA_PRIMARY_KEY)).decode(messages).to_pylist()
    assert [row[OP_COLUMN] for row in state] == [OP_UPSERT, OP_DELETE]
    assert state[0]["headers"] == [{"key": "h", "value": b"\xfe"}, {"key": "h", "value": None}]
    assert state[0]["timestamp"].timestamp() == 1_700_000_000
    assert (state[0]["key"], state[0]["value"], state[1]["timestamp"]) == (b"\xff", b"\x00", None)

    log = RawDecoder(channel(schema=KAFKA_CHANGES_SCHEMA)).decode([*messages, Message(None, None, 8)]).to_pylist()
    assert [(row["key"], row["value"], row["offset"]) for row in log] == [
        (b"\xff", b"\x00", 5),
        (b"k", None, 7),
        (None, None, 8),
    ]
    assert {row[OP_COLUMN] for row in log} == {OP_INSERT}

    with pytest.raises(BadRowError, match="has no 'key'"):
        RawDecoder(channel(schema=KAFKA_SCHEMA, primary_key=KAFKA_PRIMARY_KEY)).decode([Message(None, b"x")])
    for schema, primary_key in ((SCHEMA, ()), (KAFKA_SCHEMA, ("key", "value"))):
        with pytest.raises(SourceInvalidError, match="raw messages have"):
            RawDecoder(channel(schema=schema, primary_key=primary_key))


def test_settings_that_cannot_go_together_are_refused() -> None:
    """Found out at the first tombstone, weeks later, it would be the message's fault."""
    with pytest.raises(SourceInvalidError, match="primary key id, name"):
        decoder(key="text", primary_key=("id", "name"))
    with pytest.raises(SourceInvalidError, match="no primary key"):
        decoder(from_key=True, primary_key=())
