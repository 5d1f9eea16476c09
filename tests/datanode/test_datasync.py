"""One channel from its recovery info to its end: start, flush, stale, memory, drain, drop, faults of everything around it."""

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from datacoord import reported_metrics as names
from datacoord.errors import (
    ChannelDroppedError,
    CollectionNotFoundError,
    DatacoordError,
    FencedError,
    GapError,
    InternalError,
    SourceInvalidError,
    SourceLostError,
)
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.positions import START
from datacoord.v1 import common_pb2
from datanode_client.config import DataNodeConfig
from datanode_client.datasync import EndReason
from datanode_client.sources.base import ChannelContext, ChannelReader
from datanode_client.writebuffer.policies import SyncReason

from .harness import (
    DEFAULT_PARTITION,
    SCHEMA,
    LogReader,
    drop_collection,
    drop_partition,
    end_of_channel,
    eventually,
    message,
    position,
    settle,
    tick,
)
from .world import World


@pytest.fixture(autouse=True)
def no_power_is_lost() -> Iterator[None]:
    """Syncing to disk is tested elsewhere."""
    with mock.patch("os.fsync", return_value=None):
        yield


def small_buffers(**changes: object) -> DataNodeConfig:
    """Every message fills its lane's buffer."""
    return DataNodeConfig(**{"insert_buf_size_bytes": 1, "delete_buf_bytes": 1, **changes})  # type: ignore[arg-type]


def objects_below(root: Path) -> list[Path]:
    """Every object on disk, registered or not."""
    return list(root.rglob("*.parquet"))


# ---- start and recovery ------------------------------------------------------------------------------------------------------


async def test_a_channel_starts_at_its_checkpoint_and_knows_its_collection(tmp_path: Path) -> None:
    """R3 start: seek after C, with everything the source put into the position."""
    world = World(tmp_path)
    world.channel.checkpoint = position(7)
    world.publish_quietly(message(7, ("upsert", "old")), message(8, ("upsert", "new")))
    service = await world.start()

    assert world.source.opened_after == [position(7)]
    [context] = world.source.contexts
    assert (context.channel_name, context.collection_name, context.primary_key) == ("c", "collection", ("key",))
    assert context.schema.equals(SCHEMA)
    assert service.report().timestamp == 8
    await service.close()


