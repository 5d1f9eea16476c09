"""Rebuilds the rows of a lost database from the objects: lists and reads them, lets core choose, writes one transaction.

It writes into a database without collections only. Counters begin 2³² beyond every number an object names, every channel has a new
epoch and no owner, and garbage collection is held: as after a restore (R7), whoever lives on from the lost time is fenced.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import func, insert, select, update
from sqlalchemy.engine import Connection

from coordinator.core.model import SegmentState
from coordinator.core.rebuild import FoundObject, Range, RebuiltLane, rebuild_checkpoint, rebuild_lanes
from coordinator.core.segments import level_of
from coordinator.store import garbage, migrate
from coordinator.store.channel_writes import KIND_NUMBERS
from coordinator.store.collections import channel_name
from coordinator.store.databases import database_kind
from coordinator.store.restore import JUMP
from coordinator.store.tables import (
    ACTIVE,
    binlogs,
    channel_state,
    collections,
    epochs,
    lanes,
    partitions,
    segments,
    vchannels,
)
from coordinator.store.verify import Progress
from datacoord.errors import DatacoordError, InvalidFieldError, ObjectStoreError
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.manifest import read_manifest
from datacoord.object_metadata import BinlogMetadata
from datacoord.objectstore import ObjectInfo, ObjectStore
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.positions import Position
from datacoord.v1 import collection_pb2, common_pb2

HOLD_REASON = "the database was rebuilt from its objects: look at `datacoord verify`, then `datacoord gc resume`"
_OPENERS = 16
_PATH_PARTS = 5
_RANGES_PER_SEGMENT = 1000
_ROWS_PER_STATEMENT = 500


@dataclass(slots=True)
class RebuiltChannel:
    """One channel.

    Attributes:
        channel_id: its number; 0 = it has no objects and gets a new one.
        index: which of the collection's channels it is.
        lanes: as chosen.
        checkpoint: C.
    """

    channel_id: int
    index: int
    lanes: list[RebuiltLane] = field(default_factory=list)
    checkpoint: Position = field(default_factory=lambda: Position(0))


@dataclass(slots=True)
class RebuiltCollection:
    """One collection.

    Attributes:
        info: as its newest object describes it, with every partition that an object knows.
        storage_root: where its objects lie.
        channels: by index.
    """

    info: collection_pb2.CollectionInfo
    storage_root: str
    channels: list[RebuiltChannel]

    def name_of(self, channel: RebuiltChannel) -> str:
        """The name of a channel; it follows from the collection."""
        return channel_name(self.info.collection_name, self.info.collection_id, channel.index)


@dataclass(slots=True)
class RebuildPlan:
    """What a rebuild would do, or did.

    Attributes:
        collections: what comes back.
        unreadable: objects that could not be read, with the reason.
        foreign: files that are no objects of ours.
        superseded: collections that share their name with a younger one, by number.
        epoch: the largest epoch that was seen.
        number: the largest other number that was seen.
    """

    collections: list[RebuiltCollection] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    foreign: int = 0
    superseded: list[tuple[int, str]] = field(default_factory=list)
    epoch: int = 0
    number: int = 0

    @property
    def gaps(self) -> list[tuple[str, int, int, int]]:
        """Channel, partition, start and end of everything that is missing between ranges."""
        return [
            (one.name_of(channel), lane.partition_id, start, end)
            for one in self.collections
            for channel in one.channels
            for lane in channel.lanes
            for start, end in lane.gaps
        ]


def plan_rebuild(storage_roots: Sequence[str], names: Sequence[str], progress: Progress) -> RebuildPlan:
    """Lists and reads the objects below some roots, and chooses.

    Args:
        storage_roots: of the coordinator, below which collections lie in a directory each, or of single collections.
        names: only these collections; empty = all.
        progress: told how far it is.

    Raises:
        ObjectStoreError: a store cannot be listed.
    """
    plan = RebuildPlan()
    for storage_root in storage_roots:
        by_root: dict[str, list[FoundObject]] = defaultdict(list)
        for prefix, found in _scan(storage_root, plan, progress):
            by_root[_root_at(storage_root, prefix)].append(found)
        for root, objects in sorted(by_root.items()):
            of_collection: dict[int, list[FoundObject]] = defaultdict(list)
            for one in objects:
                of_collection[one.metadata.collection_id].append(one)
                numbers = (one.metadata.collection_id, one.metadata.channel_id, one.metadata.partition_id)
                plan.number = max(plan.number, *numbers)
                plan.epoch = max(plan.epoch, one.metadata.epoch)
            rebuilt = [_collection(root, of) for of in of_collection.values()]
            plan.collections += [one for one in rebuilt if not names or one.info.collection_name in names]
    _leave_superseded(plan)
    return plan


def _scan(storage_root: str, plan: RebuildPlan, progress: Progress) -> Iterator[tuple[str, FoundObject]]:
    """Every object below a root, with the directory of its collection."""
    store = ObjectStore.from_uri(storage_root)
    progress.begin("listing", None)
    places: list[tuple[str, ObjectInfo]] = []
    for info in store.list_objects():
        progress.advance(1)
        parts = info.path.split("/")
        try:
            BinlogPath.parse("/".join(parts[-_PATH_PARTS:]))
        except DatacoordError:
            plan.foreign += 1
            continue
        places.append(("/".join(parts[:-_PATH_PARTS]), info))
    progress.begin("reading", len(places))
    with ThreadPoolExecutor(_OPENERS) as threads:
        results = threads.map(lambda place: _read(store, *place), places)
        for (prefix, info), result in zip(places, results, strict=True):
            progress.advance(1)
            if isinstance(result, str):
                plan.unreadable.append((info.path, result))
            else:
                yield prefix, result


def _read(store: ObjectStore, prefix: str, info: ObjectInfo) -> FoundObject | str:
    """An object, or why it cannot be read."""
    try:
        with store.open_input(info.path) as file:
            footer = pq.read_metadata(file)
            metadata = BinlogMetadata.from_key_values(footer.metadata or {})
            if info.path != f"{prefix}/{metadata.path}".lstrip("/"):
                return "it says of itself that it lies elsewhere"
            entries = []
            if metadata.kind is BinlogKind.STATS:
                file.seek(0)
                entries = read_manifest(file)
            return FoundObject(metadata, footer.num_rows, info.size_bytes, tuple(entries))
    except (DatacoordError, ObjectStoreError, pa.ArrowException, OSError, ValueError) as error:
        return " ".join(str(error).split())[:200]


def _root_at(storage_root: str, prefix: str) -> str:
    if not prefix:
        return storage_root
    place, separator, options = storage_root.partition("?")
    return f"{place.rstrip('/')}/{prefix}{separator}{options}"


def _collection(root: str, objects: Sequence[FoundObject]) -> RebuiltCollection:
    described = [(one.metadata.epoch, one.metadata.timestamp_to, one.metadata) for one in objects]
    newest = max(described, key=lambda found: found[:2])[2]
    info = newest.read_collection()
    by_channel: dict[int, list[FoundObject]] = defaultdict(list)
    for one in objects:
        by_channel[one.metadata.channel_id].append(one)
        for name, partition_id in one.metadata.read_collection().partitions.items():
            if name not in info.partitions and partition_id not in info.partitions.values():
                info.partitions[name] = partition_id
    known = set(info.partitions.values())
    for one in objects:
        partition_id = one.metadata.partition_id
        if partition_id not in known and partition_id != ALL_PARTITIONS_ID:
            known.add(partition_id)
            info.partitions[f"partition_{partition_id}"] = partition_id
    claimed = info.channel_mode == common_pb2.CHANNEL_MODE_CLAIMED
    channels = {index: RebuiltChannel(0, index) for index in range(info.channel_count)}
    for channel_id, found in by_channel.items():
        chosen = rebuild_lanes(found)
        checkpoint = rebuild_checkpoint(found, chosen, claimed=claimed)
        index = found[0].metadata.channel_index
        channels[index] = RebuiltChannel(channel_id, index, chosen, checkpoint)
    return RebuiltCollection(info, root, [channels[index] for index in sorted(channels)])


def _leave_superseded(plan: RebuildPlan) -> None:
    """Of collections of one name the youngest has it: the others were dropped, and their objects not yet deleted."""
    youngest: dict[str, int] = {}
    for one in plan.collections:
        name = one.info.collection_name
        youngest[name] = max(youngest.get(name, 0), one.info.collection_id)
    found, plan.collections = plan.collections, []
    for one in found:
        info = one.info
        if youngest[info.collection_name] == info.collection_id:
            plan.collections.append(one)
        else:
            plan.superseded.append((info.collection_id, info.collection_name))


def write_rebuild(url: str, plan: RebuildPlan, progress: Progress, *, allow_gaps: bool = False) -> None:
    """Writes a plan into a database that is migrated and has no collections, in one transaction.

    Raises:
        InvalidFieldError: the database has collections, or ranges are missing and `allow_gaps` is not given.
        DatabaseNotMigratedError, DatabaseTooNewError, StoreUnavailableError: the database cannot be used.
    """
    if plan.gaps and not allow_gaps:
        channel, partition_id, start, end = plan.gaps[0]
        raise InvalidFieldError(
            f"{len(plan.gaps)} ranges are missing, the first in channel {channel!r}, partition {partition_id}: ({start}, {end}]; "
            "their objects are lost, or their segments were dropped; --allow-gaps goes on without them",
            gaps=len(plan.gaps),
        )
    migrate.check(url)
    kind = database_kind(url)
    with migrate.locked(url) as connection:
        if connection.execute(select(func.count()).select_from(collections)).scalar_one():
            raise InvalidFieldError(
                "the database has collections; rebuild writes into an empty one only: name another, or move this one away",
                database=url.partition("@")[2] or url,
            )
        progress.begin("writing", sum(one.info.channel_count for one in plan.collections))
        _Writer(connection, plan, kind.clock_ms(connection), progress).write()


class _Writer:
    """Writes the rows of a plan."""

    def __init__(self, connection: Connection, plan: RebuildPlan, now_ms: int, progress: Progress) -> None:
        self._connection = connection
        self._plan = plan
        self._now_ms = now_ms
        self._progress = progress
        self._epoch = plan.epoch + JUMP
        # Every restore and rebuild lets both counters jump, and objects of old channels name new epochs only: the epochs tell how
        # often that was. Beginning at the numbers that were seen could end among those given out after it.
        self._number = max(plan.number, plan.epoch) + JUMP

    def write(self) -> None:
        """Writes all of it."""
        for collection in self._plan.collections:
            self._write_collection(collection)
        for name, value in (("epoch", self._epoch), ("id", self._number)):
            self._connection.execute(update(epochs).where(epochs.c.name == name).values(value=value))
        garbage.hold(self._connection, HOLD_REASON)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _write_collection(self, collection: RebuiltCollection) -> None:
        info = collection.info
        self._connection.execute(
            insert(collections).values(
                collection_id=info.collection_id,
                name=info.collection_name,
                state=ACTIVE,
                arrow_schema=info.arrow_schema,
                primary_key=json.dumps(list(info.primary_key)),
                channel_count=info.channel_count,
                channel_mode=info.channel_mode,
                timestamp_kind=info.timestamp_kind,
                storage_root=collection.storage_root,
                properties=json.dumps(dict(info.properties)),
                create_time_ms=self._now_ms,
            )
        )
        for name, partition_id in info.partitions.items():
            values = {"partition_id": partition_id, "collection_id": info.collection_id, "name": name, "state": ACTIVE}
            self._connection.execute(insert(partitions).values(values))
        for channel in collection.channels:
            self._write_channel(collection, channel)
            self._progress.advance(1)

    def _write_channel(self, collection: RebuiltCollection, channel: RebuiltChannel) -> None:
        channel_id = channel.channel_id or self._next_number()
        self._connection.execute(
            insert(vchannels).values(
                channel_id=channel_id,
                name=collection.name_of(channel),
                collection_id=collection.info.collection_id,
                channel_index=channel.index,
                mode=collection.info.channel_mode,
                consumed_timestamp=max([channel.checkpoint.timestamp, *(lane.progress for lane in channel.lanes)]),
            )
        )
        self._epoch += 1
        self._connection.execute(
            insert(channel_state).values(
                channel_id=channel_id,
                epoch=self._epoch,
                state=ACTIVE,
                owner_id=0,
                release_requested=0,
                flush_timestamp=0,
                checkpoint_timestamp=channel.checkpoint.timestamp,
                checkpoint_event_time_ms=channel.checkpoint.event_time_ms,
                checkpoint_msg_id=channel.checkpoint.msg_id,
                checkpoint_msg_group=channel.checkpoint.msg_group,
            )
        )
        for lane in channel.lanes:
            if lane.ranges:
                for start in range(0, len(lane.ranges), _RANGES_PER_SEGMENT):
                    self._write_segment(channel_id, lane, lane.ranges[start : start + _RANGES_PER_SEGMENT])
                values = {"channel_id": channel_id, "partition_id": lane.partition_id, "progress": lane.progress}
                self._connection.execute(insert(lanes).values({**values, "growing_segment_id": None}))

    def _write_segment(self, channel_id: int, lane: RebuiltLane, ranges: Sequence[Range]) -> None:
        segment_id = self._next_number()
        objects = [one for part in ranges for one in part.objects]
        self._connection.execute(
            insert(segments).values(
                segment_id=segment_id,
                channel_id=channel_id,
                partition_id=lane.partition_id,
                state=int(SegmentState.SEALED),
                level=int(level_of(lane.partition_id)),
                rows=sum(part.rows for part in ranges),
                delete_rows=sum(one.rows for one in objects if one.metadata.kind is BinlogKind.DELTA),
                size_bytes=sum(one.size_bytes for one in objects),
                binlogs=len(objects),
                timestamp_from=ranges[0].timestamp_from,
                timestamp_to=ranges[-1].timestamp_to,
                seal_reason="rebuilt",
                create_time_ms=self._now_ms,
                last_write_time_ms=self._now_ms,
                ranges=len(ranges),
            )
        )
        rows = [_binlog_row(segment_id, one) for one in objects]
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            self._connection.execute(insert(binlogs), rows[start : start + _ROWS_PER_STATEMENT])


def _binlog_row(segment_id: int, found: FoundObject) -> Mapping[str, int]:
    metadata = found.metadata
    return {
        "segment_id": segment_id,
        "kind": KIND_NUMBERS[metadata.kind],
        "field_id": metadata.field_id,
        "log_id": metadata.log_id,
        "epoch": metadata.epoch,
        "range_from": metadata.timestamp_from,
        "range_to": metadata.timestamp_to,
        "rows": found.rows,
        "ts_min": metadata.ts_min,
        "ts_max": metadata.ts_max,
        "size_bytes": found.size_bytes,
        "memory_bytes": metadata.memory_bytes,
    }


def rows_of(lanes_of: Iterable[RebuiltLane]) -> int:
    """Rows of insert logs in lanes."""
    return sum(one.rows for lane in lanes_of for one in lane.ranges)
