"""MoveChannel, hand-over and balance through SQL: nothing is taken by force, what an operator wants goes before the balance."""

import pytest
from support.engines import engine_of

from coordinator.core.assignment import HeldChannel
from coordinator.core.model import Outcome
from coordinator.store import ChannelRelease, placements
from datacoord.errors import ChannelDroppedError, ChannelNotFoundError, Reason, SessionNotFoundError, WrongModeError

from .support import CALLER, LEASE_MS, World, dump, lane, position, reason_of, save


async def move(world: World, channel: str, node_id: int = 0) -> Outcome:
    """An operator moves a channel."""
    return (await world.store.move_channel(channel, node_id, caller=CALLER)).outcome


async def hand_over(world: World, node_id: int, timestamp: int = 0) -> list[str]:
    """A datanode hands over what it is asked for, as it should, with its last position; which channels that were."""
    asked = [watched for watched in (await world.store.desired_state(node_id)).channels if watched.release]
    for watched in asked:
        last = position(timestamp) if timestamp else None
        (answer,) = await world.store.release_channels(
            [ChannelRelease(watched.channel_name, watched.epoch, last)], caller=CALLER
        )
        assert answer.outcome is Outcome.APPLIED
    return [watched.channel_name for watched in asked]


async def settle(world: World, *node_ids: int) -> None:
    """Rounds of the assignment job with datanodes that do what they are asked, until nothing moves any more."""
    for _ in range(6):
        done = await world.store.run_assignment_job()
        moved = [name for node_id in node_ids for name in await hand_over(world, node_id)]
        if not (done.assigned or done.asked_to_release or moved):
            return
    raise AssertionError("channels move for ever")


async def held(world: World, *node_ids: int) -> list[set[str]]:
    """Channels of each session."""
    return [{w.channel_name for w in (await world.store.desired_state(node_id)).channels} for node_id in node_ids]


def placed(world: World) -> list[tuple[object, ...]]:
    """What is kept of operators' wishes."""
    return dump(world.url)["placements"]


async def test_a_channel_moved_by_hand_arrives_with_its_last_progress(world: World) -> None:
    """Taken by force, its new owner would read everything again that the old one had consumed."""
    channel = world.channels[0]
    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    before = await world.epoch(channel)

    assert await move(world, channel, second) is Outcome.APPLIED
    assert await world.epoch(channel) == before, "nothing is taken before the owner gives it"
    answer = await world.save(channel, lane(world.default, 0, 20), epoch=before, checkpoint=20)
    assert answer.outcome is Outcome.APPLIED
    assert channel in await hand_over(world, first, timestamp=33)
    await world.store.run_assignment_job()

    assert channel in (await held(world, second))[0]
    info = await world.info(channel)
    assert (info.checkpoint, info.lanes[0].progress) == (position(33), 20)
    assert info.epoch > before


async def test_where_an_operator_put_a_channel_the_balance_leaves_it(world: World) -> None:
    """Moved back in the next round, the move was for nothing, and every move stops the channel for a while."""
    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    await settle(world, first, second)
    (mine,) = (await held(world, first))[0]

    await move(world, mine, second)
    await settle(world, first, second)

    assert mine in (await held(world, second))[0]
    # The balance is kept with what nobody has placed.
    assert [len(names) for names in await held(world, first, second)] == [1, 1]
    for other in world.channels:
        await move(world, other, second)
    await settle(world, first, second)
    assert [len(names) for names in await held(world, first, second)] == [0, 2]


async def test_a_move_without_a_target_goes_to_any_other(world: World) -> None:
    """An operator wants it away from a bad machine, whoever gets it."""
    nodes = [await world.start_datanode(slot) for slot in range(2)]
    await settle(world, *nodes)
    channel = world.channels[0]
    before = next(n for n, names in zip(nodes, await held(world, *nodes), strict=True) if channel in names)

    assert await move(world, channel) is Outcome.APPLIED
    await settle(world, *nodes)

    (other,) = set(nodes) - {before}
    assert channel in (await held(world, other))[0]
    assert [row[1] for row in placed(world)] == [other]


