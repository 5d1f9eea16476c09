"""Shape of requests: everything malformed is refused before a rule or a table is looked at."""

import contextlib
import dataclasses
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.core.model import ChannelMode, Save
from coordinator.rpc import validation
from coordinator.rpc.definitions import check_definition
from coordinator.store import ChannelIdentity
from datacoord import limits
from datacoord.errors import BatchTooLargeError, InvalidFieldError, PathNotAllowedError
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2

CHANNEL = ChannelIdentity(channel_id=7, collection_id=1, mode=ChannelMode.MANAGED)
PATH = BinlogPath(BinlogKind.INSERT, 7, 3, 5, 10, 20, 0, 99)


def part(path: BinlogPath | str = PATH, *, log_id: int = 99, epoch: int = 5) -> data_coord_pb2.ChannelBinlogs:
    """A part of good shape around one object, whose path may be another."""
    binlog = common_pb2.Binlog(
        log_id=log_id,
        log_path=str(path),
        entries_num=1,
        timestamp_from=11,
        timestamp_to=20,
        log_size_bytes=1,
        memory_size_bytes=1,
    )
    lane = data_coord_pb2.LaneBinlogs(
        partition_id=3,
        timestamp_from=10,
        timestamp_to=20,
        insert_logs=[common_pb2.FieldBinlog(field_id=0, binlogs=[binlog])],
    )
    return data_coord_pb2.ChannelBinlogs(channel_name="c", epoch=epoch, lanes=[lane])


def read(one: data_coord_pb2.ChannelBinlogs, channel: ChannelIdentity | None) -> Save:
    """A part of a call of its own."""
    (save,) = validation.saves([one], {one.channel_name: channel} if channel else {})
    return save


def test_a_good_part_is_read_as_it_was_sent() -> None:
    """Every other test here changes one thing of this part."""
    save = read(part(), CHANNEL)
    assert save.channel_name == "c"
    assert save.epoch == 5
    (lane,) = save.lanes
    assert (lane.partition_id, lane.timestamp_from, lane.timestamp_to, lane.seal) == (3, 10, 20, False)
    assert [(binlog.log_id, binlog.ts_min, binlog.ts_max) for binlog in lane.binlogs] == [(99, 11, 20)]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": BinlogKind.DELTA},
        {"channel_id": 8},
        {"partition_id": 4},
        {"partition_id": limits.ALL_PARTITIONS_ID},
        {"epoch": 6},
        {"timestamp_from": 9},
        {"timestamp_to": 21},
        {"field_id": 1},
        {"log_id": 98},
    ],
)
def test_a_path_must_agree_with_what_stands_around_it(change: dict[str, int]) -> None:
    """The garbage collector believes the path: one that says another epoch or range would be deleted, or never."""
    with pytest.raises(PathNotAllowedError, match="disagrees"):
        read(part(dataclasses.replace(PATH, **change)), CHANNEL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "rows_end", "legal"), [(20, 20, True), (15, 15, True), (17, 15, True), (14, 15, False)]
)
def test_an_object_may_end_before_its_range_but_not_before_its_rows(end: int, rows_end: int, legal: bool) -> None:
    """A task of a sink names its object before the end of the batch is known; were its own end lost, its path would be, too."""
    shorter = part(dataclasses.replace(PATH, timestamp_to=end))
    binlog = shorter.lanes[0].insert_logs[0].binlogs[0]
    binlog.timestamp_to = rows_end
    if not legal:
        with pytest.raises(PathNotAllowedError, match="disagrees"):
            read(shorter, CHANNEL)
        return
    (lane,) = read(shorter, CHANNEL).lanes
    assert (lane.timestamp_to, lane.binlogs[0].range_to) == (20, end)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../" + str(PATH),
        "insert_log/../../x",
        str(PATH) + "/..",
        str(PATH).replace("/", "//", 1),
        str(PATH).replace("7", "07", 1),
        "s3://bucket/" + str(PATH),
        str(PATH) + "\n",
        str(PATH) + "\x00",
        "a" * 100_000,
    ],
)
@pytest.mark.parametrize("channel", [CHANNEL, None])
def test_a_path_cannot_leave_the_root(path: str, channel: ChannelIdentity | None) -> None:
    """A path is joined to a bucket's root and later read and deleted there; an unknown channel is no way around the check."""
    with pytest.raises(PathNotAllowedError) as caught:
        read(part(path), channel)
    assert len(caught.value.message) < 400


