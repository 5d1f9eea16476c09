"""What `datacoord land` shows: to a person at a terminal, and to a log."""

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from datacoord.cli import land
from datacoord.cli.land_progress import LandProgress
from datacoord.errors import CollectionNotFoundError, CoordinatorUnreachableError, DatacoordError, SparkStoppedError
from datacoord.v1 import admin_pb2
from datanode_client.spark import JobProgress

NODES = (admin_pb2.DataNodeInfo(), admin_pb2.DataNodeInfo())


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_log_gets_a_line_every_five_seconds() -> None:
    """A line for every look fills a disk; none at all says nothing for the hours that it takes."""
    clock, said = Clock(), io.StringIO()
    with LandProgress(Console(file=said, width=300), clock) as display:
        for second in range(21):
            clock.seconds = 100.0 + second
            display.show(
                JobProgress(16, second // 5, NODES, rows=1000 * second, read=second, behind=80 - second, lag=9)
            )

    assert said.getvalue().splitlines() == [
        "   5.0 s    6% read; 5,000 rows read, 1,000/s, at most 9 behind; 1/16 channels done; 2 datanodes",
        "  10.0 s   12% read; 10,000 rows read, 1,000/s, at most 9 behind; 2/16 channels done; 2 datanodes",
        "  15.0 s   19% read; 15,000 rows read, 1,000/s, at most 9 behind; 3/16 channels done; 2 datanodes",
        "  20.0 s   25% read; 20,000 rows read, 1,000/s, at most 9 behind; 4/16 channels done; 2 datanodes",
    ]


def test_a_source_without_a_head_has_a_rate_and_no_share() -> None:
    """0 of n for ever is what a job that stands still shows, too."""
    clock, said = Clock(), io.StringIO()
    with LandProgress(Console(file=said, width=300), clock) as display:
        for second in (0, 30, 40):
            clock.seconds = 100.0 + second
            display.show(JobProgress(16, 0, NODES, rows=min(second, 30) * 100))
        display.show_away(CoordinatorUnreachableError("nobody answers"))
        clock.seconds += 5
        display.show_away(CoordinatorUnreachableError("nobody answers"))

    assert said.getvalue().splitlines() == [
        "  30.0 s  3,000 rows read, 100/s; 0/16 channels done; 2 datanodes",
        "  40.0 s  3,000 rows read, 0/s; 0/16 channels done; 2 datanodes",
        "  45.0 s  coordinator: nobody answers",
    ]


def test_a_terminal_gets_a_bar_of_what_was_read() -> None:
    """Channels done are none until the end, and all of them then."""
    said = io.StringIO()
    with LandProgress(Console(file=said, width=160, force_terminal=True, color_system=None), Clock()) as display:
        display.show(JobProgress(16, 0, NODES, rows=1000, read=30, behind=10, lag=10))
    assert "75% " in said.getvalue()
    assert "1,000 rows read, 0/s, at most 10 behind; 0/16 channels done; 2 datanodes" in said.getvalue()


def watch(*said: JobProgress | DatacoordError, check: DatacoordError | None = None) -> bool:
    """What the command makes of a job that says so, look by look."""
    answers = list(said)

    def progress() -> JobProgress:
        answer = answers.pop(0)
        if isinstance(answer, DatacoordError):
            raise answer
        return answer

    def checked() -> None:
        if check is not None:
            raise check

    job: Any = SimpleNamespace(check=checked, progress=progress)
    return land._watch(job, threading.Event(), Console(file=io.StringIO()))


def test_the_command_ends_with_what_does_not_pass_and_goes_on_through_what_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script that waits for a collection that was dropped, or for a Spark that is gone, waits for ever."""
    monkeypatch.setattr(land, "POLL_SECONDS", 0.0)

    assert watch(CoordinatorUnreachableError("away"), JobProgress(1, 0, ()), JobProgress(1, 1, ()))
    with pytest.raises(CollectionNotFoundError):
        watch(CollectionNotFoundError("dropped"))
    with pytest.raises(SparkStoppedError):
        watch(JobProgress(1, 1, ()), check=SparkStoppedError("stopped"))
