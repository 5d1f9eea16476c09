"""The sorter against a slow obvious one, and its promises: order, one message per timestamp, bounded memory, no files left."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datanode_client.puller.events import Message, OpType, RawKVEntry
from datanode_client.puller.sorter import MERGE_FAN_IN, Sorter, SorterFullError, SorterMisuseError
from datanode_client.puller.spill import SpillRun, batch_to_entries, entries_to_batch, entry_bytes


def change(commit_ts: int, key: bytes = b"k", *, start_ts: int = 0, value: bytes = b"v") -> RawKVEntry:
    """A put."""
    return RawKVEntry(OpType.PUT, key, value, b"", start_ts or commit_ts - 1, commit_ts)


def open_files(directory: Path) -> int:
    """Descriptors of this process for files of a directory, with and without names: others come and go in other threads."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return sum(name.startswith(f"{directory}/") for name in found)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Sorter]:
    """A sorter that spills after every third change."""
    sorter = Sorter(memory_limit_bytes=2 * entry_bytes(change(1)), directory=tmp_path)
    yield sorter
    sorter.close()


class SlowSorter:
    """The reference: a list, searched."""

    def __init__(self) -> None:
        self.waiting: list[RawKVEntry] = []

    def drain(self, resolved_ts: int) -> list[Message]:
        messages = []
        for commit_ts in sorted({entry.commit_ts for entry in self.waiting if entry.commit_ts <= resolved_ts}):
            last = {(entry.start_ts, entry.key): entry for entry in self.waiting if entry.commit_ts == commit_ts}
            messages.append(Message(commit_ts, [last[identity] for identity in sorted(last)]))
        self.waiting = [entry for entry in self.waiting if entry.commit_ts > resolved_ts]
        return messages


CHANGES = st.builds(
    RawKVEntry,
    st.sampled_from([OpType.PUT, OpType.DELETE]),
    st.sampled_from([b"", b"a", b"b", b"\xff\x00"]),
    st.binary(max_size=4),
    st.binary(max_size=2),
    st.integers(1, 3),
    st.integers(1, 30),
    st.integers(1, 2**64 - 1),
)
STEPS = st.lists(st.one_of(st.lists(CHANGES, max_size=8), st.integers(0, 8)), max_size=40)


