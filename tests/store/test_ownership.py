"""Checkpoints, release, claim, assign and sessions through SQL (R2)."""

import pytest

from coordinator.core.model import Outcome
from coordinator.store import ChannelRelease, CheckpointMove, ClaimAnswer, DataNodeState
from datacoord.errors import CollectionNotFoundError, Reason, SessionNotFoundError
from datacoord.v1 import data_coord_pb2

from .support import CALLER, CLAIM_LEASE_MS, LEASE_MS, World, lane, position, reason_of, reasons, save

# ---- checkpoints ------------------------------------------------------------------------------------------------------------


async def test_a_checkpoint_is_stored_as_a_whole_position(world: World) -> None:
    """A timestamp with another position's msg_id would seek to the wrong place."""
    channel = world.channels[0]
    assert (await world.move(channel, 7)).outcome is Outcome.APPLIED
    smaller = await world.move(channel, 6)

    assert smaller.outcome is Outcome.ALREADY_APPLIED
    assert smaller.facts is not None
    assert smaller.facts.checkpoint == position(7)
    assert (await world.info(channel)).checkpoint == position(7)


async def test_entries_of_one_channel_are_decided_in_order_and_by_their_own_epoch(world: World) -> None:
    """Folded by channel alone, a zombie's larger entry would swallow the owner's."""
    channel = world.channels[0]
    zombie = await world.epoch(channel)
    await world.start_datanode()
    owner = await world.epoch(channel)
    entries = [(owner, 5), (zombie, 99), (owner, 8), (owner, 6), (owner, 8)]
    moves = [CheckpointMove(channel, epoch, position(timestamp)) for epoch, timestamp in entries]

    answers = await world.store.update_channel_checkpoints(moves, caller=CALLER)

    assert reasons(answers) == ["APPLIED", "FENCED", "APPLIED", "ALREADY_APPLIED", "ALREADY_APPLIED"]
    assert (await world.info(channel)).checkpoint == position(8)


