"""Columns with dictionaries: Parquet keeps the values, and only those of text come back as dictionaries by themselves."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reading.test_column_groups import Written


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.binary(), pa.large_string()], ids=str)
def test_a_dictionary_of_any_values_is_read(tmp_path: Path, version: int, kind: pa.DataType) -> None:
    """It could be written and never read again, and no other column of its rows either."""
    dictionary = pa.dictionary(pa.int8(), kind)
    written = Written.begin(tmp_path, pa.schema([pa.field("key", pa.int64(), nullable=False), ("word", dictionary)]))
    values = pa.array([7, None, 9, 7], pa.int32()).cast(kind if kind != pa.binary() else pa.string()).cast(kind)
    rows = [{"key": key, "word": word} for key, word in enumerate(values.to_pylist())]
    written.add(0, written.inserts(rows, 0), 4, version)

    found = written.read()
    assert found.schema.field("word").type == dictionary
    assert found.to_pylist() == rows
    where = pc.field("word") == values[0]
    assert written.read(["key"], where).to_pylist() == [{"key": 0}, {"key": 3}]
