"""Statistics of keys: they are used, and they never change an answer."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datacoord.errors import InvalidFieldError
from datacoord.key_statistics import KeyProbe, table_of_keys, xxh64
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogKind
from datacoord.reading import CollectionSchema, read_unit, read_units
from datacoord.reading_objects import ReadStatistics
from reading.test_column_groups import DOCUMENTS, Written, documents

PAIRS = pa.schema(
    [
        pa.field("a", pa.int32(), nullable=False),
        pa.field("b", pa.string(), nullable=False),
        pa.field("value", pa.int64()),
        pa.field("vector", pa.list_(pa.float32(), 64)),
    ]
)
KEYS: list[tuple[pa.DataType, Callable[[int], Any]]] = [
    (pa.int16(), lambda n: (n * 7919) % 65536 - 32768),
    (pa.int32(), lambda n: (n * 2654435761) % 2**32 - 2**31),
    (pa.int64(), lambda n: (n * 0x9E3779B97F4A7C15) % 2**64 - 2**63),
    (pa.string(), lambda n: "ä" * (n % 40) + str(n)),
    (pa.large_string(), str),
    (pa.binary(), lambda n: n.to_bytes(9, "big") * (1 + n % 5)),
]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"message digest", 0x066ED728FCEEB3BE),
        (b"abcdefghijklmnopqrstuvwxyz", 0xCFE1F278FA89835C),
        (b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", 0xAAA46907D3047814),
    ],
)
def test_the_hash_is_the_one_of_the_format(data: bytes, expected: int) -> None:
    """Another hash would say no to keys that are there: rows that vanish. Values published with xxHash."""
    assert xxh64(data) == expected


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else "")
def test_a_key_that_is_there_is_never_denied_and_others_mostly_are(
    kind: pa.DataType, key: Callable[[int], Any]
) -> None:
    """The filter is written by another program's rules (Arrow's), and read by ours."""
    inside, outside = [key(2 * n) for n in range(1000)], [key(2 * n + 1) for n in range(1000)]
    file = io.BytesIO()
    filters = {"k": {"ndv": len(inside), "fpp": 0.05}}
    table = pa.table({"k": pa.array(inside, kind)})
    pq.write_table(table, file, bloom_filter_options=filters, row_group_size=400)
    source = pa.BufferReader(file.getvalue())

    def asked(value: Any) -> bool:
        return KeyProbe(pa.table({"k": pa.array([value], kind)})).may_be_in(source)

    assert all(asked(value) for value in inside)
    assert sum(asked(value) for value in outside) < 250


@pytest.mark.parametrize("version", [1, 2])
def test_a_lookup_reads_only_objects_that_may_hold_the_key(tmp_path: Path, version: int) -> None:
    """Else a lookup in a thousand objects reads a thousand. Keys are spread, so that only bloom filters can say no."""
    written = Written.begin(tmp_path, DOCUMENTS)
    spread = [row | {"key": (row["key"] * 0x9E3779B97F4A7C15) % 2**60} for row in documents(200)]
    for start in range(0, 200, 10):
        written.add(start, _upserts(written, spread[start : start + 10], start), start + 10, version)
    statistics = ReadStatistics()

    found = _look_up(written, [spread[57]["key"]], statistics)

    assert found.to_pylist() == [spread[57]]
    # 20 ranges of 2 or more objects each. With one object per column the key's own is not asked (it is read).
    assert statistics.objects_skipped >= (30 if version == 2 else 15)


def _upserts(written: Written, rows: list[dict[str, Any]], start: int) -> dict[BinlogKind, list[pa.RecordBatch]]:
    """Inserts with the deletes of their keys at the same timestamps."""
    made = written.inserts(rows, start)
    (batch,) = made[BinlogKind.INSERT]
    made[BinlogKind.DELTA] = [batch.select(written.schema.delta_log.names).cast(written.schema.delta_log)]
    return made


def _look_up(
    written: Written, keys: Any, statistics: ReadStatistics, unit_bytes: int = 10**9, block_bytes: int = 10**9
) -> pa.Table:
    collection = CollectionSchema(written.schema.columns, written.schema.primary_key, str(written.root))
    wanted = collection.select(None, with_timestamp=False)
    asked = None if keys is None else KeyProbe(table_of_keys(keys, collection.columns, collection.primary_key))
    store = ObjectStore.from_uri(str(written.root))
    tables = [
        rows
        for unit in read_units(written.channel, unit_bytes)
        for rows in read_unit(
            store, unit, collection, wanted, keys=asked, block_bytes_max=block_bytes, statistics=statistics
        )
    ]
    return pa.concat_tables([wanted.empty_table(), *tables])


OPERATION = st.tuples(st.integers(0, 6), st.sampled_from(["x", "y", "zz"]), st.booleans())
"""First and second part of the key, and whether it is an upsert (else a delete)."""


@given(
    ranges=st.lists(st.lists(OPERATION, min_size=1, max_size=5), min_size=1, max_size=5),
    asked=st.lists(st.tuples(st.integers(-1, 7), st.sampled_from(["x", "y", "zz", "none"])), max_size=4),
    version=st.sampled_from([1, 2]),
    unit_bytes=st.sampled_from([1, 10**9]),
    block_bytes=st.sampled_from([1, 10**9]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_statistics_never_change_an_answer(
    tmp_path_factory: pytest.TempPathFactory,
    ranges: list[list[tuple[int, str, bool]]],
    asked: list[tuple[int, str]],
    version: int,
    *,
    unit_bytes: int,
    block_bytes: int,
) -> None:
    """An object with the delete of a row that is skipped brings the row back to life."""
    written = Written.begin(tmp_path_factory.mktemp("keys"), PAIRS, ("a", "b"))
    last: dict[tuple[int, str], dict[str, Any]] = {}
    timestamp = 0
    for operations in ranges:
        start, inserts, deletes = timestamp, [], []
        for a, b, upsert in operations:
            timestamp += 1
            row = {"a": a, "b": b, "value": timestamp, "vector": [1.0] * 64}
            last.pop((a, b), None)
            deletes.append({"a": a, "b": b, "_timestamp": timestamp})
            if upsert:
                last[a, b] = row
                inserts.append({**row, "_timestamp": timestamp})
        rows = {BinlogKind.DELTA: pa.Table.from_pylist(deletes, written.schema.delta_log).to_batches()}
        if inserts:
            rows[BinlogKind.INSERT] = pa.Table.from_pylist(inserts, written.schema.insert_log).to_batches()
        written.add(start, rows, timestamp, version)

    keys = pa.table(
        [pa.array([a for a, _ in asked], pa.int32()), pa.array([b for _, b in asked], pa.string())], ["a", "b"]
    )
    found = _look_up(written, keys, ReadStatistics(), unit_bytes, block_bytes).to_pylist()
    everything = _look_up(written, None, ReadStatistics(), unit_bytes, block_bytes).to_pylist()

    def by_time(row: dict[str, Any]) -> int:
        return int(row["value"])

    assert sorted(everything, key=by_time) == sorted(last.values(), key=by_time)
    assert sorted(found, key=by_time) == sorted((last[key] for key in set(asked) & last.keys()), key=by_time)


def test_keys_that_are_none_are_refused() -> None:
    """A lookup of the wrong column would find nothing, and nobody would know why."""
    columns = pa.schema([("a", pa.int32()), ("b", pa.string())])
    assert table_of_keys([1, 2, 2, None], columns, ["a"]).to_pylist() == [{"a": 1}, {"a": 2}]
    for keys, primary_key, says in (
        ([1], [], "no primary key"),
        ([1], ["a", "b"], "give a table"),
        (["x"], ["a"], "none of this collection"),
        (pa.table({"c": [1]}), ["a"], "none of this collection"),
    ):
        with pytest.raises(InvalidFieldError, match=says):
            table_of_keys(keys, columns, primary_key)
