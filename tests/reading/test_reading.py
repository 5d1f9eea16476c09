"""Reading with fewer columns, with filters and in small units gives the rows that reading everything gives."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.running_coordinator import CoordinatorThread, running
from sink.rig import KEYED, ORDERED, Query, Row
from support import level_zero

import datacoord
from datacoord.errors import CollectionNotFoundError, InternalError, InvalidFieldError
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.objectstore import ObjectStore
from datacoord.reading import CollectionSchema, read_unit, read_units
from datacoord.v1 import collection_pb2, common_pb2


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own."""
    with running(tmp_path_factory.mktemp("reading") / "data") as thread:
        yield thread


@pytest.fixture(scope="module")
def log() -> list[Row]:
    """Operations on few keys over two channels, most of them replaced or deleted later."""
    return [
        (key := (timestamp * 7) % 10, None if timestamp % 4 == 0 else f"v{timestamp}", key % 2, timestamp, operation)
        for timestamp in range(1, 61)
        for operation in ("delete" if timestamp % 4 == 0 else "upsert",)
    ]


@pytest.fixture(scope="module")
def collection(coordinator: CoordinatorThread, log: list[Row]) -> str:
    """A collection with the log in many small objects."""
    query = Query(coordinator.address, "log", **KEYED, **ORDERED, bufferBytes="1024")
    for batch_id, start in enumerate(range(0, len(log), 15)):
        query.run(batch_id, log[start : start + 15])
    return query.collection


def seen(log: list[Row], upto: dict[int, int] | None = None) -> list[dict[str, Any]]:
    """Rows a reader must see, by key, with channel 0 or 1 read up to a timestamp."""
    last: dict[int, dict[str, Any]] = {}
    for key, value, channel, timestamp, operation in log:
        if upto is not None and timestamp > upto[channel]:
            continue
        last.pop(key, None)
        if operation == "upsert":
            last[key] = {"key": key, "value": value, "_timestamp": timestamp}
    return [last[key] for key in sorted(last)]


