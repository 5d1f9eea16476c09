"""What reading takes grows with what there is to read, and what counts is known before the first row."""

import pickle
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from server.running_coordinator import CoordinatorThread, running
from sink.rig import KEYED, ORDERED, Query

import datacoord
from datacoord.client import CoordinatorClient
from datacoord.objectstore import ObjectMissingError, ObjectStore
from datacoord.paths import BinlogKind
from datacoord.reading import DELETES_PER_INSERT_MAX, CollectionSchema, read_unit, read_units
from datacoord.v1 import collection_pb2, common_pb2
from reading.test_column_groups import Written

MIB = 1024 * 1024
NARROW = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.int64())])


def listed(objects: int, delta_bytes: int) -> collection_pb2.ChannelBinlogList:
    """A channel with so many insert logs of 16 MiB, each beside a delta log, in the order of time."""
    channel = collection_pb2.ChannelBinlogList(
        channel_name="c", checkpoint=common_pb2.MsgPosition(timestamp=objects * 1000)
    )
    for number in range(objects):
        start, end = number * 1000, number * 1000 + 1000
        for kind, folder, size in (
            (common_pb2.BINLOG_KIND_INSERT, "insert_log", 16 * MIB),
            (common_pb2.BINLOG_KIND_DELTA, "delta_log", delta_bytes),
        ):
            path = f"{folder}/3/2/4/{start}-{end}-0-{number}.parquet"
            binlog = common_pb2.Binlog(
                log_path=path, timestamp_from=start + 1, timestamp_to=end, memory_size_bytes=size
            )
            channel.binlogs.add(binlog=binlog, kind=kind, partition_id=1, epoch=4, range_from=start, range_to=end)
    return channel


@pytest.mark.parametrize("delta_bytes", [16_000, 16 * MIB, 320 * MIB])
def test_a_plan_grows_with_its_objects_and_not_with_their_square(delta_bytes: int) -> None:
    """Every unit names all later delta logs: of 5,000 and 5,000 objects, 1.6 million entries, each of them an object to open."""
    sizes = {}
    for objects in (250, 1000):
        channel = listed(objects, delta_bytes)
        units = list(read_units(channel, 128 * MIB))
        assert [log.path for unit in units for log in unit.inserts] == [
            log.binlog.log_path for log in channel.binlogs if log.kind == common_pb2.BINLOG_KIND_INSERT
        ]
        assert sum(len(unit.deletes) for unit in units) <= (DELETES_PER_INSERT_MAX + 1) * objects
        read_bytes = sum(log.memory_bytes for unit in units for log in unit.deletes)
        assert read_bytes <= objects * (DELETES_PER_INSERT_MAX * 16 * MIB + delta_bytes)
        sizes[objects] = sum(len(pickle.dumps(unit)) for unit in units)
        if delta_bytes == 16_000:
            assert len(units) > 10  # and a channel is still cut, so that tasks share it
    assert sizes[1000] <= 5 * sizes[250]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each object was opened."""
    found: Counter[str] = Counter()
    original = ObjectStore.open_input

    def open_input(store: ObjectStore, path: str) -> pa.NativeFile:
        found[path] += 1
        return original(store, path)

    monkeypatch.setattr(ObjectStore, "open_input", open_input)
    return found


@pytest.mark.parametrize("unit_bytes", [1, 5_000, None])
def test_objects_are_opened_a_few_times_however_many_there_are(
    tmp_path: Path, opened: Counter[str], unit_bytes: int | None
) -> None:
    """Every block of rows needs the deletes, and they are in all the objects that came later."""
    written = Written.begin(tmp_path, NARROW)
    rng, ranges = random.Random(4), 60
    last: dict[int, int] = {}
    for number in range(ranges):
        start = number * 20
        rows = [{"key": rng.randrange(100), "value": start + n} for n in range(20)]
        made = written.inserts(rows, start)
        (batch,) = made[BinlogKind.INSERT]
        made[BinlogKind.DELTA] = [batch.select(written.schema.delta_log.names).cast(written.schema.delta_log)]
        written.add(start, made, start + 20)
        last.update((row["key"], row["value"]) for row in rows)
    collection = CollectionSchema(NARROW, ("key",), str(tmp_path))
    store, wanted = ObjectStore.from_uri(str(tmp_path)), collection.select(None, with_timestamp=False)
    opened.clear()

    found = [
        (row["key"], row["value"])
        for unit in read_units(written.channel, unit_bytes)
        for rows in read_unit(store, unit, collection, wanted, block_bytes_max=1)
        for row in rows.to_pylist()
    ]

    assert sorted(found) == sorted(last.items())
    if unit_bytes is None:
        assert set(opened.values()) == {1}
    assert opened.total() <= (DELETES_PER_INSERT_MAX + 1) * 2 * ranges


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own."""
    with running(tmp_path_factory.mktemp("cost") / "data") as thread:
        yield thread


@pytest.mark.parametrize("collected", [False, True], ids=["dropped", "dropped and collected"])
def test_what_counts_is_known_before_the_first_row(coordinator: CoordinatorThread, *, collected: bool) -> None:
    """The caller works between batches: pages asked for only then would mix what counted at different times.

    Objects of a collection that is dropped stay for the garbage collector's delay. A reading that lasts longer must not end
    as if it were whole.
    """
    name = f"fixed_{collected}"
    rows = [(key, f"v{key}", key % 2, key, "upsert") for key in range(1, 21)]
    Query(coordinator.address, name, **KEYED, **ORDERED).run(0, rows, tasks=1)
    known: list[str] = []

    class Client(CoordinatorClient):
        def list_binlogs(
            self, collection_name: str, channel_names: Sequence[str] = ()
        ) -> Iterator[collection_pb2.ChannelBinlogList]:
            for channel in super().list_binlogs(collection_name, channel_names):
                known.append(channel.channel_name)
                yield channel

    with Client(coordinator.address) as client:
        root = Path(client.describe_collection(name).storage_root.removeprefix("file://"))
        batches = datacoord.read_batches(client, name, columns=["key"], unit_bytes_max=1)
        first = next(batches)
        assert len(known) == 2
        client.drop_collection(name)
        if not collected:
            assert first.num_rows + sum(batch.num_rows for batch in batches) == len(rows)
            return
        for path in root.rglob("*.parquet"):
            path.unlink()
        with pytest.raises(ObjectMissingError):
            list(batches)
