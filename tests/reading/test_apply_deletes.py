"""What a reader shows: rows up to the checkpoint of their channel, and none that a later delete of their key hides."""

import re
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from datacoord.column_groups import TIMESTAMP_COLUMN
from datacoord.reading import apply_deletes, newest_deletes

ROW = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(1, 8))
"""(first part of the key, second part, timestamp)."""


def table(rows: list[tuple[int, int, int]], *, vector: bool) -> pa.Table:
    """Rows as Arrow; with a nested column that no join could carry."""
    columns = {
        "a": pa.array([row[0] for row in rows], pa.int64()),
        "b": pa.array([b"%d" % row[1] for row in rows], pa.binary()),
        TIMESTAMP_COLUMN: pa.array([row[2] for row in rows], pa.int64()),
    }
    if vector:
        columns["vector"] = pa.array([[float(number)] * 3 for number in range(len(rows))], pa.list_(pa.float32(), 3))
    return pa.table(columns)


@given(st.lists(ROW), st.lists(ROW))
def test_a_delete_hides_exactly_the_strictly_older_rows_of_its_key(
    rows: list[tuple[int, int, int]], deletes: list[tuple[int, int, int]]
) -> None:
    """A delete that hides its own timestamp's insert loses every upsert; one that hides too little doubles rows."""
    newest = newest_deletes(table(deletes, vector=False), ["a", "b"])
    alive = apply_deletes(table(rows, vector=True), newest, ["a", "b"])

    expected = [
        number
        for number, (a, b, timestamp) in enumerate(rows)
        if not any((a, b) == (x, y) and timestamp < deleted_at for x, y, deleted_at in deletes)
    ]
    assert [int(vector[0]) for vector in alive.column("vector").to_pylist()] == expected


def test_row_numbers_are_arrows_own_memory() -> None:
    """Where a thread of a join frees numpy's, it needs Python's lock: a process that ends meanwhile is aborted, its work done."""
    root = Path(__file__).resolve().parents[2]
    numpys = re.compile(r"pa\.array\(\s*np\.arange\([\w.\[\]]+\)\s*\)")
    packages = [root / "datacoord", root / "datanode_client"]
    found = [path for package in packages for path in package.rglob("*.py") if numpys.search(path.read_text())]
    assert not found, "write pa.arange(0, …) there"
