"""A key that stands in two objects at one timestamp is found, whatever it is made of, and with little memory."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.running_coordinator import CoordinatorThread

from datacoord.errors import BatchTooLargeError, InvalidFieldError
from datacoord.objectstore import ObjectStore
from datanode_client.sources.base import TIMESTAMP_COLUMN
from datanode_client.spark import sink_doubles
from datanode_client.spark.sink_doubles import KeyedObject, find_doubled_key, shared_times
from sink.rig import KEYED, Query, Row, landed, split, table

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [1, -1, 2**62]),
    "uint8": (pa.uint8(), [0, 1, 255]),
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "a", "ab", "b", "\x00", "\x00\x00", "é" * 40]),
    "binary": (pa.binary(), [b"", b"a", b"\x00"]),
    "fixed": (pa.binary(2), [b"ab", b"ba"]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("-1.10")]),
    "date": (pa.date32(), [date(2020, 1, 1), date(1900, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [1, 2]),
}


def write(root: Path, name: str, keys: dict[str, pa.Array], times: list[int]) -> KeyedObject:
    """A delta log with such rows, in the order of their timestamps."""
    rows = pa.table({**keys, TIMESTAMP_COLUMN: pa.array(times, pa.int64())}).sort_by(TIMESTAMP_COLUMN)
    pq.write_table(rows, root / name)
    return KeyedObject(name, rows.num_rows, min(times), max(times))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_double_is_found_exactly_where_one_is(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One that is not found is seen twice by every reader; one that is none ends a query for nothing."""
    root = tmp_path_factory.mktemp("doubles")
    names = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2, unique=True))
    row = st.tuples(st.integers(1, 12), *(st.sampled_from(KEYS[name][1]) for name in names))
    tasks = [data.draw(st.sets(row, min_size=1, max_size=8)) for _ in range(data.draw(st.integers(2, 4)))]
    objects = []
    for number, task in enumerate(tasks):
        rows = sorted(task, key=repr)
        keys = {name: pa.array([one[at] for one in rows], KEYS[name][0]) for at, name in enumerate(names, 1)}
        objects.append(write(root, f"{number}", keys, [one[0] for one in rows]))
    several = {one for task in tasks for one in task if sum(one in other for other in tasks) > 1}

    found = find_doubled_key(ObjectStore.from_uri(str(root)), objects, names)

    assert (found is not None) == bool(several)
    if found is not None:
        stored = pa.table(
            {name: pa.array([one[at] for one in several], KEYS[name][0]) for at, name in enumerate(names, 1)}
        )
        assert {name: found[name] for name in names} in stored.to_pylist()


def test_equal_fingerprints_of_other_rows_are_no_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2²⁶ rows some have the same now and then."""
    monkeypatch.setattr(sink_doubles, "fingerprints", lambda rows: np.zeros(rows.num_rows, np.uint64))
    objects = [write(tmp_path, f"{task}", {"key": pa.array([task, 7 + task])}, [1, 9]) for task in range(3)]
    store = ObjectStore.from_uri(str(tmp_path))
    assert find_doubled_key(store, objects, ["key"]) is None

    again = [*objects, write(tmp_path, "again", {"key": pa.array([5, 9])}, [2, 9])]
    assert find_doubled_key(store, again, ["key"]) == {"key": 9, TIMESTAMP_COLUMN: 9}


def test_only_times_that_objects_share_are_compared() -> None:
    """Tasks that read a log one after the other share a timestamp at most, and nothing of them need be read."""

    def windows(*bounds: tuple[int, int]) -> list[tuple[int, int]]:
        starts, ends = shared_times([KeyedObject("", 1, first, last) for first, last in bounds])
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    assert windows((1, 5), (6, 9)) == []
    assert windows((5, 9), (1, 5)) == [(5, 5)]
    assert windows((1, 20), (3, 5), (7, 8), (8, 30)) == [(3, 5), (7, 20)]
    assert windows((1, 1), (1, 1)) == [(1, 1)]


def test_the_driver_holds_numbers_and_not_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a large batch would fill the driver, on which the whole job stands."""
    keys = pa.array([f"{number:0>400}" for number in range(2000)])
    objects = [write(tmp_path, f"{task}", {"key": keys}, list(range(task, 40 * 2000, 40))) for task in range(40)]
    before, most = pa.total_allocated_bytes(), 0
    made = sink_doubles.fingerprints

    def watched(rows: pa.RecordBatch) -> sink_doubles.Numbers:
        nonlocal most
        most = max(most, pa.total_allocated_bytes() - before)
        return made(rows)

    monkeypatch.setattr(sink_doubles, "fingerprints", watched)
    monkeypatch.setattr(sink_doubles, "_THREADS", 1)  # so many objects are open at once
    assert find_doubled_key(ObjectStore.from_uri(str(tmp_path)), objects, ["key"]) is None

    assert 0 < most < 8 * keys.nbytes


def test_more_rows_than_a_driver_compares_are_refused_with_what_to_do(
    coordinator: CoordinatorThread, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only those at shared times count: tasks with times of their own may have any number."""
    monkeypatch.setattr(sink_doubles, "COMPARED_ROWS_MAX", 10)
    query = Query(coordinator.address, new_name(), **KEYED, timestampColumn="ts", channelCount="1")
    rows: list[Row] = [(key, f"v{key}", 0, key, "upsert") for key in range(1, 41)]
    in_order = table(rows).drop_columns(["shard"])
    shuffled = table(rows[::2] + rows[1::2]).drop_columns(["shard"])

    with pytest.raises(BatchTooLargeError, match=r"more than 10 rows .*repartitionByRange and sortWithinPartitions"):
        query.commit(query.tasks(query.plan(shuffled.schema), 0, split(shuffled, 2)))
    query.frame(0, in_order, tasks=2)
    assert sum(landed(query.address, query.collection).values()) == len(rows)

    with pytest.raises(InvalidFieldError, match="'key': 7"):
        query.frame(
            1, pa.table({"key": [7, 8, 7], "value": ["a", "b", "c"], "ts": [50, 50, 50], "op": ["upsert"] * 3}), 2
        )