async def test_a_checkpoint_of_an_unknown_or_dropped_channel_is_refused(world: World) -> None:
    """Milvus once skipped such entries silently and answered success."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    await world.store.drop_virtual_channel(save(channel, epoch), caller=CALLER)

    assert reason_of(await world.move("nobody", 5, epoch=1)) is Reason.CHANNEL_NOT_FOUND
    assert reason_of(await world.move(channel, 5, epoch=epoch)) is Reason.CHANNEL_DROPPED


# ---- sessions and assignment ------------------------------------------------------------------------------------------------


async def test_channels_are_spread_evenly_over_sessions_that_watch(world: World) -> None:
    """One that never watches must hold nothing: nobody would write its channels."""
    silent = await world.store.register_datanode("job", 5, [world.collection.name], host="h", pid=1, caller=CALLER)
    assert (await world.store.run_assignment_job()).unassigned == 2

    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    for _ in range(3):
        await world.store.run_assignment_job()
        for node_id in (first, second):
            for watched in (await world.store.desired_state(node_id)).channels:
                if watched.release:
                    release = ChannelRelease(watched.channel_name, watched.epoch, position(3))
                    await world.store.release_channels([release], caller=CALLER)

    held = {n: [w.channel_name for w in (await world.store.desired_state(n)).channels] for n in (first, second)}
    assert sorted(len(names) for names in held.values()) == [1, 1]
    assert (await world.store.desired_state(silent.node_id)).channels == ()


async def test_a_new_session_of_a_slot_ends_the_old_one_at_once(world: World) -> None:
    """The task was restarted: waiting for a lease would leave its channels without a writer."""
    channel = world.channels[0]
    old = await world.start_datanode()
    before = await world.epoch(channel)
    new = await world.start_datanode()

    with pytest.raises(SessionNotFoundError):
        await world.store.desired_state(old)
    with pytest.raises(SessionNotFoundError):
        await world.report(old)
    with pytest.raises(SessionNotFoundError):
        await world.store.watch_datanode(old)
    assert await world.epoch(channel) > before
    assert {w.channel_name for w in (await world.store.desired_state(new)).channels} == set(world.channels)
    assert reason_of(await world.move(channel, 5, epoch=before)) is Reason.FENCED


async def test_a_session_ends_when_nothing_is_heard_of_it(world: World) -> None:
    """A hung datanode must not keep its channels."""
    node_id = await world.start_datanode()
    held = await world.epoch(world.channels[0])
    world.clock.advance(LEASE_MS // 2)
    await world.report(node_id)
    world.clock.advance(LEASE_MS // 2 + 1)
    assert (await world.store.run_lease_job()).ended == ()

    world.clock.advance(LEASE_MS)
    round_ = await world.store.run_lease_job()

    assert (round_.ended, round_.freed_channels) == ((node_id,), 2)
    assert (await world.info(world.channels[0])).owner == ""
    assert await world.epoch(world.channels[0]) > held
    assert (await world.store.run_lease_job()).ended == ()


async def test_any_accepted_write_renews_the_lease(world: World) -> None:
    """A slow database delays heartbeats, all leases run out, everybody replays: writes are signs of life as well."""
    node_id = await world.start_datanode()
    channel = world.channels[0]
    for step in range(1, 5):
        world.clock.advance(LEASE_MS - 1000)
        if step % 2:
            await world.save(channel, lane(world.default, (step - 1) * 10, step * 10))
        await world.move(channel, step * 10 + 1 if step % 2 else step * 10)
        assert (await world.store.run_lease_job()).ended == ()

    refused = await world.move(channel, 99, epoch=1)
    assert reason_of(refused) is Reason.FENCED
    world.clock.advance(LEASE_MS + 1)
    assert (await world.store.run_lease_job()).ended == (node_id,)


async def test_a_stopping_session_is_asked_for_everything_and_told_so(world: World) -> None:
    """stop() drains through the coordinator."""
    node_id = await world.start_datanode()
    revision = (await world.store.desired_state(node_id)).revision
    report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, stopping=True)

    state = await world.store.report_datanode(report, caller=CALLER)
    desired = await world.store.desired_state(node_id)

    assert state.state is DataNodeState.STOPPING
    assert desired.revision > revision
    assert [watched.release for watched in desired.channels] == [True, True]
    for watched in desired.channels:
        release = ChannelRelease(watched.channel_name, watched.epoch, None)
        await world.store.release_channels([release], caller=CALLER)
    assert (await world.store.run_assignment_job()).unassigned == 2
    report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, ended=True)
    assert (await world.store.report_datanode(report, caller=CALLER)).state is DataNodeState.ENDED


async def test_a_session_that_says_it_has_ended_frees_its_channels(world: World) -> None:
    """Nobody should wait for the lease of a process that said goodbye."""
    node_id = await world.start_datanode()
    report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, ended=True)
    await world.store.report_datanode(report, caller=CALLER)

    assert (await world.info(world.channels[0])).owner == ""
    with pytest.raises(SessionNotFoundError):
        await world.report(node_id)


async def test_states_of_a_session_follow_what_it_does(world: World) -> None:
    """Operators read them."""
    session = await world.store.register_datanode("job", 0, [world.collection.name], host="h", pid=7, caller=CALLER)

    async def state() -> DataNodeState:
        report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=session.node_id)
        said = (await world.store.report_datanode(report, caller=CALLER)).state
        assert (await world.store.list_datanodes()).items[0].state is said
        return said

    assert await state() is DataNodeState.INITIALIZING
    await world.store.watch_datanode(session.node_id)
    assert await state() is DataNodeState.IDLE
    await world.store.run_assignment_job()
    assert await state() is DataNodeState.HEALTHY


async def test_a_session_reads_collections_that_exist(world: World) -> None:
    """A typo would otherwise make a datanode that never gets anything."""
    with pytest.raises(CollectionNotFoundError):
        await world.store.register_datanode("job", 0, ["typo"], host="h", pid=1, caller=CALLER)


async def test_every_change_of_a_desired_state_has_its_own_revision_and_is_announced(world: World) -> None:
    """A watcher that ignores revisions it has seen would miss a change that kept the number."""
    heard: list[frozenset[int]] = []
    world.store.on_desired_change(heard.append)
    node_id = await world.start_datanode()
    assert heard[-1] == {node_id}

    seen = [(await world.store.desired_state(node_id)).revision]
    channel = world.channels[0]
    await world.report(node_id, **{channel: 50})
    for change in (
        world.store.flush(world.collection.name, caller=CALLER),
        world.move(channel, 50),
        world.store.release_channels([ChannelRelease(channel, await world.epoch(channel))], caller=CALLER),
        world.store.run_assignment_job(),
    ):
        await change
        seen.append((await world.store.desired_state(node_id)).revision)
    await world.report(node_id, **{channel: 60})
    await world.save(channel, lane(world.default, 0, 60))

    assert seen == sorted(set(seen))
    assert await world.store.desired_revisions([node_id, 10**9]) == {node_id: seen[-1]}


# ---- hand-over --------------------------------------------------------------------------------------------------------------


async def test_a_hand_over_keeps_the_last_progress(world: World) -> None:
    """A final position that is refused makes the next owner start from a stale one."""
    channel = world.channels[0]
    await world.start_datanode()
    epoch = await world.epoch(channel)
    release = ChannelRelease(channel, epoch, position(33))

    (answer,) = await world.store.release_channels([release], caller=CALLER)
    (again,) = await world.store.release_channels([release], caller=CALLER)

    assert answer.outcome is Outcome.APPLIED
    assert reason_of(again) is Reason.FENCED
    info = await world.info(channel)
    assert (info.owner, info.checkpoint) == ("", position(33))
    assert info.epoch > epoch


async def test_what_an_owner_consumed_is_known_to_its_successor(world: World) -> None:
    """What is read again up to there is a replay: it is counted, and lag does not jump."""
    channel, other = world.channels
    node_id = await world.start_datanode()
    await world.report(node_id, **{channel: 70, other: 5})
    assert (await world.info(channel)).consumed_timestamp == 0

    node_id = await world.start_datanode()
    assert (await world.info(channel)).consumed_timestamp == 70
    await world.report(node_id, **{channel: 60, other: 6})
    world.clock.advance(LEASE_MS + 1)
    await world.store.run_lease_job()

    assert (await world.info(channel)).consumed_timestamp == 70
    assert (await world.info(other)).consumed_timestamp == 6


async def test_epochs_are_never_reused_and_change_with_every_owner(world: World) -> None:
    """A → B → A: the first A's graph is a zombie although A owns the channel again."""
    channel = world.channels[0]
    seen = [await world.epoch(channel)]
    for _ in range(3):
        await world.start_datanode()
        seen.append(await world.epoch(channel))
        await world.store.release_channels([ChannelRelease(channel, seen[-1])], caller=CALLER)
        seen.append(await world.epoch(channel))

    assert seen == sorted(set(seen))
    for epoch in seen[:-1]:
        assert reason_of(await world.move(channel, 1, epoch=epoch)) is Reason.FENCED


