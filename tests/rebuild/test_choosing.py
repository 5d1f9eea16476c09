"""Which ranges come back: exactly those that were registered, whatever zombies left, up to the very last ones."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.rebuild import FoundObject, rebuild_lanes
from datacoord.manifest import ManifestEntry
from datacoord.object_metadata import BinlogMetadata
from datacoord.paths import BinlogKind

PARTITION = 11


def written(rng: random.Random, epoch: int, start: int, end: int, *, whole: bool = True) -> list[FoundObject]:
    """A range with inserts and deletes; of one that is not whole some objects are missing."""
    write_id = rng.randrange(1, 2**60)
    kinds = [BinlogKind.INSERT, BinlogKind.DELTA]
    found = []
    for kind in kinds if whole else [rng.choice(kinds)]:
        # A lost answer to an upload leaves the same object twice.
        for _ in range(rng.choice([1, 1, 2])):
            metadata = BinlogMetadata(
                kind=kind,
                collection_id=3,
                collection_name="c",
                channel_id=7,
                channel_name="c_3v0",
                partition_id=PARTITION,
                epoch=epoch,
                timestamp_from=start,
                timestamp_to=end,
                ts_min=start + 1,
                ts_max=end,
                field_id=0,
                log_id=rng.randrange(1, 2**60),
                write_id=write_id,
                parts="insert_log:0,delta_log:0",
            )
            found.append(FoundObject(metadata, end - start, 100))
    return found


@given(seed=st.integers(0, 2**32), lives=st.integers(1, 6))
@settings(max_examples=400)
def test_the_registered_ranges_come_back_and_no_zombies(seed: int, lives: int) -> None:
    """Each owner registers some ranges, and writes up to two more that are not; then the next one begins where progress is.

    A range of a dead epoch that was taken would double rows; one of the registered that was left out would lose them.
    """
    rng = random.Random(seed)
    objects: list[FoundObject] = []
    registered: list[tuple[int, int]] = []
    progress, tail = 0, []
    for epoch in range(1, lives + 1):
        begun = False
        for _ in range(rng.randrange(4)):
            end = progress + rng.randrange(1, 20)
            objects += written(rng, epoch, progress, end)
            registered.append((progress, end))
            progress, begun = end, True
        place, left = progress, []
        for _ in range(rng.randrange(3)):
            end = place + rng.randrange(1, 20)
            whole = rng.random() < 0.6
            objects += written(rng, epoch, place, end, whole=whole)
            begun = True
            if not whole:
                break
            left.append((place, end))
            place = end
        if begun:
            tail = left
    rng.shuffle(objects)

    lanes = rebuild_lanes(objects)

    chosen = [(one.timestamp_from, one.timestamp_to) for lane in lanes for one in lane.ranges]
    gaps = [gap for lane in lanes for gap in lane.gaps]
    # What the last of them left is complete and nobody's but the lane's: whether it was registered cannot be known.
    assert chosen == registered + tail
    assert gaps == []
    for lane in lanes:
        assert lane.unproven >= min(2, len(tail))
        assert all(len(one.objects) == 2 for one in lane.ranges)
        assert lane.left == len(objects) - 2 * len(lane.ranges)


def of_sink(rng: random.Random, start: int, end: int, *, committed: bool = True, tasks: int = 2) -> list[FoundObject]:
    """What the tasks of a batch wrote, each up to its own last row, and what its commit said of them."""
    objects = []
    for task in range(tasks):
        last = end if task == tasks - 1 else start + 1
        (found, *_) = written(rng, 5, start, last)
        objects.append(replace(found, metadata=replace(found.metadata, parts="insert_log:0,manifest")))
    if not committed:
        return objects
    entries = tuple(
        ManifestEntry(one.path, end, one.rows, one.metadata.ts_min, one.metadata.ts_max, one.size_bytes, 0)
        for one in objects
    )
    manifest = replace(
        objects[0].metadata, kind=BinlogKind.STATS, timestamp_to=end, log_id=rng.randrange(1, 2**60), parts=""
    )
    return [*objects, FoundObject(manifest, tasks, 100, entries)]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_a_sinks_batch_that_was_planned_again_comes_back_once(seed: int) -> None:
    """A driver that died after its manifest plans the batch anew, with other bounds, at the same place and under the same epoch."""
    rng = random.Random(seed)
    objects: list[FoundObject] = []
    registered = []
    progress = 0
    for _ in range(rng.randrange(1, 5)):
        for _ in range(rng.randrange(3)):
            objects += of_sink(rng, progress, progress + rng.randrange(2, 40), committed=rng.random() < 0.5)
        end = progress + rng.randrange(2, 20)
        objects += of_sink(rng, progress, end, tasks=rng.randrange(1, 4))
        registered.append((progress, end))
        progress = end
    # The next batch was planned: where it began is where the last one ended.
    objects += of_sink(rng, progress, progress + 5, committed=False)
    rng.shuffle(objects)

    (lane,) = rebuild_lanes(objects)

    assert [(one.timestamp_from, one.timestamp_to) for one in lane.ranges] == registered
    assert lane.gaps == []


def test_a_manifest_whose_objects_are_not_all_there_counts_for_nothing() -> None:
    """Some of a batch's rows would come back, and the query would go on behind the batch."""
    rng = random.Random(1)
    first, second = of_sink(rng, 0, 10), of_sink(rng, 10, 20)

    (lane,) = rebuild_lanes([*first, *second[1:]])

    assert [(one.timestamp_from, one.timestamp_to) for one in lane.ranges] == [(0, 10)]


def test_a_range_in_the_middle_that_is_gone_is_a_gap() -> None:
    """It is reported, never bridged in silence."""
    rng = random.Random(1)
    objects = [*written(rng, 1, 0, 10), *written(rng, 1, 10, 20, whole=False), *written(rng, 1, 20, 30)]

    (lane,) = rebuild_lanes(objects)

    assert [(one.timestamp_from, one.timestamp_to) for one in lane.ranges] == [(0, 10), (20, 30)]
    assert lane.gaps == [(10, 20)]
