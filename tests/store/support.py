"""A store with a collection, a clock that only tests move, faults on purpose, and short ways to say what is written."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw
from sqlalchemy import select
from support.engines import engine_of

from coordinator.core.model import BinlogFacts, ChannelMode, LaneSave, Save, SegmentState
from coordinator.store import (
    CheckpointMove,
    Collection,
    NewCollection,
    RecoveryInfo,
    SegmentRow,
    Store,
    StoreSettings,
    TimestampKind,
    WriteAnswer,
)
from coordinator.store.engine import Faults
from coordinator.store.tables import metadata
from datacoord.errors import Reason
from datacoord.paths import BinlogKind
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2

CALLER = "test"
LEASE_MS = 10_000
CLAIM_LEASE_MS = 20_000
_log_ids = itertools.count(1)
_compiled: dict[Any, Any] = {}


def sqlite_error(code: int) -> Exception:
    """What SQLite's driver raises for a code."""
    error = apsw.exception_for(code)
    error.args = ("on purpose",)
    return error


@dataclass
class Clock:
    """The database's clock, moved by hand."""

    now_ms: int = 1_000_000

    def __call__(self) -> int:
        """The time."""
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Lets time pass."""
        self.now_ms += ms


@dataclass
class ScriptedFaults(Faults):
    """Fails where a test says.

    Attributes:
        fail_statement: which statement from now fails, counted from 1; 0 = none.
        fail_commit: COMMIT fails and nothing is committed.
        lose_reply: COMMIT succeeds, and nobody hears of it.
        error: what a driver would raise.
        statements: how many statements there were.
    """

    fail_statement: int = 0
    fail_commit: bool = False
    lose_reply: bool = False
    error: Callable[[], Exception] = field(default=lambda: sqlite_error(apsw.SQLITE_IOERR))
    statements: int = 0

    def statement(self, statement: str) -> None:
        """See the base class."""
        self.statements += 1
        if self.fail_statement:
            self.fail_statement -= 1
            if not self.fail_statement:
                raise self.error()

    def commit(self) -> None:
        """See the base class."""
        if self.fail_commit:
            self.fail_commit = False
            raise self.error()

    def committed(self) -> None:
        """See the base class."""
        if self.lose_reply:
            self.lose_reply = False
            raise self.error()


def settings(**changes: Any) -> StoreSettings:
    """Settings with short leases."""
    values = {
        "storage_root": "/objects",
        "datanode_lease_ms": LEASE_MS,
        "claim_lease_ms": CLAIM_LEASE_MS,
        "job_holder": "this",
        # Tests let much time pass between two rounds; one that stood still has its own.
        "job_lease_ms": 1_000_000,
        "busy_timeout_ms": 20_000,
    }
    return StoreSettings(**{**values, **changes})


def binlog(
    ts_min: int, ts_max: int, *, kind: BinlogKind = BinlogKind.INSERT, rows: int = 1, size: int = 10
) -> BinlogFacts:
    """An object with these row timestamps, as no other."""
    return BinlogFacts(kind, 0, next(_log_ids), rows, ts_min, ts_max, size, 2 * size)


def lane(partition_id: int, start: int, end: int, *, seal: bool = False, size: int = 10) -> LaneSave:
    """A range with one object that fills it."""
    return LaneSave(partition_id, start, end, (binlog(start + 1, end, size=size),), seal)


def save(channel: str, epoch: int, *lanes: LaneSave, checkpoint: int | None = None) -> Save:
    """A channel's part."""
    return Save(channel, epoch, lanes, None if checkpoint is None else position(checkpoint))


def position(timestamp: int) -> Position:
    """A position whose every part tells its timestamp."""
    return Position(timestamp, f"id{timestamp}".encode(), f"group{timestamp}", timestamp * 10)


def reasons(answers: Sequence[WriteAnswer]) -> list[str]:
    """What became of each: the outcome's name or the refusal's reason."""
    return [a.outcome.name if a.outcome is not None else reason_of(a).value for a in answers]


def reason_of(answer: WriteAnswer) -> Reason:
    """Why it was refused."""
    assert answer.refusal is not None
    return answer.refusal.reason


