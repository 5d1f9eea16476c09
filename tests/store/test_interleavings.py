"""The interleavings that broke earlier drafts of the protocol, by their number in its review; those that R1 and R2 decide."""

import asyncio

import pytest

from coordinator.core.model import ChannelMode, LaneSave, Outcome
from coordinator.store import ChannelRelease, CheckpointMove, DesiredState, NewCollection, TimestampKind
from datacoord.errors import Reason
from datacoord.limits import ALL_PARTITIONS_ID, CHECKPOINTS_MAX, SAVE_BINLOGS_MAX, SAVE_CHANNEL_LANES_MAX
from datacoord.paths import BinlogKind

from .support import CALLER, CLAIM_LEASE_MS, LEASE_MS, World, binlog, lane, position, reason_of, reasons, save


async def test_01_deletes_share_the_range_of_their_lane(world: World) -> None:
    """Insert at 10, delete at 15: with ranges of their own, the second of the two would be refused or lost for ever."""
    channel = world.channels[0]
    both = LaneSave(world.default, 0, 20, (binlog(10, 10), binlog(15, 15, kind=BinlogKind.DELTA)))
    unnamed = LaneSave(ALL_PARTITIONS_ID, 0, 20, (binlog(15, 15, kind=BinlogKind.DELTA),))

    answer = await world.save(channel, both, unnamed, checkpoint=20)

    assert answer.outcome is Outcome.APPLIED
    assert await world.registered(channel) == {world.default: [(10, 10), (15, 15)], ALL_PARTITIONS_ID: [(15, 15)]}


async def test_03_a_lane_idle_for_long_does_not_hold_the_checkpoint_back(world: World) -> None:
    """C=1000, the lane's P=10: its next range starts at 10 and holds rows beyond C only."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 10), checkpoint=1000)

    idle = LaneSave(world.default, 10, 1005, (binlog(1003, 1003),))
    assert (await world.save(channel, idle, checkpoint=1005)).outcome is Outcome.APPLIED


async def test_04_the_checkpoint_of_a_save_is_stored_as_sent_and_pins_are_the_writers(world: World) -> None:
    """The lane that is not in this very call holds the checkpoint at 4: the server must not move it to the end of the range."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 24), checkpoint=4)

    assert (await world.info(channel)).checkpoint == position(4)
    late = LaneSave(world.other, 0, 24, (binlog(5, 20),))
    assert (await world.save(channel, late, checkpoint=24)).outcome is Outcome.APPLIED


async def test_05_the_first_range_of_a_new_partition_starts_at_zero(world: World) -> None:
    """Two developers choose 0 and C; the rows between would be lost or refused."""
    channel = world.channels[0]
    await world.move(channel, 50)
    new = await world.store.create_partition(world.collection.name, "new", caller=CALLER)

    assert reason_of(await world.save(channel, LaneSave(new, 50, 60, (binlog(51, 60),)))) is Reason.GAP
    assert (await world.save(channel, LaneSave(new, 0, 60, (binlog(51, 60),)))).outcome is Outcome.APPLIED


async def test_06_a_range_that_reaches_beyond_progress_is_not_already_applied(claimed_world: World) -> None:
    """Two drivers of one query share an epoch: A moves P to 5, B sends (0, 8]: told ALREADY_APPLIED, rows 6 to 8 are lost."""
    world = claimed_world
    channel = world.channels[0]
    (answer,) = await world.store.claim_channels("q", [channel], caller=CALLER)
    assert answer.info is not None
    epoch = answer.info.epoch
    await world.save(channel, lane(world.default, 0, 5), epoch=epoch, checkpoint=5)

    refused = await world.save(channel, lane(world.default, 0, 8), epoch=epoch, checkpoint=8)

    assert reason_of(refused) is Reason.OVERLAP
    assert (await world.info(channel)).checkpoint == position(5)