@given(steps=STEPS, limit=st.sampled_from([0, 600, 3000, 10**6]), stop_early=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_sorter_hands_out_what_a_slow_one_does(
    steps: list[list[RawKVEntry] | int], limit: int, stop_early: bool
) -> None:
    """Whatever was spilled, merged or half read: every change comes out once, in the message of its timestamp, in order."""
    sorter, slow, resolved_ts = Sorter(memory_limit_bytes=limit), SlowSorter(), 0
    for step in steps:
        if isinstance(step, int):
            resolved_ts += step
            expected = slow.drain(resolved_ts)
            got = []
            if stop_early:
                drain = sorter.drain(resolved_ts)
                got = list(islice(drain, 1))
                drain.close()
            got += list(sorter.drain(resolved_ts))

            assert got == expected
        else:
            later = [entry for entry in step if entry.commit_ts > resolved_ts]
            sorter.add(later)
            slow.waiting += later
    assert list(sorter.drain(2**64 - 1)) == slow.drain(2**64 - 1)
    assert (sorter.stats().memory_bytes, sorter.stats().spilled_bytes) == (0, 0)
    sorter.close()


def test_all_changes_of_a_commit_timestamp_are_one_message(small: Sorter) -> None:
    """A message that is split can be cut by a snapshot in the middle of a transaction."""
    small.add([change(7, bytes([number])) for number in range(9)])
    small.add([change(5)])

    messages = list(small.drain(7))

    assert [message.commit_ts for message in messages] == [5, 7]
    assert [entry.key for entry in messages[1].entries] == [bytes([number]) for number in range(9)]


def test_a_change_that_is_delivered_again_comes_out_once(small: Sorter) -> None:
    """A region that was lost sends again what it had sent: without this, append-only collections would hold it twice."""
    for _ in range(3):
        small.add([change(5, b"a"), change(6, b"a"), change(6, b"b")])

    assert [len(message.entries) for message in small.drain(10)] == [1, 2]


def test_nothing_comes_out_before_its_timestamp_is_resolved(small: Sorter) -> None:
    """Another region may still send something smaller."""
    small.add([change(ts) for ts in (9, 3, 6, 12, 4)])

    assert [message.commit_ts for message in small.drain(4)] == [3, 4]
    assert list(small.drain(5)) == []
    assert [message.commit_ts for message in small.drain(9)] == [6, 9]


def test_memory_stays_bounded_while_the_resolved_timestamp_stands_still(tmp_path: Path) -> None:
    """A lock that nobody resolves holds the timestamp for minutes; an executor that runs out of memory is killed without a word."""
    limit = 20 * entry_bytes(change(1))
    sorter = Sorter(memory_limit_bytes=limit, directory=tmp_path)
    for ts in range(2000, 0, -1):
        sorter.add([change(ts)])
        assert sorter.stats().memory_bytes <= limit

    assert sorter.stats().spilled_bytes > 0
    assert [message.commit_ts for message in sorter.drain(2000)] == list(range(1, 2001))
    sorter.close()


def test_runs_are_merged_so_that_open_files_stay_few(small: Sorter, tmp_path: Path) -> None:
    """A file per spill would reach the limit of descriptors in a long stall."""
    for ts in range(3 * MERGE_FAN_IN**2 + 50):
        small.add([change(ts + 1)])

    assert small.stats().runs < 3 * MERGE_FAN_IN
    assert 0 < open_files(tmp_path) <= small.stats().runs


def test_merging_rewrites_a_change_once_per_level(small: Sorter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging everything each time would make a long stall cost the square of its length in writes to disk."""
    written = Counter[int]()

    class WatchedRun(SpillRun):
        def __init__(self, entries: Iterable[RawKVEntry], directory: Path | None, level: int = 0) -> None:
            kept = list(entries)
            written[level] += len(kept)
            super().__init__(kept, directory, level)

    monkeypatch.setattr("datanode_client.puller.sorter.SpillRun", WatchedRun)
    spills = 2 * MERGE_FAN_IN**2 + MERGE_FAN_IN
    for ts in range(1, 3 * spills + 1):
        small.add([change(ts)])

    assert written == {0: 3 * spills, 1: 3 * spills, 2: 3 * 2 * MERGE_FAN_IN**2}
    assert [message.commit_ts for message in small.drain(3 * spills)] == list(range(1, 3 * spills + 1))


def test_files_have_no_name_and_go_when_they_were_read(small: Sorter, tmp_path: Path) -> None:
    """An executor is killed without cleaning up; named files would fill its disk, run by run."""
    small.add([change(ts) for ts in range(1, 40)])
    assert small.stats().runs == open_files(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []

    assert len(list(small.drain(39))) == 39

    assert small.stats().spilled_bytes == 0
    assert open_files(tmp_path) == 0


def test_close_deletes_what_was_not_read(small: Sorter, tmp_path: Path) -> None:
    """A feed that is stopped must give its disk back at once."""
    small.add([change(ts) for ts in range(1, 41)])
    assert min(small.stats().memory_bytes, small.stats().spilled_bytes, open_files(tmp_path)) > 0

    small.close()

    assert open_files(tmp_path) == 0
    assert (small.stats().memory_bytes, small.stats().spilled_bytes) == (0, 0)
    assert list(small.drain(100)) == []


def test_a_full_sorter_refuses_before_the_disk_is_full(tmp_path: Path) -> None:
    """A full disk takes the neighbours along; a typed refusal names what is stuck."""
    sorter = Sorter(memory_limit_bytes=0, spill_limit_bytes=5000, directory=tmp_path)

    with pytest.raises(SorterFullError, match="find out what holds it back"):
        sorter.add(change(ts) for ts in range(1, 1000))

    sorter.close()


def test_a_late_change_is_refused(small: Sorter) -> None:
    """Its message is gone; taking it would put it after later ones."""
    assert list(small.drain(10)) == []

    with pytest.raises(SorterMisuseError):
        small.add([change(10)])


def test_a_drain_does_not_go_back_or_run_beside_another(small: Sorter) -> None:
    """Two readers would each get a part of a message."""
    small.add([change(1), change(2)])
    first = small.drain(2)
    next(first)

    with pytest.raises(SorterMisuseError):
        next(small.drain(3))
    with pytest.raises(SorterMisuseError):
        small.add([change(5)])
    assert [message.commit_ts for message in first] == [2]
    with pytest.raises(SorterMisuseError):
        next(small.drain(1))


@given(entries=st.lists(CHANGES, max_size=20))
@settings(deadline=None)
def test_changes_survive_the_way_through_columns(entries: list[RawKVEntry]) -> None:
    """Unsigned timestamps and empty values are the easily lost ones."""
    assert batch_to_entries(entries_to_batch(entries)) == entries
