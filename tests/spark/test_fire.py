"""The datanode job under fire: everything that can happen to it does, at random, while it lands a source on two executors."""

import time
from pathlib import Path

import pytest

from spark.fire import Fire
from spark.fire_driver import MEMORY_LIMIT_BYTES

pytestmark = [pytest.mark.spark]

SEED = 20261122

GROWN_BYTES_MAX = MEMORY_LIMIT_BYTES + 256 * 1024 * 1024
"""What a datanode may grow by in ten minutes: the rows that it buffers, the blocks that its readers hold (one may have every
channel), objects that are encoded, libraries that are loaded with the first object, and what the allocator keeps. The source is
larger, and much of it is read again and again. How memory is bounded when a store hangs is tested alone (`test_workers.py`)."""


def check(fire: Fire) -> None:
    """What must be true whatever has happened."""
    verdict = fire.judge()
    assert verdict.is_right, verdict
    report = fire.verify()
    assert report["faults"] == 0, report["findings"]
    assert {finding["kind"] for finding in report["findings"]} <= {"orphan"}, report["findings"]
    # What nobody registered is garbage, all of it, and nothing else is.
    assert sorted(finding["subject"] for finding in report["findings"]) == fire.unregistered()


@pytest.mark.timeout(900)
def test_rows_land_exactly_once_whatever_is_killed_frozen_or_broken(tmp_path: Path) -> None:
    """Each recovery is proven alone elsewhere; here they meet each other, in Spark, in an order nobody thought of."""
    burning = [
        ("a worker is killed",),
        ("the store is slow",),
        ("an executor is killed", "the coordinator is killed"),
        ("a worker freezes beyond its lease", "the store fails"),
    ]
    with Fire(tmp_path, SEED, rows=60_000, channels=16) as fire:
        assert {name for names in burning for name in names} == {name for one in fire.faults.values() for name in one}
        fire.rng.shuffle(burning)
        with fire.flowing(30, lambda: (len(fire.done) + 1) / len(burning)):
            for names in burning:
                fire.a_worker()
                time.sleep(fire.rng.uniform(0.2, 1.0))
                fire.set_on_fire(names)
        fire.await_landed()

        assert len(fire.sessions()) > 3
        check(fire)
        assert fire.unregistered(), "a worker was killed between writing and registering: its object must be left"


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_rows_land_exactly_once_through_ten_minutes_of_fire(tmp_path: Path) -> None:
    """What needs three accidents in a row happens once in a hundred faults, and then in production."""
    seed = time.time_ns() % 2**32
    ends = time.monotonic() + 600
    with Fire(tmp_path, seed, rows=2_000_000, channels=64) as fire:
        # The rest trickles: the last fault needs a job that is not done.
        with fire.memory.watched(), fire.flowing(600, lambda: 0.9):
            while time.monotonic() < ends:
                fire.a_worker()
                time.sleep(fire.rng.uniform(0.0, 3.0))
                fire.set_on_fire(fire.some_faults())
        print(f"{sum(len(names) for names in fire.done)} faults, {len(fire.sessions())} sessions")
        fire.await_landed()
        check(fire)
        grown_bytes = fire.memory.grown_most()
        print(f"{len(fire.memory.taken)} datanodes seen; the worst grew by {grown_bytes / 2**20:.0f} MiB")
        assert grown_bytes <= GROWN_BYTES_MAX
