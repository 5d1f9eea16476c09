"""The facade of the store: what the RPC layer and the jobs call."""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import structlog
from sqlalchemy import text
from sqlalchemy.engine import Connection

from coordinator.core.model import Save, SegmentState
from coordinator.store import (
    collections,
    durability,
    events,
    findings,
    flushes,
    migrate,
    ownership,
    placements,
    reads,
    recovery,
    saves,
    segments,
    sessions,
)
from coordinator.store.answers import (
    AssignmentRound,
    ChannelIdentity,
    ChannelRelease,
    CheckpointEntry,
    CheckpointMove,
    ClaimAnswer,
    DesiredState,
    LeaseRound,
    SealRound,
    Session,
    SessionState,
    StoreSettings,
    StoreStatistics,
    WriteAnswer,
)
from coordinator.store.calls import AloneCall
from coordinator.store.channels import read_identities
from coordinator.store.checkpoints import CheckpointCall
from coordinator.store.engine import Database, Faults
from coordinator.store.garbage import Garbage
from coordinator.store.group_commit import GroupCommit
from coordinator.store.group_runner import GroupRunner
from coordinator.store.listings import (
    CallStatistics,
    ChannelBinlogList,
    ChannelRow,
    Collection,
    DataNodeRow,
    Flush,
    FlushState,
    NewCollection,
    Page,
    RecoveryInfo,
    SegmentRow,
)
from coordinator.store.operations import Operations
from coordinator.store.overview import Overview, read_overview, read_written_items
from coordinator.store.transaction import Memory
from datacoord.v1 import data_coord_pb2

T = TypeVar("T")
log = structlog.get_logger()