def test_an_object_stands_once_in_a_part() -> None:
    """The same object in two lanes would be read twice: its rows would be doubled."""
    doubled = part()
    doubled.lanes[0].insert_logs[0].binlogs.append(doubled.lanes[0].insert_logs[0].binlogs[0])
    with pytest.raises(InvalidFieldError, match="stands twice"):
        read(doubled, CHANNEL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("log_id", 0),
        ("log_id", -1),
        ("entries_num", -1),
        ("entries_num", limits.BINLOG_ROWS_MAX + 1),
        ("log_size_bytes", -1),
        ("log_size_bytes", limits.BINLOG_BYTES_MAX + 1),
        ("memory_size_bytes", -1),
        ("timestamp_from", 10),
        ("timestamp_to", 21),
        ("timestamp_to", 2**64 - 1),
    ],
)
def test_numbers_of_an_object_have_a_range(field: str, value: int) -> None:
    """Negative rows would lower the sums of a segment; huge ones would overflow them in SQL."""
    bad = part()
    setattr(bad.lanes[0].insert_logs[0].binlogs[0], field, value)
    with pytest.raises(InvalidFieldError):
        read(bad, CHANNEL)


@pytest.mark.parametrize(("start", "end"), [(20, 20), (21, 20), (0, 2**63), (2**64 - 1, 2**64 - 1)])
def test_a_range_goes_forward_and_fits_63_bits(start: int, end: int) -> None:
    """A reversed range would move progress back."""
    empty = data_coord_pb2.ChannelBinlogs(
        channel_name="c", lanes=[data_coord_pb2.LaneBinlogs(timestamp_from=start, timestamp_to=end)]
    )
    with pytest.raises(InvalidFieldError):
        read(empty, CHANNEL)


def test_a_lane_stands_once_in_a_part() -> None:
    """Two ranges of one lane in one part have no order."""
    twice = data_coord_pb2.ChannelBinlogs(
        channel_name="c",
        lanes=[
            data_coord_pb2.LaneBinlogs(partition_id=1, timestamp_from=0, timestamp_to=1),
            data_coord_pb2.LaneBinlogs(partition_id=1, timestamp_from=1, timestamp_to=2),
        ],
    )
    with pytest.raises(InvalidFieldError, match="twice"):
        read(twice, CHANNEL)


def test_on_a_claimed_channel_a_range_ends_at_the_checkpoint() -> None:
    """A sink is clean between its transactions: a snapshot acknowledges it at its checkpoint without asking."""
    claimed = dataclasses.replace(CHANNEL, mode=ChannelMode.CLAIMED)
    with pytest.raises(InvalidFieldError, match="CLAIMED"):
        read(part(), claimed)
    good = part()
    good.check_point.timestamp = 20
    assert read(good, claimed).checkpoint is not None


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": 2**63},
        {"msg_id": b"x" * (limits.MSG_ID_BYTES_MAX + 1)},
        {"msg_group": "x" * (limits.MSG_GROUP_CHARS_MAX + 1)},
        {"msg_group": "a\x00b"},
        {"channel_name": "another"},
    ],
)
def test_a_position_has_bounds_and_names_its_own_channel(change: dict[str, object]) -> None:
    """A position is rewritten with every checkpoint and must fit its column; NUL does not fit PostgreSQL's text."""
    with pytest.raises(InvalidFieldError):
        validation.position(common_pb2.MsgPosition(**change), "c")  # type: ignore[arg-type]


