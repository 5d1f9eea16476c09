"""What a commit writes beside the objects: enough that a lost database comes back from it, and not much more."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from server.running_coordinator import CoordinatorThread

from coordinator.core.rebuild import RebuiltLane
from coordinator.store.rebuild import plan_rebuild
from coordinator.store.verify import Silent
from datacoord.client import CoordinatorClient
from datacoord.manifest import read_manifest
from datacoord.objectstore import ObjectStore
from datanode_client.spark import sink_commit
from sink.rig import Query

PARTITIONS = [f"p{number}" for number in range(6)]


@pytest.fixture
def query(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> Query:
    """A query that writes one channel of a collection with some partitions."""
    query = Query(coordinator.address, new_name(), channelCount="1", timestampColumn="ts", partitionColumn="part")
    query.plan(frame(0).schema)
    with CoordinatorClient(query.address) as client:
        for name in PARTITIONS:
            client.create_partition(query.collection, name)
    return query


def frame(batch_id: int) -> pa.Table:
    """A row of each partition for each of four tasks."""
    count = 4 * len(PARTITIONS)
    first = 1 + batch_id * count
    return pa.table(
        {
            "key": pa.array(range(first, first + count), pa.int64()),
            "ts": pa.array(range(first, first + count), pa.int64()),
            "part": PARTITIONS * 4,
        }
    )


def storage_root(query: Query) -> str:
    """Where the objects of the collection lie."""
    with CoordinatorClient(query.address) as client:
        return client.describe_collection(query.collection).storage_root


def rebuilt(query: Query) -> tuple[dict[int, RebuiltLane], int]:
    """The lanes with rows as they would come back from the objects alone, by partition, and the checkpoint."""
    (collection,) = plan_rebuild([storage_root(query)], [query.collection], Silent()).collections
    (channel,) = collection.channels
    return {lane.partition_id: lane for lane in channel.lanes if lane.ranges}, channel.checkpoint.timestamp


def test_manifests_are_as_long_as_the_list_of_objects_not_as_its_square(query: Query) -> None:
    """A thousand partitions and a thousand objects would be a million entries for every batch."""
    reports = query.frame(0, frame(0), tasks=4)

    store = ObjectStore.from_uri(storage_root(query))
    entries = 0
    for info in store.list_objects():
        if info.path.startswith("stats_log/"):
            with store.open_input(info.path) as file:
                entries += len(read_manifest(file))
    objects = sum(len(report.ranges) for report in reports)
    assert objects == 4 * len(PARTITIONS)
    assert entries < 2 * objects


@pytest.mark.parametrize("durable", range(len(PARTITIONS)))
def test_a_driver_that_dies_among_its_manifests_leaves_all_of_a_batch_or_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch, durable: int
) -> None:
    """The channel's checkpoint comes back with the batch: the rows of a lane that did not would be left out when it is repeated."""
    query.frame(0, frame(0), tasks=4)
    reports = query.tasks(query.plan(frame(1).schema), 1, [frame(1)])

    class DiesEarly:
        def __init__(self) -> None:
            self.store, self.left = ObjectStore.from_uri(storage_root(query)), durable

        def create(self, path: str, data: pa.Buffer) -> None:
            if not self.left:
                raise OSError("the driver dies")
            self.left -= 1
            self.store.create(path, data)

    dying = DiesEarly()
    monkeypatch.setattr(sink_commit, "open_store", lambda _: dying)
    monkeypatch.setattr(sink_commit, "_MANIFEST_THREADS", 1)
    with pytest.raises(OSError, match="the driver dies"):
        query.commit(reports)

    lanes, checkpoint = rebuilt(query)
    ends = {lane.progress for lane in lanes.values()}
    assert len(lanes) == len(PARTITIONS)
    assert ends == {checkpoint}
    assert checkpoint == (48 if durable else 24)


@pytest.mark.parametrize("dropped", range(len(PARTITIONS)))
def test_lanes_come_back_without_the_objects_of_a_partition_that_was_dropped(query: Query, dropped: int) -> None:
    """The garbage collector takes its manifest, too, and the other partitions' rows must not go with it."""
    query.frame(0, frame(0), tasks=4)
    before, checkpoint = rebuilt(query)
    gone = sorted(before)[dropped]
    root = Path(storage_root(query).removeprefix("file://"))
    for info in list(ObjectStore.from_uri(storage_root(query)).list_objects()):
        if info.path.split("/")[2] == str(gone):
            (root / info.path).unlink()

    after, still = rebuilt(query)

    assert sorted(after) == sorted(set(before) - {gone})
    assert still == checkpoint
    for partition_id, lane in after.items():
        assert [one.rows for one in lane.ranges] == [one.rows for one in before[partition_id].ranges] == [4]
