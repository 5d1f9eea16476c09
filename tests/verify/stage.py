"""A database with real objects beside it, in a state that accepted calls lead to, where faults can be planted."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import NullPool, select, text
from store.support import CALLER, Clock, ScriptedFaults, World, position
from support.engines import engine_of

from coordinator.core.model import BinlogFacts, ChannelMode, LaneSave, Save
from coordinator.core.verify import Finding, Kind
from coordinator.store import ChannelRelease, Collection, NewCollection, TimestampKind
from coordinator.store.tables import events, metadata
from coordinator.store.verify import Report, verify
from datacoord.objectstore import ObjectStore
from datacoord.paths import BinlogKind, BinlogPath


class Place:
    """A database and its objects.

    Attributes:
        url: the database.
        objects: directory of all objects.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.objects = directory / "objects"
        self._log_ids = iter(range(1, 1_000_000))
        self._engine = engine_of(url, poolclass=NullPool)

    def path(
        self,
        channel_id: int,
        partition_id: int,
        epoch: int,
        start: int,
        end: int,
        *,
        kind: BinlogKind = BinlogKind.INSERT,
    ) -> BinlogPath:
        """The path of an object as no other."""
        return BinlogPath(kind, channel_id, partition_id, epoch, start, end, 0, next(self._log_ids))

    def create(
        self, collection: Collection, path: BinlogPath, rows_from: int = 0, timestamps: Sequence[int] = ()
    ) -> int:
        """Writes an object with a row per timestamp (of its range, unless others are named); its size."""
        timestamps = timestamps or list(range(rows_from or path.timestamp_from + 1, path.timestamp_to + 1))
        file = Path(collection.storage_root) / str(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        names = ("channel_id", "partition_id", "epoch", "timestamp_from", "timestamp_to", "field_id", "log_id")
        described = {f"datacoord.{name}": str(getattr(path, name)) for name in names}
        described["datacoord.kind"] = path.kind.value
        column = pa.field("_timestamp", pa.int64(), nullable=False)
        table = pa.table([pa.array(timestamps, pa.int64())], schema=pa.schema([column], metadata=described))
        pq.write_table(table, file)
        return file.stat().st_size

    def execute(self, statement: str, **values: Any) -> None:
        """Changes a table by hand."""
        with self._engine.begin() as connection:
            assert connection.execute(text(statement), values).rowcount > 0, statement

    def change_event(self, rpc: str, change: Callable[[list[Any]], None], which: int = -1) -> None:
        """Changes the form of an entry of the history that changed something."""
        with self._engine.begin() as connection:
            found = select(events.c.event_id, events.c.changes).where(events.c.rpc == rpc, events.c.changes != "[]")
            event_id, changes = connection.execute(found.order_by(events.c.event_id)).all()[which]
            changed = json.loads(changes)
            change(changed)
            values = {"changes": json.dumps(changed)}
            connection.execute(events.update().where(events.c.event_id == event_id).values(values))

    def forget_history(self) -> None:
        """As if retention had deleted all of it."""
        self.execute("DELETE FROM events")

    def verify(self, names: Sequence[str] = (), **options: Any) -> Report:
        """Looks at it."""
        return verify(self.url, names, storage_root=str(self.objects), **options)

    def kinds(self, **options: Any) -> set[Kind]:
        """Kinds of findings."""
        return kinds(self.verify(**options).findings)


class Stage(Place):
    """A MANAGED and a CLAIMED collection of two channels and two partitions each.

    Attributes:
        world: the store, with the MANAGED collection.
        claimed: the CLAIMED collection.
    """

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url, directory)
        self.world = World(url, Clock(), ScriptedFaults())
        self.claimed: Collection

    async def open(self) -> "Stage":
        """Creates the collections, with a datanode and a claimant, and nothing in them."""
        await self.world.open(storage_root=str(self.objects))
        await self.world.create("claimed", ChannelMode.CLAIMED)
        self.claimed = self.world.collection
        await self.world.create("managed")
        await self.world.start_datanode()
        await self.world.store.claim_channels("query", self.claimed.channel_names, caller=CALLER)
        return self

    def files(self) -> list[Path]:
        """Every object of the MANAGED collection, by name."""
        return sorted(Path(self.world.collection.storage_root).rglob("*.parquet"))

    async def fill(self) -> "Stage":
        """Several ranges in several segments of several lanes, under several epochs; checkpoints; a flush; a dropped partition."""
        world = self.world
        first, second = world.channels
        for end in (10, 20, 30):
            await self.land(first, world.default, end - 10, end, checkpoint=end, seal=end == 20)
        await self.land(first, world.other, 0, 35, rows_from=31)
        await self.land(second, world.default, 0, 12, kind=BinlogKind.DELTA)
        await world.store.release_channels(
            [ChannelRelease(second, await world.epoch(second), position(12))], caller=CALLER
        )
        await world.store.run_assignment_job()
        await self.land(second, world.default, 12, 40, checkpoint=25)
        await world.store.flush("managed", 39, caller=CALLER)
        await world.move(second, 38)
        name = self.claimed.channel_names[0]
        partition = self.claimed.partitions["other"]
        await self.land(name, partition, 0, 5, checkpoint=5, collection=self.claimed)
        await world.store.drop_partition("claimed", "other", caller=CALLER)
        return self

    async def land(
        self,
        channel: str,
        partition_id: int,
        start: int,
        end: int,
        *,
        checkpoint: int | None = None,
        seal: bool = False,
        rows_from: int = 0,
        kind: BinlogKind = BinlogKind.INSERT,
        collection: Collection | None = None,
        epoch: int = 0,
    ) -> str:
        """Writes an object and registers it; the answer's outcome or reason."""
        collection = collection or self.world.collection
        (info,) = (await self.world.store.recovery_info(channel_names=[channel])).items
        path = self.path(info.channel_id, partition_id, epoch or info.epoch, start, end, kind=kind)
        self.create(collection, path, rows_from)
        return await self.register(
            channel, path, rows_from=rows_from, checkpoint=checkpoint, seal=seal, collection=collection
        )

    async def register(
        self,
        channel: str,
        path: BinlogPath,
        *,
        rows_from: int = 0,
        checkpoint: int | None = None,
        seal: bool = False,
        collection: Collection | None = None,
    ) -> str:
        """Registers an object that is there; the answer's outcome or reason."""
        size = (Path((collection or self.world.collection).storage_root) / str(path)).stat().st_size
        start, end = path.timestamp_from, path.timestamp_to
        ts_min = rows_from or start + 1
        facts = BinlogFacts(path.kind, 0, path.log_id, end - ts_min + 1, ts_min, end, size, size)
        lane = LaneSave(path.partition_id, start, end, (facts,), seal)
        part = Save(channel, path.epoch, (lane,), None if checkpoint is None else position(checkpoint))
        (answer,) = await self.world.store.save_binlog_paths([part], caller=CALLER)
        if answer.refusal is not None:
            return answer.refusal.reason.value
        return answer.lanes[0].outcome.name