async def test_recovery_is_starting_again_and_nothing_else(tmp_path: Path) -> None:
    """Lane 12 has saved up to 2, the default lane nothing: after a kill exactly the missing rows are read again."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")), message(2, ("upsert", "b", 12)))
    service.sync(12, SyncReason.FULL_BUFFER)
    await settle()
    world.channel.consumed = 2
    await service.close()
    world.new_process()
    again = await world.start()
    final = await world.hand_over(again)

    assert final == position(2)
    assert world.coordinator.read() == {"a": 1, "b": 2}
    assert world.resources.metrics.value(names.REPLAYED_ROWS) == 2
    assert world.resources.metrics.value(names.FILTERED_ROWS, reason="registered") == 1


async def test_a_row_exactly_at_the_progress_is_not_registered_again(tmp_path: Path) -> None:
    """Ranges end inclusively: one off here doubles one row per recovery."""
    world = World(tmp_path)
    world.publish_quietly(message(1, ("upsert", "a")), message(2, ("upsert", "b", 12)), message(3, ("upsert", "c", 12)))
    world.source.batch_messages = 1
    first = await world.start()
    first.sync(12, SyncReason.FULL_BUFFER)
    await settle()
    assert world.channel.progress == {12: 3}
    assert world.channel.checkpoint == START
    await first.close()
    second = await world.start()
    await world.hand_over(second)

    assert world.coordinator.read() == {"a": 1, "b": 2, "c": 3}


async def test_a_lane_that_was_idle_for_long_does_not_hold_the_checkpoint_back(tmp_path: Path) -> None:
    """B3: its range starts at its progress of long ago, its pin does not."""
    world = World(tmp_path)
    world.channel.checkpoint = position(1000)
    world.channel.progress = {DEFAULT_PARTITION: 10}
    service = await world.start()
    await world.publish(message(1001, ("upsert", "a", 12)), message(1003, ("upsert", "b")))
    service.sync(12, SyncReason.FULL_BUFFER)
    await settle()

    assert world.channel.checkpoint.timestamp == 1000
    service.sync(DEFAULT_PARTITION, SyncReason.FULL_BUFFER)
    await settle()
    assert world.channel.checkpoint == position(1003)
    assert [(one.range_from, one.range_to) for one in world.channel.binlogs[-2:]] == [(10, 1003)] * 2
    await service.close()


# ---- policies, one after the other -------------------------------------------------------------------------------------------


async def test_a_full_buffer_is_synced_with_a_checkpoint(tmp_path: Path) -> None:
    """The steady state: saves carry the checkpoint, no other call is needed."""
    world = World(tmp_path, small_buffers())
    service = await world.start()
    for ts in range(1, 6):
        await world.publish(message(ts, ("upsert", "a")))

    assert world.channel.checkpoint == position(5)
    assert world.coordinator.updates == []
    assert world.resources.metrics.value(names.SYNCS, policy="full_buffer") == 5
    await service.close()


async def test_a_message_is_cut_whole_even_if_it_is_larger_than_a_buffer(tmp_path: Path) -> None:
    """B2: one message of many rows never spans two ranges."""
    world = World(tmp_path, small_buffers(insert_buf_size_bytes=100))
    service = await world.start()
    await world.publish(message(1, *(("upsert", f"k{n}") for n in range(50))))

    [part] = world.coordinator.saves
    assert part.lanes[0].insert_logs[0].binlogs[0].entries_num == 50
    await service.close()


async def test_a_stale_lane_is_synced_although_nothing_comes(tmp_path: Path) -> None:
    """The last rows of the evening must be visible before the next morning."""
    world = World(tmp_path, DataNodeConfig(sync_policy_tick_seconds=30.0))
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    await world.advance(599.0)
    assert world.coordinator.saves == []
    await world.advance(100.0)

    assert world.channel.checkpoint == position(1)
    assert world.resources.metrics.value(names.SYNCS, policy="stale") == 1
    await service.close()


async def test_memory_is_freed_by_syncing_and_reading_waits_for_it(tmp_path: Path) -> None:
    """A disk that hangs must not fill the memory: readers stop, and go on when objects are written."""
    row_bytes = 30
    world = World(tmp_path, DataNodeConfig(memory_limit_bytes=20 * row_bytes))
    world.executor.auto = False
    world.source.batch_messages = 1
    service = await world.start()
    await world.publish(*(message(ts, ("upsert", "a"), ("upsert", "b", 12)) for ts in range(1, 200)))
    stopped_at = service.report().timestamp
    assert 1 < stopped_at < 30
    assert world.resources.metrics.value(names.SYNCS, policy="memory") > 0
    await settle()
    assert service.report().timestamp == stopped_at
    world.executor.auto = True
    world.executor.run_all()
    await eventually(lambda: service.report().timestamp == 199)
    await settle()
    assert world.resources.write_buffers.memory.syncing_bytes == 0
    await world.hand_over(service)

    assert world.coordinator.read() == {"a": 199, "b": 199}
    assert world.resources.write_buffers.memory.buffered_bytes == 0


async def test_a_sealed_segment_is_let_be_flushed(tmp_path: Path) -> None:
    """The server closed the segment of lane 12; the default lane still pins the checkpoint before its end."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")), message(2, ("upsert", "b", 12)))
    world.channel.seal_next = True
    service.sync(12, SyncReason.FULL_BUFFER)
    await settle()

    assert world.resources.metrics.value(names.SYNCS, policy="sealed") == 1
    assert world.channel.checkpoint == position(2)
    await service.close()


# ---- checkpoints and flush ---------------------------------------------------------------------------------------------------


async def test_ticks_alone_move_the_checkpoint_now_and_then(tmp_path: Path) -> None:
    """A channel without rows must not be replayed from last week."""
    world = World(tmp_path)
    service = await world.start()
    world.source.publish(tick(5))
    await settle()
    await world.advance(59.0)
    assert world.coordinator.updates == []
    await world.advance(12.0)

    assert world.channel.checkpoint == position(5)
    assert len(world.coordinator.updates) == 1
    await world.advance(200.0)
    assert len(world.coordinator.updates) == 1  # nothing new, nothing sent
    await service.close()


