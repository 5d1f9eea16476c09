"""Collections, lists, pages and the history."""

import asyncio
import json
from typing import Any

import pytest

from coordinator.core.model import ChannelMode, ChannelState, LaneSave, SegmentState
from coordinator.store import (
    CallStatistics,
    ChannelRelease,
    CheckpointMove,
    NewCollection,
    Page,
    TimestampKind,
    paging,
    reads,
)
from datacoord.errors import (
    ChannelDroppedError,
    ChannelNotFoundError,
    CollectionExistsError,
    CollectionNotFoundError,
    InvalidFieldError,
    PartitionNotFoundError,
)
from datacoord.limits import PAGE_CHANNELS_MAX, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
from datacoord.positions import START

from .support import CALLER, World, binlog, dump, lane, position, save

# ---- collections ------------------------------------------------------------------------------------------------------------


def new(name: str = "t", **changes: Any) -> NewCollection:
    """A definition."""
    values = {
        "arrow_schema": b"schema",
        "primary_key": ("k",),
        "channel_count": 3,
        "channel_mode": ChannelMode.MANAGED,
        "timestamp_kind": TimestampKind.TSO,
        "properties": {"a": "b"},
    }
    return NewCollection(name, **{**values, **changes})


async def test_a_collection_is_described_as_it_was_created(empty_world: World) -> None:
    """Readers and datanodes rely on every field of it."""
    created, is_new = await empty_world.store.create_collection(new(), caller=CALLER)

    assert is_new
    assert await empty_world.store.describe_collection("t") == created
    assert (created.arrow_schema, created.primary_key, created.properties) == (b"schema", ("k",), {"a": "b"})
    assert (created.channel_mode, created.timestamp_kind) == (ChannelMode.MANAGED, TimestampKind.TSO)
    assert created.storage_root == f"/objects/{created.collection_id}"
    assert created.channel_names == tuple(f"t_{created.collection_id}v{index}" for index in range(3))
    assert list(created.partitions) == ["_default"]
    assert created.create_time_ms == empty_world.clock.now_ms
    infos = (await empty_world.store.recovery_info(collection_name="t")).items
    assert [(i.checkpoint, i.owner, i.lanes) for i in infos] == [(START, "", ())] * 3


async def test_creating_the_same_again_answers_what_is_there(empty_world: World) -> None:
    """The reply was lost."""
    store = empty_world.store
    first, _ = await store.create_collection(new(), caller=CALLER)
    assert await store.create_collection(new(), caller=CALLER) == (first, False)
    assert await store.create_collection(new(storage_root=first.storage_root), caller=CALLER) == (first, False)


@pytest.mark.parametrize(
    "change",
    [
        {"arrow_schema": b"other"},
        {"primary_key": ()},
        {"channel_count": 4},
        {"channel_mode": ChannelMode.CLAIMED},
        {"timestamp_kind": TimestampKind.ORDINAL},
        {"storage_root": "/elsewhere"},
        {"properties": {}},
    ],
)
async def test_another_definition_under_the_same_name_is_refused(empty_world: World, change: dict[str, Any]) -> None:
    """Two programs that mean different tables must not write into one."""
    await empty_world.store.create_collection(new(), caller=CALLER)
    with pytest.raises(CollectionExistsError, match=next(iter(change))):
        await empty_world.store.create_collection(new(**change), caller=CALLER)


async def test_partitions_are_created_once_and_dropped_for_good(world: World) -> None:
    """A name may come back, its number never: rows of the dropped one must stay gone."""
    store, name = world.store, world.collection.name
    assert await store.create_partition(name, "other", caller=CALLER) == world.other
    await store.drop_partition(name, "other", caller=CALLER)
    await store.drop_partition(name, "other", caller=CALLER)
    assert "other" not in (await store.describe_collection(name)).partitions

    again = await store.create_partition(name, "other", caller=CALLER)
    assert again > world.other
    assert (await world.save(world.channels[0], lane(world.other, 0, 5))).lanes[0].outcome.name == "DISCARDED"
    assert (await world.save(world.channels[0], lane(again, 0, 5))).lanes[0].outcome.name == "APPLIED"


async def test_what_is_not_there_is_not_found(world: World) -> None:
    """Each with its own reason: a client acts on it."""
    store, name = world.store, world.collection.name
    for missing in (
        store.describe_collection("typo"),
        store.create_partition("typo", "p", caller=CALLER),
        store.drop_partition("typo", "p", caller=CALLER),
        store.list_binlogs("typo"),
        store.list_channels(collection_name="typo"),
        store.list_segments(collection_name="typo"),
        store.recovery_info(collection_name="typo"),
    ):
        with pytest.raises(CollectionNotFoundError):
            await missing
    with pytest.raises(PartitionNotFoundError):
        await store.drop_partition(name, "typo", caller=CALLER)
    with pytest.raises(ChannelNotFoundError):
        await store.recovery_info(channel_names=[world.channels[0], "typo"])
    with pytest.raises(ChannelNotFoundError):
        await store.list_binlogs(name, channel_names=["typo"])
    await store.drop_virtual_channel(save(world.channels[0], await world.epoch(world.channels[0])), caller=CALLER)
    with pytest.raises(ChannelDroppedError):
        await store.recovery_info(channel_names=list(world.channels))
    assert [i.channel_name for i in (await store.recovery_info(collection_name=name)).items] == [world.channels[1]]


