"""The file that holds a source back."""

from pathlib import Path

from datacoord.limits import TIMESTAMP_MAX
from datanode_client.sources.head_limit import HeadLimit


class Clock:
    """Time that stands still unless it is moved."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_limit_follows_the_file_and_no_file_is_no_limit(tmp_path: Path) -> None:
    """A limit that is not seen, or seen too late for good, lets a run pass the point where it should be stopped."""
    clock, path = Clock(), tmp_path / "limit"
    limit = HeadLimit(path, poll_seconds=1, clock=clock)
    path.write_text("7\n")
    assert limit.value() == 7

    path.write_text("8")
    assert limit.value() == 7  # not read again within the second
    clock.seconds = 1
    assert limit.value() == 8
    path.unlink()
    clock.seconds = 2
    assert limit.value() == TIMESTAMP_MAX
    assert HeadLimit(None).value() == TIMESTAMP_MAX


def test_a_file_that_is_just_being_written_changes_nothing(tmp_path: Path) -> None:
    """An empty file read as "no limit" would let everything through for a moment, which is all it takes."""
    clock, path = Clock(), tmp_path / "limit"
    path.write_text("")
    limit = HeadLimit(path, poll_seconds=0, clock=clock)
    assert limit.value() == 0

    path.write_text("5")
    assert limit.value() == 5
    path.write_text("not a number")
    assert limit.value() == 5