async def test_07_a_retry_that_was_joined_with_the_next_range_is_refused_and_the_unchanged_one_is_not(
    world: World,
) -> None:
    """(0, 10] is applied and its reply lost: (0, 20] would overlap for ever, (0, 10] again is answered."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 10))

    assert reason_of(await world.save(channel, lane(world.default, 0, 20))) is Reason.OVERLAP
    assert (await world.save(channel, lane(world.default, 0, 10))).outcome is Outcome.ALREADY_APPLIED
    assert (await world.save(channel, lane(world.default, 10, 20))).outcome is Outcome.APPLIED


async def test_15_an_object_says_in_its_path_whether_it_can_still_be_registered(world: World) -> None:
    """Collected by age, the file of a slow but valid owner would be gone when it registers it."""
    channel = world.channels[0]
    node_id = await world.start_datanode()
    epoch = await world.epoch(channel)
    world.clock.advance(LEASE_MS - 1)
    await world.report(node_id)
    world.clock.advance(LEASE_MS - 1)

    answer = await world.save(channel, lane(world.default, 0, 10), epoch=epoch)

    assert answer.outcome is Outcome.APPLIED
    (listed,) = (await world.store.list_binlogs(world.collection.name, channel_names=[channel])).items
    assert listed.binlogs[0].path.split("/")[3] == str(epoch)
    assert listed.binlogs[0].path.split("/")[4].startswith("0-10-")


async def test_17_a_sink_commits_with_the_progress_its_tasks_filtered_with(claimed_world: World) -> None:
    """D1 plans at P=0, D2 commits (0, 10]; D1's rows 1 to 12 with a `from` read at commit would double 1 to 10."""
    world = claimed_world
    channel = world.channels[0]
    (claimed,) = await world.store.claim_channels("q", [channel], caller=CALLER)
    assert claimed.info is not None
    epoch = claimed.info.epoch
    planned = lane(world.default, 0, 12)
    await world.save(channel, lane(world.default, 0, 10), epoch=epoch, checkpoint=10)

    assert reason_of(await world.save(channel, planned, epoch=epoch, checkpoint=12)) is Reason.OVERLAP
    assert await world.registered(channel) == {world.default: [(1, 10)]}


async def test_18_a_claim_in_the_writers_constructor_does_not_fence_its_own_batch(claimed_world: World) -> None:
    """Spark constructs the writer twice per batch: plan claims e1, commit's constructor claims again, the save names e1."""
    world = claimed_world
    channel = world.channels[0]
    (planned,) = await world.store.claim_channels("q", [channel], caller=CALLER)
    await world.store.claim_channels("q", [channel], caller=CALLER)
    assert planned.info is not None

    answer = await world.save(channel, lane(world.default, 0, 5), epoch=planned.info.epoch, checkpoint=5)
    assert answer.outcome is Outcome.APPLIED


