"""The sealing policies, at save and by the job, the leases of jobs, and what operators do to segments."""

import asyncio

import pytest

from coordinator.core.model import LaneSave, Outcome, SegmentState
from coordinator.core.segments import SealPolicy
from coordinator.store import Store
from datacoord.errors import Reason, SegmentNotFoundError, SegmentStateConflictError
from datacoord.paths import BinlogKind

from .support import CALLER, World, binlog, lane, reasons, save, settings

POLICY = SealPolicy(
    size_bytes_max=100,
    rows_max=1000,
    binlogs_max=3,
    lifetime_ms_max=10_000,
    idle_ms_max=1_000,
    idle_size_bytes_min=50,
    channel_growing_bytes_max=150,
)


async def reopened(world: World) -> World:
    """The same database with small limits."""
    await world.store.close()
    return await world.open(seal_policy=POLICY)


async def test_a_save_that_reaches_a_limit_seals_its_segment(world: World) -> None:
    """The segment that took the objects is the one that is closed, in the same transaction."""
    world = await reopened(world)
    channel = world.channels[0]
    states = [
        (await world.save(channel, lane(world.default, start, start + 1))).lanes[0].segment_state for start in range(4)
    ]
    big = await world.save(channel, lane(world.other, 0, 5, size=100))

    assert states == [SegmentState.GROWING, SegmentState.GROWING, SegmentState.SEALED, SegmentState.GROWING]
    assert big.lanes[0].segment_state is SegmentState.SEALED
    assert sorted(s.seal_reason for s in await world.segments(SegmentState.SEALED)) == ["binlogs", "size"]


async def test_the_job_seals_what_is_old_or_idle(world: World) -> None:
    """No save may ever come again."""
    world = await reopened(world)
    first, second = world.channels
    await world.save(first, lane(world.default, 0, 5, size=60))
    await world.save(second, lane(world.default, 0, 5, size=10))
    assert (await world.store.run_seal_job()).sealed == {}

    world.clock.advance(1_001)
    assert (await world.store.run_seal_job()).sealed == {"idle": 1}
    world.clock.advance(9_000)
    assert (await world.store.run_seal_job()).sealed == {"lifetime": 1}
    assert await world.segments(SegmentState.GROWING) == []
    assert (await world.save(first, lane(world.default, 5, 9))).lanes[0].segment_state is SegmentState.GROWING


async def test_the_job_seals_the_largest_segments_of_a_crowded_channel(world: World) -> None:
    """Many partitions that all grow slowly would keep a reader from ever seeing closed segments."""
    world = await reopened(world)
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 5, size=80), lane(world.other, 0, 5, size=90))

    assert (await world.store.run_seal_job()).sealed == {"channel": 1}
    (left,) = await world.segments(SegmentState.GROWING)
    assert left.partition_id == world.default


