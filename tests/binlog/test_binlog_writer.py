"""Objects as they are written: complete, self-describing, readable by anybody who reads Parquet, written once."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import InvalidFieldError
from datacoord.limits import ALL_PARTITIONS_ID, TIMESTAMP_MAX
from datacoord.object_metadata import BinlogMetadata
from datacoord.objectstore import DiskFullError, ObjectStore
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.v1 import data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.binlog.writer import BinlogWriter, RangeRows

COLUMNS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("note", pa.large_string(), metadata={"comment": "free"}),
    ],
    metadata={"owner": "tests"},
)
SCHEMA = CollectionSchema.of(COLUMNS, ("key",))
INFO = data_coord_pb2.ChannelRecoveryInfo(
    channel_name="c_3v0", channel_id=7, collection_id=3, collection_name="c", epoch=42
)
numbers = st.integers(0, TIMESTAMP_MAX)


def writer(root: Path, schema: CollectionSchema = SCHEMA, compression: str = "zstd") -> BinlogWriter:
    """A writer below a directory."""
    return BinlogWriter(INFO, schema, lambda: ObjectStore.from_uri(str(root)), compression)


def upserts(*timestamps: int) -> dict[BinlogKind, list[pa.RecordBatch]]:
    """One batch per timestamp, of each kind."""
    rows: dict[BinlogKind, list[pa.RecordBatch]] = {BinlogKind.INSERT: [], BinlogKind.DELTA: []}
    for ts in timestamps:
        keys, ordered = pa.array([f"k{ts}"]), pa.array([ts], pa.int64())
        vectors = pa.array([[1.0, 2.0, 3.0, float(ts)]], pa.list_(pa.float32(), 4))
        notes = pa.array(["n"], pa.large_string())
        inserts = pa.RecordBatch.from_arrays([keys, vectors, notes, ordered], schema=SCHEMA.insert_log)
        rows[BinlogKind.INSERT].append(inserts)
        rows[BinlogKind.DELTA].append(pa.RecordBatch.from_arrays([keys, ordered], schema=SCHEMA.delta_log))
    return rows


def test_a_range_becomes_one_object_per_kind_with_everything_the_database_says_of_it(tmp_path: Path) -> None:
    """The rows of a lost database are rebuilt from the objects alone."""
    lane = RangeRows(11, 5, 30, upserts(6, 9, 30))
    writer(tmp_path).write(lane)

    for kind, schema in ((BinlogKind.INSERT, SCHEMA.insert_log), (BinlogKind.DELTA, SCHEMA.delta_log)):
        binlog = lane.written[kind, 0]
        file = pq.ParquetFile(tmp_path / binlog.log_path)
        facts = BinlogMetadata.from_key_values(file.metadata.metadata)
        assert facts == replace(
            facts,
            kind=kind,
            collection_id=3,
            collection_name="c",
            channel_id=7,
            channel_name="c_3v0",
            partition_id=11,
            epoch=42,
            timestamp_from=5,
            timestamp_to=30,
            ts_min=6,
            ts_max=30,
            field_id=0,
            log_id=binlog.log_id,
        )
        assert str(facts.path) == binlog.log_path
        assert (facts.parts, facts.write_id) == ("insert_log:0,delta_log:0", lane.write_id)
        assert facts.memory_bytes == binlog.memory_size_bytes
        assert (binlog.timestamp_from, binlog.timestamp_to, binlog.entries_num) == (6, 30, 3)
        assert binlog.log_size_bytes == (tmp_path / binlog.log_path).stat().st_size
        assert binlog.memory_size_bytes > 0
        assert file.schema_arrow.remove_metadata().equals(schema.remove_metadata())
        assert file.metadata.num_row_groups == 1


def test_the_collections_own_schema_metadata_survives(tmp_path: Path) -> None:
    """Arrow extension types live in metadata: a writer that replaces it turns them into plain bytes."""
    lane = RangeRows(11, 5, 30, upserts(6))
    writer(tmp_path).write(lane)
    schema = pq.ParquetFile(tmp_path / lane.written[BinlogKind.INSERT, 0].log_path).schema_arrow

    assert schema.metadata[b"owner"] == b"tests"
    assert schema.field("note").metadata[b"comment"] == b"free"


def test_rows_are_read_back_as_they_were(tmp_path: Path) -> None:
    """Vectors, large strings and timestamps included."""
    rows = upserts(6, 7, 8)
    lane = RangeRows(ALL_PARTITIONS_ID, 0, 8, rows)
    writer(tmp_path, compression="snappy").write(lane)
    table = pq.read_table(tmp_path / lane.written[BinlogKind.INSERT, 0].log_path)

    assert table.to_pylist() == pa.Table.from_batches(rows[BinlogKind.INSERT]).to_pylist()
    assert "/all/" in lane.written[BinlogKind.INSERT, 0].log_path


def test_a_repetition_writes_only_what_is_missing(tmp_path: Path) -> None:
    """Each attempt on a nearly full disk would leave another orphan, until it is quite full."""
    lane = RangeRows(11, 5, 30, upserts(6))
    real_open = os.open

    def no_room_for_deltas(path: str, flags: int, mode: int = 0o777) -> int:
        if "delta_log" in str(path) and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, flags, mode)

    with mock.patch("os.open", no_room_for_deltas):
        for _ in range(3):
            with pytest.raises(DiskFullError):
                writer(tmp_path).write(lane)
    writer(tmp_path).write(lane)

    objects = [info.path for info in ObjectStore.from_uri(str(tmp_path)).list_objects()]
    assert sorted(objects) == sorted(binlog.log_path for binlog in lane.written.values())
    assert len(objects) == 2


def test_two_graphs_never_mean_the_same_object(tmp_path: Path) -> None:
    """A zombie that writes the same range must not touch the owner's object."""
    one, two = RangeRows(11, 5, 30, upserts(6)), RangeRows(11, 5, 30, upserts(6))
    writer(tmp_path).write(one)
    writer(tmp_path).write(two)
    paths = {binlog.log_path for lane in (one, two) for binlog in lane.written.values()}

    assert len(paths) == 4


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_key_columns_have_bloom_filters_unless_the_collection_says_no(tmp_path: Path, wanted: str) -> None:
    """They take about a byte per key: who never looks up a key need not pay it."""
    info = data_coord_pb2.ChannelRecoveryInfo()
    info.CopyFrom(INFO)
    info.properties["key_bloom_filter"] = wanted
    lane = RangeRows(11, 5, 30, upserts(6))
    BinlogWriter(info, SCHEMA, lambda: ObjectStore.from_uri(str(tmp_path)), "zstd").write(lane)

    for kind in (BinlogKind.INSERT, BinlogKind.DELTA):
        columns = pq.read_metadata(tmp_path / lane.written[kind, 0].log_path).row_group(0)
        found = [
            columns.column(index).path_in_schema
            for index in range(columns.num_columns)
            if columns.column(index).bloom_filter_offset is not None
        ]
        assert found == (["key"] if wanted == "true" else [])