async def test_a_flush_cuts_every_lane_and_moves_the_checkpoint_at_once(tmp_path: Path) -> None:
    """Flush means now: without waiting for an interval, a tick or a full buffer."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(
        message(1, ("upsert", "a")), message(2, ("upsert", "b", 12), ("delete", "x", ALL_PARTITIONS_ID))
    )
    service.set_flush_timestamp(2)
    await settle()

    assert world.channel.checkpoint == position(2)
    assert world.resources.metrics.value(names.SYNCS, policy="flush_ts") == 3
    assert world.coordinator.read() == {"a": 1, "b": 2}
    await service.close()


async def test_a_flush_waits_until_what_it_concerns_is_consumed(tmp_path: Path) -> None:
    """B26: an owner that has consumed less must neither report it done nor cut twice."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    service.set_flush_timestamp(3)
    await settle()
    assert world.coordinator.saves == []
    await world.publish(message(2, ("upsert", "b")))
    assert world.coordinator.saves == []
    await world.publish(message(4, ("upsert", "c")))

    assert world.channel.checkpoint == position(4)
    assert len(world.coordinator.saves) == 1
    await service.close()


async def test_a_tick_that_reaches_the_flush_target_is_enough(tmp_path: Path) -> None:
    """The lanes to cut are not the ones the last event touched: it touched none."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a"), ("upsert", "b", 12)))
    service.set_flush_timestamp(3)
    world.source.publish(tick(3))
    await settle()

    assert world.channel.checkpoint == position(3)
    await service.close()


async def test_a_checkpoint_counts_as_stored_only_when_the_coordinator_said_so(tmp_path: Path) -> None:
    """A flush that is reset, or an end that is reported, on a call that failed is never made good."""
    world = World(tmp_path, DataNodeConfig(channel_checkpoint_update_tick_in_seconds=1000.0))
    service = await world.start()
    world.coordinator.unavailable = True
    service.set_flush_timestamp(3)
    world.source.publish(tick(4), end_of_channel(5))
    await settle()
    assert not service.report().finished
    assert service.write_buffer.flush_timestamp == 3
    world.coordinator.unavailable = False
    await world.advance(1.0)

    assert world.channel.checkpoint == position(5)
    assert [service.report().finished, service.write_buffer.flush_timestamp] == [True, 0]
    await service.close()


async def test_a_flush_of_a_channel_without_rows_is_an_urgent_checkpoint(tmp_path: Path) -> None:
    """Nothing to sync, so no save carries the checkpoint: the updater must not wait for its tick."""
    world = World(tmp_path)
    service = await world.start()
    world.source.publish(tick(9))
    await settle()
    service.set_flush_timestamp(9)
    await settle()

    assert world.channel.checkpoint == position(9)
    await service.close()


async def test_an_urgent_checkpoint_stays_urgent_until_it_has_succeeded(tmp_path: Path) -> None:
    """Milvus clears the mark before the call; after a failure the flush waits for the 10 second tick, or longer."""
    world = World(tmp_path, DataNodeConfig(channel_checkpoint_update_tick_in_seconds=1000.0))
    service = await world.start()
    world.source.publish(tick(9))
    await settle()
    world.coordinator.unavailable = True
    service.set_flush_timestamp(9)
    await settle()
    assert world.channel.checkpoint == START
    await world.advance(0.05)
    calls = len(world.coordinator.updates)
    world.coordinator.unavailable = False
    await world.advance(1.0)

    assert calls >= 1
    assert world.channel.checkpoint == position(9)
    await service.close()


async def test_a_flush_to_where_the_checkpoint_already_is_costs_nothing(tmp_path: Path) -> None:
    """On an idle channel it stays set: the reset is strict."""
    world = World(tmp_path)
    world.channel.checkpoint = position(9)
    service = await world.start()
    for _ in range(3):
        service.set_flush_timestamp(9)
        await world.advance(100.0)

    assert (world.coordinator.saves, world.coordinator.updates) == ([], [])
    await service.close()


async def test_a_periodic_update_is_not_starved_by_a_flush_that_waits(tmp_path: Path) -> None:
    """Milvus returns early in one of the two cases; here a flush beyond the head does not stop the others."""
    world = World(tmp_path)
    service = await world.start()
    service.set_flush_timestamp(1000)
    world.source.publish(tick(9))
    await settle()
    await world.advance(75.0)

    assert world.channel.checkpoint == position(9)
    await service.close()


# ---- drain, release, end -----------------------------------------------------------------------------------------------------


async def test_draining_registers_everything_and_tells_the_final_position(tmp_path: Path) -> None:
    """A planned hand-over loses no progress: the next owner replays nothing."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")), message(2, ("upsert", "b", 12)))
    world.source.publish(tick(6))
    await settle()
    final = await world.hand_over(service)
    assert (final, world.channel.checkpoint) == (position(6), position(6))
    assert world.ends == [(1, EndReason.RELEASED, None)]
    assert world.source.open_readers == 0
    next_owner = await world.start()

    assert world.source.opened_after[-1] == position(6)
    assert world.resources.metrics.value(names.REPLAYED_ROWS) == 0
    await next_owner.close()