async def test_a_target_that_dies_before_the_channel_arrives_leaves_it_to_any_other(world: World) -> None:
    """It must not wait for a session that never comes back."""
    channel = world.channels[0]
    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    await move(world, channel, second)
    await hand_over(world, first, timestamp=5)
    world.clock.advance(LEASE_MS - 1)
    await world.report(first)
    world.clock.advance(2)
    assert (await world.store.run_lease_job()).ended == (second,)
    await settle(world, first)

    assert channel in (await held(world, first))[0]
    assert placed(world) == []


@pytest.mark.parametrize("given_to", [0, 1])
async def test_a_wish_that_changes_while_the_job_assigns_is_kept(world: World, given_to: int) -> None:
    """The job reads wishes, an operator on another replica wishes anew and is told APPLIED, the job settles what it had read."""
    channel = world.channels[0]
    nodes = [await world.start_datanode(slot) for slot in range(2)]
    await settle(world, *nodes)
    await move(world, channel, nodes[1])
    number = (await world.store.channel_identities([channel]))[channel].channel_id
    before = placed(world)
    engine = engine_of(world.url)
    with engine.begin() as connection:
        held_channel = HeldChannel(number, world.collection.collection_id)
        placements.settle(connection, {number: (0, 7)}, [held_channel], {number: nodes[given_to]})
    engine.dispose()

    assert placed(world) == before
    await settle(world, *nodes)
    assert channel in (await held(world, nodes[1]))[0]


async def test_a_target_that_stops_before_the_channel_arrives_leaves_it_to_any_other(world: World) -> None:
    """It wants to get rid of its channels."""
    channel = world.channels[0]
    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    await move(world, channel, second)
    await world.stop(second)
    await settle(world, first, second)

    assert channel in (await held(world, first))[0]
    assert placed(world) == []


async def test_a_wish_ends_with_the_session_it_names(world: World) -> None:
    """The slot's next session is another one, and rows must not gather."""
    channel = world.channels[0]
    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    await move(world, channel, second)
    await settle(world, first, second)
    third = await world.start_datanode(1)

    assert placed(world) == []
    await settle(world, first, third)
    assert [len(names) for names in await held(world, first, third)] == [1, 1]


async def test_a_move_may_be_repeated(world: World) -> None:
    """Its answer may be lost."""
    channel = world.channels[0]
    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    for _ in range(3):
        assert await move(world, channel, second) is Outcome.APPLIED
    await settle(world, first, second)
    epoch = await world.epoch(channel)

    assert await move(world, channel, second) is Outcome.ALREADY_APPLIED
    await settle(world, first, second)
    assert await world.epoch(channel) == epoch


async def test_a_channel_that_nobody_holds_can_be_moved(world: World) -> None:
    """Asked for while it is between two owners, the wish must not be lost."""
    channel = world.channels[0]
    first = await world.start_datanode(0)
    await world.store.release_channels([ChannelRelease(channel, await world.epoch(channel))], caller=CALLER)
    session = await world.store.register_datanode("job", 1, [world.collection.name], host="h", pid=1, caller=CALLER)
    await world.store.watch_datanode(session.node_id)

    assert await move(world, channel, session.node_id) is Outcome.APPLIED
    await settle(world, first, session.node_id)

    assert channel in (await held(world, session.node_id))[0]