class Store(Operations):
    """State of the coordinator in a SQL database, and nowhere else.

    One per process and event loop; open it with `Store.open`. Every write goes through one queue, is folded with others into
    one transaction, and is answered after its COMMIT. Shape (names, ranges, `core.save.check_shape`, paths) is the caller's to
    check.

    `deadline` is in the time of the running loop (`loop.time()`); None = no limit. Every method may raise StoreUnavailableError
    (certainly not done), writes also CommitOutcomeUnknownError (perhaps done), OverloadedError (with `retry_delay_ms`) and
    DeadlineExpiredError (both: not done).
    """

    def __init__(self, database: Database, settings: StoreSettings, clock_ms: Callable[[], int] | None) -> None:
        self._database = database
        self._clock_ms = clock_ms
        self._memory = Memory()
        self._statistics = StoreStatistics()
        self._runner = GroupRunner(database, settings, self._memory, self._statistics, clock_ms)
        self._queue = GroupCommit(self._runner.run, settings, self._statistics, holds_loop=database.kind.runs_on_loop)
        self.garbage = Garbage(database, self._queue, self._now_ms)

    @classmethod
    async def open(
        cls,
        url: str,
        settings: StoreSettings,
        *,
        clock_ms: Callable[[], int] | None = None,
        faults: Faults | None = None,
    ) -> "Store":
        """Opens the database.

        Args:
            url: a SQLAlchemy URL.
            settings: see there.
            clock_ms: replaces the database's clock, for tests; None = the database's clock.
            faults: makes the database fail, for tests.

        Raises:
            DatabaseNotMigratedError: run `coordinator.store.migrate.upgrade` (`datacoord migrate`) first.
            DatabaseTooNewError: a newer version has migrated it.
        """
        # Connecting and migrating tools block; nothing else runs on this loop yet.
        migrate.check(url)
        return cls(Database(url, busy_timeout_ms=settings.busy_timeout_ms, faults=faults), settings, clock_ms)

    def _now_ms(self, connection: Connection) -> int:
        """The database's clock, or what replaces it."""
        return self._clock_ms() if self._clock_ms is not None else self._database.kind.clock_ms(connection)

    @property
    def statistics(self) -> StoreStatistics:
        """Counters since the store was opened."""
        self._statistics.commit_seconds = self._database.commit_seconds
        return self._statistics

    async def close(self) -> None:
        """Takes no more writes, finishes those that wait, closes the database."""
        await self._queue.close()
        await self._database.close()

    async def abandon(self) -> None:
        """Lets go of everything as a process that dies does. For tests of crashes."""
        await self._queue.abandon()
        self._database.abandon()

    async def ping(self) -> None:
        """Asks the database something: readiness.

        Raises:
            StoreUnavailableError: it did not answer.
        """
        await self._database.read(lambda connection: connection.execute(text("SELECT 1")).scalar())

    async def weak_settings(self) -> Mapping[str, str]:
        """Settings of the database's server with which acknowledged writes may be lost; empty = all is well.

        Raises:
            ConfigInvalidError: what the store set for itself is not what counts; see `durability.weak_settings`.
        """
        call = AloneCall(
            "Durability", "", lambda transaction, _: durability.read(transaction.connection, transaction.kind)
        )
        return durability.weak_settings(await self._queue.submit(call, None))

    def on_desired_change(self, listener: Callable[[frozenset[int]], None]) -> None:
        """Calls `listener(node_ids)` on the loop after every transaction of this process that changed desired states."""
        self._runner.listeners.append(listener)

    def on_group(self, listener: Callable[[int, float], None]) -> None:
        """Calls `listener(items, seconds)` on the loop after every transaction of the queue that was committed."""
        self._queue.listeners.append(listener)

    async def channel_identities(self, channel_names: Sequence[str]) -> Mapping[str, ChannelIdentity]:
        """Immutable facts of channels, from memory where possible; unknown names are absent."""
        known = self._memory.channels
        missing = [name for name in channel_names if name not in known]
        if missing:
            size = self._database.kind.rows_per_statement
            known.update(await self._database.read(lambda connection: read_identities(connection, missing, size)))
        return {name: known[name] for name in channel_names if name in known}

    @property
    def known_channels(self) -> Container[str]:
        """Names of the channels that this process has met; they need no check any more."""
        return self._memory.channels

    def refuse(self, deadline: float) -> None:
        """Refuses a write that has not arrived yet, as `admit` does.

        Args:
            deadline: of the call, in the loop's time.

        Raises:
            OverloadedError: with the time after which there will be room.
            DeadlineExpiredError: its time is over already.
        """
        self._queue.refuse_unread(deadline)

    def admit(self, deadline: float, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Refuses a write before anything is done for it, where the queue has no room or the write would come too late.

        Args:
            deadline: of the call, in the loop's time.
            size_bytes: of the call as it came.

        Returns:
            in what the call is to be read and done; entering it waits for its turn, and may raise DeadlineExpiredError.

        Raises:
            OverloadedError: with the time after which there will be room.
            DeadlineExpiredError: its time is over already.
        """
        return self._queue.admit_unread(deadline, size_bytes)

    # ---- R1, R2 -------------------------------------------------------------------------------------------------------------

    async def save_binlog_paths(
        self, parts: Sequence[Save], *, caller: str, deadline: float | None = None
    ) -> list[WriteAnswer]:
        """SaveBinlogPaths: one answer per part, in order."""
        return await self._queue.submit(saves.SaveCall(parts, caller), deadline)

    async def update_channel_checkpoints(
        self, moves: Sequence[CheckpointMove], *, caller: str, deadline: float | None = None
    ) -> list[WriteAnswer]:
        """UpdateChannelCheckpoint: one answer per entry, in order."""
        return await self.move_checkpoints([move.entry() for move in moves], caller=caller, deadline=deadline)

    async def move_checkpoints(
        self, entries: Sequence[CheckpointEntry], *, caller: str, deadline: float | None = None
    ) -> list[WriteAnswer]:
        """The same, as the hot path has it."""
        return await self._queue.submit(CheckpointCall(entries, caller, self._memory), deadline)

    async def drop_virtual_channel(self, save: Save, *, caller: str, deadline: float | None = None) -> WriteAnswer:
        """DropVirtualChannel: last save and tombstone in one transaction."""
        return await self._queue.submit(saves.DropCall(save, caller), deadline)

    async def release_channels(
        self, releases: Sequence[ChannelRelease], *, caller: str, deadline: float | None = None
    ) -> list[WriteAnswer]:
        """ReleaseChannels: one answer per channel, in order."""
        return await self._queue.submit(ownership.ReleaseCall(releases, caller), deadline)

    async def claim_channels(
        self,
        owner_name: str,
        channel_names: Sequence[str],
        *,
        force: bool = False,
        caller: str,
        deadline: float | None = None,
    ) -> list[ClaimAnswer]:
        """ClaimChannels: one answer per channel, in order, with recovery info of the same transaction."""
        call = ownership.claim_call(owner_name, channel_names, force=force, caller=caller)
        return await self._queue.submit(call, deadline)

    async def move_channel(
        self, channel_name: str, node_id: int, *, caller: str, deadline: float | None = None
    ) -> placements.MoveAnswer:
        """MoveChannel: its owner is asked for it, and the assignment job gives it to the session named (0 = any other).

        Raises:
            ChannelNotFoundError: no such channel.
            ChannelDroppedError: it is dropped.
            WrongModeError: it is CLAIMED.
            SessionNotFoundError: no session that takes it is there.
        """
        return await self._queue.submit(placements.move_call(channel_name, node_id, caller), deadline)

    # ---- datanodes ----------------------------------------------------------------------------------------------------------

    async def register_datanode(
        self,
        job: str,
        slot: int,
        collection_names: Sequence[str],
        *,
        host: str,
        pid: int,
        caller: str,
        deadline: float | None = None,
    ) -> Session:
        """Starts a session and ends the slot's previous one at once.

        Raises:
            CollectionNotFoundError: one of the names.
        """
        call = sessions.register_call(job, slot, collection_names, host=host, pid=pid, caller=caller)
        return await self._queue.submit(call, deadline)

    async def report_datanode(
        self, report: data_coord_pb2.ReportDataNodeTtMsgsRequest, *, caller: str, deadline: float | None = None
    ) -> SessionState:
        """Renews the lease, keeps the report (as packed as it came), moves to STOPPING or ends the session if asked.

        Raises:
            SessionNotFoundError: the session is over.
        """
        return await self._queue.submit(sessions.ReportCall(report, caller), deadline)

    async def watch_datanode(self, node_id: int, *, deadline: float | None = None) -> DesiredState:
        """Marks a session as watching (only then channels are assigned to it) and answers its desired state.

        Raises:
            SessionNotFoundError: the session is over.
        """
        return await self._queue.submit(sessions.watch_call(node_id), deadline)

    async def desired_state(self, node_id: int) -> DesiredState:
        """The desired state of a session.

        Raises:
            SessionNotFoundError: the session is over.
        """
        return await self._database.read(lambda connection: sessions.read_desired_state(connection, node_id))

    async def desired_revisions(self, node_ids: Sequence[int]) -> Mapping[int, int]:
        """Revisions of the desired states of many sessions in one read; sessions that are over are absent."""
        size = self._database.kind.rows_per_statement
        return await self._database.read(lambda c: sessions.read_desired_revisions(c, node_ids, size))

    # ---- collections --------------------------------------------------------------------------------------------------------

    async def create_collection(
        self, new: NewCollection, *, caller: str, deadline: float | None = None
    ) -> tuple[Collection, bool]:
        """Creates a collection with its channels and its partition `_default`; (collection, created).

        Raises:
            CollectionExistsError: another definition has this name.
        """
        return await self._queue.submit(collections.create_call(new, caller), deadline)

    async def create_partition(
        self, collection_name: str, partition_name: str, *, caller: str, deadline: float | None = None
    ) -> int:
        """Creates a partition, or finds it; its number.

        Raises:
            CollectionNotFoundError: no such collection.
            InvalidFieldError: the collection has as many partitions as are allowed.
        """
        call = collections.create_partition_call(collection_name, partition_name, caller)
        return await self._queue.submit(call, deadline)

    async def describe_collection(self, collection_name: str) -> Collection:
        """One collection.

        Raises:
            CollectionNotFoundError: no such collection.
        """
        found = await self._database.read(lambda connection: collections.read_by_name(connection, collection_name))
        if found is None:
            raise collections.collection_not_found(collection_name)
        return found

    async def list_collections(self, *, page_size: int = 0, page_token: str = "") -> Page[Collection]:
        """Collections by name.

        Raises:
            InvalidFieldError: a page token that this list did not give.
        """
        return await self._database.read(lambda c: collections.read_page(c, page_size, page_token))

    # ---- reads --------------------------------------------------------------------------------------------------------------

    async def recovery_info(
        self,
        *,
        channel_names: Sequence[str] = (),
        collection_name: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> Page[RecoveryInfo]:
        """Recovery info of the channels named, in that order, or of every ACTIVE channel of a collection by index.

        Raises:
            ChannelNotFoundError: a channel named does not exist.
            ChannelDroppedError: a channel named is dropped.
            CollectionNotFoundError: no such collection.
            InvalidFieldError: a page token that this list did not give.
        """
        return await self._database.read(
            lambda connection: recovery.read_page(
                connection,
                self._database.kind,
                channel_names=channel_names,
                collection_name=collection_name,
                page_size=page_size,
                page_token=page_token,
            )
        )

    async def list_binlogs(
        self, collection_name: str, *, channel_names: Sequence[str] = (), page_size: int = 0, page_token: str = ""
    ) -> Page[ChannelBinlogList]:
        """The objects readers see, by channel index; a page holds whole channels and is one read.

        Raises:
            CollectionNotFoundError: no such collection.
            ChannelNotFoundError: a channel named is not of this collection.
            InvalidFieldError: a page token that this list did not give.
        """
        return await self._database.read_in_steps(
            lambda connection: reads.read_binlogs(
                connection,
                self._database.kind,
                collection_name=collection_name,
                channel_names=channel_names,
                page_size=page_size,
                page_token=page_token,
            )
        )

    async def list_channels(
        self, *, collection_name: str = "", channel_name: str = "", page_size: int = 0, page_token: str = ""
    ) -> Page[ChannelRow]:
        """Channels by name; with `channel_name` that one, if it is there.

        Raises:
            CollectionNotFoundError: no such collection.
            InvalidFieldError: a page token that this list did not give.
        """
        return await self._database.read(
            lambda connection: reads.read_channels(
                connection,
                self._database.kind,
                collection_name=collection_name,
                channel_name=channel_name,
                page_size=page_size,
                page_token=page_token,
            )
        )

    async def list_segments(
        self,
        *,
        collection_name: str = "",
        states: Sequence[SegmentState] = (),
        page_size: int = 0,
        page_token: str = "",
    ) -> Page[SegmentRow]:
        """Segments by number; `states` are those shown, FLUSHED among them.

        Raises:
            CollectionNotFoundError: no such collection.
            InvalidFieldError: a page token that this list did not give.
        """
        return await self._database.read(
            lambda connection: segments.read_page(connection, collection_name, states, page_size, page_token)
        )

    async def list_datanodes(
        self, *, job: str = "", include_ended: bool = False, page_size: int = 0, page_token: str = ""
    ) -> Page[DataNodeRow]:
        """Sessions, living ones first, then by number.

        Raises:
            InvalidFieldError: a page token that this list did not give.
        """
        return await self._database.read(
            lambda connection: reads.read_datanodes(
                connection,
                self._database.kind,
                job=job,
                include_ended=include_ended,
                page_size=page_size,
                page_token=page_token,
            )
        )

    async def living_datanodes(self) -> list[DataNodeRow]:
        """Every living session, by number."""
        living: list[DataNodeRow] = []
        page = await self.list_datanodes()
        living += page.items
        while page.next_page_token:
            page = await self.list_datanodes(page_token=page.next_page_token)
            living += page.items
        return living

    async def explain(
        self, *, channel_name: str = "", collection_name: str = "", findings_max: int = 100
    ) -> findings.Findings:
        """Which channels are held back, and by what, the worst first.

        Raises:
            ChannelNotFoundError: no such channel.
            CollectionNotFoundError: no such collection.
        """
        return await self._database.read_in_steps(
            lambda connection: findings.read_findings(
                connection,
                self._database.kind,
                channel_name=channel_name,
                collection_name=collection_name,
                findings_max=findings_max,
                now_ms=self._now_ms(connection),
            )
        )

    async def count_channels(self) -> Mapping[str, int]:
        """Channels by what can be said of them at a glance: OWNED, FREE and FINISHED (MANAGED ones), CLAIMED, DROPPED."""
        return await self._database.read(ownership.count_channels)

    async def overview(self) -> Overview:
        """Counts of what there is, and who runs the background jobs."""
        return await self._database.read(lambda connection: read_overview(connection, self._now_ms(connection)))

    async def written_items(self, after_event_id: int) -> tuple[int, int]:
        """The last event, and the items of accepted calls after another one (-1 = none)."""
        return await self._database.read(lambda connection: read_written_items(connection, after_event_id))

    async def call_statistics(self) -> list[CallStatistics]:
        """Accepted calls by RPC and caller, from the history in `events`."""
        return await self._database.read(events.call_statistics)

    # ---- flush --------------------------------------------------------------------------------------------------------------

    async def flush(
        self, collection_name: str, timestamp: int = 0, *, caller: str, deadline: float | None = None
    ) -> Flush:
        """Sets flush targets.

        Args:
            collection_name: the collection.
            timestamp: target of every channel; 0 = what each has consumed.
            caller: kind of the caller.
            deadline: see the class.

        Raises:
            CollectionNotFoundError: no such collection.
        """
        return await self._queue.submit(flushes.flush_call(collection_name, timestamp, caller), deadline)

    async def get_flush_state(self, flush_id: int) -> FlushState:
        """How far a flush is.

        Raises:
            FlushNotFoundError: no such flush.
        """
        return await self._database.read(lambda connection: flushes.read_state(connection, flush_id))

    # ---- jobs: one round each, under the job's lease -------------------------------------------------------------------------

    async def run_lease_job(self) -> LeaseRound:
        """Ends sessions whose lease is over and frees their channels."""
        return await self._queue.submit(sessions.lease_call(), None)

    async def run_assignment_job(self) -> AssignmentRound:
        """Gives free channels to watching sessions and asks for channels back where it is uneven."""
        return await self._queue.submit(ownership.assignment_call(), None)

    async def run_seal_job(self) -> SealRound:
        """Seals growing segments by the policies that depend on time, and on the bytes that grow in a channel."""
        return await self._queue.submit(segments.seal_call(), None)