async def test_draining_twice_tells_the_same(tmp_path: Path) -> None:
    """Desired state says `release` again and again."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))

    assert [await service.drain(), await service.drain()] == [position(1), position(1)]
    assert len(world.ends) == 1


async def test_draining_reads_nothing_more(tmp_path: Path) -> None:
    """A busy channel would never come to an end."""
    world = World(tmp_path, auto=False)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    draining = asyncio.ensure_future(service.drain())
    await settle()
    await world.publish(message(2, ("upsert", "b")))
    assert not draining.done()
    [call] = world.coordinator.calls
    world.coordinator.deliver(call)

    assert await draining == position(1)


async def test_a_channel_that_is_fenced_while_it_drains_says_so(tmp_path: Path) -> None:
    """The process must not release with a position that nobody vouches for."""
    world = World(tmp_path, auto=False)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    draining = asyncio.ensure_future(service.drain())
    await settle()
    world.coordinator.assign()
    world.coordinator.deliver(world.coordinator.calls[0])
    with pytest.raises(FencedError):
        await draining

    assert [reason for _, reason, _ in world.ends] == [EndReason.FENCED]


async def test_a_channel_that_is_closed_while_it_drains_does_not_hang(tmp_path: Path) -> None:
    """The session was lost meanwhile."""
    world = World(tmp_path, auto=False)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    draining = asyncio.ensure_future(service.drain())
    await settle()
    await service.close()
    with pytest.raises(InternalError, match="closed while it drained"):
        await draining

    assert world.ends == []


async def test_the_end_of_a_bounded_source_registers_everything_and_is_reported(tmp_path: Path) -> None:
    """Whoever waits for a bounded job must not wait for buffers that nothing fills up any more."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    finished = [service.report().finished]
    world.source.publish(end_of_channel(4))
    await settle()
    report = service.report()
    finished.append(report.finished)

    assert finished == [False, True]
    assert (report.timestamp, report.lag, report.buffered_rows, report.syncs_in_flight) == (4, 0, 0, 0)
    assert world.channel.checkpoint == position(4)
    assert world.source.open_readers == 0
    assert await world.hand_over(service) == position(4)


async def test_an_empty_bounded_source_is_finished_at_once(tmp_path: Path) -> None:
    """A channel of a small history may have no message at all."""
    world = World(tmp_path)
    world.source.publish(end_of_channel(0))
    service = await world.start()

    assert service.report().finished
    assert (world.coordinator.saves, world.coordinator.updates) == ([], [])
    await service.close()


async def test_the_end_that_is_not_registered_yet_is_not_reported(tmp_path: Path) -> None:
    """`finished` is what the demo reads the collection back on."""
    world = World(tmp_path, auto=False)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    world.source.publish(end_of_channel(1))
    await settle()
    finished = [service.report().finished]
    world.coordinator.deliver(world.coordinator.calls[0])
    await settle()
    finished.append(service.report().finished)

    assert finished == [False, True]
    await service.close()


async def test_closing_sends_nothing_more_and_tells_nobody(tmp_path: Path) -> None:
    """The session is over; whatever is still sent would be refused, or worse, not."""
    world = World(tmp_path, auto=False)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    service.set_flush_timestamp(1)
    world.executor.auto = False
    await service.close()
    await service.close()
    world.executor.run_all()
    await world.advance(2000.0)

    assert len(world.coordinator.calls) <= 1  # the one that was on its way
    assert (world.ends, world.source.open_readers) == ([], 0)
    assert world.resources.write_buffers.channels == 0


async def test_one_epoch_starts_one_graph(tmp_path: Path) -> None:
    """S3, within a process: desired state that is applied twice must not write twice."""
    world = World(tmp_path)
    service = await world.start()
    with pytest.raises(InternalError, match="already has a flow graph"):
        service.start()
    await service.close()


# ---- refusals ----------------------------------------------------------------------------------------------------------------


