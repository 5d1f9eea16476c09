"""Flush: targets, what they seal, and when they are done."""

import pytest

from coordinator.core.model import ChannelMode, SegmentState
from coordinator.store import ChannelRelease, flushes
from datacoord.errors import CollectionNotFoundError, FlushNotFoundError

from .support import CALLER, LEASE_MS, World, lane, position, save


async def flush(world: World, timestamp: int = 0) -> int:
    """Asks for a flush; its number."""
    return (await world.store.flush(world.collection.name, timestamp, caller=CALLER)).flush_id


async def done(world: World, flush_id: int) -> bool:
    """Whether a flush is done."""
    return (await world.store.get_flush_state(flush_id)).flushed


async def states(world: World, channel: str) -> list[SegmentState]:
    """States of a channel's segments, by number."""
    return [s.state for s in await world.segments() if s.channel_name == channel]


async def test_a_flush_is_done_when_every_checkpoint_has_reached_what_was_consumed(world: World) -> None:
    """Rows that were consumed and are not registered would be lost to whoever believes it is done."""
    first, second = world.channels
    node_id = await world.start_datanode()
    await world.report(node_id, **{first: 50, second: 40})
    await world.save(first, lane(world.default, 0, 30), checkpoint=30)

    flush_id = await flush(world)
    assert not await done(world, flush_id)
    pending = (await world.store.get_flush_state(flush_id)).pending
    assert [(t.channel_name, t.timestamp, t.checkpoint_timestamp) for t in pending] == [
        (first, 50, 30),
        (second, 40, 0),
    ]
    assert {w.channel_name: w.flush_timestamp for w in (await world.store.desired_state(node_id)).channels} == {
        first: 50,
        second: 40,
    }

    await world.save(first, lane(world.default, 30, 50), checkpoint=50)
    assert not await done(world, flush_id)
    await world.move(second, 40)
    assert await done(world, flush_id)
    assert {w.flush_timestamp for w in (await world.store.desired_state(node_id)).channels} == {0}


async def test_reaching_the_target_seals_what_grows_in_the_same_transaction(world: World) -> None:
    """A flush that is done with segments still growing would hand a reader an open segment."""
    channel = world.channels[0]
    node_id = await world.start_datanode()
    await world.report(node_id, **{channel: 50})
    await world.save(channel, lane(world.default, 0, 30), lane(world.other, 0, 20), checkpoint=20)
    await flush(world)

    await world.move(channel, 30)
    assert await states(world, channel) == [SegmentState.GROWING] * 2
    await world.save(channel, lane(world.default, 30, 50), checkpoint=50)
    assert await states(world, channel) == [SegmentState.FLUSHED] * 2
    assert {s.seal_reason for s in await world.segments()} == {"flush"}
    assert (await world.info(channel)).growing_segments == ()

    await world.save(channel, lane(world.default, 50, 60))
    assert await states(world, channel) == [SegmentState.FLUSHED, SegmentState.FLUSHED, SegmentState.GROWING]


@pytest.mark.parametrize("how", ["move", "release", "save"])
async def test_whatever_moves_the_checkpoint_to_the_target_seals(world: World, how: str) -> None:
    """Each of them is a way to reach it; forgetting one leaves a segment open for ever."""
    channel = world.channels[0]
    node_id = await world.start_datanode()
    await world.save(channel, lane(world.default, 0, 30))
    await world.report(node_id, **{channel: 50})
    flush_id = await flush(world)
    if how == "move":
        await world.move(channel, 55)
    elif how == "release":
        release = ChannelRelease(channel, await world.epoch(channel), position(55))
        await world.store.release_channels([release], caller=CALLER)
    else:
        await world.save(channel, checkpoint=55)

    assert await states(world, channel) == [SegmentState.FLUSHED]
    assert await done(world, flush_id)


