"""Which lines are rows, and that the first one that is none is found and named."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import SourceInvalidError
from datanode_client.sources.jsonl_parse import BadLineError, LineParser

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("deep", pa.struct([pa.field("list", pa.large_list(pa.int32()))])),
    ]
)
PARSER = LineParser(SCHEMA)


def test_values_become_what_their_columns_are() -> None:
    """A vector of another length, a time in another zone or a price through a float would be other data than was sent."""
    rows, lines, ends = PARSER.parse(
        b'{"id":1,"name":"\xc3\xa4","vector":[1,2.5],"at":"2026-01-02T03:04:05.000006Z","price":"1.10","deep":{"list":[1,null]}}\r\n'
        b'\n  {"id":2,"other":{"x":[1]}}  \n\t\n{}'
    )
    assert rows.schema.types == SCHEMA.types
    assert rows.to_pylist()[0]["name"] == "ä"
    assert str(rows.to_pylist()[0]["price"]) == "1.10"
    assert rows.to_pylist()[0]["deep"] == {"list": [1, None]}
    assert rows.to_pylist()[0]["at"].isoformat() == "2026-01-02T03:04:05.000006+00:00"
    assert rows.column("id").to_pylist() == [1, 2, None]
    assert lines.tolist() == [0, 2, 4]
    assert len(ends) == 5


@pytest.mark.parametrize(
    ("block", "index"),
    [
        pytest.param(b'{"id":1}\n{"id":"a"}\n{"id":2}\n', 1, id="another type"),
        pytest.param(b'{"id":1}\n{"id":2', 1, id="cut off"),
        pytest.param(b'{"id":1}{"id":3}\n\n', 0, id="two objects, and a line without one"),
        pytest.param(b'{"id":1}\n{"id":1}{"a"\n:2}\n', 1, id="an object over two lines, and two in one"),
        pytest.param(b'{"id":1}\n{"a":{}\n,"b":{}}\n', 1, id="an object over two lines that end with braces"),
        pytest.param(b'{"id":1}\n[{}]\n', 1, id="a list"),
        pytest.param(b'{"id":1.5}\n', 0, id="a fraction"),
        pytest.param(b'{"id":99999999999999999999}\n', 0, id="too large a number"),
        pytest.param(b'{}\n{"name":"\xff"}\n', 1, id="no UTF-8"),
        pytest.param(b'{}\n{}\n{"vector":[1]}\n', 2, id="a vector too short"),
        pytest.param(b'{"id":1,"id":2}\n', 0, id="a field twice"),
        pytest.param(b'{}\n{"id":"x"}\nnope\n', 1, id="bad in two ways: the first counts"),
        pytest.param(b"{}\n{}}\n{}\n", 1, id="a brace too many"),
        pytest.param(b"{\n}\n", 0, id="spread over lines"),
    ],
)
def test_the_first_bad_line_is_named(block: bytes, index: int) -> None:
    """A line that is left out, or joined with the next, is a row lost or made up; a wrong number sends people to a good line."""
    with pytest.raises(BadLineError) as error:
        PARSER.parse(block)
    assert error.value.index == index


@given(
    objects=st.lists(
        st.dictionaries(st.sampled_from(["id", "other"]), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20
    ),
    bad=st.none()
    | st.tuples(st.integers(0, 19), st.sampled_from(["", "{", "}", "[]", '{"id":"', '{"id":true}', "{} {}", "x"])),
    blank=st.sets(st.integers(0, 19)),
)
def test_rows_are_the_lines_that_json_reads(
    objects: list[dict[str, int]], bad: tuple[int, str] | None, blank: set[int]
) -> None:
    """Whatever stands around it, a line is a row with the values that another JSON parser finds in it."""
    texts = [json.dumps(each) for each in objects]
    if bad is not None and bad[0] < len(texts):
        texts[bad[0]] = bad[1]
    lines = [text for index, text in enumerate(texts) for text in ([text, " "] if index in blank else [text])]
    block = "\n".join(lines).encode()
    first_bad = next((index for index, text in enumerate(lines) if text.strip() and not _is_row(text)), None)
    if first_bad is not None:
        with pytest.raises(BadLineError) as error:
            PARSER.parse(block)
        assert error.value.index == first_bad
        return
    rows, numbers, _ = PARSER.parse(block)
    filled = [index for index, text in enumerate(lines) if text.strip()]
    assert numbers.tolist() == filled
    assert rows.column("id").to_pylist() == [json.loads(lines[index]).get("id") for index in filled]


def _is_row(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and not isinstance(value.get("id"), bool)


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.duration("s"))])
def test_a_column_that_json_cannot_give_is_refused_before_anything_is_read(kind: pa.DataType) -> None:
    """Found out at the first line that has it, it would be the line's fault."""
    with pytest.raises(SourceInvalidError, match="column 'm'"):
        LineParser(pa.schema([pa.field("m", kind)]))