async def test_a_zombie_is_fenced_by_its_save_and_drops_its_graph(tmp_path: Path) -> None:
    """Section 4.5: the old owner learns it from the answer, deletes nothing, and stops."""
    world = World(tmp_path, small_buffers())
    zombie = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    owner = world.service()
    await world.publish(message(2, ("upsert", "b")))
    objects = len(objects_below(tmp_path))

    [(epoch, reason, error)] = world.ends
    assert (epoch, reason, type(error)) == (1, EndReason.FENCED, FencedError)
    assert world.channel.checkpoint == position(1)
    assert objects == 4
    assert world.resources.metrics.value(names.REFUSED, reason="FENCED") == 1
    assert world.source.open_readers == 0
    owner.start()
    await settle()
    assert world.coordinator.read() == {"a": 1, "b": 2}
    await zombie.close()
    await owner.close()


async def test_a_zombie_is_fenced_by_its_checkpoint_update(tmp_path: Path) -> None:
    """A channel that only ticks never saves; it must learn it all the same."""
    world = World(tmp_path)
    await world.start()
    world.source.publish(tick(9))
    await settle()
    world.coordinator.assign()
    await world.advance(75.0)

    assert [(epoch, reason) for epoch, reason, _ in world.ends] == [(1, EndReason.FENCED)]
    assert world.channel.checkpoint == START


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ChannelDroppedError("dropped"), EndReason.DROPPED),
        (GapError("gap"), EndReason.FAILED),
        (InternalError("bug"), EndReason.FAILED),
    ],
)
async def test_refusals_end_the_graph_each_in_its_way(tmp_path: Path, error: DatacoordError, reason: EndReason) -> None:
    """A GAP is rebuilt under a new epoch; a dropped channel is not."""
    world = World(tmp_path, small_buffers(), auto=False)
    await world.start()
    await world.publish(message(1, ("upsert", "a")))
    world.coordinator.calls[0].answer.set_exception(error)
    await settle()

    assert world.ends == [(1, reason, error)]
    assert world.resources.write_buffers.memory.buffered_bytes == 0


async def test_a_lost_answer_is_answered_by_the_repetition(tmp_path: Path) -> None:
    """Rule 6: the broker sends the same part again, and ALREADY_APPLIED is as good as APPLIED."""
    world = World(tmp_path, small_buffers(), auto=False)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    [call] = world.coordinator.calls
    world.coordinator.deliver(call, answer=False)
    assert service.report().syncs_in_flight == 1
    world.coordinator.deliver(call, times=2)
    await settle()

    assert service.report().syncs_in_flight == 0
    assert world.ends == []
    await service.close()


# ---- faults of the store and the source --------------------------------------------------------------------------------------