def test_nulls_that_readers_may_state_wider_are_checked_where_they_matter(tmp_path: Path) -> None:
    """A null in a column that the collection declares without nulls would be read as garbage."""
    lane = RangeRows(11, 5, 30, upserts(6))
    keyless = pa.array([None], pa.string())
    batch = lane.rows[BinlogKind.INSERT][0]
    lane.rows[BinlogKind.INSERT] = [pa.RecordBatch.from_arrays([keyless, *batch.columns[1:]], schema=SCHEMA.insert_log)]
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
        writer(tmp_path).write(lane)

    assert list(ObjectStore.from_uri(str(tmp_path)).list_objects()) == []


def test_a_key_that_is_no_column_is_refused() -> None:
    """A typo in the definition must not show as a KeyError in a worker thread."""
    with pytest.raises(InvalidFieldError, match="'kee'"):
        CollectionSchema.of(COLUMNS, ("kee",))


def test_append_only_collections_have_no_key_in_their_delta_logs() -> None:
    """They have no delta logs either; the schema is there so that nobody needs an exception."""
    assert CollectionSchema.of(COLUMNS, ()).delta_log.names == ["_timestamp"]


@st.composite
def facts(draw: st.DrawFn) -> BinlogMetadata:
    """Any facts of an object."""
    return BinlogMetadata(
        kind=draw(st.sampled_from(BinlogKind)),
        collection_id=draw(numbers),
        collection_name=draw(st.text()),
        channel_id=draw(numbers),
        channel_name=draw(st.text()),
        partition_id=draw(st.integers(ALL_PARTITIONS_ID, TIMESTAMP_MAX)),
        epoch=draw(numbers),
        timestamp_from=draw(numbers),
        timestamp_to=draw(numbers),
        ts_min=draw(numbers),
        ts_max=draw(numbers),
        field_id=draw(numbers),
        log_id=draw(numbers),
    )


@given(facts())
def test_what_an_object_says_is_read_back_and_gives_its_path(one: BinlogMetadata) -> None:
    """Names in any script, numbers up to 63 bits."""
    assert BinlogMetadata.from_key_values({**one.to_key_values(), b"foreign": b"ignored"}) == one
    assert BinlogPath.parse(str(one.path)) == one.path


@pytest.fixture
def key_values() -> dict[bytes, bytes]:
    """What a good object says."""
    return BinlogMetadata(BinlogKind.INSERT, 1, "c", 2, "v", 3, 4, 5, 6, 6, 6, 0, 9).to_key_values()


def test_a_foreign_object_is_not_taken_for_a_binlog(key_values: dict[bytes, bytes]) -> None:
    """Somebody's Parquet file in the collection's directory must be reported, not registered."""
    del key_values[b"datacoord.epoch"]
    with pytest.raises(InvalidFieldError, match=r"datacoord\.epoch"):
        BinlogMetadata.from_key_values(key_values)


def test_an_object_of_a_newer_format_is_not_guessed_at(key_values: dict[bytes, bytes]) -> None:
    """Columns may mean something else there."""
    key_values[b"datacoord.format_version"] = b"2"
    with pytest.raises(InvalidFieldError, match="upgrade"):
        BinlogMetadata.from_key_values(key_values)
