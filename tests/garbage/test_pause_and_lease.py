"""Who may run a round and when: pauses, the hold of a restore, the lease and its fence, a process that stops."""

import asyncio
from typing import Any

import pytest
from store.support import CALLER, dump
from support.engines import engine_of

from coordinator.store.garbage import GcStatus, hold
from datacoord.errors import GcPausedError, OverloadedError
from datacoord.paths import BinlogKind
from datacoord.v1 import admin_pb2
from garbage.rig import Rig, execute


async def _orphans(rig: Rig, count: int) -> set[str]:
    channel = rig.world.channels[0]
    written = rig.write(channel, await rig.world.epoch(channel), 0, 10, kinds=(BinlogKind.INSERT,) * count)
    await rig.change_owner()
    return set(written.paths)


async def test_a_pause_in_the_middle_of_a_round_stops_it_within_a_chunk(sqlite_rig: Rig) -> None:
    """Whoever pauses it has a reason that cannot wait for a round of an hour."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 9)
    deleted = 0

    async def blocking(work: Any, *arguments: Any) -> Any:
        nonlocal deleted
        if work.__name__ == "delete":
            deleted += 1
            if deleted == 2:
                await rig.world.store.garbage.pause(60_000, "an investigation", caller=CALLER)
        return await asyncio.to_thread(work, *arguments)

    await rig.job(blocking)()

    status = await rig.world.store.garbage.status()
    assert (status.paused, status.reason) == (True, "an investigation")
    assert "paused" in status.last_round.error
    assert len(orphans & rig.files()) == 5
    rig.world.clock.advance(60_000)
    await rig.collect()
    assert not orphans & rig.files()


async def test_asking_what_the_collector_does_writes_nothing(rig: Rig) -> None:
    """Every replica asks every few seconds, and the page and `datacoord gc status` ask: each would be a transaction that writes."""
    garbage, statistics = rig.world.store.garbage, rig.world.store.statistics
    await garbage.pause(60_000, "looking", caller=CALLER)
    groups = statistics.groups

    assert (await garbage.status()).reason == "looking"
    rig.world.clock.advance(60_000)
    assert not (await garbage.status()).paused

    assert statistics.groups == groups


async def test_a_pause_is_neither_refused_nor_late_because_others_write(sqlite_rig: Rig) -> None:
    """Who pauses the collector in a storm of writes does it because something is being deleted now."""
    world = sqlite_rig.world
    await world.store.close()
    await world.open(queue_items_max=3, group_items_max=1)
    channel = world.channels[0]
    writes = [asyncio.ensure_future(world.move(channel, timestamp)) for timestamp in range(1, 6)]
    await asyncio.sleep(0)
    taken = [write for write in writes if not write.done()]

    await world.store.garbage.pause(0, "stop", caller=CALLER)

    assert not taken[-1].done(), "it waited behind them"
    assert (await world.store.garbage.status()).paused
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert OverloadedError in {type(answer) for answer in answers}, "there was room"


async def test_nothing_begins_while_a_restore_holds_it_until_it_is_resumed(rig: Rig) -> None:
    """The lost time has left objects that only `datacoord verify` can tell; no pause that ends by itself may free them."""
    orphans = await _orphans(rig, 2)
    engine = engine_of(rig.world.url)
    with engine.begin() as connection:
        hold(connection, "restored from a backup")
    engine.dispose()
    garbage = rig.world.store.garbage
    await garbage.pause(1, "a short one", caller=CALLER)
    rig.world.clock.advance(86_400_000)

    await rig.job()()
    with pytest.raises(GcPausedError, match="restored from a backup"):
        await garbage.request_run(caller=CALLER)

    assert orphans <= rig.files()
    assert (await garbage.status()).reason == "restored from a backup"
    assert not (await garbage.resume(caller=CALLER)).paused
    await rig.collect()
    assert not orphans & rig.files()


async def test_without_its_control_row_nothing_goes_until_somebody_says_so(rig: Rig) -> None:
    """Whoever deleted it may have deleted a hold."""
    orphans = await _orphans(rig, 1)
    execute(rig, "DELETE FROM gc_control")

    await rig.job()()

    assert orphans <= rig.files()
    assert "missing" in (await rig.world.store.garbage.status()).reason
    await rig.world.store.garbage.resume(caller=CALLER)
    await rig.collect()
    assert not orphans & rig.files()


@pytest.mark.parametrize("gone", ["job_leases", "fence"])
async def test_a_holder_that_lost_its_lease_deletes_no_more_and_keeps_no_figures(rig: Rig, gone: str) -> None:
    """It may have slept for an hour, and the other one works now; what it does delete is garbage all the same."""
    orphans = await _orphans(rig, 9)

    async def blocking(work: Any, *arguments: Any) -> Any:
        result = await asyncio.to_thread(work, *arguments)
        if work.__name__ == "delete":
            other = "holder = 'other', lease_until_ms = 9000000000000," if gone == "job_leases" else ""
            execute(rig, f"UPDATE job_leases SET {other} fence = fence + 1 WHERE name = 'garbage'")
        return result

    await rig.job(blocking)()

    assert len(orphans & rig.files()) == 7
    assert (await rig.world.store.garbage.status()).last_round.start_time_ms == 0
    (lease,) = [row for row in dump(rig.world.url)["job_leases"] if row[0] == "garbage"]
    begun = await rig.world.store.garbage.begin(0)
    if gone == "job_leases":
        assert begun is None, "the other one's lease lives"
    else:
        # The lease is its own: it begins anew, under the fence that counts now.
        assert begun is not None
        assert begun.fence == lease[2]


async def test_a_slow_listing_keeps_the_lease(sqlite_rig: Rig) -> None:
    """Hundreds of thousands of objects take longer to list than a lease lasts."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 3)
    release = asyncio.Event()
    renewed = 0
    real = rig.world.store.garbage.permit

    async def permit(fence: int) -> Any:
        nonlocal renewed
        renewed += 1
        if renewed == 3:
            release.set()
        return await real(fence)

    async def blocking(work: Any, *arguments: Any) -> Any:
        if work is next:
            await release.wait()
        return await asyncio.to_thread(work, *arguments)

    rig.world.store.garbage.permit = permit  # type: ignore[method-assign]
    await asyncio.wait_for(rig.job(blocking, permit_seconds=0.01)(), 60)

    assert not orphans & rig.files()
    assert renewed >= 3


