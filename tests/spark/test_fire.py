"""The datanode job under fire: everything that can happen to it does, at random, while it lands a source on two executors."""

import time
from pathlib import Path

import pytest

from spark.fire import Fire

pytestmark = [pytest.mark.spark]

SEED = 20261122


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
    with Fire(tmp_path, SEED, rows=60_000, channels=16) as fire:
        order = list(fire.faults)
        fire.rng.shuffle(order)
        with fire.flowing(30, lambda: (len(fire.done) + 1) / len(order)):
            for name in order:
                fire.a_worker()
                time.sleep(fire.rng.uniform(0.2, 1.5))
                fire.set_on_fire(name)
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
        with fire.flowing(600, lambda: 1.0):
            while time.monotonic() < ends:
                fire.a_worker()
                time.sleep(fire.rng.uniform(0.0, 3.0))
                fire.set_on_fire(fire.rng.choice(list(fire.faults)))
        print(f"{len(fire.done)} faults, {len(fire.sessions())} sessions")
        fire.await_landed()
        check(fire)