async def test_a_move_that_nobody_could_carry_out_is_refused(world: World) -> None:
    """Accepted, it would stop the channel for nothing."""
    channel, dropped = world.channels
    first = await world.start_datanode(0)
    silent = await world.store.register_datanode("job", 1, [world.collection.name], host="h", pid=1, caller=CALLER)
    collection = world.collection
    await world.create("elsewhere")
    foreign = await world.start_datanode(2, job="elsewhere")
    world.collection = collection
    await world.store.drop_virtual_channel(save(dropped, await world.epoch(dropped)), caller=CALLER)

    for target in (10**9, silent.node_id, foreign):
        with pytest.raises(SessionNotFoundError):
            await move(world, channel, target)
    with pytest.raises(SessionNotFoundError, match="no other datanode"):
        await move(world, channel)
    with pytest.raises(ChannelDroppedError):
        await move(world, dropped, first)
    with pytest.raises(ChannelNotFoundError):
        await move(world, "nobody", first)
    assert placed(world) == []
    assert not any(watched.release for watched in (await world.store.desired_state(first)).channels)


async def test_claimed_channels_are_not_moved(claimed_world: World) -> None:
    """Their owners are sinks, which no coordinator can start."""
    with pytest.raises(WrongModeError):
        await move(claimed_world, claimed_world.channels[0])


async def test_a_placed_channel_that_is_dropped_leaves_nothing(world: World) -> None:
    """Wishes for tombstones would gather."""
    channel = world.channels[0]
    first = await world.start_datanode(0)
    second = await world.start_datanode(1)
    await move(world, channel)
    await world.store.drop_virtual_channel(save(channel, await world.epoch(channel)), caller=CALLER)
    await settle(world, first, second)

    assert placed(world) == []


async def test_a_node_that_joins_gets_its_share_by_hand_overs_only(world: World) -> None:
    """Each hand-over keeps the last progress; a channel taken by force is read again from its checkpoint."""
    first = await world.start_datanode(0)
    epochs = {channel: await world.epoch(channel) for channel in world.channels}
    second = await world.start_datanode(1)
    round_ = await world.store.run_assignment_job()
    assert (round_.assigned, {channel: await world.epoch(channel) for channel in world.channels}) == (0, epochs)

    (given,) = await hand_over(world, first, timestamp=44)
    await world.store.run_assignment_job()

    assert await held(world, first, second) == [set(world.channels) - {given}, {given}]
    assert (await world.info(given)).checkpoint == position(44)


# ---- zombies ----------------------------------------------------------------------------------------------------------------


async def write(world: World, channel: str, epoch: int) -> set[str]:
    """Every kind of write, by somebody who believes in an epoch; what each was answered."""
    progress = next((ln.progress for ln in (await world.info(channel)).lanes), 0)
    at = max(progress, (await world.info(channel)).checkpoint.timestamp)
    part = save(channel, epoch, lane(world.default, progress, at + 5), checkpoint=at + 5)
    answers = [
        *await world.store.save_binlog_paths([part], caller=CALLER),
        await world.move(channel, at + 9, epoch=epoch),
        *await world.store.release_channels([ChannelRelease(channel, epoch, position(at + 9))], caller=CALLER),
        await world.store.drop_virtual_channel(save(channel, epoch), caller=CALLER),
    ]
    return {a.outcome.name if a.outcome is not None else reason_of(a).value for a in answers}


async def test_a_b_a_fences_the_first_a_although_a_owns_the_channel_again(world: World) -> None:
    """Epochs that named the owner would let the first graph of A write beside its second."""
    channel = world.channels[0]
    a = await world.start_datanode(0)
    first = await world.epoch(channel)
    b = await world.start_datanode(1)
    await move(world, channel, b)
    await settle(world, a, b)
    second = await world.epoch(channel)
    await move(world, channel, a)
    await settle(world, a, b)
    third = await world.epoch(channel)
    assert channel in (await held(world, a))[0]
    assert len({first, second, third}) == 3
    before = dump(world.url, leave_out=["epochs"])

    assert await write(world, channel, first) == {Reason.FENCED.value}
    assert await write(world, channel, second) == {Reason.FENCED.value}

    assert dump(world.url, leave_out=["epochs"]) == before
    assert (await world.save(channel, lane(world.default, 0, 5), epoch=third, checkpoint=5)).outcome is Outcome.APPLIED