def test_a_call_has_limits() -> None:
    """One call must not hold the write transaction for long; splitting it is the caller's."""
    many = [data_coord_pb2.ChannelBinlogs(channel_name=f"c{n}") for n in range(limits.SAVE_CHANNELS_MAX + 1)]
    with pytest.raises(BatchTooLargeError):
        validation.save_batch(many)
    validation.save_batch(many[:-1])
    lanes = data_coord_pb2.ChannelBinlogs(channel_name="c")
    for number in range(limits.SAVE_CHANNEL_LANES_MAX + 1):
        lanes.lanes.add(partition_id=number, timestamp_to=1)
    with pytest.raises(BatchTooLargeError, match="lanes"):
        read(lanes, CHANNEL)
    with pytest.raises(InvalidFieldError, match="empty"):
        validation.save_batch([])
    with pytest.raises(InvalidFieldError, match="twice"):
        validation.save_batch([many[0], many[0]])


@pytest.mark.parametrize(
    ("objects", "fits"),
    [
        ([limits.SAVE_BINLOGS_MAX], True),
        ([limits.SAVE_BINLOGS_MAX - 1, 1], True),
        ([limits.SAVE_BINLOGS_MAX + 1], False),
        ([limits.SAVE_BINLOGS_MAX, 1], False),
        ([1, limits.SAVE_BINLOGS_MAX], False),
    ],
)
def test_a_call_has_so_many_objects_and_no_more(objects: list[int], fits: bool) -> None:
    """A message has room for many more than a transaction should hold, in one part or in many."""
    parts = []
    for number, count in enumerate(objects):
        one = part()
        one.channel_name = f"c{number}"
        (field,) = one.lanes[0].insert_logs
        (binlog,) = field.binlogs
        del field.binlogs[:]
        for log_id in range(1, count + 1):
            binlog.log_id, binlog.log_path = log_id, str(dataclasses.replace(PATH, log_id=log_id))
            field.binlogs.append(binlog)
        parts.append(one)
    channels = {one.channel_name: CHANNEL for one in parts}
    if fits:
        assert [len(save.lanes[0].binlogs) for save in validation.saves(parts, channels)] == objects
    else:
        with pytest.raises(BatchTooLargeError, match="binlogs"):
            validation.saves(parts, channels)


@pytest.mark.parametrize("name", ["", "a b", "é", "a\x00", "a\n", "x" * 257])
def test_a_channel_name_is_short_printable_ascii(name: str) -> None:
    """Names stand in headers, logs and labels."""
    with pytest.raises(InvalidFieldError):
        validation.channel_name(name)


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a.b", "a b", "á", "x" * 129, "a\n"])
def test_a_collection_name_is_an_identifier(name: str) -> None:
    """It becomes part of channel names and of directories."""
    with pytest.raises(InvalidFieldError):
        validation.collection_name(name)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reported_metric_is_a_finite_number(value: float) -> None:
    """One NaN makes every sum over it NaN."""
    with pytest.raises(InvalidFieldError):
        validation.reported_metrics({"datanode_x": value})
    with pytest.raises(BatchTooLargeError):
        validation.reported_metrics({f"m{n}": 1.0 for n in range(limits.REPORTED_METRICS_MAX + 1)})


def definition(**change: object) -> collection_pb2.CreateCollectionRequest:
    """A definition of good shape with something changed."""
    request = collection_pb2.CreateCollectionRequest(
        collection_name="c",
        arrow_schema=pa.schema([("path", pa.string()), ("mode", pa.int32())]).serialize().to_pybytes(),
        primary_key=["path"],
        channel_count=2,
        channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
        timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
    )
    for field, value in change.items():
        request.ClearField(field)
        request.MergeFrom(collection_pb2.CreateCollectionRequest(**{field: value}))  # type: ignore[arg-type]
    return request


def schema(*fields: tuple[str, pa.DataType]) -> bytes:
    """An encoded schema."""
    encoded: bytes = pa.schema(list(fields)).serialize().to_pybytes()
    return encoded


