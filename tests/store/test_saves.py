"""SaveBinlogPaths and DropVirtualChannel through SQL: what is answered, and what is stored afterwards."""

import asyncio

from coordinator.core.model import LaneSave, Outcome, SegmentState
from coordinator.store import LaneProgress
from datacoord.errors import Reason
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.paths import BinlogKind, BinlogPath

from .support import CALLER, World, binlog, lane, position, reason_of, reasons, save


async def test_a_save_registers_objects_moves_progress_and_the_checkpoint_at_once(world: World) -> None:
    """The three together are what exactly-once is made of."""
    channel = world.channels[0]
    answer = await world.save(channel, lane(world.default, 0, 10), lane(world.other, 0, 12), checkpoint=9)

    assert answer.outcome is Outcome.APPLIED
    info = await world.info(channel)
    assert info.checkpoint == position(9)
    assert info.lanes == (LaneProgress(world.default, 10, False), LaneProgress(world.other, 12, False))
    assert await world.registered(channel) == {world.default: [(1, 10)], world.other: [(1, 12)]}
    segments = {s.segment_id: s for s in info.growing_segments}
    for lane_answer in answer.lanes:
        assert segments[lane_answer.segment_id].partition_id == lane_answer.partition_id
        assert lane_answer.segment_state is SegmentState.GROWING


async def test_a_save_repeated_registers_nothing_twice(world: World) -> None:
    """A reply was lost."""
    channel = world.channels[0]
    part = save(channel, await world.epoch(channel), lane(world.default, 0, 10), checkpoint=10)

    answers = [(await world.store.save_binlog_paths([part], caller=CALLER))[0] for _ in range(3)]

    assert reasons(answers) == ["APPLIED", "ALREADY_APPLIED", "ALREADY_APPLIED"]
    assert await world.registered(channel) == {world.default: [(1, 10)]}
    assert answers[1].lanes[0].segment_id == answers[0].lanes[0].segment_id


async def test_what_is_stored_is_said_unless_all_of_it_is_what_was_sent(world: World) -> None:
    """Who hears that a range was there already must learn whose it is: two writers may share a name, and with it an epoch."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    first = save(channel, epoch, lane(world.default, 0, 10))
    more = save(channel, epoch, lane(world.default, 0, 10), lane(world.other, 0, 12), checkpoint=12)

    answers = [(await world.store.save_binlog_paths([part], caller=CALLER))[0] for part in (first, first, more)]

    assert reasons(answers) == ["APPLIED", "ALREADY_APPLIED", "APPLIED"]
    assert answers[0].facts is None
    assert [answer.facts.checkpoint.timestamp for answer in answers[1:] if answer.facts] == [0, 12]


async def test_paths_are_those_the_writer_wrote(world: World) -> None:
    """A path is not stored but derived: a reader that derives another one finds nothing."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    logs = (binlog(1, 5), binlog(2, 9, kind=BinlogKind.DELTA), binlog(1, 9, kind=BinlogKind.STATS))
    await world.save(channel, LaneSave(world.default, 0, 10, logs), LaneSave(ALL_PARTITIONS_ID, 0, 10, logs[1:2]))

    (listed,) = (await world.store.list_binlogs(world.collection.name, channel_names=[channel])).items
    info = await world.info(channel)

    expected = {
        str(BinlogPath(log.kind, info.channel_id, partition, epoch, 0, 10, log.field_id, log.log_id))
        for partition, of_lane in ((world.default, logs), (ALL_PARTITIONS_ID, logs[1:2]))
        for log in of_lane
    }
    assert {b.path for b in listed.binlogs} == expected
    assert {b.facts for b in listed.binlogs} == set(logs)