async def test_21_two_claimants_do_not_take_the_channel_from_each_other(claimed_world: World) -> None:
    """Where the newest wins, 400 ticks land 0 batches."""
    world = claimed_world
    channel = world.channels[0]
    landed = 0
    for tick in range(20):
        name = f"q{tick % 2}"
        (answer,) = await world.store.claim_channels(name, [channel], caller=CALLER)
        if answer.info is None:
            assert answer.refusal is not None
            assert answer.refusal.reason is Reason.OWNED
            continue
        end = landed + 1
        saved = await world.save(channel, lane(world.default, landed, end), epoch=answer.info.epoch, checkpoint=end)
        landed += saved.outcome is Outcome.APPLIED
        world.clock.advance(CLAIM_LEASE_MS // 4)

    assert landed == 10


async def test_22_a_managed_channel_cannot_be_claimed_nor_a_claimed_one_assigned(world: World) -> None:
    """The claim raises the epoch, the assigner gives the channel back, the batch is fenced, for ever."""
    managed = world.collection
    await world.create("claimed", ChannelMode.CLAIMED)
    claimed = world.channels
    session = await world.store.register_datanode("job", 0, [managed.name, "claimed"], host="h", pid=1, caller=CALLER)
    await world.store.watch_datanode(session.node_id)
    await world.store.claim_channels("q", claimed, caller=CALLER)
    before = [(await world.info(channel)).epoch for channel in claimed]

    answers = await world.store.claim_channels("q", managed.channel_names, force=True, caller=CALLER)
    await world.store.run_assignment_job()

    assert {answer.refusal.reason for answer in answers if answer.refusal} == {Reason.WRONG_MODE}
    desired = await world.store.desired_state(session.node_id)
    assert {watched.channel_name for watched in desired.channels} == set(managed.channel_names)
    assert [(await world.info(channel)).epoch for channel in claimed] == before


async def test_23_a_partition_that_was_dropped_does_not_hold_up_the_others(world: World) -> None:
    """Its range is accepted and discarded; the save, repeated unchanged, lands the other lanes."""
    channel = world.channels[0]
    part = save(channel, await world.epoch(channel), lane(world.other, 0, 9), lane(world.default, 0, 9), checkpoint=9)
    await world.store.drop_partition(world.collection.name, "other", caller=CALLER)

    first, again = [(await world.store.save_binlog_paths([part], caller=CALLER))[0] for _ in range(2)]

    assert [a.outcome for a in first.lanes] == [Outcome.DISCARDED, Outcome.APPLIED]
    assert [a.outcome for a in again.lanes] == [Outcome.DISCARDED, Outcome.ALREADY_APPLIED]
    assert (again.outcome, (await world.info(channel)).checkpoint) == (Outcome.ALREADY_APPLIED, position(9))


async def test_23_a_drop_that_shares_the_moment_with_a_save_comes_before_or_after_it(world: World) -> None:
    """Never in the middle: objects of a dropped lane in a segment that grows would be read for ever."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    parts = [save(channel, epoch, lane(world.other, n, n + 1), checkpoint=None) for n in range(6)]
    calls = [world.store.save_binlog_paths([part], caller=CALLER) for part in parts]
    dropping = world.store.drop_partition(world.collection.name, "other", caller=CALLER)
    await asyncio.gather(*calls[:3], dropping, *calls[3:])

    assert await world.registered(channel) == {}
    assert (await world.info(channel)).growing_segments == ()


async def test_25_routing_that_changed_between_attempts_cannot_register_a_row_again(world: World) -> None:
    """Row 5 was saved in one partition, the expression was altered, the replay routes it to another one with P=0."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 5), checkpoint=5)

    replayed = LaneSave(world.other, 0, 9, (binlog(5, 9),))
    assert reason_of(await world.save(channel, replayed)) is Reason.BELOW_CHECKPOINT
    assert (await world.info(channel)).lanes[0].partition_id == world.default
    assert len((await world.info(channel)).lanes) == 1


async def test_26_a_flush_is_not_done_by_a_successor_that_consumed_less(world: World) -> None:
    """A consumed to 50, flush, A dies, B is at C=20: what is derived cannot be acknowledged too early."""
    channel, other = world.channels
    node_id = await world.start_datanode()
    await world.move(other, 50)
    await world.report(node_id, **{channel: 50})
    flush = await world.store.flush(world.collection.name, 50, caller=CALLER)
    await world.start_datanode()
    await world.move(channel, 20)

    state = await world.store.get_flush_state(flush.flush_id)
    assert (state.flushed, [target.timestamp for target in state.pending]) == (False, [50])


async def test_27_one_range_of_any_allowed_size_fits_into_one_transaction(world: World) -> None:
    """A message with more files than a transaction takes would be refused for ever."""
    channel = world.channels[0]
    many = tuple(binlog(1, 9) for _ in range(SAVE_BINLOGS_MAX))
    assert SAVE_CHANNEL_LANES_MAX <= CHECKPOINTS_MAX

    answer = await world.save(channel, LaneSave(world.default, 0, 9, many, seal=True))

    assert answer.outcome is Outcome.APPLIED
    assert [s.binlogs for s in await world.segments()] == [SAVE_BINLOGS_MAX]


async def test_28_epochs_and_names_do_not_come_back(world: World) -> None:
    """Drop, create with the same name, epoch 1 again: a zombie of the old epoch 1 writes."""
    channel = world.channels[0]
    zombie = await world.epoch(channel)
    await world.store.drop_virtual_channel(save(channel, zombie), caller=CALLER)
    new = NewCollection("again", b"schema", (), 3, ChannelMode.MANAGED, TimestampKind.ORDINAL)
    created, _ = await world.store.create_collection(new, caller=CALLER)

    assert str(created.collection_id) in created.channel_names[0]
    infos = (await world.store.recovery_info(collection_name="again")).items
    assert min(info.epoch for info in infos) > zombie
    assert reason_of(await world.move(channel, 5, epoch=zombie)) is Reason.CHANNEL_DROPPED


async def test_29_revisions_tell_a_late_desired_state_from_the_newest(world: World) -> None:
    """Two replicas answer, the older revision arrives last: whoever ignores revisions already seen is right."""
    channel = world.channels[0]
    node_id = await world.start_datanode()
    states: list[DesiredState] = [await world.store.desired_state(node_id)]
    for _ in range(3):
        release = ChannelRelease(channel, await world.epoch(channel))
        await world.store.release_channels([release], caller=CALLER)
        states.append(await world.store.desired_state(node_id))
        await world.store.run_assignment_job()
        states.append(await world.store.desired_state(node_id))

    assert [s.revision for s in states] == sorted({s.revision for s in states})
    epochs = [w.epoch for s in states for w in s.channels if w.channel_name == channel]
    assert epochs == sorted(set(epochs))


async def test_32_a_zombies_larger_entry_does_not_swallow_the_owners(world: World) -> None:
    """In one call, and in two calls of one transaction."""
    channel = world.channels[0]
    zombie = await world.epoch(channel)
    await world.start_datanode()
    owner = await world.epoch(channel)
    moves = [CheckpointMove(channel, owner, position(5)), CheckpointMove(channel, zombie, position(9))]

    one_call = await world.store.update_channel_checkpoints(moves, caller=CALLER)
    moves = [CheckpointMove(channel, zombie, position(9)), CheckpointMove(channel, owner, position(6))]
    two_calls = await asyncio.gather(*(world.store.update_channel_checkpoints([move], caller=CALLER) for move in moves))

    assert reasons(one_call) == ["APPLIED", "FENCED"]
    assert reasons([answer for (answer,) in two_calls]) == ["FENCED", "APPLIED"]
    assert (await world.info(channel)).checkpoint == position(6)


async def test_33_the_repetition_of_a_release_and_of_a_drop_says_that_it_is_done(world: World) -> None:
    """The reply was lost, the epoch is raised already, the channel a tombstone already."""
    first, second = world.channels
    release = ChannelRelease(first, await world.epoch(first), position(3))
    drop = save(second, await world.epoch(second), lane(world.default, 0, 5))
    (released,) = await world.store.release_channels([release], caller=CALLER)
    (again,) = await world.store.release_channels([release], caller=CALLER)
    dropped = [await world.store.drop_virtual_channel(drop, caller=CALLER) for _ in range(2)]

    assert released.outcome is Outcome.APPLIED
    assert reason_of(again) is Reason.FENCED
    assert reasons(dropped) == ["APPLIED", "ALREADY_APPLIED"]


@pytest.mark.parametrize("how", ["save", "move", "release"])
async def test_34_a_slow_database_does_not_end_sessions_that_write(world: World, how: str) -> None:
    """Heartbeats are late, all leases run out, channels move, everybody replays."""
    first, second = world.channels
    node_id = await world.start_datanode()
    world.clock.advance(LEASE_MS - 1)
    if how == "save":
        await world.save(first, lane(world.default, 0, 5))
    elif how == "move":
        await world.move(first, 5)
    else:
        await world.store.release_channels([ChannelRelease(first, await world.epoch(first))], caller=CALLER)
    world.clock.advance(LEASE_MS - 1)

    assert (await world.store.run_lease_job()).ended == ()
    assert (await world.info(second)).owner == f"job/0#{node_id}"


async def test_34_what_was_refused_is_no_sign_of_life(world: World) -> None:
    """A zombie must not keep its successor's lease alive, nor its own."""
    channel = world.channels[0]
    await world.start_datanode()
    zombie = await world.epoch(channel)
    node_id = await world.start_datanode()
    world.clock.advance(LEASE_MS - 1)
    await world.save(channel, lane(world.default, 0, 5), epoch=zombie)
    await world.move(channel, 5, epoch=zombie)
    world.clock.advance(2)

    assert (await world.store.run_lease_job()).ended == (node_id,)


async def test_a_zombie_cannot_save_after_the_channel_moved(world: World) -> None:
    """It wakes after its lease, with rows its successor replays: told so, and told who owns the channel."""
    channel = world.channels[0]
    await world.start_datanode()
    zombie = await world.epoch(channel)
    await world.save(channel, lane(world.default, 0, 5), epoch=zombie, checkpoint=3)
    world.clock.advance(LEASE_MS + 1)
    await world.store.run_lease_job()
    successor = await world.start_datanode(1)

    late = await world.save(channel, lane(world.default, 5, 9), epoch=zombie, checkpoint=9)

    assert reason_of(late) is Reason.FENCED
    assert late.facts is not None
    assert (late.facts.owner, late.facts.checkpoint) == (f"job/1#{successor}", position(3))
    assert late.facts.lanes[world.default].progress == 5
    assert await world.registered(channel) == {world.default: [(1, 5)]}


async def test_a_checkpoint_beside_a_save_neither_blocks_nor_loses_it(world: World) -> None:
    """Checkpoint updates run beside the one outstanding save: they are monotone and fenced, in whatever order they land."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    for start in range(0, 50, 10):
        rows = LaneSave(world.default, start, start + 10, (binlog(start + 5, start + 10),))
        part = save(channel, epoch, rows, checkpoint=start + 4)
        moves = [CheckpointMove(channel, epoch, position(start + n)) for n in (1, 3, 2)]
        *_, saved = await asyncio.gather(
            *(world.store.update_channel_checkpoints([move], caller=CALLER) for move in moves),
            world.store.save_binlog_paths([part], caller=CALLER),
        )
        assert reasons(saved) == ["APPLIED"]
        assert (await world.info(channel)).checkpoint == position(start + 4)