@pytest.mark.parametrize(
    "change",
    [
        {"collection_name": "1"},
        {"channel_count": 0},
        {"channel_count": -1},
        {"channel_count": limits.CHANNEL_COUNT_MAX + 1},
        {"channel_mode": 0},
        {"channel_mode": 99},
        {"timestamp_kind": 0},
        {"timestamp_kind": -1},
        {"arrow_schema": b""},
        {"arrow_schema": b"no schema"},
        {"arrow_schema": b"\xff" * (limits.SCHEMA_BYTES_MAX + 1)},
        {"arrow_schema": schema()},
        {"arrow_schema": schema(("path", pa.string())).replace(b"path", b"\xff\xffth")},
        {"arrow_schema": schema(("path", pa.struct([("name", pa.string())]))).replace(b"name", b"\xff\xffme")},
        {"arrow_schema": schema(("path", pa.string()), ("path", pa.string()))},
        {"arrow_schema": schema(("path", pa.string()), ("_timestamp", pa.int64()))},
        {"arrow_schema": schema(("path", pa.string()), ("", pa.int64()))},
        {"arrow_schema": schema(("path", pa.float64()))},
        {"arrow_schema": schema(("path", pa.list_(pa.string())))},
        {"primary_key": ["missing"]},
        {"primary_key": ["path", "path"]},
        {"primary_key": ["x" * 10_000_000]},
        {"storage_root": "relative/dir"},
        {"storage_root": "/data/../etc"},
        {"storage_root": "ftp://host/x"},
        {"storage_root": "s3://"},
        {"storage_root": "s3://key:secret@bucket/x"},
        {"storage_root": "s3://bucket/x?secret_key=geheim"},
        {"storage_root": "abfss://c@account.dfs.core.windows.net/x?client_secret=geheim"},
        {"storage_root": "abfss://c@account.dfs.core.windows.net/x?sig=geheim&sv=2024"},
        {"storage_root": "s3://bucket/x?geheim"},
        {"storage_root": "s3://bucket/x#geheim"},
        {"storage_root": "/" + "x" * limits.STORAGE_ROOT_CHARS_MAX},
        {"properties": {"k": "v" * (limits.PROPERTY_BYTES_MAX + 1)}},
        {"properties": {"k\x00": "v"}},
        {"properties": {f"k{n}": "v" for n in range(limits.PROPERTIES_MAX + 1)}},
    ],
)
def test_a_bad_definition_is_refused(change: dict[str, object]) -> None:
    """A collection lives for years; what is wrong in its definition cannot be mended later."""
    with pytest.raises((InvalidFieldError, BatchTooLargeError)) as caught:
        check_definition(definition(**change))
    assert len(caught.value.message) < 1000
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"primary_key": []},
        {"storage_root": "/data/objects"},
        {"storage_root": "file:///data/objects"},
        {"storage_root": "s3://bucket/prefix?region=eu-west-1"},
        {"storage_root": "s3://bucket/prefix?scheme=http&endpoint_override=store:9000"},
        {"storage_root": "abfss://c@account.dfs.core.windows.net/x?tenant_id=t&client_id=i"},
        {"storage_root": "/data/what?/is#legal"},
        {"arrow_schema": schema(("path", pa.binary()), ("embedding", pa.list_(pa.float32(), 32)))},
        {"properties": {"source": "git"}},
    ],
)
def test_a_good_definition_is_taken(change: dict[str, object]) -> None:
    """The checks must not refuse what the sources of this project need."""
    assert pa.ipc.read_schema(pa.py_buffer(check_definition(definition(**change))))


def test_equal_schemas_are_equal_bytes() -> None:
    """A collection that is created again is compared by its definition; two encoders must not make two definitions."""
    once = check_definition(definition())
    assert check_definition(definition(arrow_schema=once)) == once


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_schema_is_refused_or_read_but_never_more(data: st.DataObject) -> None:
    """The bytes come from anybody; the reader of them is C++."""
    encoded = bytearray(schema(("path", pa.string()), ("mode", pa.int32())))
    for _ in range(data.draw(st.integers(1, 6))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidFieldError):
        checked = check_definition(definition(arrow_schema=bytes(encoded)))
        assert pa.ipc.read_schema(pa.py_buffer(checked)).names
