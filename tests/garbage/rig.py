"""A store with one collection, writers that put real objects below its root, and a collector."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import text
from store.support import CALLER, Clock, ScriptedFaults, World, position
from support.engines import engine_of

from coordinator.core.model import BinlogFacts, LaneSave, Save
from coordinator.jobs.garbage import Blocking, GarbageJob
from coordinator.jobs.garbage_sweep import GarbageSettings
from coordinator.store import WriteAnswer
from coordinator.store.garbage import GcPlan
from coordinator.web.metrics import Metrics
from datacoord.objectstore import OWNER_MARK, ObjectStore
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.v1 import admin_pb2

PLAN_SECONDS = 60.0
BOTH = (BinlogKind.INSERT, BinlogKind.DELTA)
_log_ids = itertools.count(1)


@dataclass(frozen=True)
class Written:
    """A range of a lane that a writer has put into objects, and not saved yet.

    Attributes:
        channel: its name.
        epoch: of the writer.
        lane: the range.
        paths: of the objects.
    """

    channel: str
    epoch: int
    lane: LaneSave
    paths: tuple[str, ...]


class Rig:
    """The stage.

    Args:
        url: a migrated database.
        directory: for objects; a local one or a URI.
    """

    def __init__(self, url: str, directory: Path | str) -> None:
        self.world = World(url, Clock(), ScriptedFaults())
        self.directory = directory
        self.metrics = Metrics()
        self.channel_ids: dict[str, int] = {}
        self.objects: ObjectStore

    async def open(self, **changes: Any) -> "Rig":
        """Opens the store and creates the collection."""
        await self.world.open(storage_root=str(self.directory), **changes)
        await self.world.create()
        root = self.world.collection.storage_root
        self.objects = ObjectStore.from_uri(root)
        identities = await self.world.store.channel_identities(self.world.channels)
        self.channel_ids = {name: identity.channel_id for name, identity in identities.items()}
        return self

    @property
    def root(self) -> Path:
        """Where the collection keeps its objects."""
        return Path(self.world.collection.storage_root)

    # ---- writers ------------------------------------------------------------------------------------------------------------

    def write(
        self,
        channel: str,
        epoch: int,
        start: int,
        end: int,
        *,
        partition: int = 0,
        kinds: tuple[BinlogKind, ...] = (BinlogKind.INSERT,),
        durable: bool = True,
    ) -> Written:
        """Objects of a range, not saved; by the writers' own way, or where there are many of them without syncing."""
        partition = partition or self.world.default
        facts, paths = [], []
        for kind in kinds:
            path = BinlogPath(kind, self.channel_ids[channel], partition, epoch, start, end, 0, next(_log_ids))
            if durable:
                self.objects.create(str(path), pa.py_buffer(b"x" * 10))
            else:
                self.put(str(path))
            facts.append(BinlogFacts(kind, 0, path.log_id, 1, start + 1, end, 10, 20))
            paths.append(str(path))
        return Written(channel, epoch, LaneSave(partition, start, end, tuple(facts)), tuple(paths))

    async def save(self, written: Written, *, checkpoint: bool = True) -> WriteAnswer:
        """Its save; with the checkpoint at its end, where no other lane has less."""
        to = position(written.lane.timestamp_to) if checkpoint else None
        part = Save(written.channel, written.epoch, (written.lane,), to)
        (answer,) = await self.world.store.save_binlog_paths([part], caller=CALLER)
        return answer

    async def land(self, channel: str, start: int, end: int, **more: Any) -> Written:
        """Writes and saves a range under the epoch of now."""
        written = self.write(channel, await self.world.epoch(channel), start, end, **more)
        answer = await self.save(written, checkpoint=False)
        assert answer.refusal is None
        return written

    async def change_owner(self, slot: int = 0) -> None:
        """Gives every channel to a new session: a new epoch each."""
        await self.world.start_datanode(slot)

    async def drop_channel(self, channel: str) -> None:
        """Makes it a tombstone."""
        last = Save(channel, await self.world.epoch(channel), (), None)
        answer = await self.world.store.drop_virtual_channel(last, caller=CALLER)
        assert answer.refusal is None

    def put(self, path: str, content: bytes = b"x" * 10) -> str:
        """A file of anybody."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return path

    # ---- the collector ------------------------------------------------------------------------------------------------------

    def job(
        self, blocking: Blocking = asyncio.to_thread, open_objects: Callable[[str], Any] | None = None, **settings: Any
    ) -> GarbageJob:
        """A collector that has a round due whenever it is asked, in parts so small that there are many of them."""
        small = {"interval_ms": 0, "batch_objects_max": 2, "delete_objects_max": 2, "delete_rows_max": 2, **settings}
        more: dict[str, Any] = {"open_objects": open_objects} if open_objects is not None else {}
        return GarbageJob(
            self.world.store, self.metrics, GarbageSettings(**small), blocking=blocking, rest=self.rest, **more
        )

    @staticmethod
    def rest(_seconds: float) -> Awaitable[None]:
        """Lets others go first."""
        return asyncio.sleep(0)

    async def collect(self, **settings: Any) -> admin_pb2.GcRound:
        """One round; what it did."""
        before = (await self.world.store.garbage.status()).last_round.start_time_ms
        self.world.clock.advance(120_000)
        await self.job(**settings)()
        done = (await self.world.store.garbage.status()).last_round
        assert done.start_time_ms != before, "no round was due"
        return done

    async def plan(self, collection: str = "", **settings: Any) -> GcPlan:
        """What a round would do."""
        deadline = asyncio.get_running_loop().time() + PLAN_SECONDS
        return await self.job(**settings).plan(collection, deadline)

    def files(self) -> set[str]:
        """Every file below the root, but the mark of its owner."""
        found = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()}
        return found - {OWNER_MARK}

    def directories(self) -> set[str]:
        """Every directory below the root."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_dir()}

    async def referenced(self) -> set[str]:
        """Objects that readers see."""
        page = await self.world.store.list_binlogs(self.world.collection.name)
        return {str(binlog.path) for channel in page.items for binlog in channel.binlogs}


def execute(rig: Rig, statement: str) -> None:
    """One statement, by somebody else."""
    engine = engine_of(rig.world.url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()
