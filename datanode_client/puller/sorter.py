"""The sorter: brings changes into commit order, and hands them out up to the resolved timestamp as messages.

The regions of a span deliver in any order between each other; only the resolved timestamp says up to where nothing is missing.
Until then changes wait here: in memory up to a limit, beyond it in sorted runs on disk.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from datacoord.errors import InternalError, OverloadedError
from datanode_client.puller.events import Message, RawKVEntry
from datanode_client.puller.spill import SpillRun, entry_bytes, merge_runs

SORTER_MEMORY_BYTES = 64 * 1024 * 1024
"""What waits in memory before it goes to disk: seconds of a busy table, and a fraction of what an executor has."""

SORTER_SPILL_BYTES_MAX = 64 * 1024 * 1024 * 1024
"""What may wait on disk. A resolved timestamp that stands still fills any disk; failing before that leaves room to say so."""

MERGE_FAN_IN = 16
"""So many runs of one level become one of the next: 16 ** n spills need 16 * n open files, every change is rewritten n times."""

_BY_COMMIT_TS = attrgetter("commit_ts")


class SorterFullError(OverloadedError):
    """More changes wait for their resolved timestamp than may be kept."""


class SorterMisuseError(InternalError):
    """The sorter was used against its rules: a bug of the caller."""


@dataclass(frozen=True, slots=True)
class SorterStats:
    """A look at a sorter.

    Attributes:
        memory_bytes: what waits in memory.
        spilled_bytes: what waits on disk; parts that were read already count until their file is gone.
        runs: files on disk.
        resolved_ts: the highest timestamp drained.
    """

    memory_bytes: int
    spilled_bytes: int
    runs: int
    resolved_ts: int


class Sorter:
    """Sorts one span's changes.

    A change is known by (commit_ts, start_ts, key). The feed delivers at least once, and a change that comes again comes before
    its timestamp is resolved, so it meets its first copy here: the later one stays, and each comes out once.

    One message is built in memory as a whole, for it must not be split: the limit holds for what waits, and a transaction larger
    than the limit needs its own size besides.

    Args:
        memory_limit_bytes: beyond this, changes go to disk.
        spill_limit_bytes: beyond this, `add` refuses.
        directory: where files go; None = the system's place for temporary files.
    """

    def __init__(
        self,
        *,
        memory_limit_bytes: int = SORTER_MEMORY_BYTES,
        spill_limit_bytes: int = SORTER_SPILL_BYTES_MAX,
        directory: Path | None = None,
    ) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        self._spill_limit_bytes = spill_limit_bytes
        self._directory = directory
        self._memory: list[RawKVEntry] = []
        self._memory_bytes = 0
        self._runs: list[SpillRun] = []
        self._resolved_ts = 0
        self._draining = False

    def add(self, entries: Iterable[RawKVEntry]) -> None:
        """Takes changes.

        Raises:
            SorterMisuseError: a change is not after the last timestamp drained, or a drain has not ended.
            SorterFullError: too much waits on disk.
            OSError: the disk is full or fails; nothing more can be done with the sorter than to close it.
        """
        if self._draining:
            raise SorterMisuseError(
                "The sorter is being drained; read the drain to its end, or close it, before adding."
            )
        for entry in entries:
            if entry.commit_ts <= self._resolved_ts:
                raise SorterMisuseError(
                    f"A change of commit_ts {entry.commit_ts} came after {self._resolved_ts} was drained; drop it before.",
                    commit_ts=entry.commit_ts,
                    resolved_ts=self._resolved_ts,
                )
            self._memory.append(entry)
            self._memory_bytes += entry_bytes(entry)
            if self._memory_bytes > self._memory_limit_bytes:
                self._spill()

    def drain(self, resolved_ts: int) -> Generator[Message, None, None]:
        """Hands out all messages with commit_ts <= resolved_ts, in commit order.

        Reading may end anywhere: a message that was handed out is gone, the next drain goes on behind it.

        Args:
            resolved_ts: no change with commit_ts <= this will be added any more; not below an earlier one.

        Raises:
            SorterMisuseError: the timestamp goes back, or another drain has not ended.
        """
        if self._draining or resolved_ts < self._resolved_ts:
            raise SorterMisuseError(
                f"Cannot drain to {resolved_ts}: {self._resolved_ts} was drained already, or a drain has not ended.",
                resolved_ts=resolved_ts,
            )
        self._resolved_ts = resolved_ts
        self._draining = True
        self._memory.sort(key=_BY_COMMIT_TS)
        end = bisect_right(self._memory, resolved_ts, key=_BY_COMMIT_TS)
        taken = 0
        try:
            while True:
                heads = [run.head_ts for run in self._runs if run.head_ts is not None and run.head_ts <= resolved_ts]
                if taken < end:
                    heads.append(self._memory[taken].commit_ts)
                if not heads:
                    return
                commit_ts = min(heads)
                entries = {(entry.start_ts, entry.key): entry for run in self._runs for entry in run.take(commit_ts)}
                while taken < end and self._memory[taken].commit_ts == commit_ts:
                    entry = self._memory[taken]
                    entries[entry.start_ts, entry.key] = entry
                    taken += 1
                yield Message(commit_ts, [entries[identity] for identity in sorted(entries)])
        finally:
            self._memory_bytes -= sum(map(entry_bytes, self._memory[:taken]))
            del self._memory[:taken]
            self._drop_finished_runs()
            self._draining = False

    def stats(self) -> SorterStats:
        """A look at the sorter."""
        spilled_bytes = sum(run.bytes for run in self._runs)
        return SorterStats(self._memory_bytes, spilled_bytes, len(self._runs), self._resolved_ts)

    def close(self) -> None:
        """Forgets everything and deletes the files."""
        self._memory.clear()
        self._memory_bytes = 0
        for run in self._runs:
            run.close()
        self._runs.clear()

    def _spill(self) -> None:
        if sum(run.bytes for run in self._runs) > self._spill_limit_bytes:
            raise SorterFullError(
                f"More than {self._spill_limit_bytes} bytes wait while the resolved timestamp stands at {self._resolved_ts}; "
                "find out what holds it back, or raise the limit.",
                spill_limit_bytes=self._spill_limit_bytes,
                resolved_ts=self._resolved_ts,
            )
        self._memory.sort(key=_BY_COMMIT_TS)
        self._runs.append(SpillRun(self._memory, self._directory))
        self._memory.clear()
        self._memory_bytes = 0
        while len(self._runs) >= MERGE_FAN_IN and self._runs[-MERGE_FAN_IN].level == self._runs[-1].level:
            tail = self._runs[-MERGE_FAN_IN:]
            self._runs[-MERGE_FAN_IN:] = [SpillRun(merge_runs(tail), self._directory, tail[0].level + 1)]
            for run in tail:
                run.close()

    def _drop_finished_runs(self) -> None:
        finished = [run for run in self._runs if run.head_ts is None]
        self._runs = [run for run in self._runs if run not in finished]
        for run in finished:
            run.close()
