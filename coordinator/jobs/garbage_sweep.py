"""One pass of R5 over rows and objects. With a permit it deletes; without one it only counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.core.garbage import Verdict, can_never_be_registered, is_doubtful, judge
from coordinator.jobs.garbage_objects import Failed, Leaf, ListedObject, Objects, Unknown
from coordinator.jobs.garbage_ownership import why_not_ours
from coordinator.store import Store
from coordinator.store.garbage import GcCandidate, Permit
from coordinator.store.garbage_rows import LeafWindow, Root, WindowFacts
from coordinator.store.transaction import chunks
from datacoord.errors import ObjectStoreError, StoreUnavailableError
from datacoord.limits import GC_CANDIDATES_MAX
from datacoord.paths import BinlogPath
from datacoord.v1 import admin_pb2

POLL_SECONDS_MAX: Final = 5.0
"""How often a replica looks whether a round is due or was asked for on another one."""

SEGMENTS_PER_DELETE: Final = 500
"""Segments that one transaction deletes rows of."""

REST_SECONDS_MAX: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageSettings:
    """What an operator can tell the collector of a replica.

    Attributes:
        enabled: False: this replica never runs a round.
        interval_ms: from the end of a round to the next.
        batch_objects_max: objects judged by one SQL read.
        delete_objects_max: objects deleted between two looks at pause and lease.
        delete_rows_max: rows deleted by one transaction.
        permit_seconds: how often the lease is renewed while a listing or a deletion takes its time.
    """

    enabled: bool = True
    interval_ms: int = 3_600_000
    batch_objects_max: int = 2000
    delete_objects_max: int = 500
    delete_rows_max: int = 1000
    permit_seconds: float = 1.5

    @property
    def poll_seconds(self) -> float:
        """How often to look whether a round is due."""
        return min(POLL_SECONDS_MAX, self.interval_ms / 1000)


class Stopped(Exception):  # noqa: N818 - no error: a round may end anywhere
    """The round may not go on."""


@dataclass(slots=True)
class Tally:
    """What a pass has done, or would do.

    Attributes:
        listed: objects.
        by_verdict: objects that went (or would), by reason; unknown names among them.
        bytes_deleted: of the objects that went.
        rows_deleted: binlog rows that went.
        errors: how much could not be listed, judged or deleted.
        error: the first of them; empty = none.
        candidates: objects that would go or have unknown names, the first GC_CANDIDATES_MAX; of a plan only.
    """

    listed: int = 0
    by_verdict: dict[Verdict, int] = field(default_factory=dict)
    bytes_deleted: int = 0
    rows_deleted: int = 0
    errors: int = 0
    error: str = ""
    candidates: list[GcCandidate] = field(default_factory=list)

    @property
    def unknown(self) -> int:
        """Unknown names."""
        return self.by_verdict.get(Verdict.UNKNOWN_NAME, 0)

    @property
    def deleted(self) -> int:
        """Objects that went."""
        return sum(self.by_verdict.values()) - self.unknown

    def count(self, verdict: Verdict, size_bytes: int) -> None:
        """Counts an object."""
        self.by_verdict[verdict] = self.by_verdict.get(verdict, 0) + 1
        if verdict is not Verdict.UNKNOWN_NAME:
            self.bytes_deleted += size_bytes

    def fail(self, error: str) -> None:
        """Counts something that could not be done."""
        self.errors += 1
        self.error = self.error or error

    def to_round(self, start_ms: int, duration_ms: int) -> admin_pb2.GcRound:
        """The same for the contract."""
        more = f" (and {self.errors - 1} more like it)" if self.errors > 1 else ""
        return admin_pb2.GcRound(
            start_time_ms=start_ms,
            duration_ms=duration_ms,
            objects_listed=self.listed,
            objects_deleted=self.deleted,
            bytes_deleted=self.bytes_deleted,
            binlog_rows_deleted=self.rows_deleted,
            unknown_names=self.unknown,
            error=self.error + more if self.error else "",
        )


@dataclass(frozen=True, slots=True)
class _Doomed:
    path: str
    size_bytes: int
    verdict: Verdict


class Sweep:
    """A pass.

    Args:
        store: the state.
        tally: what it does.
        blocking: runs what blocks.
        settings: how much at once.
        permit: raises Stopped where the pass may not delete any more; None: it deletes nothing and only says what would go.
        fence: of the lease that rows are deleted under; 0 where nothing is.
        rest: lets other writers go first, so many seconds.
    """

    def __init__(
        self,
        store: Store,
        tally: Tally,
        blocking: Callable[..., Awaitable[Any]],
        settings: GarbageSettings,
        *,
        permit: Callable[[], Awaitable[None]] | None,
        fence: int = 0,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.tally = tally
        self._store = store
        self._blocking = blocking
        self._settings = settings
        self._permit = permit
        self._fence = fence
        self._rest = rest

    # ---- step 1: rows of dropped segments -----------------------------------------------------------------------------------

    async def rows(self, collection_id: int = 0) -> None:
        """Deletes the rows that go with their segments, in short transactions that take their turn in the queue of writes."""
        garbage = self._store.garbage
        after = 0
        while True:
            found = await garbage.dropped_segments(after, collection_id)
            if self._permit is None:
                self.tally.rows_deleted += found.binlogs
            else:
                for chunk in chunks(found.segment_ids, SEGMENTS_PER_DELETE):
                    async for deleted in self._in_turns(garbage.delete_rows, chunk):
                        self.tally.rows_deleted += deleted
            after = found.next_after
            if not after:
                break
        if self._permit is not None:
            await self._lanes()

    async def _lanes(self) -> None:
        after = 0
        while True:
            found = await self._store.garbage.dropped_channels(after)
            for chunk in chunks(found.channel_ids, SEGMENTS_PER_DELETE):
                async for _ in self._in_turns(self._store.garbage.delete_lanes, chunk):
                    pass
            after = found.next_after
            if not after:
                return

    async def _in_turns(
        self, delete: Callable[[int, Sequence[int], int], Awaitable[int | Permit]], numbers: Sequence[int]
    ) -> AsyncIterator[int]:
        """Deletes until nothing is left of these, and says how much each time; half of the time at least belongs to others."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            deleted = await delete(self._fence, numbers, self._settings.delete_rows_max)
            if isinstance(deleted, Permit):
                raise Stopped(STOPPED_BY[deleted])
            yield deleted
            if deleted < self._settings.delete_rows_max:
                return
            await self._rest(min(loop.time() - started, REST_SECONDS_MAX))

    # ---- step 2: objects without rows ---------------------------------------------------------------------------------------

    async def root(self, objects: Objects, root: Root) -> None:
        """Walks a storage root."""
        walk = objects.walk()
        found = await self._blocking(next, walk, None)
        if found is None:
            return  # nothing there, not even a directory that a mark could stand in
        try:
            foreign = await why_not_ours(self._store, objects, root, self._blocking, may_mark=self._permit is not None)
        except ObjectStoreError as error:
            foreign = error.message
        if foreign:
            self.tally.fail(foreign)
            return
        while found is not None:
            if isinstance(found, Unknown):
                self._report_unknown(found.path, found.size_bytes)
            elif isinstance(found, Failed):
                self.tally.fail(found.error.message)
            else:
                await self._leaf(objects, root, found)
            found = await self._blocking(next, walk, None)

    def _report_unknown(self, path: str, size_bytes: int) -> None:
        self.tally.listed += 0 if path.endswith("/") else 1
        self.tally.count(Verdict.UNKNOWN_NAME, size_bytes)
        self._name(_Doomed(path, size_bytes, Verdict.UNKNOWN_NAME))

    def _name(self, doomed: _Doomed) -> None:
        if self._permit is None and len(self.tally.candidates) < GC_CANDIDATES_MAX:
            self.tally.candidates.append(GcCandidate(doomed.path, doomed.size_bytes, doomed.verdict))

    async def _leaf(self, objects: Objects, root: Root, leaf: Leaf) -> None:
        """Judges a directory, part by part, and deletes what is garbage of each part when all of it is judged."""
        facts: WindowFacts | None = None
        for batch in leaf.batches(self._settings.batch_objects_max):
            facts = await self._facts(root, leaf, batch[0][0], batch[-1][0])
            if facts is None:
                return
            self.tally.listed += len(batch)
            await self._delete(objects, _judge_batch(leaf, facts, batch))
        if leaf.temporaries or facts is None:
            facts = await self._facts(root, leaf, 0, 0)
        if facts is None:
            return
        await self._delete(objects, _judge_temporaries(leaf, facts))
        await self._remove_directories(objects, leaf, facts)

    async def _facts(self, root: Root, leaf: Leaf, first: int, last: int) -> WindowFacts | None:
        """The one SQL read, after the listing; None: nothing of the directory may be touched, and that is said."""
        window = LeafWindow(leaf.kind, leaf.channel_id, leaf.partition_id or 0, leaf.epoch or 0, first, last)
        facts = await self._store.garbage.lane(window)
        if facts is None or _place(facts.root) != _place(root.uri):
            # A channel of another database, or of a root that is written in two ways.
            for row in (row for batch in leaf.batches(self._settings.batch_objects_max) for row in batch):
                self._report_unknown(_path(leaf, row), row[4])
            return None
        if root.collection_id not in {0, facts.collection_id}:
            return None
        if leaf.epoch is not None and is_doubtful(facts.lane, leaf.epoch):
            raise StoreUnavailableError(
                f"{leaf.directory} was written under an epoch that channel {leaf.channel_id} has not reached (it is at "
                f"{facts.lane.epoch}): the database is not the newest, or another one writes there; nothing more is deleted",
                directory=leaf.directory,
                epoch=facts.lane.epoch,
            )
        return facts

    async def _delete(self, objects: Objects, doomed: Sequence[_Doomed]) -> None:
        """Deletes what was judged, in chunks, each under a permit."""
        if self._permit is None:
            for one in doomed:
                self.tally.count(one.verdict, one.size_bytes)
                self._name(one)
            return
        going = [one for one in doomed if one.verdict is not Verdict.SEGMENT_DROPPED]
        for chunk in chunks(going, self._settings.delete_objects_max):
            await self._permit()
            gone, errors = await self._blocking(objects.delete, [one.path for one in chunk])
            went = set(gone)
            for one in chunk:
                if one.path in went:
                    self.tally.count(one.verdict, one.size_bytes)
            for error in errors:
                self.tally.fail(error)
            if errors:
                return

    async def _remove_directories(self, objects: Objects, leaf: Leaf, facts: WindowFacts) -> None:
        if self._permit is None:
            return
        for directory in (leaf, *leaf.parents()):
            if _nobody_writes_in(directory, facts):
                await self._blocking(objects.remove_directory, directory.directory)


