"""`datacoord land` ends when what it runs on is gone."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from server.running_coordinator import command, environment, running
from support.waiting import eventually

from datacoord.client import CoordinatorClient


@pytest.mark.spark
@pytest.mark.timeout(480)
def test_a_spark_that_dies_ends_the_command(tmp_path: Path) -> None:
    """A command that waits for ever is one that nobody starts again."""
    arguments = ("land", "generated", "--collection", "made", "--channels", "4", "--rows", "400000000")
    with running(tmp_path / "data", assignment_job_interval_seconds=0.2, watch_poll_seconds=0.1) as coordinator:
        process = subprocess.Popen(
            [*command(), *arguments, "--datanodes", "1", "--address", coordinator.address],
            env=environment(),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with CoordinatorClient(coordinator.address) as client:
                eventually(lambda: any(node.msgs for node in client.list_datanodes("land")), timeout_seconds=240)
            (java,) = children(process.pid)
            os.kill(java, signal.SIGKILL)
            _, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait(10)
    assert process.returncode == 1, stderr
    assert "Spark was stopped, or has died, under job 'land'" in stderr


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