async def test_a_refused_channel_applies_nothing_and_its_neighbours_everything(world: World) -> None:
    """A batch must not tie the fates of channels together."""
    first, second = world.channels
    parts = [
        save(first, await world.epoch(first), lane(world.default, 0, 5), lane(world.other, 3, 9), checkpoint=5),
        save(second, await world.epoch(second), lane(world.default, 0, 5)),
        save("nobody", 1, lane(world.default, 0, 5)),
    ]

    answers = await world.store.save_binlog_paths(parts, caller=CALLER)

    assert reasons(answers) == ["GAP", "APPLIED", "CHANNEL_NOT_FOUND"]
    assert (await world.info(first)).lanes == ()
    assert (await world.info(first)).checkpoint.timestamp == 0
    assert await world.registered(first) == {}
    assert await world.registered(second) == {world.default: [(1, 5)]}
    assert answers[0].facts is not None
    assert answers[0].facts.lanes[world.other].progress == 0
    assert answers[2].facts is None


async def test_every_refusal_of_r1_comes_through_sql(world: World) -> None:
    """Row by row; each leaves everything as it was."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    await world.save(channel, lane(world.default, 0, 10), checkpoint=20)
    before = (await world.info(channel), await world.registered(channel))

    for wanted, reason in [
        (save(channel, epoch + 1000, lane(world.default, 10, 30)), Reason.FENCED),
        (save(channel, epoch, lane(world.default, 11, 30)), Reason.GAP),
        (save(channel, epoch, lane(world.default, 9, 30)), Reason.OVERLAP),
        (save(channel, epoch, lane(world.default, 10, 30)), Reason.BELOW_CHECKPOINT),
        (save(channel, epoch, lane(10**6, 0, 30)), Reason.PARTITION_NOT_FOUND),
        (save("nobody", epoch, lane(world.default, 10, 30)), Reason.CHANNEL_NOT_FOUND),
    ]:
        (answer,) = await world.store.save_binlog_paths([wanted], caller=CALLER)
        assert reason_of(answer) is reason

    assert (await world.info(channel), await world.registered(channel)) == before


async def test_a_partition_of_another_collection_is_none_of_this_one(world: World) -> None:
    """Partition numbers are unique in the database: a mix-up must not pass."""
    channel = world.channels[0]
    mine = world.collection
    await world.create("another")
    stranger = world.default
    world.collection = mine

    assert reason_of(await world.save(channel, lane(stranger, 0, 5))) is Reason.PARTITION_NOT_FOUND


async def test_a_lane_has_one_growing_segment_and_a_new_one_after_it_is_sealed(world: World) -> None:
    """S4: a save can never race with a seal, because only saves and the server's transactions touch segments."""
    channel = world.channels[0]
    first = await world.save(channel, lane(world.default, 0, 10))
    second = await world.save(channel, lane(world.default, 10, 20, seal=True))
    third = await world.save(channel, lane(world.default, 20, 30))

    assert first.lanes[0].segment_id == second.lanes[0].segment_id != third.lanes[0].segment_id
    assert second.lanes[0].segment_state is SegmentState.SEALED
    sealed, growing = await world.segments()
    assert (sealed.state, sealed.seal_reason, sealed.timestamp_from, sealed.timestamp_to) == (
        SegmentState.SEALED,
        "requested",
        0,
        20,
    )
    assert (sealed.binlogs, sealed.rows, growing.binlogs) == (2, 2, 1)
    assert growing.state is SegmentState.GROWING


