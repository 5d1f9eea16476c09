"""Beside a live service: what is merely in flight is no fault, wherever between the steps it happens."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from store.support import CALLER, position
from support.waiting import WAIT_SECONDS_MAX

from coordinator.core.verify import Kind
from coordinator.store import ChannelRelease
from coordinator.store.verify import Report
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogPath

from .stage import Interrupted, Stage, kinds

ROUNDS_MAX = 200
"""Of a test that ends when there is enough to look at."""


async def interrupted(
    stage: Stage,
    *,
    listed: Callable[[], Coroutine[Any, Any, object]] | None = None,
    opened: Callable[[], Coroutine[Any, Any, object]] | None = None,
) -> Report:
    """Verifies while something happens: after the listing, or before a suspect is looked at again (once each)."""
    loop = asyncio.get_running_loop()
    waiting = {"listed": listed, "opened": opened}

    def happen(when: str) -> None:
        what = waiting.pop(when, None)
        if what is not None:
            asyncio.run_coroutine_threadsafe(what(), loop).result(30)

    def open_store(root: str) -> ObjectStore:
        inner = ObjectStore.from_uri(root)
        return Interrupted(inner, lambda: happen("listed"), lambda: happen("opened"))

    report = await asyncio.to_thread(stage.verify, open_store=open_store)
    assert not any(waiting.values()) or opened is not None
    return report


async def test_an_object_that_is_registered_after_the_listing_is_not_missing(stage: Stage) -> None:
    """Its row is read and its object was not listed: a check that stops here calls every busy collection broken."""
    first = stage.world.channels[0]

    report = await interrupted(stage, listed=lambda: stage.land(first, stage.world.default, 30, 44, checkpoint=44))

    assert report.findings == []
    assert report.checked["binlogs"] == report.checked["objects"] + 1


async def test_an_object_that_is_listed_before_its_row_comes_is_not_an_orphan(stage: Stage) -> None:
    """Listed without a row, registered while the listing went on."""
    first = stage.world.channels[0]
    (info,) = (await stage.world.store.recovery_info(channel_names=[first])).items
    path = stage.path(info.channel_id, stage.world.default, info.epoch, 30, 50)
    stage.create(stage.world.collection, path)
    assert kinds(stage.verify().findings) == {Kind.PENDING_OBJECT}

    async def register() -> None:
        await stage.register(first, path)

    report = await interrupted(stage, listed=register)

    assert report.findings == []


async def test_an_object_of_a_new_owner_is_never_called_garbage(stage: Stage) -> None:
    """Rows before objects would see an epoch in a name that the rows do not know yet, and call what is pending an orphan."""
    first = stage.world.channels[0]

    async def take_over() -> None:
        release = ChannelRelease(first, await stage.world.epoch(first), position(30))
        await stage.world.store.release_channels([release], caller=CALLER)
        await stage.world.store.run_assignment_job()
        (info,) = (await stage.world.store.recovery_info(channel_names=[first])).items
        stage.create(stage.world.collection, stage.path(info.channel_id, stage.world.default, info.epoch, 30, 50))

    await take_over()
    assert kinds((await interrupted(stage, listed=take_over)).findings) == {Kind.ORPHAN}
    report = stage.verify()
    assert sorted(finding.kind for finding in report.findings) == [Kind.ORPHAN, Kind.PENDING_OBJECT]


async def test_an_object_that_garbage_collection_deletes_meanwhile_is_not_missing(stage: Stage) -> None:
    """Its row was there when rows were read; by the time its object is looked for, both are gone, the row first."""
    await stage.world.store.drop_collection("managed", caller=CALLER)
    doomed = stage.files()[0]
    hidden = doomed.rename(doomed.with_suffix(".hidden"))

    async def collect() -> None:
        path = BinlogPath.parse(str(doomed.relative_to(stage.world.collection.storage_root)))
        stage.execute(
            "DELETE FROM binlogs WHERE log_id = :log_id AND range_from = :start",
            log_id=path.log_id,
            start=path.timestamp_from,
        )
        hidden.unlink()

    report = await interrupted(stage, listed=None, opened=collect)

    assert {f.kind for f in report.findings} <= {Kind.UNKNOWN_OBJECT}
    assert report.faults == 0


async def test_a_channel_that_an_operator_moves_has_no_finding_before_and_after_it_moved(stage: Stage) -> None:
    """What MoveChannel asks for stands in the history under the epoch as it is: called a zombie's, every move would be a fault."""
    world = stage.world
    channel = world.channels[0]
    other = await world.start_datanode(1)

    await world.store.move_channel(channel, other, caller=CALLER)
    assert stage.verify().findings == []
    await stage.land(channel, world.default, 30, 44, checkpoint=44)
    await world.store.release_channels([ChannelRelease(channel, await world.epoch(channel), None)], caller=CALLER)
    await world.store.run_assignment_job()
    await stage.land(channel, world.default, 44, 50, checkpoint=50)

    assert stage.verify().findings == []