async def test_only_the_holder_of_a_job_runs_it_and_its_lease_can_be_inherited(world: World) -> None:
    """Two replicas that both balance would move channels to and fro."""
    rival = await Store.open(world.url, settings(job_holder="rival"), clock_ms=world.clock)
    assert (await world.store.run_assignment_job()).ran
    assert not (await rival.run_assignment_job()).ran
    assert (await rival.run_seal_job()).ran
    assert not (await world.store.run_seal_job()).ran

    world.clock.advance(settings().job_lease_ms // 2)
    assert (await world.store.run_assignment_job()).ran
    world.clock.advance(settings().job_lease_ms + 1)
    assert (await rival.run_assignment_job()).ran
    assert not (await world.store.run_assignment_job()).ran
    assert (await world.store.run_seal_job()).ran
    await rival.close()


async def test_many_objects_of_one_range_count_once(world: World) -> None:
    """Milvus counts the binlogs of one field: with three groups of columns, segments would be a third of the size."""
    world = await reopened(world)
    channel = world.channels[0]
    groups = (binlog(1, 5), binlog(1, 5), binlog(1, 5), binlog(1, 5, kind=BinlogKind.DELTA))
    first = await world.save(channel, LaneSave(world.default, 0, 5, groups))
    second = await world.save(channel, lane(world.default, 5, 6))
    third = await world.save(channel, lane(world.default, 6, 7))

    states = [answer.lanes[0].segment_state for answer in (first, second, third)]
    assert states == [SegmentState.GROWING, SegmentState.GROWING, SegmentState.SEALED]


# ---- what operators do --------------------------------------------------------------------------------------------------------


async def segment_of(world: World, channel: str, partition: int) -> int:
    """The youngest segment of a lane."""
    return [s for s in await world.segments() if (s.channel_name, s.partition_id) == (channel, partition)][
        -1
    ].segment_id


async def set_state(world: World, segment_id: int, state: SegmentState) -> tuple[Outcome | None, SegmentState | None]:
    """SetSegmentState: what is answered."""
    answer = await world.store.set_segment_state(segment_id, state, caller=CALLER)
    return answer.outcome, answer.state


async def test_a_segment_goes_its_way_by_command_and_never_back(world: World) -> None:
    """Every step once, every repetition answered as one; the lane goes on with a segment of its own."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 5))
    number = await segment_of(world, channel, world.default)
    with pytest.raises(SegmentStateConflictError, match="seal it first"):
        await set_state(world, number, SegmentState.DROPPED)

    assert await set_state(world, number, SegmentState.SEALED) == (Outcome.APPLIED, SegmentState.SEALED)
    assert await set_state(world, number, SegmentState.SEALED) == (Outcome.ALREADY_APPLIED, SegmentState.SEALED)
    assert [s.seal_reason for s in await world.segments()] == ["command"]
    assert (await world.info(channel)).growing_segments == ()
    await world.move(channel, 5)
    assert await set_state(world, number, SegmentState.SEALED) == (Outcome.ALREADY_APPLIED, SegmentState.FLUSHED)
    assert await set_state(world, number, SegmentState.DROPPED) == (Outcome.APPLIED, SegmentState.DROPPED)
    for wanted in (SegmentState.DROPPED, SegmentState.SEALED):
        assert await set_state(world, number, wanted) == (Outcome.ALREADY_APPLIED, SegmentState.DROPPED)

    late = await world.save(channel, lane(world.default, 5, 9))
    assert (late.outcome, late.lanes[0].segment_id != number) == (Outcome.APPLIED, True)
    with pytest.raises(SegmentNotFoundError):
        await set_state(world, 10**9, SegmentState.SEALED)


async def test_a_dropped_segment_keeps_its_progress(world: World) -> None:
    """A replay would bring its rows back, and the operator would drop them again and again."""
    channel = world.channels[0]
    dropped = lane(world.default, 0, 5)
    await world.save(channel, dropped)
    answers = await world.store.mark_segments_dropped([await segment_of(world, channel, world.default)], caller=CALLER)

    assert [answer.outcome for answer in answers] == [Outcome.APPLIED]
    again = await world.save(channel, dropped)
    assert (again.outcome, again.lanes[0].progress) == (Outcome.ALREADY_APPLIED, 5)
    assert await world.registered(channel) == {}


async def test_segments_are_marked_dropped_each_with_its_own_answer(world: World) -> None:
    """Milvus stops at the first error: what is dropped then, nobody knows."""
    first, second = world.channels
    await world.save(first, lane(world.default, 0, 5), lane(world.other, 0, 5, seal=True))
    await world.save(second, lane(world.default, 0, 5))
    growing, sealed = [await segment_of(world, first, p) for p in (world.default, world.other)]
    kept = await segment_of(world, second, world.default)
    answers = await world.store.mark_segments_dropped([sealed, 10**9, growing], caller=CALLER)
    again = await world.store.mark_segments_dropped([growing, sealed], caller=CALLER)

    assert [a.segment_id for a in answers] == [sealed, 10**9, growing]
    assert [a.outcome for a in answers] == [Outcome.APPLIED, None, Outcome.APPLIED]
    assert [a.refusal.reason for a in answers if a.refusal] == [Reason.SEGMENT_NOT_FOUND]
    assert [a.outcome for a in again] == [Outcome.ALREADY_APPLIED] * 2
    assert [s.segment_id for s in await world.segments(SegmentState.GROWING)] == [kept]
    assert (await world.info(first)).growing_segments == ()
    assert (await world.save(first, lane(world.default, 5, 6))).outcome is Outcome.APPLIED


async def test_a_save_and_a_drop_of_its_segment_meet_without_harm(world: World) -> None:
    """In one order the range is in the dropped segment, in the other in a new one; in none is it in a dropped one that grows."""
    channel = world.channels[0]
    await world.save(channel, lane(world.default, 0, 5))
    number, epoch = await segment_of(world, channel, world.default), await world.epoch(channel)
    part = save(channel, epoch, lane(world.default, 5, 9))
    saved, dropped, sealed = await asyncio.gather(
        world.store.save_binlog_paths([part], caller=CALLER),
        world.store.mark_segments_dropped([number], caller=CALLER),
        world.store.set_segment_state(number, SegmentState.SEALED, caller=CALLER),
    )

    assert reasons(saved) == ["APPLIED"]
    assert dropped[0].outcome is Outcome.APPLIED
    assert sealed.outcome is not None
    states = {s.segment_id: s.state for s in await world.segments()}
    assert states.pop(number) is SegmentState.DROPPED
    assert list(states.values()) in ([], [SegmentState.GROWING])
    assert {g.segment_id for g in (await world.info(channel)).growing_segments} == set(states)
