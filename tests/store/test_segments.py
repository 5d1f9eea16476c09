"""The sealing policies, at save and by the job, and the leases of jobs."""

from coordinator.core.model import SegmentState
from coordinator.core.segments import SealPolicy
from coordinator.store import Store

from .support import World, lane, settings

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