async def test_a_missing_object_is_found_though_everything_else_moves(stage: Stage) -> None:
    """The other half of looking twice: what is really gone is still said."""
    first = stage.world.channels[0]
    stage.files()[0].unlink()

    report = await interrupted(stage, listed=lambda: stage.land(first, stage.world.default, 30, 44, checkpoint=44))

    assert kinds(report.findings) == {Kind.MISSING_OBJECT}


async def test_a_service_under_load_has_no_fault_at_any_moment(empty_stage: Stage) -> None:
    """Saves, owners that change, zombies, partitions that are dropped, all the while somebody verifies again and again."""
    stage = empty_stage
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    stop = asyncio.Event()
    landed: list[str] = []

    async def write(channel: str) -> None:
        progress = {stage.world.default: 0, stage.world.other: 0}
        end = 0
        while not stop.is_set():
            lane = rng.choice(sorted(progress))
            end += rng.randint(1, 3)
            what = rng.random()
            if what < 0.1:
                # A zombie first: refused, its object stays behind, and the row lands by the owner.
                assert await stage.land(channel, lane, progress[lane], end, rows_from=end, epoch=1) == "FENCED"
            done = ""
            while done not in {"APPLIED", "DISCARDED"}:
                done = await stage.land(
                    channel, lane, progress[lane], end, rows_from=end, checkpoint=end, seal=what > 0.9
                )
            progress[lane] = end
            landed.append(done)
            if what > 0.8:
                release = ChannelRelease(channel, await stage.world.epoch(channel), None)
                await stage.world.store.release_channels([release], caller=CALLER)
                await stage.world.store.run_assignment_job()
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write(channel)) for channel in stage.world.channels]
    try:
        for number in range(ROUNDS_MAX):
            if number >= 6 and len(landed) > 20:
                break
            report = await asyncio.to_thread(stage.verify)
            assert report.faults == 0, report.findings
            assert not any(writer.done() for writer in writers), "a writer has given up"
            if number == 3:
                await stage.world.store.drop_partition("managed", "other", caller=CALLER)
        assert len(landed) > 20, f"only {landed} landed while {ROUNDS_MAX} rounds of verify looked on"
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*writers), WAIT_SECONDS_MAX)
    report = stage.verify(deep=True)
    assert report.faults == 0, report.findings
    assert kinds(report.findings) <= {Kind.ORPHAN}


async def test_what_garbage_collection_leaves_of_a_dropped_collection_is_no_fault(stage: Stage) -> None:
    """Rows, lanes and objects of tombstones go; the history still tells of them."""
    await stage.world.store.drop_collection("managed", caller=CALLER)
    report = stage.verify()
    assert report.faults == 0, report.findings
    assert report.checked["binlogs"] == 7

    of_channel = "(SELECT channel_id FROM channel_state WHERE state = 2)"
    of_segment = f"(SELECT segment_id FROM segments WHERE channel_id IN {of_channel})"
    stage.execute(f"DELETE FROM binlogs WHERE segment_id IN {of_segment}")
    assert kinds(stage.verify().findings) == {Kind.ORPHAN}
    stage.execute(f"DELETE FROM lanes WHERE channel_id IN {of_channel}")
    stage.execute(f"DELETE FROM segments WHERE channel_id IN {of_channel}")
    for file in stage.files():
        file.unlink()

    assert stage.verify().findings == []