class Copy(Place):
    """A golden stage once more, without a store on it.

    Attributes:
        collection: the MANAGED one.
        channels: its channels.
        default: its first partition.
        other: its second partition.
    """

    def __init__(self, url: str, directory: Path, golden: Stage) -> None:
        super().__init__(url, directory)
        collection = golden.world.collection
        self.collection = replace(collection, storage_root=str(self.objects / str(collection.collection_id)))
        self.channels = golden.world.channels
        self.default = golden.world.default
        self.other = golden.world.other

    def files(self) -> list[Path]:
        """Every object of the collection, by name."""
        return sorted(Path(self.collection.storage_root).rglob("*.parquet"))


class Golden:
    """Everything in a database and its objects, to be copied."""

    def __init__(self, stage: Stage, rows: dict[str, list[dict[str, Any]]]) -> None:
        self._stage = stage
        self._rows = rows

    @classmethod
    async def make(cls, url: str, directory: Path) -> "Golden":
        """Fills a stage and reads all of it."""
        stage = await (await Stage(url, directory).open()).fill()
        await stage.world.store.close()
        with stage._engine.connect() as connection:
            rows = {
                table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
                for table in metadata.sorted_tables
            }
        return cls(stage, rows)

    def copy(self, url: str, directory: Path) -> Copy:
        """Writes it into an empty database and another directory."""
        copied = Copy(url, directory, self._stage)
        shutil.copytree(self._stage.objects, copied.objects)
        with copied._engine.begin() as connection:
            for table in metadata.sorted_tables:
                connection.execute(table.delete())
                rows = self._rows[table.name]
                if table.name == "collections":
                    rows = [{**row, "storage_root": f"{copied.objects}/{row['collection_id']}"} for row in rows]
                if rows:
                    connection.execute(table.insert(), rows)
            if connection.dialect.name == "postgresql":
                for table_name, column in (("binlogs", "binlog_id"), ("events", "event_id")):
                    largest = f"SELECT max({column}) FROM {table_name}"
                    sequence = f"pg_get_serial_sequence('{table_name}', '{column}')"
                    connection.execute(text(f"SELECT setval({sequence}, ({largest}))"))
        return copied


def kinds(findings: Sequence[Finding]) -> set[Kind]:
    """Kinds of findings."""
    return {finding.kind for finding in findings}


def new_collection(name: str) -> NewCollection:
    """A MANAGED collection of one channel."""
    return NewCollection(name, b"schema", ("k",), 1, ChannelMode.MANAGED, TimestampKind.ORDINAL)


class Interrupted(ObjectStore):
    """An object store during whose calls other things happen.

    Args:
        inner: the store.
        listed: called after a listing, before anybody sees it.
        opened: called before an object is opened.
    """

    def __init__(
        self, inner: ObjectStore, listed: Callable[[], None] = lambda: None, opened: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(inner._filesystem, inner.root)
        self._listed = listed
        self._opened = opened

    def list_objects(self, prefix: str = "") -> Any:
        """See the base class."""
        infos = list(super().list_objects(prefix))
        self._listed()
        return iter(infos)

    def open_input(self, path: str) -> pa.NativeFile:
        """See the base class."""
        self._opened()
        return super().open_input(path)