async def test_a_full_disk_stops_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    """Section 7 of the issue: nothing is lost, and when there is room again everything goes on by itself."""
    world = World(tmp_path, small_buffers())
    service = await world.start()
    with mock.patch("os.write", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        for ts in (1, 2, 3):
            await world.publish(message(ts, ("upsert", f"k{ts}")))
        await world.advance(60.0)
        assert world.channel.checkpoint == START
        assert service.report().timestamp == 3
        assert objects_below(tmp_path) == []
    await world.advance(11.0)

    assert world.channel.checkpoint == position(3)
    assert world.coordinator.read() == {"k1": 1, "k2": 2, "k3": 3}
    assert world.resources.metrics.value(names.SYNC_FAILURES, error="DiskFullError") > 3
    assert world.ends == []
    await service.close()


async def test_a_schema_parquet_has_no_type_for_fails_the_channel_with_its_error(tmp_path: Path) -> None:
    """Rather than trying for ever."""
    world = World(tmp_path, small_buffers())
    with mock.patch("datanode_client.binlog.writer.pq.ParquetWriter", side_effect=pa.ArrowNotImplementedError("no")):
        await world.start()
        await world.publish(message(1, ("upsert", "a")))

    assert [(reason, type(error)) for _, reason, error in world.ends] == [
        (EndReason.FAILED, pa.ArrowNotImplementedError)
    ]
    assert world.coordinator.saves == []


async def test_a_reader_that_breaks_is_opened_again_after_what_was_consumed(tmp_path: Path) -> None:
    """A broker that restarts must cost a pause, not an epoch, and no row."""
    world = World(tmp_path)
    world.source.batch_messages = 1
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    world.source.resend = 5
    world.source.faults.append(ConnectionError("reset"))
    world.source.open_faults.append(TimeoutError("still away"))
    world.source.wake()
    await settle()
    await world.publish(message(2, ("upsert", "b")))
    for _ in range(3):
        await world.advance(1.0)
    await world.hand_over(service)

    assert world.source.opened_after == [START, position(1), position(1)]
    assert world.coordinator.read() == {"a": 1, "b": 2}
    assert world.resources.metrics.value(names.SOURCE_FAILURES) == 2
    assert world.source.open_readers == 0


async def test_pauses_grow_while_a_source_stays_away_and_begin_anew_when_it_was_back(tmp_path: Path) -> None:
    """A source that is down for an hour must not be asked ten times a second by every channel."""
    world = World(tmp_path)
    world.source.faults.extend(ConnectionError("away") for _ in range(12))
    service = await world.start()
    await world.advance(8.0)
    early = world.resources.metrics.value(names.SOURCE_FAILURES)
    await world.advance(120.0)

    assert 4 <= early <= 9
    assert world.resources.metrics.value(names.SOURCE_FAILURES) == 12
    await world.publish(message(1, ("upsert", "a")))
    world.source.faults.append(ConnectionError("away again"))
    world.source.wake()
    await settle()
    await world.publish(message(2, ("upsert", "b")))
    await world.advance(1.0)
    assert service.report().timestamp == 2
    await service.close()


@pytest.mark.parametrize("fault", [SourceLostError("position 7 is gone"), SourceInvalidError("not a repository")])
@pytest.mark.parametrize("where", ["open", "next"])
async def test_a_source_that_will_not_come_back_fails_the_channel(tmp_path: Path, fault: Exception, where: str) -> None:
    """Waiting would hide it: the operator must be told."""
    world = World(tmp_path)
    (world.source.open_faults if where == "open" else world.source.faults).append(fault)
    await world.start()

    assert world.ends == [(1, EndReason.FAILED, fault)]
    assert world.source.open_readers == 0


async def test_a_reader_that_cannot_even_be_made_is_tried_again(tmp_path: Path) -> None:
    """A factory that connects may fail like anything that connects."""
    world = World(tmp_path)
    real, fails = world.source.reader, [True]

    def factory(context: ChannelContext) -> ChannelReader:
        if fails:
            fails.pop()
            raise ConnectionError("no connection")
        return real(context)

    with mock.patch.object(world.source, "reader", factory):
        service = await world.start()
        await world.publish(message(1, ("upsert", "a")))
        await world.advance(1.0)

    assert service.report().timestamp == 1
    await service.close()


async def test_a_reader_with_a_bug_fails_its_channel_and_no_other(tmp_path: Path) -> None:
    """A message that comes twice is refused by the dd node; the rows before it stay pinned."""
    world = World(tmp_path)
    world.source.batch_messages = 1
    await world.start()
    await world.publish(message(5, ("upsert", "a")))
    world.source.publish(message(5, ("upsert", "b")))
    await settle()

    [(_, reason, error)] = world.ends
    assert (reason, type(error)) == (EndReason.FAILED, SourceInvalidError)
    assert world.channel.checkpoint == START


async def test_a_delete_that_names_no_partition_hides_older_rows_of_its_key_in_all_of_them(tmp_path: Path) -> None:
    """Level zero, from the dd node to the reader: a lane of its own, registered like any other, before and after it is read."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a"), ("upsert", "b", 12), ("upsert", "c", 12)))
    await world.publish(message(2, ("delete", "a", ALL_PARTITIONS_ID), ("delete", "b", ALL_PARTITIONS_ID)))
    await world.publish(message(3, ("upsert", "b")))
    await world.hand_over(service)

    assert {one.partition for one in world.channel.binlogs} == {DEFAULT_PARTITION, 12, ALL_PARTITIONS_ID}
    assert world.coordinator.read() == {"b": 3, "c": 1}


# ---- DDL of the log ----------------------------------------------------------------------------------------------------------


async def test_a_message_that_drops_a_partition_settles_what_came_before_and_drops_what_comes_after(
    tmp_path: Path,
) -> None:
    """R3: rows of the partition after d are dropped; rows before d are settled at once; the coordinator knows."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a", 12)), message(2, ("upsert", "b")))
    world.source.publish(drop_partition(3, 12))
    await settle()
    assert [[lane.partition_id for lane in part.lanes] for part in world.coordinator.saves] == [[12]]
    assert world.channel.dropped_lanes == {12}
    world.source.publish(message(4, ("upsert", "late", 12)), message(5, ("upsert", "c")))
    world.channel.log.append(message(5, ("upsert", "c")))
    await settle()
    await world.hand_over(service)

    assert world.coordinator.read() == {"b": 2, "c": 5}
    assert world.resources.metrics.value(names.FILTERED_ROWS, reason="dropped_partition") == 1