STOPPED_BY: Final = {
    Permit.PAUSED: "it was paused; what is left stays for a later round",
    Permit.LOST: "another process has taken the job over",
}


def _judge_batch(leaf: Leaf, facts: WindowFacts, batch: Sequence[ListedObject]) -> list[_Doomed]:
    assert leaf.epoch is not None  # noqa: S101 - only such a directory has objects
    doomed = []
    for row in batch:
        verdict = judge(facts.lane, leaf.epoch, row[0], facts.rows.get((row[0], row[1], row[2], row[3])))
        if verdict is not None:
            doomed.append(_Doomed(_path(leaf, row), row[4], verdict))
    return doomed


def _judge_temporaries(leaf: Leaf, facts: WindowFacts) -> list[_Doomed]:
    """What an interrupted writer left goes when its object could not be registered any more: until then it may be being written."""
    doomed = []
    for path, would_be, size_bytes in leaf.temporaries:
        verdict = can_never_be_registered(facts.lane, would_be.epoch, would_be.timestamp_from)
        if verdict is not None:
            doomed.append(_Doomed(path, size_bytes, verdict))
    return doomed


def _path(leaf: Leaf, row: ListedObject) -> str:
    assert leaf.partition_id is not None  # noqa: S101 - only such a directory has objects
    assert leaf.epoch is not None  # noqa: S101
    return str(BinlogPath(leaf.kind, leaf.channel_id, leaf.partition_id, leaf.epoch, row[0], row[1], row[2], row[3]))


def _nobody_writes_in(directory: Leaf, facts: WindowFacts) -> bool:
    """Whether no valid writer will ever use a directory again; see `Objects.remove_directory`."""
    verdict = can_never_be_registered(facts.lane, facts.lane.epoch, facts.lane.progress)
    if verdict is Verdict.CHANNEL_DROPPED:
        return True
    if directory.partition_id is None:
        return False
    over = directory.epoch is not None and directory.epoch != facts.lane.epoch
    return verdict is Verdict.PARTITION_DROPPED or over


def _place(uri: str) -> str:
    return uri.removeprefix("file://").rstrip("/")