async def test_a_target_that_is_reached_already_seals_at_once(world: World) -> None:
    """Nothing will move the checkpoint of an idle channel again."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 30), checkpoint=30)

    assert await done(world, await flush(world))
    assert await states(world, channel) == [SegmentState.FLUSHED]


async def test_several_flushes_of_a_channel_are_reached_one_after_the_other(world: World) -> None:
    """The first that is reached must not make the datanode forget the second."""
    channel = world.channels[0]
    node_id = await world.start_datanode()

    async def wanted() -> int:
        desired = await world.store.desired_state(node_id)
        return next(w.flush_timestamp for w in desired.channels if w.channel_name == channel)

    late, early, middle = [await flush(world, timestamp) for timestamp in (90, 30, 60)]
    other = world.channels[1]
    await world.move(other, 100)
    assert await wanted() == 30
    await world.move(channel, 30)
    assert await wanted() == 60
    await world.move(channel, 89)
    assert await wanted() == 90
    assert [await done(world, f) for f in (early, middle, late)] == [True, True, False]
    await world.move(channel, 90)
    assert await wanted() == 0
    assert await done(world, late)


async def test_a_new_owner_that_consumed_less_cannot_make_a_flush_look_done(world: World) -> None:
    """Review 26: A consumed to 50, flush, A dies, B at C=20 reports done; 21-50 are not durable."""
    channel = world.channels[0]
    node_id = await world.start_datanode()
    await world.move(world.channels[1], 100)
    await world.move(channel, 20)
    await world.report(node_id, **{channel: 50})
    flush_id = await flush(world)

    world.clock.advance(LEASE_MS + 1)
    await world.store.run_lease_job()
    successor = await world.start_datanode(1)
    await world.report(successor, **{channel: 20})
    await world.move(channel, 21)

    assert not await done(world, flush_id)
    await world.move(channel, 50)
    assert await done(world, flush_id)


async def test_a_flush_between_owners_reaches_what_the_last_one_consumed(world: World) -> None:
    """Nobody owns the channel at the moment; its rows were consumed all the same."""
    channel = world.channels[0]
    node_id = await world.start_datanode()
    await world.report(node_id, **{channel: 50})
    world.clock.advance(LEASE_MS + 1)
    await world.store.run_lease_job()

    targets = (await world.store.flush(world.collection.name, caller=CALLER)).targets
    assert {t.channel_name: t.timestamp for t in targets}[channel] == 50


async def test_a_dropped_channel_does_not_hold_a_flush(world: World) -> None:
    """It will never reach anything again."""
    first, second = world.channels
    flush_id = await flush(world, 10)
    await world.move(second, 10)
    await world.store.drop_virtual_channel(save(first, await world.epoch(first)), caller=CALLER)

    assert await done(world, flush_id)
    assert [t.channel_name for t in (await world.store.flush(world.collection.name, caller=CALLER)).targets] == [second]


async def test_flushes_that_are_not_there_are_not_found(world: World) -> None:
    """A typo is not a flush that is done."""
    with pytest.raises(FlushNotFoundError):
        await world.store.get_flush_state(10**9)
    with pytest.raises(CollectionNotFoundError):
        await world.store.flush("typo", caller=CALLER)


# ---- all ----------------------------------------------------------------------------------------------------------------------


async def test_a_flush_of_all_reaches_every_channel_of_every_collection(world: World) -> None:
    """Idle, unowned, CLAIMED, never consumed: one that is left out keeps its rows open, one that can never be done blocks all."""
    managed = world.channels
    node_id = await world.start_datanode()
    await world.report(node_id, **{managed[0]: 50})
    await world.save(managed[0], lane(world.default, 0, 30), checkpoint=30)
    await world.create("claimed", ChannelMode.CLAIMED)
    (claim, _) = await world.store.claim_channels("q", world.channels, caller=CALLER)
    assert claim.info is not None
    part = save(claim.channel_name, claim.info.epoch, lane(world.default, 0, 7), checkpoint=7)
    await world.store.save_binlog_paths([part], caller=CALLER)

    flush = await world.store.flush_all(caller=CALLER)
    assert {t.channel_name: t.timestamp for t in flush.targets} == {
        managed[0]: 50,
        managed[1]: 0,
        world.channels[0]: 7,
        world.channels[1]: 0,
    }
    state = await world.store.get_flush_all_state(flush.flush_id)
    assert [late.target.channel_name for late in state.pending] == [managed[0]]
    assert {s.channel_name: s.state for s in (await world.store.list_segments()).items} == {
        managed[0]: SegmentState.GROWING,
        world.channels[0]: SegmentState.FLUSHED,
    }
    epoch = next(row.epoch for row in (await world.store.list_channels()).items if row.channel_name == managed[0])
    await world.move(managed[0], 50, epoch=epoch)
    assert (await world.store.get_flush_all_state(flush.flush_id)).flushed
    assert await done(world, flush.flush_id)


async def test_a_flush_of_all_names_the_channel_it_waits_for_longest_silent_first(world: World) -> None:
    """One stuck channel of a hundred thousand holds it back: who has it, and are they alive?"""
    first, second = world.channels
    silent = await world.start_datanode(0)
    await world.report(silent, **{first: 50, second: 60})
    world.clock.advance(LEASE_MS // 2)
    lively = await world.start_datanode(1)
    await world.create("other", channels=1)
    third = world.channels[0]
    flush = await world.store.flush_all(caller=CALLER)
    assert {t.channel_name: t.timestamp for t in flush.targets} == {first: 50, second: 60, third: 0}
    # The session that was asked for a channel hands it over; the other one gets it.
    handed = next(w for w in (await world.store.desired_state(silent)).channels if w.release)
    await world.store.release_channels([ChannelRelease(handed.channel_name, handed.epoch)], caller=CALLER)
    await world.store.run_assignment_job()
    world.clock.advance(LEASE_MS // 2 - 1)
    await world.report(lively)

    state = await world.store.get_flush_all_state(flush.flush_id)
    kept = next(name for name in (first, second) if name != handed.channel_name)
    assert [late.target.channel_name for late in state.pending] == [kept, handed.channel_name]
    assert [late.owner for late in state.pending] == [f"job/0#{silent}", f"job/1#{lively}"]
    assert state.pending[0].last_seen_time_ms < state.pending[1].last_seen_time_ms
    assert (state.flushed, state.pending_channels, {late.collection_name for late in state.pending}) == (
        False,
        2,
        {"t"},
    )
    rows = {row.channel_name: row.epoch for row in (await world.store.list_channels()).items}
    assert [late.epoch for late in state.pending] == [rows[kept], rows[handed.channel_name]]

    world.clock.advance(2 * LEASE_MS)
    await world.store.run_lease_job()
    orphaned = (await world.store.get_flush_all_state(flush.flush_id)).pending
    assert [(late.owner, late.last_seen_time_ms) for late in orphaned] == [("", 0), ("", 0)]


async def test_a_flush_of_nothing_is_done(empty_world: World) -> None:
    """A script that flushes before it stops must not hang on an empty service; a typo is no flush."""
    flush = await empty_world.store.flush_all(caller=CALLER)

    state = await empty_world.store.get_flush_all_state(flush.flush_id)
    assert (state.flushed, state.pending_channels, state.pending) == (True, 0, ())
    with pytest.raises(FlushNotFoundError):
        await empty_world.store.get_flush_all_state(flush.flush_id + 1)


async def test_a_dropped_collection_does_not_hold_a_flush_of_all(world: World) -> None:
    """Its channels will never reach anything again."""
    node_id = await world.start_datanode()
    await world.report(node_id, **dict.fromkeys(world.channels, 9))
    flush = await world.store.flush_all(caller=CALLER)
    assert (await world.store.get_flush_all_state(flush.flush_id)).pending_channels == 2
    await world.store.drop_collection(world.collection.name, caller=CALLER)

    assert (await world.store.get_flush_all_state(flush.flush_id)).flushed
    assert (await world.store.flush_all(caller=CALLER)).targets == ()


async def test_more_late_channels_than_an_answer_names_are_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that is cut without a word looks like the whole."""
    monkeypatch.setattr(flushes, "FLUSH_PENDING_MAX", 1)
    node_id = await world.start_datanode()
    await world.report(node_id, **dict.fromkeys(world.channels, 9))
    flush = await world.store.flush_all(caller=CALLER)

    state = await world.store.get_flush_all_state(flush.flush_id)
    assert (state.flushed, state.pending_channels, len(state.pending)) == (False, 2, 1)
