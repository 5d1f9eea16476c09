"""Objects that hold some of the columns: whatever is written is read back, and of wide columns no more than the question needs."""

import datetime as dt
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from writebuffer.builders import StillClock, at

from coordinator.rpc.definitions import check_properties
from datacoord.column_groups import column_groups, is_wide, storage_version
from datacoord.errors import InternalError, InvalidFieldError
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogKind
from datacoord.reading import CollectionSchema as ReadSchema
from datacoord.reading import read_unit, read_units
from datacoord.reading_objects import ReadStatistics
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.binlog.writer import BinlogWriter, RangeRows
from datanode_client.config import DataNodeConfig
from datanode_client.writebuffer.buffers import LaneRows
from datanode_client.writebuffer.metacache import MetaCache
from datanode_client.writebuffer.policies import SyncReason
from datanode_client.writebuffer.write_buffer import WriteBuffer

INFO = data_coord_pb2.ChannelRecoveryInfo(
    channel_name="c_3v0", channel_id=7, collection_id=3, collection_name="c", epoch=42, channel_count=1
)
DOCUMENTS = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 64)),
        pa.field("image", pa.large_binary()),
    ]
)


@dataclass
class Written:
    """Ranges that were written, as a coordinator would list them."""

    root: Path
    schema: CollectionSchema
    channel: collection_pb2.ChannelBinlogList

    @classmethod
    def begin(cls, root: Path, columns: pa.Schema, key: tuple[str, ...] = ("key",)) -> "Written":
        """Nothing yet."""
        checkpoint = common_pb2.MsgPosition(timestamp=10**6)
        schema = CollectionSchema.of(columns, key)
        return cls(root, schema, collection_pb2.ChannelBinlogList(channel_name="c_3v0", checkpoint=checkpoint))

    def add(self, start: int, rows: dict[BinlogKind, list[pa.RecordBatch]], end: int, version: int = 2) -> RangeRows:
        """Writes a range and lists it."""
        return self.write(RangeRows(11, start, end, rows), version)

    def write(self, lane: RangeRows, version: int) -> RangeRows:
        """The same with a range that was cut."""
        store = ObjectStore.from_uri(str(self.root))
        info = data_coord_pb2.ChannelRecoveryInfo(properties={"storage_version": str(version)})
        info.MergeFrom(INFO)
        BinlogWriter(info, self.schema, lambda: store, "zstd").write(lane)
        self.register(lane)
        return lane

    def register(self, lane: RangeRows) -> None:
        """Lists what was written."""
        kinds = {BinlogKind.INSERT: 1, BinlogKind.DELTA: 2, BinlogKind.STATS: 3}
        for (kind, field_id), binlog in lane.written.items():
            self.channel.binlogs.add(
                binlog=binlog,
                kind=kinds[kind],
                field_id=field_id,
                partition_id=11,
                range_from=lane.timestamp_from,
                range_to=lane.timestamp_to,
                epoch=42,
            )

    def inserts(self, rows: list[dict[str, Any]], start: int) -> dict[BinlogKind, list[pa.RecordBatch]]:
        """Rows of consecutive timestamps."""
        stamped = [{**row, "_timestamp": start + number} for number, row in enumerate(rows, 1)]
        return {BinlogKind.INSERT: pa.Table.from_pylist(stamped, self.schema.insert_log).to_batches()}

    def read(
        self,
        columns: list[str] | None = None,
        where: pc.Expression | None = None,
        now: pa.Schema | None = None,
        statistics: ReadStatistics | None = None,
    ) -> pa.Table:
        """Everything, as a reader of the schema of now sees it."""
        collection = ReadSchema(now or self.schema.columns, self.schema.primary_key, str(self.root))
        wanted = collection.select(columns, with_timestamp=False)
        store = ObjectStore.from_uri(str(self.root))
        units = read_units(self.channel, 10**9)
        tables = [
            rows for unit in units for rows in read_unit(store, unit, collection, wanted, where, statistics=statistics)
        ]
        return pa.concat_tables([wanted.empty_table(), *tables])


