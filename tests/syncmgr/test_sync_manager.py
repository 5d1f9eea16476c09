"""Writing what was cut: again and again until it succeeds, never ending the process, never forgetting memory."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.waiting import WAIT_SECONDS_MAX, eventually_in_thread

from datacoord import failpoints
from datacoord import reported_metrics as names
from datacoord.errors import InternalError, ObjectStoreError
from datacoord.objectstore import DiskFullError
from datanode_client.clock import SystemClock
from datanode_client.config import DataNodeConfig
from datanode_client.metrics import DataNodeMetrics
from datanode_client.syncmgr.manager import SyncManager

from .rig import Rig, settle


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A sync manager and what surrounds it."""
    return Rig(tmp_path)


async def test_a_full_disk_is_waited_for_with_growing_delays(rig: Rig) -> None:
    """Milvus panics the process on a failed sync, which only moves the problem to the next process."""
    await rig.sync(3, 1)
    for _ in range(12):
        await rig.threads.finish(error=DiskFullError("full", cause="ENOSPC"))
        await rig.clock.wake()
    await rig.threads.finish()

    assert len(rig.coordinator.sent) == 1
    assert rig.metrics.value(names.SYNC_FAILURES, error="DiskFullError") == 12
    assert all(0.05 * 2**n <= delay <= 0.1 * 2**n for n, delay in enumerate(rig.clock.sleeps[:7]))
    assert all(5.0 <= delay <= 10.0 for delay in rig.clock.sleeps[7:])
    assert rig.errors == []


async def test_a_failed_upload_never_unpins(rig: Rig) -> None:
    """Section 4.2, in the moment that tempts most."""
    await rig.sync(3, 1)
    rig.buffer.advance(rig.buffer.consumed)
    await rig.threads.finish(error=ObjectStoreError("timeout"))

    assert rig.buffer.get_checkpoint().timestamp == 0
    assert rig.memory > 0


async def test_rows_are_freed_when_they_are_durable_not_when_they_are_registered(rig: Rig) -> None:
    """The coordinator may be away for an hour; readers go on as long as memory allows."""
    [task] = rig.cut(3, 1)
    rig.dispatcher.submit(task)
    await settle()
    assert rig.memory == task.size_bytes > 0
    await rig.threads.finish()

    assert rig.memory == 0
    assert task.lane.rows == {}
    assert rig.buffer.get_checkpoint().timestamp == 0


async def test_one_broken_lane_does_not_hold_up_its_neighbours(rig: Rig) -> None:
    """A pause between attempts must not occupy a thread."""
    await rig.sync(3, 1, 2)
    await rig.threads.finish(error=DiskFullError("full"))
    assert rig.threads.ranges() == [(2, 0, 3)]
    await rig.threads.finish()

    assert [lane.partition_id for lane in rig.coordinator.sent[0].lanes] == [2]


async def test_a_range_that_has_a_name_is_not_joined(rig: Rig) -> None:
    """Its object would not say what the registered range says."""
    [first] = rig.cut(3, 1)
    [second] = rig.cut(4, 1)
    [third] = rig.cut(5, 1)
    with pytest.raises(InternalError, match="not adjacent"):
        first.join(third)
    rig.writer.write(first.lane)
    with pytest.raises(InternalError, match="written already"):
        first.join(second)


async def test_the_failpoint_stands_between_durable_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo kills there: objects on disk, the save not sent. It blocks its worker thread and nothing else."""
    points = tmp_path / "points"
    points.mkdir()
    (points / "datanode.objects_written.hold").touch()
    monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, str(points))
    rig = Rig(tmp_path / "objects")
    executor = ThreadPoolExecutor(1)
    manager = SyncManager(
        config=DataNodeConfig(),
        clock=SystemClock(),
        metrics=DataNodeMetrics(),
        rng=random.Random(1),
        account=lambda _: None,
        executor=executor,
    )
    [task] = rig.cut(3, 1)
    manager.accept(task)
    writing = asyncio.ensure_future(manager.write(task, rig.writer))
    await eventually_in_thread(lambda: list(points.glob("*.held.*")))
    assert sorted(path.suffix for path in (tmp_path / "objects").rglob("*.parquet")) == [".parquet", ".parquet"]
    assert not writing.done()
    assert threading.current_thread() is threading.main_thread()
    (points / "datanode.objects_written.hold").unlink()
    await asyncio.wait_for(writing, WAIT_SECONDS_MAX)

    assert len(task.lane.written) == 2
    manager.close()