async def test_the_checkpoint_waits_until_the_coordinator_knows_of_a_dropped_partition(tmp_path: Path) -> None:
    """Beyond the message nobody would replay it: the partition would live on, and take its late rows."""
    world = World(tmp_path, auto=False)
    service = await world.start()
    world.source.publish(message(1, ("upsert", "a")), drop_partition(3, 12), tick(9))
    world.channel.log.append(message(1, ("upsert", "a")))
    await settle()
    (call,) = world.coordinator.calls
    assert (call.kind, call.partition_id) == ("partition", 12)
    releasing = asyncio.create_task(service.drain())
    await settle()
    for save in [one for one in world.coordinator.calls if one.kind == "save"]:
        world.coordinator.deliver(save)
    await settle()
    assert not releasing.done()
    assert world.channel.checkpoint.timestamp == 1

    world.coordinator.deliver(call)
    assert await releasing == position(9)
    assert world.channel.dropped_lanes == {12}


async def test_a_graph_that_starts_after_a_drop_does_not_tell_it_again(tmp_path: Path) -> None:
    """Its recovery info says that the coordinator knows; a replayed message is no news."""
    world = World(tmp_path, auto=False)
    world.channel.dropped_lanes.add(12)
    service = await world.start()
    world.source.publish(drop_partition(3, 12), tick(9))
    await settle()

    assert world.coordinator.calls == []
    assert await world.hand_over(service) == position(9)


@pytest.mark.parametrize("partition", [11, -1, 0])
async def test_a_message_cannot_drop_what_cannot_be_dropped(tmp_path: Path, partition: int) -> None:
    """The coordinator would refuse it for ever, and the checkpoint would stand still without a word."""
    world = World(tmp_path)
    await world.start()
    world.source.publish(drop_partition(3, partition))
    await settle()

    [(_, reason, error)] = world.ends
    assert (reason, type(error)) == (EndReason.FAILED, SourceInvalidError)


async def test_what_the_coordinator_says_is_dropped_is_thrown_away_at_once(tmp_path: Path) -> None:
    """Nobody reads it any more, and a lane without rows would learn it from no answer; also of partitions not seen yet."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a", 12), ("upsert", "b")))
    world.coordinator.drop_lanes(12)
    service.drop_partitions({12, 77})
    await settle()
    assert [[lane.partition_id for lane in part.lanes] for part in world.coordinator.saves] == [[12]]
    world.source.publish(message(2, ("upsert", "late", 12), ("upsert", "later", 77), ("upsert", "c")))
    world.channel.log.append(message(2, ("upsert", "c")))
    await settle()
    await world.hand_over(service)

    assert world.coordinator.read() == {"b": 1, "c": 2}
    assert world.resources.metrics.value(names.FILTERED_ROWS, reason="dropped_partition") == 2


async def test_a_drop_of_a_collection_that_is_gone_ends_the_graph_without_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody dropped the collection meanwhile: nothing is left to tell, and nothing has failed."""
    world = World(tmp_path)

    async def gone(_collection_name: str, _partition_id: int) -> None:
        raise CollectionNotFoundError("gone")

    monkeypatch.setattr(world.coordinator, "drop_partition", gone)
    await world.start()
    world.source.publish(drop_partition(3, 12))
    await settle()

    [(_, reason, _)] = world.ends
    assert reason is EndReason.DROPPED


async def test_a_partition_dropped_by_command_is_discarded_and_holds_nothing_up(tmp_path: Path) -> None:
    """B23: a save that is refused as a whole would be repeated for ever, and the other lanes never land."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a", 12), ("upsert", "b")))
    world.channel.dropped_lanes.add(12)
    service.set_flush_timestamp(1)
    await settle()
    await world.publish(message(2, ("upsert", "late", 12), ("upsert", "c")))
    final = await world.hand_over(service)

    assert final == position(2)
    assert world.coordinator.read() == {"b": 1, "c": 2}
    assert world.resources.metrics.value(names.SAVED_RANGES, outcome="discarded") == 1
    assert world.resources.metrics.value(names.FILTERED_ROWS, reason="dropped_partition") == 1


async def test_dropping_the_collection_saves_the_rest_and_drops_the_channel(tmp_path: Path) -> None:
    """Drop mode: no checkpoint any more, the last save and the tombstone together, then the end."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    world.source.publish(drop_collection(2))
    service.set_flush_timestamp(1)
    await settle()
    await world.advance(100.0)

    assert world.ends == [(1, EndReason.DROPPED, None)]
    assert world.channel.dropped
    assert world.channel.checkpoint == START
    assert world.coordinator.updates == []
    assert len(world.channel.facts) == 2
    assert world.source.open_readers == 0


