"""A real coordinator, killed in the middle of its rounds while datanodes land rows."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from datanode_process.landing import MESSAGES, Landing, finished
from support.waiting import eventually_in_thread

from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogPath

POINTS = ("coordinator.gc_delete", "coordinator.gc_listed")


@pytest.fixture
async def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Landing]:
    """A coordinator that collects all the time, with points at which it can be killed."""
    (tmp_path / "points").mkdir()
    monkeypatch.setenv("DATACOORD_GC_INTERVAL_SECONDS", "0.1")
    monkeypatch.setenv("DATACOORD_GC_DELETE_OBJECTS_MAX", "3")
    monkeypatch.setenv("DATACOORD_FAILPOINT_DIR", str(tmp_path / "points"))
    async with Landing(tmp_path) as made:
        yield made


def _root(landing: Landing) -> Path:
    return Path(landing.client.describe_collection("t").storage_root.removeprefix("file://"))


def _files(root: Path) -> set[str]:
    return {info.path for info in ObjectStore.from_uri(str(root)).list_objects()}


def _registered(landing: Landing) -> set[str]:
    return {log.binlog.log_path for channel in landing.client.list_binlogs("t") for log in channel.binlogs}


def _plant(root: Path, count: int, start: int) -> set[str]:
    """Orphans of the epoch that each channel was created under, which nobody ever owned it in."""
    channels = sorted({BinlogPath.parse(path).channel_id for path in _files(root)})
    parts = {path.split("/")[2] for path in _files(root)}
    planted = set()
    for channel_id in channels:
        for log_id in range(start, start + count):
            path = f"insert_log/{channel_id}/{min(parts)}/1/0-5-0-{log_id}.parquet"
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(b"orphan")
            planted.add(path)
    return planted


async def test_a_coordinator_killed_in_the_middle_of_a_round_loses_nothing_and_leaves_nothing(
    landing: Landing, tmp_path: Path
) -> None:
    """Some objects are deleted, the round is forgotten, datanodes write and save meanwhile; one of them is killed as well."""
    landing.source.set_limit(MESSAGES // 2)
    landing.datanodes.start(0)
    landing.datanodes.start(1)
    await landing.until_consumed(MESSAGES // 4)
    root = _root(landing)
    for number, point in enumerate(POINTS):
        # First: a round that came before could delete them all, and nothing would be left to be held at.
        (tmp_path / "points" / f"{point}.hold").touch()
        planted = _plant(root, 5, 1 + 100 * number)
        await eventually_in_thread(lambda: list((tmp_path / "points").glob("*.held.*")))
        assert planted & _files(root), "it was held before its last deletion"
        (tmp_path / "points" / f"{point}.kill").touch()
        assert await landing.coordinator.ended() == -signal.SIGKILL
        for file in (tmp_path / "points").iterdir():
            file.unlink()
        if number == 0:
            await landing.datanodes.kill(0)
            landing.datanodes.start(2)
        await landing.coordinator.start()
    landing.source.set_limit(MESSAGES)
    await landing.until(finished)
    await landing.check()
    await landing.datanodes.stop()

    # Nobody owns the channels any more: whatever has no row is garbage.
    await eventually_in_thread(lambda: _files(root) == _registered(landing))
    await landing.check()
    assert not [path for path in _files(root) if "/1/0-5-0-" in path]