# ---- claims -----------------------------------------------------------------------------------------------------------------


async def claim(world: World, name: str, *, force: bool = False) -> list[ClaimAnswer]:
    """Claims every channel of the collection."""
    return await world.store.claim_channels(name, world.channels, force=force, caller=CALLER)


def epochs(answers: list[ClaimAnswer]) -> list[int]:
    """The epochs that were given."""
    return [answer.info.epoch for answer in answers if answer.info is not None]


def refused(answers: list[ClaimAnswer]) -> set[Reason]:
    """Why claims were refused."""
    return {answer.refusal.reason for answer in answers if answer.refusal is not None}


async def test_a_claim_answers_recovery_info_of_the_same_transaction(claimed_world: World) -> None:
    """Epoch and progress of two reads may be of two owners."""
    world = claimed_world
    answers = await claim(world, "q")

    assert [a.info for a in answers] == [await world.info(channel) for channel in world.channels]
    assert {a.info.owner for a in answers if a.info is not None} == {"q"}


async def test_claiming_again_under_the_same_name_keeps_the_epoch(claimed_world: World) -> None:
    """Spark constructs the writer twice per batch."""
    world = claimed_world
    first = epochs(await claim(world, "q"))
    world.clock.advance(10 * CLAIM_LEASE_MS)

    assert epochs(await claim(world, "q")) == first
    assert epochs(await claim(world, "q", force=True)) == first


async def test_duelling_claimants_do_not_fence_each_other(claimed_world: World) -> None:
    """Where the newest wins, none of them ever finishes a batch."""
    world = claimed_world
    first = epochs(await claim(world, "q1"))
    assert refused(await claim(world, "q2")) == {Reason.OWNED}

    world.clock.advance(CLAIM_LEASE_MS - 1000)
    answer = await world.save(world.channels[0], lane(world.default, 0, 5), epoch=first[0], checkpoint=5)
    assert answer.outcome is Outcome.APPLIED
    world.clock.advance(CLAIM_LEASE_MS // 2)
    assert refused(await claim(world, "q2")) == {Reason.OWNED}

    world.clock.advance(CLAIM_LEASE_MS)
    taken = epochs(await claim(world, "q2"))
    assert min(taken) > max(first)
    assert refused(await claim(world, "q1")) == {Reason.OWNED}
    assert min(epochs(await claim(world, "q1", force=True))) > max(taken)


async def test_a_refused_claim_leaves_no_trace(claimed_world: World) -> None:
    """A claimant that only ever loses must not fill the database."""
    world = claimed_world
    await claim(world, "q1")
    statistics = await world.store.call_statistics()
    await claim(world, "q2")

    assert await world.store.call_statistics() == statistics


async def test_managed_channels_cannot_be_claimed_nor_claimed_ones_assigned(world: World) -> None:
    """The assigner would take the channel back at once, for ever."""
    await world.start_datanode()
    assert refused(await claim(world, "q", force=True)) == {Reason.WRONG_MODE}
    unknown = await world.store.claim_channels("q", ["nobody"], caller=CALLER)
    assert refused(unknown) == {Reason.CHANNEL_NOT_FOUND}