async def test_a_process_that_stops_ends_its_round_at_the_next_object(sqlite_rig: Rig) -> None:
    """SIGTERM does not wait for an hour of deletions."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 9)
    job = rig.job()

    async def blocking(work: Any, *arguments: Any) -> Any:
        if work.__name__ == "delete":
            job.stop()
        return await asyncio.to_thread(work, *arguments)

    job._blocking = blocking
    await job()

    assert orphans <= rig.files()
    assert "stopped" in (await rig.world.store.garbage.status()).last_round.error
    assert await job() == {}


async def test_a_process_that_stops_deletes_no_more_rows_either(rig: Rig) -> None:
    """A collection of a million rows was dropped a moment ago."""
    first = rig.world.channels[0]
    await rig.land(first, 0, 10, kinds=(BinlogKind.INSERT,) * 12)
    await rig.drop_channel(first)
    job = rig.job(delete_rows_max=3)

    async def stop(_seconds: float) -> None:
        job.stop()

    job._rest = stop
    await job()

    done = (await rig.world.store.garbage.status()).last_round
    assert "stopped" in done.error
    assert done.binlog_rows_deleted == 6
    assert len(dump(rig.world.url)["binlogs"]) == 6


async def test_a_replica_where_it_is_switched_off_runs_no_round(sqlite_rig: Rig) -> None:
    """The setting says so."""
    rig = sqlite_rig
    orphans = await _orphans(rig, 1)
    assert await rig.job(enabled=False)() == {}
    assert orphans <= rig.files()


async def test_a_round_is_asked_for_once_and_begins_once(rig: Rig) -> None:
    """A flag that stays would make one round after the other."""
    await rig.collect()
    garbage = rig.world.store.garbage
    assert await garbage.begin(3_600_000) is None
    assert (await garbage.request_run(caller=CALLER)).run_requested
    assert (await garbage.request_run(caller=CALLER)).run_requested
    assert await garbage.begin(3_600_000) is not None
    assert not (await garbage.status()).run_requested


@pytest.mark.parametrize(
    ("took_ms", "error", "after_ms"), [(5, "", 3_600_000), (5, "x", 60_000), (30_000, "x", 300_000)]
)
def test_a_round_that_failed_is_tried_again_soon_but_not_all_the_time(took_ms: int, error: str, after_ms: int) -> None:
    """A root of another database fails for good: listing everything every minute would be paid for by the request."""
    last = admin_pb2.GcRound(start_time_ms=1_000, duration_ms=took_ms, error=error)

    def due(now_ms: int) -> bool:
        return GcStatus(False, 0, "", False, last, now_ms).is_due(3_600_000)

    end_ms = 1_000 + took_ms
    assert not due(end_ms + after_ms - 1)
    assert due(end_ms + after_ms)
