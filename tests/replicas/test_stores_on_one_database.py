"""Three stores on one PostgreSQL, with calls that meet at every row: what one process never does to itself."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from store.support import CALLER, LEASE_MS, binlog, position, settings

from coordinator.core.model import ChannelMode, LaneSave, Outcome, Save
from coordinator.store import (
    ChannelRelease,
    CheckpointMove,
    NewCollection,
    RecoveryInfo,
    Store,
    TimestampKind,
)
from datacoord.errors import (
    ChannelNotFoundError,
    CommitOutcomeUnknownError,
    DatacoordError,
    InternalError,
    StoreUnavailableError,
)
from datacoord.v1 import data_coord_pb2

from .tiling import stored_log_ids

REPLICAS = 3
CLIENTS = 8
CALLS_EACH = 30
COLLECTIONS = {"managed": ChannelMode.MANAGED, "claimed": ChannelMode.CLAIMED}


@dataclass
class Chaos:
    """Clients that call any store for anything.

    Attributes:
        stores: on the same database.
        rng: chooses.
        applied: objects of saves that were APPLIED.
        refused: objects of saves that were refused.
        checkpoints: the largest checkpoint that was acknowledged, by channel.
        unavailable: calls that were certainly not done.
    """

    stores: list[Store]
    rng: random.Random
    applied: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    checkpoints: dict[str, int] = field(default_factory=dict)
    unavailable: int = 0

    @property
    def store(self) -> Store:
        """Any."""
        return self.rng.choice(self.stores)

    async def client(self) -> None:
        """One client."""
        for _ in range(CALLS_EACH):
            call: Callable[[str], Awaitable[None]] = self.rng.choice(
                [self.create, self.partition, self.session, self.job, self.flush, self.drop]
                + [self.claim, self.release, self.move] * 2
                + [self.save] * 12
            )
            try:
                await call(self.rng.choice(list(COLLECTIONS)))
            except StoreUnavailableError:
                self.unavailable += 1
            except (InternalError, CommitOutcomeUnknownError):
                raise
            except DatacoordError:
                pass  # a rule said no

    async def create(self, name: str) -> None:
        new = NewCollection(name, b"schema", ("k",), 3, COLLECTIONS[name], TimestampKind.ORDINAL)
        await self.store.create_collection(new, caller=CALLER)

    async def partition(self, name: str) -> None:
        partition = f"p{self.rng.randrange(2)}"
        if self.rng.random() < 0.3:
            await self.store.drop_partition(name, partition, caller=CALLER)
        else:
            await self.store.create_partition(name, partition, caller=CALLER)

    async def session(self, name: str) -> None:
        session = await self.store.register_datanode(
            "job", self.rng.randrange(2), [name], host="h", pid=1, caller=CALLER
        )
        await self.store.watch_datanode(session.node_id)
        report = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=session.node_id, ended=self.rng.random() < 0.2)
        await self.store.report_datanode(report, caller=CALLER)

    async def job(self, _name: str) -> None:
        await self.store.run_assignment_job()
        await self.store.run_lease_job()
        await self.store.run_seal_job()

    async def flush(self, name: str) -> None:
        await self.store.flush(name, self.rng.randrange(20), caller=CALLER)

    async def drop(self, name: str) -> None:
        if self.rng.random() < 0.1:
            info = (await self.some(name))[0]
            await self.store.drop_virtual_channel(Save(info.channel_name, info.epoch, (), None), caller=CALLER)

    async def claim(self, name: str) -> None:
        names = [info.channel_name for info in await self.some(name)]
        owner = f"q{self.rng.randrange(3)}"
        await self.store.claim_channels(owner, names, force=self.rng.random() < 0.5, caller=CALLER)

    async def release(self, name: str) -> None:
        infos = await self.some(name)
        releases = [ChannelRelease(info.channel_name, info.epoch, info.checkpoint) for info in infos]
        await self.store.release_channels(releases, caller=CALLER)

    async def some(self, name: str) -> list[RecoveryInfo]:
        """What some store says of some channels, in any order."""
        infos = list((await self.store.recovery_info(collection_name=name)).items)
        if not infos:
            raise ChannelNotFoundError(f"every channel of {name} is dropped")
        return self.rng.sample(infos, self.rng.randint(1, len(infos)))

    async def save(self, name: str) -> None:
        parts = []
        for info in await self.some(name):
            known = {ln.partition_id: ln.progress for ln in info.lanes}
            partitions = sorted(info.collection.partitions.values())
            chosen = self.rng.sample(partitions, self.rng.randint(1, len(partitions)))
            lanes = []
            for partition_id in chosen:
                start = known.get(partition_id, 0)
                # Rows at or before the checkpoint are the filter's business.
                first = max(start, info.checkpoint.timestamp) + 1
                end = first + self.rng.randint(0, 2)
                lanes.append(LaneSave(partition_id, start, end, (binlog(first, end),), self.rng.random() < 0.2))
            moved = position(min(ln.timestamp_to for ln in lanes)) if self.rng.random() < 0.5 else None
            if COLLECTIONS[name] is ChannelMode.CLAIMED:
                lanes = lanes[:1]
                moved = position(lanes[0].timestamp_to)
            parts.append(Save(info.channel_name, info.epoch, tuple(lanes), moved))
        answers = await self.store.save_binlog_paths(parts, caller=CALLER)
        for part, answer in zip(parts, answers, strict=True):
            if answer.refusal is not None:
                self.refused.update(b.log_id for ln in part.lanes for b in ln.binlogs)
                continue
            for ln, took in zip(part.lanes, answer.lanes, strict=True):
                if took.outcome is Outcome.APPLIED:
                    self.applied.update(b.log_id for b in ln.binlogs)
            if part.checkpoint is not None:
                self.note(part.channel_name, part.checkpoint.timestamp)

    async def move(self, name: str) -> None:
        infos = await self.some(name)
        moves = []
        for info in infos:
            now = info.checkpoint.timestamp
            furthest = min((ln.progress for ln in info.lanes), default=now)
            moves.append(CheckpointMove(info.channel_name, info.epoch, position(max(1, now, furthest))))
        answers = await self.store.update_channel_checkpoints(moves, caller=CALLER)
        for move, answer in zip(moves, answers, strict=True):
            if answer.refusal is None:
                self.note(move.channel_name, move.position.timestamp)

    def note(self, channel: str, timestamp: int) -> None:
        """A checkpoint was acknowledged."""
        self.checkpoints[channel] = max(self.checkpoints.get(channel, 0), timestamp)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))])
async def test_replicas_that_meet_at_every_row_break_no_rule(database_url: str, seed: int) -> None:
    """SQLite runs one transaction at a time; here others commit between any two statements."""
    stores = [
        await Store.open(database_url, settings(job_holder=f"r{n}", busy_timeout_ms=10_000, datanode_lease_ms=LEASE_MS))
        for n in range(REPLICAS)
    ]
    chaos = Chaos(stores, random.Random(seed))
    for name in COLLECTIONS:
        await chaos.create(name)

    await asyncio.gather(*(chaos.client() for _ in range(CLIENTS)))

    assert chaos.unavailable <= CLIENTS, "deadlocks were not settled by trying again"
    assert sum(store.statistics.invariant_violations for store in stores) == 0
    stored = stored_log_ids(database_url)
    assert stored == chaos.applied
    assert not stored & chaos.refused
    assert len(stored) > CLIENTS, "most calls were refused: this shows little"
    for row in (await stores[0].list_channels()).items:
        assert row.checkpoint.timestamp >= chaos.checkpoints.get(row.channel_name, 0)
    for store in stores:
        await store.close()
