"""The sink for long: drivers killed at any moment, workers used once and again, hundreds of short jobs."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server.running_coordinator import ROOT, CoordinatorProcess

import datacoord

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

SEED = 20261121
ROWS_PER_FILE = 200


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A coordinator process."""
    with CoordinatorProcess(tmp_path / "data") as coordinator:
        yield coordinator.address


def make_source(directory: Path, files: int) -> Counter[tuple[int, str]]:
    """Files whose rows have an order over all files; every row, once."""
    directory.mkdir()
    for number in range(files):
        keys = list(range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE))
        columns = {"key": keys, "value": [f"v{key}" for key in keys], "ts": [key + 1 for key in keys]}
        shards = pa.array([key % 2 for key in keys], pa.int32())
        path = directory / f"{number}.parquet"
        pq.write_table(pa.table({**columns, "shard": shards}), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return Counter((key, f"v{key}") for key in range(files * ROWS_PER_FILE))


def driver(address: str, collection: str, tmp_path: Path, *, reuse: str = "true", writes: int = 0) -> list[str]:
    """Command of a driver."""
    script = str(Path(__file__).with_name("sink_driver.py"))
    where = [address, collection, str(tmp_path / "source"), str(tmp_path / f"checkpoints-{collection}")]
    return [sys.executable, script, *where, reuse, str(writes)]


def environment() -> dict[str, str]:
    """This source tree on the path."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def read_back(address: str, collection: str) -> Counter[tuple[int, str]]:
    """Every row a reader sees, and how often."""
    rows = datacoord.to_arrow(address, collection, columns=["key", "value"])
    return Counter(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True))


@pytest.mark.parametrize("reuse", ["true", "false"])
def test_hundreds_of_short_jobs_land_and_end_whether_workers_are_used_again_or_not(
    tmp_path: Path, address: str, reuse: str
) -> None:
    """GRPC does not survive a fork, and a worker that hangs in one hangs the query without a word."""
    expected = make_source(tmp_path / "source", 100)
    command = driver(address, "many", tmp_path, reuse=reuse, writes=100)

    result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=1500)

    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.split() == ["landed"]
    assert read_back(address, "many") == expected
    assert len(read_back(address, "many_writes")) == 119


def test_rows_land_exactly_once_though_the_driver_is_killed_again_and_again(tmp_path: Path, address: str) -> None:
    """SIGKILL of the driver takes Spark with it, in the middle of a batch, of a commit, or between the two."""
    expected = make_source(tmp_path / "source", 60)
    rng = random.Random(SEED)
    command = driver(address, "killed", tmp_path)
    for _ in range(6):
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(15, 40))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=600)

    assert result.returncode == 0, result.stderr[-4000:]
    assert read_back(address, "killed") == expected