# ---- pages ------------------------------------------------------------------------------------------------------------------


async def all_pages(list_page: Any, **arguments: Any) -> tuple[list[Any], int]:
    """Every item of a list, and how many pages there were."""
    items: list[Any] = []
    token, pages = "", 0
    while pages == 0 or token:
        page: Page[Any] = await list_page(page_token=token, **arguments)
        items += page.items
        token = page.next_page_token
        pages += 1
    return items, pages


async def test_pages_of_any_size_make_the_same_list(empty_world: World) -> None:
    """An item at the edge of a page must neither be left out nor come twice."""
    store = empty_world.store
    for name in ("a", "b", "c", "d", "e"):
        await empty_world.create(name, channels=2)
        for channel in empty_world.channels:
            await empty_world.save(channel, lane(empty_world.default, 0, 5), lane(empty_world.other, 0, 5))
    for slot in range(5):
        await empty_world.start_datanode(slot)
    await empty_world.start_datanode(0)
    names = [name for c in "abcde" for name in (await store.describe_collection(c)).channel_names]

    for list_page, arguments, count in (
        (store.list_collections, {}, 5),
        (store.list_channels, {}, 10),
        (store.list_channels, {"collection_name": "c"}, 2),
        (store.list_segments, {}, 20),
        (store.list_segments, {"states": [SegmentState.GROWING, SegmentState.FLUSHED]}, 20),
        (store.list_segments, {"states": [SegmentState.SEALED]}, 0),
        (store.list_datanodes, {}, 5),
        (store.list_datanodes, {"include_ended": True}, 6),
        (store.list_datanodes, {"job": "nobody", "include_ended": True}, 0),
        (store.recovery_info, {"channel_names": names[::-1]}, 10),
        (store.recovery_info, {"collection_name": "b"}, 2),
    ):
        whole, pages = await all_pages(list_page, **arguments)
        assert (len(whole), pages) == (count, 1)
        for size in (1, 2, 3, count or 1):
            items, pages = await all_pages(list_page, page_size=size, **arguments)
            assert items == whole
            assert pages == max(1, -(-count // size))


async def test_a_page_of_binlogs_holds_whole_channels(empty_world: World) -> None:
    """The checkpoint is of the same read as the binlogs: half a channel would be read with the wrong one."""
    await empty_world.create(channels=6)
    for index, channel in enumerate(empty_world.channels):
        await empty_world.save(channel, *(lane(empty_world.default, 0, 9) for _ in range(min(1, index))))
        for start in range(index):
            await empty_world.save(channel, lane(empty_world.other, start, start + 1))
    store = empty_world.store
    expected = [(0 if index == 0 else index + 1) for index in range(6)]

    whole, _ = await all_pages(lambda **a: store.list_binlogs("t", **a))
    assert [len(listed.binlogs) for listed in whole] == expected
    for size in (1, 2, 4, 7):
        items, pages = await all_pages(lambda **a: store.list_binlogs("t", **a), page_size=size)
        assert items == whole
        assert pages > 1
    some = [empty_world.channels[4], empty_world.channels[1]]
    items, pages = await all_pages(lambda **a: store.list_binlogs("t", channel_names=some, **a), page_size=1)
    assert [listed.channel_name for listed in items] == sorted(some)
    assert pages == 2


async def test_a_long_list_of_binlogs_gives_everybody_else_their_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel may have a million objects: read in one go on the loop, no heartbeat is answered and every lease ends."""
    monkeypatch.setattr(reads, "BINLOGS_PER_STEP", 2)
    channel = world.channels[0]
    for start in range(20):
        await world.save(channel, lane(world.default, start, start + 1))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.get_running_loop().create_task(others())
    # More of them at once than there are connections for reading.
    pages = await asyncio.gather(*(world.store.list_binlogs("t") for _ in range(6)))
    other.cancel()

    assert all(len(page.items[0].binlogs) == 20 for page in pages)
    assert turns >= 6 * 10 / 2


@pytest.mark.parametrize("token", ["x", "%%%", "bm9uc2Vuc2U=", paging.make_token("segments", [1]), "é"])
async def test_a_token_that_no_page_gave_is_refused(world: World, token: str) -> None:
    """Taken for the first page, it would make a client read for ever."""
    store = world.store
    for listing in (
        store.list_channels(page_token=token),
        store.list_collections(page_token=token),
        store.list_binlogs("t", page_token=token),
        store.list_datanodes(page_token=token),
        store.recovery_info(collection_name="t", page_token=token),
        store.recovery_info(channel_names=world.channels, page_token=token),
    ):
        with pytest.raises(InvalidFieldError):
            await listing


def test_pages_are_bounded_whatever_is_asked_for() -> None:
    """A page is built in memory."""
    assert paging.size_of(0) == paging.size_of(-5) == PAGE_SIZE_DEFAULT
    assert paging.size_of(10**9) == PAGE_SIZE_MAX
    assert paging.size_of(3) == 3
    assert PAGE_CHANNELS_MAX < 10**6


# ---- what is shown ----------------------------------------------------------------------------------------------------------


async def test_channels_show_owner_report_and_progress(world: World) -> None:
    """What an operator asks when a channel is stuck."""
    channel, other = world.channels
    node_id = await world.start_datanode()
    await world.save(channel, lane(world.default, 0, 5), checkpoint=3)
    world.clock.advance(5000)
    await world.report(node_id, **{channel: 8})
    await world.store.flush("t", caller=CALLER)

    first, second = (await world.store.list_channels()).items

    assert (first.channel_name, first.collection_name, first.mode) == (channel, "t", ChannelMode.MANAGED)
    assert (first.state, first.owner, first.node_id) == (ChannelState.ACTIVE, f"job/0#{node_id}", node_id)
    assert (first.checkpoint, first.flush_timestamp, first.lanes[0].progress) == (position(3), 8, 5)
    assert first.report is not None
    assert first.report.timestamp == 8
    assert first.last_seen_time_ms == world.clock.now_ms
    assert (second.channel_name, second.report) == (other, None)
    await world.store.release_channels([ChannelRelease(channel, first.epoch)], caller=CALLER)
    (free, _) = (await world.store.list_channels()).items
    assert (free.owner, free.node_id, free.report, free.last_seen_time_ms) == ("", 0, None, 0)


async def test_a_reader_sees_objects_and_checkpoint_of_one_moment(world: World) -> None:
    """A checkpoint newer than the list of objects promises rows that are not in it."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 5), checkpoint=5)
    await world.save(channel, lane(world.default, 5, 9))

    (listed, empty) = (await world.store.list_binlogs("t")).items

    assert listed.checkpoint == position(5)
    assert [(b.range_from, b.range_to) for b in listed.binlogs] == [(0, 5), (5, 9)]
    assert [lane_.progress for lane_ in listed.lanes] == [9]
    assert (empty.binlogs, empty.checkpoint) == ((), START)


async def test_the_history_has_one_row_per_accepted_call(world: World) -> None:
    """It is what reports count, and what `verify` will compare with."""
    first, second = world.channels
    epochs = [await world.epoch(channel) for channel in world.channels]
    parts = [
        save(first, epochs[0], lane(world.default, 0, 5), LaneSave(world.other, 0, 5, (binlog(1, 5), binlog(2, 3)))),
        save(second, epochs[1], lane(world.default, 4, 5)),
    ]
    await world.store.save_binlog_paths(parts, caller="sink")
    moves = [CheckpointMove(first, epochs[0], position(n)) for n in (3, 2)]
    await world.store.update_channel_checkpoints(moves, caller="datanode")
    await world.store.update_channel_checkpoints([CheckpointMove(first, 10**6, position(9))], caller="datanode")

    statistics = {(s.rpc, s.caller): s for s in await world.store.call_statistics()}

    assert statistics["SaveBinlogPaths", "sink"] == CallStatistics("SaveBinlogPaths", "sink", 1, 1, 2)
    assert statistics["UpdateChannelCheckpoint", "datanode"] == CallStatistics(
        "UpdateChannelCheckpoint", "datanode", 1, 2, 2
    )
    changes = {row[2]: json.loads(row[6]) for row in dump(world.url)["events"]}
    info = await world.info(first)
    segments = {segment.partition_id: segment.segment_id for segment in await world.segments()}
    lanes = [[world.default, 0, 5, 1, 1, segments[world.default]], [world.other, 0, 5, 2, 1, segments[world.other]]]
    assert changes["SaveBinlogPaths"] == [[info.channel_id, epochs[0], None, lanes]]
    assert changes["UpdateChannelCheckpoint"] == [[info.channel_id, epochs[0], 3]]


async def test_the_store_answers_that_it_is_there(world: World) -> None:
    """Readiness."""
    await world.store.ping()


async def test_identities_of_channels_are_remembered(world: World) -> None:
    """They are asked for with every save, to check shape."""
    names = [*world.channels, "typo"]
    found = await world.store.channel_identities(names)
    await world.crash()

    assert await world.store.channel_identities(names) == found
    assert list(found) == list(world.channels)
    assert {i.mode for i in found.values()} == {ChannelMode.MANAGED}
    assert {i.collection_id for i in found.values()} == {world.collection.collection_id}