def documents(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows with a vector and a picture."""
    return [
        {"key": n, "title": f"t{n}", "vector": [float(n)] * 64, "image": bytes([n % 256]) * 300}
        for n in range(start, start + count)
    ]


def groups(lane: RangeRows) -> list[tuple[str, int]]:
    """Kind and group of what was written, in order."""
    return [(kind.value, field_id) for kind, field_id in lane.written]


def test_wide_columns_have_objects_of_their_own_and_the_others_share_one(tmp_path: Path) -> None:
    """Reading a title must not cost a vector."""
    written = Written.begin(tmp_path, DOCUMENTS)
    lane = written.add(0, written.inserts(documents(10), 0), 10)

    assert groups(lane) == [("insert_log", 102), ("insert_log", 103), ("insert_log", 0), ("stats_log", 0)]
    assert written.read().to_pylist() == documents(10)


def test_narrow_rows_are_one_object(tmp_path: Path) -> None:
    """The usual case pays for no group and no manifest."""
    written = Written.begin(tmp_path, pa.schema([pa.field("key", pa.int64(), nullable=False), ("title", pa.string())]))
    lane = written.add(0, written.inserts([{"key": 1, "title": "t"}], 0), 10)

    assert groups(lane) == [("insert_log", 0)]


def test_an_object_per_column_is_an_option_and_both_are_read_as_one(tmp_path: Path) -> None:
    """A collection whose option was changed has objects of both kinds."""
    written = Written.begin(tmp_path, DOCUMENTS)
    lane = written.add(0, written.inserts(documents(5), 0), 5, version=1)
    written.add(5, written.inserts(documents(5, 5), 5), 10, version=2)

    assert groups(lane) == [("insert_log", n) for n in (100, 101, 102, 103, 1)] + [("stats_log", 0)]
    assert written.read().to_pylist() == documents(10)


@pytest.mark.parametrize("version", [1, 2])
def test_only_the_groups_that_are_asked_for_are_opened(tmp_path: Path, version: int) -> None:
    """Proven by taking the others away."""
    written = Written.begin(tmp_path, DOCUMENTS)
    lane = written.add(0, written.inserts(documents(5), 0), 5, version=version)
    for field_id in (102, 103):
        (tmp_path / lane.written[BinlogKind.INSERT, field_id].log_path).unlink()

    rows = documents(5)
    assert written.read(["title", "key"]).to_pylist() == [{"title": row["title"], "key": row["key"]} for row in rows]
    assert written.read(["title"], pc.field("key") == 3).to_pylist() == [{"title": "t3"}]
    # No row is left, so the pictures are not looked at either.
    statistics = ReadStatistics()
    assert written.read(where=pc.field("key") == 99, statistics=statistics).num_rows == 0
    assert statistics.groups_skipped >= 2


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("columns", [None, ["key"], ["image", "key"], ["vector"]])
@pytest.mark.parametrize(
    "where",
    [
        pc.field("key") > 2,
        pc.field("image").is_null(),
        pc.field("image").is_valid() & (pc.field("title") != "t4"),
        pc.field("_timestamp") <= 3,
        pc.scalar(True),
        pc.field(3).is_null(),
        (pc.field(3).is_null() | (pc.field(4) > 4)) & (pc.field("title") != "t4"),
    ],
    ids=str,
)
def test_a_filter_gives_the_same_rows_whatever_group_its_columns_are_in(
    tmp_path: Path, version: int, columns: list[str] | None, where: pc.Expression
) -> None:
    """A filter on a wide column, on the system's, on none: rows of different groups must not be mixed up.

    Columns may also be named by their place in the collection: the place among what is read is another one.
    """
    rows = documents(6)
    rows[1]["image"] = rows[4]["image"] = None
    written = Written.begin(tmp_path, DOCUMENTS)
    written.add(0, written.inserts(rows, 0), 6, version=version)

    whole = pa.Table.from_pylist([{**row, "_timestamp": n} for n, row in enumerate(rows, 1)], written.schema.insert_log)
    expected = whole.filter(where).select(columns or DOCUMENTS.names)
    assert written.read(columns, where).to_pylist() == expected.to_pylist()


def test_objects_of_other_rows_are_never_put_side_by_side(tmp_path: Path) -> None:
    """Two attempts have objects of the same size: a vector beside a foreign title is a wrong answer nobody notices."""
    written = Written.begin(tmp_path, DOCUMENTS)
    one = written.add(0, written.inserts(documents(5), 0), 5)
    other = Written.begin(tmp_path, DOCUMENTS).add(0, written.inserts(documents(5, 100), 0), 5)
    place = next(log for log in written.channel.binlogs if log.field_id == 102)
    place.binlog.CopyFrom(other.written[BinlogKind.INSERT, 102])

    for where in (None, pc.field("key") == 3):  # read at once, and after what decides
        with pytest.raises(InternalError, match="columns of the same rows"):
            written.read(where=where)
    assert one.written[BinlogKind.INSERT, 0].entries_num == 5


@pytest.mark.parametrize("gone", [0, 102])
def test_a_range_with_a_missing_group_is_refused(tmp_path: Path, gone: int) -> None:
    """Its rows would come back with nulls where there were vectors."""
    written = Written.begin(tmp_path, DOCUMENTS)
    written.add(0, written.inserts(documents(5), 0), 5)
    written.add(0, written.inserts(documents(5), 0), 5)
    doomed = next(log for log in written.channel.binlogs if log.field_id == gone and log.kind == 1)
    written.channel.binlogs.remove(doomed)

    with pytest.raises(InternalError, match="not whole"):
        written.read()


def test_columns_that_came_later_are_null_in_older_objects(tmp_path: Path) -> None:
    """Old objects are never written again: a column that was added, narrow or wide, is null in their rows."""
    written = Written.begin(tmp_path, DOCUMENTS)
    written.add(0, written.inserts(documents(3), 0), 3)
    later = pa.schema(
        [*DOCUMENTS, pa.field("tags", pa.list_(pa.string())), pa.field("other", pa.list_(pa.float32(), 64))]
    )
    written.schema = CollectionSchema.of(later, ("key",))
    newer = [{**row, "tags": ["a"], "other": [1.0] * 64} for row in documents(3, 3)]
    written.add(3, written.inserts(newer, 3), 6)

    expected = [{**row, "tags": None, "other": None} for row in documents(3)] + newer
    assert written.read().to_pylist() == expected
    assert written.read(["other", "key"], pc.field("tags").is_null()).to_pylist() == [
        {"other": None, "key": n} for n in range(3)
    ]
    # A reader that still has the older schema reads the newer objects, too.
    assert written.read(now=DOCUMENTS).to_pylist() == documents(6)


def test_which_columns_are_wide() -> None:
    """By type, or as the column says; a key never is."""
    wide = {
        "vector": pa.list_(pa.float32(), 64),
        "varying": pa.list_(pa.float32()),
        "bits": pa.binary(256),
        "image": pa.large_binary(),
    }
    narrow = {
        "small": pa.list_(pa.float32(), 63),
        "text": pa.large_string(),
        "tags": pa.list_(pa.string()),
        "n": pa.int64(),
    }
    assert [name for name, kind in {**wide, **narrow}.items() if is_wide(pa.field(name, kind))] == list(wide)
    assert is_wide(pa.field("text", pa.string(), metadata={"datacoord.group": "own"}))
    assert not is_wide(pa.field("vector", wide["vector"], metadata={"datacoord.group": "shared"}))
    key = pa.schema([pa.field("id", pa.binary(512), nullable=False)])
    assert [group.field_id for group in column_groups(key, ("id",), 2)] == [0]


def test_a_storage_version_that_is_none_is_refused() -> None:
    """A typo must not decide about the layout of petabytes."""
    assert (storage_version({}), storage_version({"storage_version": "1"})) == (2, 1)
    with pytest.raises(InvalidFieldError, match="must be 1"):
        storage_version({"storage_version": "3"})
    with pytest.raises(InvalidFieldError, match="true or false"):
        check_properties({"key_bloom_filter": "no"}, "properties")
    with pytest.raises(InvalidFieldError, match="must be 1"):
        check_properties({"storage_version": "v2"}, "properties")


# ---- types ------------------------------------------------------------------------------------------------------------------

_ZONED = pa.timestamp("us", "Europe/Berlin")
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary(300), st.binary(min_size=300, max_size=300)),
    (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    (pa.decimal256(40, 2), st.decimals(-(10**30), 10**30, places=2)),
    (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))),
    (_ZONED, st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC))),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "ä"])),
    (pa.list_(pa.float32(), 64), st.lists(st.floats(width=32, allow_nan=False), min_size=64, max_size=64)),
    (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2)),
]


def _nested(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    kind, values = inner
    return [
        (pa.list_(kind), st.lists(st.none() | values, max_size=3)),
        (
            pa.struct([("x", kind), ("y", pa.int32())]),
            st.fixed_dictionaries({"x": st.none() | values, "y": st.integers(0, 9)}),
        ),
        (
            pa.map_(pa.string(), kind),
            st.dictionaries(st.text(max_size=3), values, max_size=3).map(lambda found: list(found.items())),
        ),
    ]


_PLAIN = [leaf for leaf in LEAVES if not pa.types.is_dictionary(leaf[0])]


@st.composite
def columns_and_rows(draw: st.DrawFn) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """A schema of any types, nullable but for the key, and rows of it."""
    fields, strategies = [pa.field("key", pa.int64(), nullable=False)], {"key": st.integers(-(2**63), 2**63 - 1)}
    for number in range(draw(st.integers(1, 4))):
        leaf = draw(st.sampled_from(LEAVES))
        if draw(st.booleans()):
            leaf = draw(st.sampled_from(_nested(draw(st.sampled_from(_PLAIN)))))
            if draw(st.booleans()):
                leaf = draw(st.sampled_from(_nested(leaf)))
        fields.append(pa.field(f"c{number}", leaf[0]))
        strategies[f"c{number}"] = st.none() | leaf[1]
    return pa.schema(fields), draw(st.lists(st.fixed_dictionaries(strategies), min_size=1, max_size=6))


@given(case=columns_and_rows(), version=st.sampled_from([1, 2]), data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_every_type_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[pa.Schema, list[dict[str, Any]]],
    version: int,
    data: st.DataObject,
) -> None:
    """Nested, nullable, decimals, zones, vectors, dictionaries; whole, and any of the columns in any order.

    Through the write buffer, row by row, as single messages come.
    """
    columns, rows = case
    written = Written.begin(tmp_path_factory.mktemp("types"), columns)
    buffer = WriteBuffer(INFO, MetaCache(INFO), DataNodeConfig(), StillClock(), random.Random(0))
    (batch,) = written.inserts(rows, 0)[BinlogKind.INSERT]
    for number in range(len(rows)):
        buffer.buffer_data(LaneRows(11, batch.slice(number, 1), None, number + 1))
        buffer.advance(at(number + 1))
    task = buffer.cut(11, SyncReason.DRAIN)
    assert task is not None
    written.write(task.lane, version)
    expected = pa.Table.from_pylist(rows, columns)

    assert written.read().equals(expected)
    some = data.draw(
        st.permutations(columns.names).flatmap(lambda names: st.integers(1, len(names)).map(lambda n: names[:n]))
    )
    assert written.read(some).equals(expected.select(some))
    limit = data.draw(st.integers(-(2**63), 2**63 - 1))
    assert written.read(some, pc.field("key") > limit).equals(expected.filter(pc.field("key") > limit).select(some))