def dump(url: str, *, leave_out: Sequence[str] = ()) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in a database, by table."""
    engine = engine_of(url)
    try:
        with engine.connect() as connection:
            return {
                table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
                for table in metadata.sorted_tables
                if table.name not in leave_out
            }
    finally:
        engine.dispose()


class World:
    """A store with one collection.

    Attributes:
        url: the database.
        store: open on it.
        clock: its clock.
        faults: makes it fail.
        collection: with two channels; partition numbers in `default` and `other`.
    """

    def __init__(self, url: str, clock: Clock, faults: ScriptedFaults) -> None:
        self.url = url
        self.clock = clock
        self.faults = faults
        self.store: Store
        self.collection: Collection
        self.other = 0

    @property
    def default(self) -> int:
        """Number of the default partition."""
        return self.collection.partitions["_default"]

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""
        return self.collection.channel_names

    async def open(self, **changes: Any) -> "World":
        """Opens the store."""
        self.store = await Store.open(self.url, settings(**changes), clock_ms=self.clock, faults=self.faults)
        database = self.store._database
        # Statements are compiled once for all tests, not once for each.
        database._writer = database._writer.execution_options(compiled_cache=_compiled)
        reader = database._reader
        reader._engine = reader._engine.execution_options(compiled_cache=_compiled)
        return self

    async def create(self, name: str = "t", mode: ChannelMode = ChannelMode.MANAGED, channels: int = 2) -> Collection:
        """Creates a collection with the partitions `_default` and `other`, and works with it from now on."""
        new = NewCollection(name, b"schema", ("k",), channels, mode, TimestampKind.ORDINAL)
        await self.store.create_collection(new, caller=CALLER)
        self.other = await self.store.create_partition(name, "other", caller=CALLER)
        self.collection = await self.store.describe_collection(name)
        return self.collection

    async def crash(self) -> None:
        """The process dies and another one opens the database."""
        await self.store.abandon()
        await self.open()

    async def start_datanode(self, slot: int = 0, job: str = "job") -> int:
        """A session that watches, with its share of the channels."""
        session = await self.store.register_datanode(
            job, slot, [self.collection.name], host="h", pid=slot + 1, caller=CALLER
        )
        await self.store.watch_datanode(session.node_id)
        await self.store.run_assignment_job()
        return session.node_id

    async def info(self, channel: str) -> RecoveryInfo:
        """Recovery info of a channel."""
        return (await self.store.recovery_info(channel_names=[channel])).items[0]

    async def epoch(self, channel: str) -> int:
        """Epoch of a channel now, dropped or not."""
        page = await self.store.list_channels(collection_name=self.collection.name)
        return next(row.epoch for row in page.items if row.channel_name == channel)

    async def save(self, channel: str, *lanes: LaneSave, epoch: int = 0, checkpoint: int | None = None) -> WriteAnswer:
        """One save of one channel, at its epoch unless another is named."""
        part = save(channel, epoch or await self.epoch(channel), *lanes, checkpoint=checkpoint)
        (answer,) = await self.store.save_binlog_paths([part], caller=CALLER)
        return answer

    async def move(self, channel: str, timestamp: int, *, epoch: int = 0) -> WriteAnswer:
        """One checkpoint update."""
        entry = CheckpointMove(channel, epoch or await self.epoch(channel), position(timestamp))
        (answer,) = await self.store.update_channel_checkpoints([entry], caller=CALLER)
        return answer

    async def report(self, node_id: int, **consumed: int) -> None:
        """A heartbeat with consumed timestamps by channel name."""
        messages = [data_coord_pb2.DataNodeTtMsg(channel_name=name, timestamp=ts) for name, ts in consumed.items()]
        report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, msgs=messages)
        await self.store.report_datanode(report, caller=CALLER)

    async def stop(self, node_id: int) -> None:
        """A session says that it stops."""
        report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, stopping=True)
        await self.store.report_datanode(report, caller=CALLER)

    async def segments(self, *states: SegmentState) -> list[SegmentRow]:
        """Segments of the collection."""
        page = await self.store.list_segments(collection_name=self.collection.name, states=states)
        return list(page.items)

    async def registered(self, channel: str) -> dict[int, list[tuple[int, int]]]:
        """Row timestamps (smallest, largest) of the objects readers see, by partition."""
        page = await self.store.list_binlogs(self.collection.name, channel_names=[channel])
        found: dict[int, list[tuple[int, int]]] = {}
        for binlog_row in page.items[0].binlogs:
            found.setdefault(binlog_row.partition_id, []).append((binlog_row.facts.ts_min, binlog_row.facts.ts_max))
        return found