async def test_a_channel_that_drops_itself_cannot_be_released_any_more(tmp_path: Path) -> None:
    """Draining and dropping at once: the drop wins, and the process is told."""
    world = World(tmp_path, auto=False)
    service = await world.start()
    world.source.publish(drop_collection(2))
    await settle()
    draining = asyncio.ensure_future(service.drain())
    await settle()
    world.coordinator.deliver(world.coordinator.calls[0])
    with pytest.raises(ChannelDroppedError, match="by its own log"):
        await draining

    assert [reason for _, reason, _ in world.ends] == [EndReason.DROPPED]


async def test_a_drain_that_stops_the_reader_right_behind_the_drop_still_drops(tmp_path: Path) -> None:
    """A reader is stopped wherever it waits. Nobody else would drop the channel, and the drain would wait for ever."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    service._graph.feed(drop_collection(2))
    draining = asyncio.ensure_future(service.drain())
    await settle()

    assert draining.done()
    assert isinstance(draining.exception(), ChannelDroppedError)
    assert [reason for _, reason, _ in world.ends] == [EndReason.DROPPED]
    assert world.channel.dropped
    assert world.coordinator.read() == {"a": 1}


# ---- what others see ---------------------------------------------------------------------------------------------------------


async def test_a_report_says_what_an_operator_asks_first(tmp_path: Path) -> None:
    """How far, how far behind, how much is not safe yet."""
    world = World(tmp_path, auto=False)
    world.source.items.extend(
        [message(1, ("upsert", "a")), message(2, ("upsert", "b", 12)), message(9, ("upsert", "c"))]
    )
    world.source.reveal(2)
    service = await world.start()
    service.sync(12, SyncReason.FULL_BUFFER)
    await settle()
    world.source.head = 3  # it exists, nobody was told
    report = service.report()

    assert (report.channel_name, report.epoch, report.timestamp, report.event_time_ms) == ("c", 1, 2, 20)
    assert (report.lag, report.buffered_rows, report.syncs_in_flight, report.finished) == (7, 2, 1, False)
    assert report.buffered_bytes > 0
    await service.close()


async def test_a_report_never_fails_because_a_source_does(tmp_path: Path) -> None:
    """One channel's broken source must not cost the process its session."""
    world = World(tmp_path)
    service = await world.start()
    with mock.patch.object(LogReader, "head", side_effect=OSError):
        report = service.report()

    assert not report.HasField("lag")
    await service.close()


async def test_a_bug_in_one_channel_does_not_reach_its_neighbours(tmp_path: Path) -> None:
    """The ticker and the memory check walk over all channels of the process."""
    world = World(tmp_path)
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    with mock.patch.object(service.write_buffer, "cut", side_effect=RuntimeError("bug")):
        service.sync(DEFAULT_PARTITION, SyncReason.FULL_BUFFER)

    assert [(reason, str(error)) for _, reason, error in world.ends] == [(EndReason.FAILED, "bug")]


async def test_reading_yields_to_other_channels(tmp_path: Path) -> None:
    """A reader that has everything in memory never waits; heartbeats must get through all the same."""
    world = World(tmp_path)
    world.source.batch_messages = 1
    world.publish_quietly(*(message(ts, ("upsert", "a")) for ts in range(1, 500)))
    service = world.service()
    service.start()
    await settle(50)

    assert 0 < service.report().timestamp < 100
    await service.close()


async def test_segments_are_mirrored_from_answers(tmp_path: Path) -> None:
    """S4: segments belong to the server; the metacache only repeats what it says."""
    world = World(tmp_path, small_buffers())
    service = await world.start()
    await world.publish(message(1, ("upsert", "a")))
    [segment] = service.write_buffer.metacache.segments.values()

    assert (segment.partition_id, segment.state, segment.timestamp_to) == (
        DEFAULT_PARTITION,
        common_pb2.SEGMENT_STATE_GROWING,
        1,
    )
    await service.close()