async def test_flushed_is_derived_from_the_checkpoint(world: World) -> None:
    """A sealed segment whose rows could still be replayed is not flushed."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 10, seal=True), checkpoint=9)
    assert [s.state for s in await world.segments()] == [SegmentState.SEALED]
    assert await world.segments(SegmentState.FLUSHED) == []

    await world.move(channel, 10)
    assert [s.state for s in await world.segments(SegmentState.FLUSHED)] == [SegmentState.FLUSHED]
    assert await world.segments(SegmentState.SEALED) == []


async def test_a_range_without_objects_moves_progress_and_makes_no_segment(world: World) -> None:
    """All rows of a range may fold away."""
    channel = world.channels[0]
    answer = await world.save(channel, LaneSave(world.default, 0, 10))

    assert answer.outcome is Outcome.APPLIED
    assert (answer.lanes[0].segment_id, answer.lanes[0].segment_state) == (0, None)
    assert await world.segments() == []
    assert (await world.save(channel, lane(world.default, 10, 20))).outcome is Outcome.APPLIED


async def test_a_seal_without_objects_closes_what_grows(world: World) -> None:
    """The datanode asks for it with the last range, which may be empty."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 10))
    await world.save(channel, LaneSave(world.default, 10, 20, (), seal=True))

    assert [s.state for s in await world.segments()] == [SegmentState.SEALED]


async def test_saves_that_wait_together_see_each_other(world: World) -> None:
    """Group commit decides in order: two ranges of one lane in one transaction, and the repetition of the first."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    parts = [
        save(channel, epoch, lane(world.default, 0, 10), checkpoint=3),
        save(channel, epoch, lane(world.default, 10, 20, seal=True)),
        save(channel, epoch, lane(world.default, 20, 30)),
        save(channel, epoch, lane(world.default, 0, 10)),
        save(channel, epoch, lane(world.default, 29, 40)),
    ]
    groups = world.store.statistics.groups

    answers = await asyncio.gather(*(world.store.save_binlog_paths([part], caller=CALLER) for part in parts))

    assert world.store.statistics.groups == groups + 1
    assert reasons([a for (a,) in answers]) == ["APPLIED", "APPLIED", "APPLIED", "ALREADY_APPLIED", "OVERLAP"]
    sealed, growing = await world.segments()
    assert (sealed.binlogs, sealed.state, growing.binlogs) == (2, SegmentState.SEALED, 1)
    assert await world.registered(channel) == {world.default: [(1, 10), (11, 20), (21, 30)]}


async def test_a_drop_registers_the_last_save_and_leaves_a_tombstone(world: World) -> None:
    """One transaction: there is no moment with the rows and without the end, or the other way round."""
    channel, neighbour = world.channels
    epoch = await world.epoch(channel)
    await world.save(neighbour, lane(world.default, 0, 5))
    wanted = save(channel, epoch, lane(world.default, 0, 10), checkpoint=10)

    answer = await world.store.drop_virtual_channel(wanted, caller=CALLER)
    again = await world.store.drop_virtual_channel(wanted, caller=CALLER)

    assert (answer.outcome, again.outcome) == (Outcome.APPLIED, Outcome.ALREADY_APPLIED)
    assert answer.lanes[0].segment_state is SegmentState.DROPPED
    assert reason_of(await world.save(channel, lane(world.default, 10, 20), epoch=epoch)) is Reason.CHANNEL_DROPPED
    assert [s.state for s in await world.segments() if s.channel_name == channel] == [SegmentState.DROPPED]
    assert [s.state for s in await world.segments() if s.channel_name == neighbour] == [SegmentState.GROWING]
    assert await world.registered(channel) == {}


async def test_rows_of_a_dropped_partition_are_discarded_and_the_others_land(world: World) -> None:
    """Refused as a whole and repeated unchanged, the other lanes would never land."""
    channel = world.channels[0]
    await world.save(channel, lane(world.other, 0, 5), lane(world.default, 0, 5))
    await world.store.drop_partition(world.collection.name, "other", caller=CALLER)

    answer = await world.save(channel, lane(world.other, 5, 10), lane(world.default, 5, 10), checkpoint=10)

    assert [a.outcome for a in answer.lanes] == [Outcome.DISCARDED, Outcome.APPLIED]
    info = await world.info(channel)
    assert info.lanes == (LaneProgress(world.default, 10, False), LaneProgress(world.other, 5, True))
    assert [s.partition_id for s in info.growing_segments] == [world.default]
    assert await world.registered(channel) == {world.default: [(1, 5), (6, 10)]}
