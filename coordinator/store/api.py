"""The facade of the store: what the RPC layer and the jobs call."""

from collections.abc import Callable, Mapping, Sequence

from coordinator.core.model import Save, SegmentState
from coordinator.store.answers import (
    AssignmentRound,
    CallStatistics,
    ChannelBinlogList,
    ChannelIdentity,
    ChannelRelease,
    ChannelRow,
    CheckpointMove,
    ClaimAnswer,
    Collection,
    DataNodeRow,
    DesiredState,
    Flush,
    FlushState,
    LeaseRound,
    NewCollection,
    Page,
    RecoveryInfo,
    SealRound,
    SegmentRow,
    Session,
    SessionState,
    StoreSettings,
    StoreStatistics,
    WriteAnswer,
)
from datacoord.v1 import data_coord_pb2


class Store:
    """State of the coordinator in a SQL database, and nowhere else.

    One per process and event loop; open it with `Store.open`. Every write goes through one queue, is folded with others into
    one transaction, and is answered after its COMMIT. Shape (names, ranges, `core.save.check_shape`, paths) is the caller's to
    check.

    `deadline` is in the time of the running loop (`loop.time()`); None = no limit. Every method may raise StoreUnavailableError
    (certainly not done), writes also CommitOutcomeUnknownError (perhaps done), OverloadedError (with `retry_delay_ms`) and
    DeadlineExpiredError (both: not done).
    """

    @classmethod
    async def open(cls, url: str, settings: StoreSettings, *, clock_ms: Callable[[], int] | None = None) -> "Store":
        """Opens the database.

        Args:
            url: a SQLAlchemy URL.
            settings: see there.
            clock_ms: replaces the database's clock, for tests; None = the database's clock.

        Raises:
            DatabaseNotMigratedError: run `coordinator.store.migrate.upgrade` (`datacoord migrate`) first.
            DatabaseTooNewError: a newer version has migrated it.
        """
        raise NotImplementedError

    @property
    def statistics(self) -> StoreStatistics:
        """Counters since the store was opened."""
        raise NotImplementedError

    async def close(self) -> None:
        """Takes no more writes, finishes those that wait, closes the database."""
        raise NotImplementedError

    async def ping(self) -> None:
        """Asks the database something: readiness.

        Raises:
            StoreUnavailableError: it did not answer.
        """
        raise NotImplementedError

    def on_desired_change(self, listener: Callable[[frozenset[int]], None]) -> None:
        """Calls `listener(node_ids)` on the loop after every transaction of this process that changed desired states."""
        raise NotImplementedError

    async def channel_identities(self, channel_names: Sequence[str]) -> Mapping[str, ChannelIdentity]:
        """Immutable facts of channels, from memory where possible; unknown names are absent."""
        raise NotImplementedError

    # ---- R1, R2 -------------------------------------------------------------------------------------------------------------

    async def save_binlog_paths(
        self, saves: Sequence[Save], *, caller: str, deadline: float | None = None
    ) -> list[WriteAnswer]:
        """SaveBinlogPaths: one answer per part, in order."""
        raise NotImplementedError

    async def update_channel_checkpoints(
        self, moves: Sequence[CheckpointMove], *, caller: str, deadline: float | None = None
    ) -> list[WriteAnswer]:
        """UpdateChannelCheckpoint: one answer per entry, in order."""
        raise NotImplementedError

    async def drop_virtual_channel(self, save: Save, *, caller: str, deadline: float | None = None) -> WriteAnswer:
        """DropVirtualChannel: last save and tombstone in one transaction."""
        raise NotImplementedError

    async def release_channels(
        self, releases: Sequence[ChannelRelease], *, caller: str, deadline: float | None = None
    ) -> list[WriteAnswer]:
        """ReleaseChannels: one answer per channel, in order."""
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError

    async def report_datanode(
        self, report: data_coord_pb2.ReportDataNodeTtMsgsRequest, *, caller: str, deadline: float | None = None
    ) -> SessionState:
        """Renews the lease, keeps the report (as packed as it came), moves to STOPPING or ends the session if asked.

        Raises:
            SessionNotFoundError: the session is over.
        """
        raise NotImplementedError

    async def watch_datanode(self, node_id: int, *, deadline: float | None = None) -> DesiredState:
        """Marks a session as watching (only then channels are assigned to it) and answers its desired state.

        Raises:
            SessionNotFoundError: the session is over.
        """
        raise NotImplementedError

    async def desired_state(self, node_id: int) -> DesiredState:
        """The desired state of a session.

        Raises:
            SessionNotFoundError: the session is over.
        """
        raise NotImplementedError

    async def desired_revisions(self, node_ids: Sequence[int]) -> Mapping[int, int]:
        """Revisions of the desired states of many sessions in one read; sessions that are over are absent."""
        raise NotImplementedError

    # ---- collections --------------------------------------------------------------------------------------------------------

    async def create_collection(
        self, new: NewCollection, *, caller: str, deadline: float | None = None
    ) -> tuple[Collection, bool]:
        """Creates a collection with its channels and its partition `_default`; (collection, created).

        Raises:
            CollectionExistsError: another definition has this name.
        """
        raise NotImplementedError

    async def create_partition(
        self, collection_name: str, partition_name: str, *, caller: str, deadline: float | None = None
    ) -> int:
        """Creates a partition, or finds it; its number.

        Raises:
            CollectionNotFoundError: no such collection.
            InvalidFieldError: the collection has as many partitions as are allowed.
        """
        raise NotImplementedError

    async def drop_partition(
        self, collection_name: str, partition_name: str, *, caller: str, deadline: float | None = None
    ) -> None:
        """Drops a partition: its segments are DROPPED, later saves to it are DISCARDED.

        Raises:
            CollectionNotFoundError: no such collection.
            PartitionNotFoundError: no such partition.
        """
        raise NotImplementedError

    async def describe_collection(self, collection_name: str) -> Collection:
        """One collection.

        Raises:
            CollectionNotFoundError: no such collection.
        """
        raise NotImplementedError

    async def list_collections(self, *, page_size: int = 0, page_token: str = "") -> Page[Collection]:
        """Collections by name.

        Raises:
            InvalidFieldError: a page token that this list did not give.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    async def list_binlogs(
        self, collection_name: str, *, channel_names: Sequence[str] = (), page_size: int = 0, page_token: str = ""
    ) -> Page[ChannelBinlogList]:
        """The objects readers see, by channel index; a page holds whole channels and is one read.

        Raises:
            CollectionNotFoundError: no such collection.
            ChannelNotFoundError: a channel named is not of this collection.
            InvalidFieldError: a page token that this list did not give.
        """
        raise NotImplementedError

    async def list_channels(
        self, *, collection_name: str = "", page_size: int = 0, page_token: str = ""
    ) -> Page[ChannelRow]:
        """Channels by name.

        Raises:
            CollectionNotFoundError: no such collection.
            InvalidFieldError: a page token that this list did not give.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    async def list_datanodes(
        self, *, job: str = "", include_ended: bool = False, page_size: int = 0, page_token: str = ""
    ) -> Page[DataNodeRow]:
        """Sessions, living ones first, then by number.

        Raises:
            InvalidFieldError: a page token that this list did not give.
        """
        raise NotImplementedError

    async def call_statistics(self) -> list[CallStatistics]:
        """Accepted calls by RPC and caller, from the history in `events`."""
        raise NotImplementedError

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
        raise NotImplementedError

    async def get_flush_state(self, flush_id: int) -> FlushState:
        """How far a flush is.

        Raises:
            FlushNotFoundError: no such flush.
        """
        raise NotImplementedError

    # ---- jobs: one round each, under the job's lease -------------------------------------------------------------------------

    async def run_lease_job(self) -> LeaseRound:
        """Ends sessions whose lease is over and frees their channels."""
        raise NotImplementedError

    async def run_assignment_job(self) -> AssignmentRound:
        """Gives free channels to watching sessions and asks for channels back where it is uneven."""
        raise NotImplementedError

    async def run_seal_job(self) -> SealRound:
        """Seals growing segments by the policies that depend on time, and on the bytes that grow in a channel."""
        raise NotImplementedError