async def test_a_zombie_that_wakes_after_its_lease_writes_nothing(world: World) -> None:
    """It was stopped for minutes, does not know it, and has a save in its hands."""
    channel = world.channels[0]
    zombie = await world.start_datanode(0)
    epoch = await world.epoch(channel)
    await world.save(channel, lane(world.default, 0, 5), epoch=epoch, checkpoint=3)
    world.clock.advance(LEASE_MS + 1)
    assert zombie in (await world.store.run_lease_job()).ended
    between = dump(world.url, leave_out=["epochs"])
    assert await write(world, channel, epoch) == {Reason.FENCED.value}, "nobody owns it: still not the zombie's"
    assert dump(world.url, leave_out=["epochs"]) == between

    heir = await world.start_datanode(1)
    taken = await world.epoch(channel)
    before = dump(world.url, leave_out=["epochs"])
    assert await write(world, channel, epoch) == {Reason.FENCED.value}
    with pytest.raises(SessionNotFoundError):
        await world.report(zombie)
    with pytest.raises(SessionNotFoundError):
        await world.store.watch_datanode(zombie)
    assert dump(world.url, leave_out=["epochs"]) == before
    assert channel in (await held(world, heir))[0]
    assert (await world.save(channel, lane(world.default, 5, 9), epoch=taken, checkpoint=9)).outcome is Outcome.APPLIED


async def test_a_zombie_whose_lease_is_over_but_was_not_missed_may_go_on(world: World) -> None:
    """Leases decide when a channel moves, never whether a write is safe: until somebody else has it, it is still the owner."""
    channel = world.channels[0]
    node_id = await world.start_datanode(0)
    world.clock.advance(5 * LEASE_MS)

    assert (await world.save(channel, lane(world.default, 0, 5), checkpoint=5)).outcome is Outcome.APPLIED
    assert (await world.store.run_lease_job()).ended == ()
    assert channel in (await held(world, node_id))[0]


async def test_duelling_claimants_with_force_leave_one_writer_at_a_time(claimed_world: World) -> None:
    """Each takes the channel from the other in the middle of a batch: whoever lost it may not finish."""
    world = claimed_world
    channel = world.channels[0]
    rows = 0
    stale: list[int] = []
    for turn in range(6):
        (answer,) = await world.store.claim_channels(f"q{turn % 2}", [channel], force=True, caller=CALLER)
        assert answer.info is not None
        for epoch in stale:
            assert await write_claimed(world, channel, epoch, rows) == Reason.FENCED.value
        assert answer.info.epoch not in stale
        assert await write_claimed(world, channel, answer.info.epoch, rows) == "APPLIED"
        rows += 5
        stale.append(answer.info.epoch)

    assert await world.registered(channel) == {world.default: [(n + 1, n + 5) for n in range(0, rows, 5)]}


async def test_duelling_claimants_without_force_take_turns_by_leases(claimed_world: World) -> None:
    """Where the newest wins, none of them ever finishes a batch."""
    world = claimed_world
    channel = world.channels[0]
    (answer,) = await world.store.claim_channels("q1", [channel], caller=CALLER)
    assert answer.info is not None
    for n in range(3):
        (other,) = await world.store.claim_channels("q2", [channel], caller=CALLER)
        assert other.refusal is not None
        assert other.refusal.reason is Reason.OWNED
        assert await write_claimed(world, channel, answer.info.epoch, 5 * n) == "APPLIED"


async def write_claimed(world: World, channel: str, epoch: int, start: int) -> str:
    """A sink's save; what it was answered."""
    answer = await world.save(channel, lane(world.default, start, start + 5), epoch=epoch, checkpoint=start + 5)
    return answer.outcome.name if answer.outcome is not None else reason_of(answer).value
