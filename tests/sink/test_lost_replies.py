"""The coordinator dies in the middle of a commit, before and after it is durable."""

import threading
from collections import Counter
from pathlib import Path

import pytest
from server.running_coordinator import CoordinatorProcess
from support.waiting import eventually

from datacoord.failpoints import ENVIRONMENT_VARIABLE
from sink.rig import ORDERED, Query, Row, landed, orphans, split, table

ROWS: list[Row] = [(key, f"a{key}", key % 2, key, "append") for key in range(1, 31)]


@pytest.mark.parametrize("point", ["coordinator.before_commit", "coordinator.after_commit"])
def test_a_commit_whose_reply_was_lost_is_repeated_until_it_is_known(tmp_path: Path, point: str) -> None:
    """Guessing "done" loses the batch, guessing "not done" doubles it: the coordinator is killed where nobody can tell."""
    points = tmp_path / "points"
    points.mkdir()
    with CoordinatorProcess(tmp_path / "data", environment={ENVIRONMENT_VARIABLE: str(points)}) as coordinator:
        query = Query(coordinator.address, "c", **ORDERED, operationColumn="op")
        reports = query.tasks(query.plan(), 0, split(table(ROWS), 3))
        hold = points / f"{point}.hold"
        hold.touch()
        failures: list[BaseException] = []
        commit = threading.Thread(target=_run, args=(query, reports, failures))
        commit.start()
        eventually(lambda: any(points.glob(f"{point}.held.*")))
        coordinator.kill()
        hold.unlink()
        coordinator.start()
        commit.join(60)

        assert not commit.is_alive()
        assert failures == []
        assert landed(coordinator.address, "c") == Counter((row[0], row[1]) for row in ROWS)
        assert orphans(coordinator.address, "c") == set()


def _run(query: Query, reports: list[object], failures: list[BaseException]) -> None:
    try:
        query.commit(reports)  # type: ignore[arg-type]
    except BaseException as failure:  # noqa: BLE001 - told to the test
        failures.append(failure)