def by_key(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python has them."""
    return list(rows.sort_by("key").to_pylist())


def test_a_reader_sees_what_no_later_delete_hides(
    coordinator: CoordinatorThread, collection: str, log: list[Row]
) -> None:
    """The point of departure of the tests below."""
    assert by_key(datacoord.to_arrow(coordinator.address, collection, with_timestamp=True)) == seen(log)


@given(
    columns=st.lists(st.sampled_from(["value", "_timestamp"]), unique=True),
    limits=st.tuples(st.integers(0, 61), st.integers(-1, 10), st.sampled_from([1, 500, 10**9])),
)
@settings(max_examples=30)
def test_fewer_columns_filters_and_units_never_change_an_answer(
    coordinator: CoordinatorThread, collection: str, log: list[Row], columns: list[str], limits: tuple[int, int, int]
) -> None:
    """A filter that reached the deletes would bring rows back to life; a column that is not read must still join them."""
    threshold, key, unit_bytes = limits
    where = (pc.field("_timestamp") > threshold) | (pc.field("key") == key)
    batches = datacoord.read_batches(
        coordinator.address, collection, columns=["key", *columns], where=where, unit_bytes_max=unit_bytes
    )

    read = [row for batch in batches for row in batch.to_pylist()]

    expected = [row for row in seen(log) if row["_timestamp"] > threshold or row["key"] == key]
    assert sorted(read, key=lambda row: row["key"]) == [
        {name: row[name] for name in ("key", *columns)} for row in expected
    ]


@given(
    upto=st.fixed_dictionaries({0: st.integers(0, 61), 1: st.integers(0, 61)}),
    unit_bytes=st.sampled_from([1, 2000, None]),
    block_bytes=st.sampled_from([1, 10**9]),
)
@settings(max_examples=30)
def test_nothing_beyond_a_checkpoint_is_seen_nor_hides(
    coordinator: CoordinatorThread,
    collection: str,
    log: list[Row],
    upto: dict[int, int],
    *,
    unit_bytes: int | None,
    block_bytes: int,
) -> None:
    """Objects may reach beyond the checkpoint: a delete there that took effect would show half of what comes next."""
    with _client(coordinator) as client:
        description = CollectionSchema.of(client.describe_collection(collection))
        channels = list(client.list_binlogs(collection))
    store, wanted = ObjectStore.from_uri(description.storage_root), description.select(None, with_timestamp=True)
    tables = [wanted.empty_table()]
    for index, channel in enumerate(channels):
        channel.checkpoint.timestamp = upto[index]
        for unit in read_units(channel, unit_bytes):
            tables += read_unit(store, unit, description, wanted, block_bytes_max=block_bytes)

    assert by_key(pa.concat_tables(tables)) == seen(log, upto)


def test_a_delete_that_names_no_partition_hides_older_rows_of_its_key_in_all_of_them(
    coordinator: CoordinatorThread,
) -> None:
    """Level zero: deletes stand in a segment of their own, and a reader that looked per partition would miss them."""
    name = level_zero.land(coordinator.address)
    with _client(coordinator) as client:
        levels = {(row.level, row.rows > 0, row.delete_rows > 0) for row in client.list_segments(name)}
        assert (common_pb2.SEGMENT_LEVEL_L0, False, True) in levels
        assert {binlog.partition_id for row in client.list_binlogs(name) for binlog in row.binlogs} == {
            ALL_PARTITIONS_ID,
            *client.describe_collection(name).partitions.values(),
        }
    rows = by_key(datacoord.to_arrow(coordinator.address, name, with_timestamp=True))
    assert [tuple(row.values()) for row in rows] == level_zero.SEEN
    # What is dropped is dropped, and deletes of all partitions outlive any of them.
    with _client(coordinator) as client:
        client.drop_partition(name, "side")
    rows = by_key(datacoord.to_arrow(coordinator.address, name, with_timestamp=True))
    assert [tuple(row.values()) for row in rows] == [(3, "default, newer", 6)]


def _client(coordinator: CoordinatorThread) -> Any:
    from datacoord.client import CoordinatorClient

    return CoordinatorClient(coordinator.address)


def test_columns_come_in_the_order_they_are_asked_for(coordinator: CoordinatorThread, collection: str) -> None:
    """A table whose columns stand elsewhere is a table with other values, for who reads by position."""
    table = datacoord.to_arrow(coordinator.address, collection, columns=["_timestamp", "key"])

    assert table.schema.names == ["_timestamp", "key"]


@pytest.mark.parametrize("where", [None, pc.field("key") < 5], ids=str)
def test_rows_without_columns_are_counted(
    coordinator: CoordinatorThread, collection: str, log: list[Row], where: pc.Expression | None
) -> None:
    """Who asks how many rows there are, and needs none of their columns, must not hear: none."""
    expected = sum(where is None or row["key"] < 5 for row in seen(log))

    table = datacoord.to_arrow(coordinator.address, collection, columns=[], where=where)
    batches = datacoord.read_batches(coordinator.address, collection, columns=[], where=where, unit_bytes_max=500)

    assert (table.num_columns, table.num_rows) == (0, expected)
    assert sum(batch.num_rows for batch in batches) == expected


def test_what_is_not_there_is_said(coordinator: CoordinatorThread, collection: str) -> None:
    """The sentence names what there is."""
    with pytest.raises(InvalidFieldError, match="no column 'nobody'; it has key, value"):
        datacoord.to_arrow(coordinator.address, collection, columns=["nobody"])
    with pytest.raises(CollectionNotFoundError):
        datacoord.to_arrow(coordinator.address, "nobody")


def test_a_client_of_the_callers_stays_open(coordinator: CoordinatorThread, collection: str, log: list[Row]) -> None:
    """Who brings a client uses it for other things too."""
    with _client(coordinator) as client:
        rows = sum(batch.num_rows for batch in datacoord.read_batches(client, collection))

        assert rows == len(seen(log))
        assert client.describe_collection(collection).collection_name == collection


def test_an_empty_collection_has_columns(coordinator: CoordinatorThread) -> None:
    """A program that begins with an empty collection must not fail where it names a column."""
    Query(coordinator.address, "nothing", **KEYED).plan(pa.schema([("key", pa.int64()), ("op", pa.string())]))

    table = datacoord.to_arrow(coordinator.address, "nothing", with_timestamp=True)

    assert (table.num_rows, table.schema.names) == (0, ["key", "_timestamp"])


def test_an_object_of_some_columns_only_is_refused() -> None:
    """Read as if it were whole, its rows would come back with the other columns null."""
    binlog = common_pb2.Binlog(log_id=1, log_path="x", timestamp_from=1, timestamp_to=2)
    kind = common_pb2.BINLOG_KIND_INSERT
    registered = collection_pb2.RegisteredBinlog(binlog=binlog, kind=kind, field_id=3)
    channel = collection_pb2.ChannelBinlogList(checkpoint=common_pb2.MsgPosition(timestamp=9), binlogs=[registered])

    with pytest.raises(InternalError, match="not whole"):
        list(read_units(channel, 1))


def test_reading_is_found_at_the_top() -> None:
    """`import datacoord` is what people write, and it must stay light: see tests/tooling/test_import_cost.py."""
    assert {"read", "read_batches", "to_arrow"} <= set(dir(datacoord)) | set(datacoord.__all__)
    with pytest.raises(AttributeError, match="nobody"):
        datacoord.nobody  # noqa: B018
