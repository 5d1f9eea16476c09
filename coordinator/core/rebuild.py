"""Which objects of a lane are its rows, decided from what the objects say of themselves: a lost database is rebuilt from them.

What can be known. A writer begins where its lane's progress was, and every later range of an epoch begins where the one before
ended. So the first range of an epoch says where the lane's progress stood when that epoch took over, and the ranges of an older
epoch beyond that place were never registered: whoever wrote them was a zombie by then. That makes the choice exact up to the last
epoch of a lane. At its end one cannot know whether a range that is complete was registered; it is taken: its rows are the
lane's rows up to there, nobody else's stand beside them, and the reader of the channel goes on behind it.

Ranges of a sink count only where a manifest names their objects; the attempts of tasks that nobody committed look the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from datacoord.column_groups import ROW_FIELD_IDS
from datacoord.errors import InvalidFieldError
from datacoord.manifest import ManifestEntry
from datacoord.object_metadata import MANIFEST_PART, BinlogMetadata
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.positions import START, Position


@dataclass(frozen=True, slots=True)
class FoundObject:
    """One object as a listing and its own metadata describe it.

    Attributes:
        metadata: what it says of itself.
        rows: in it.
        size_bytes: of it.
        entries: of a manifest: what it names.
    """

    metadata: BinlogMetadata
    rows: int
    size_bytes: int
    entries: tuple[ManifestEntry, ...] = ()

    @property
    def path(self) -> str:
        """Where it lies, relative to the collection's storage root."""
        return str(self.metadata.path)


@dataclass(frozen=True, slots=True)
class Range:
    """A complete range of a lane.

    Attributes:
        epoch: of the writer.
        timestamp_from: start, exclusive.
        timestamp_to: end, inclusive.
        objects: all of its objects, the manifest included.
        checkpoint: the checkpoint that was stored with it (sinks), or before it.
    """

    epoch: int
    timestamp_from: int
    timestamp_to: int
    objects: tuple[FoundObject, ...]
    checkpoint: Position = START

    @property
    def rows(self) -> int:
        """Rows in its insert logs."""
        return sum(
            one.rows
            for one in self.objects
            if one.metadata.kind is BinlogKind.INSERT and one.metadata.field_id in ROW_FIELD_IDS
        )


@dataclass(slots=True)
class RebuiltLane:
    """The chain of ranges of one lane.

    Attributes:
        partition_id: the lane.
        ranges: from its beginning, in order, each beginning where the one before ends (but for gaps).
        gaps: (from, to) of what is missing between them.
        unproven: how many of the last ranges were perhaps not registered.
        left: objects that belong to none of the ranges.
    """

    partition_id: int
    ranges: list[Range] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    unproven: int = 0
    left: int = 0

    @property
    def progress(self) -> int:
        """End of the chain."""
        return self.ranges[-1].timestamp_to if self.ranges else 0


def complete_ranges(objects: Sequence[FoundObject]) -> dict[int, list[Range]]:
    """The complete ranges of a channel by partition; ranges may overlap.

    Args:
        objects: every object of the channel.
    """
    by_path = {one.path: one for one in objects}
    found: dict[int, dict[tuple[int, int, frozenset[str]], Range]] = defaultdict(dict)
    writes: dict[int, list[FoundObject]] = defaultdict(list)
    for one in objects:
        if one.metadata.kind is BinlogKind.STATS:
            for partition_id, made in _of_manifest(one, by_path):
                key = (made.timestamp_from, made.timestamp_to, frozenset(o.path for o in made.objects if o is not one))
                # Of several manifests of the same objects the lane's own is registered beside them.
                if key not in found[partition_id] or one.metadata.partition_id == partition_id:
                    found[partition_id][key] = made
        elif MANIFEST_PART not in one.metadata.parts.split(","):
            writes[one.metadata.write_id].append(one)
    for parts in writes.values():
        made_of = _of_write(parts)
        if made_of is not None:
            key = (made_of.timestamp_from, made_of.timestamp_to, frozenset(o.path for o in made_of.objects))
            found[parts[0].metadata.partition_id][key] = made_of
    return {partition_id: list(ranges.values()) for partition_id, ranges in found.items()}


def _of_manifest(manifest: FoundObject, by_path: Mapping[str, FoundObject]) -> Iterable[tuple[int, Range]]:
    lanes: dict[int, list[ManifestEntry]] = defaultdict(list)
    for entry in manifest.entries:
        lanes[BinlogPath.parse(entry.path).partition_id].append(entry)
    for partition_id, entries in lanes.items():
        objects = [by_path.get(entry.path) for entry in entries]
        if all(
            one is not None and one.rows == entry.rows and one.size_bytes == entry.size_bytes
            for one, entry in zip(objects, entries, strict=True)
        ):
            own = [manifest] if manifest.metadata.partition_id == partition_id else []
            path = BinlogPath.parse(entries[0].path)
            yield (
                partition_id,
                Range(
                    epoch=path.epoch,
                    timestamp_from=path.timestamp_from,
                    timestamp_to=entries[0].range_to,
                    objects=tuple([one for one in objects if one is not None] + own),
                    checkpoint=position_of(manifest.metadata),
                ),
            )


def _of_write(parts: Sequence[FoundObject]) -> Range | None:
    """A write without a manifest is complete when each of its parts is there; of repeated attempts one is as good as another."""
    chosen = {one.metadata.part: one for one in sorted(parts, key=lambda one: one.metadata.log_id)}
    metadata = parts[0].metadata
    if set(metadata.parts.split(",")) != set(chosen):
        return None
    return Range(
        epoch=metadata.epoch,
        timestamp_from=metadata.timestamp_from,
        timestamp_to=metadata.timestamp_to,
        objects=tuple(chosen[part] for part in sorted(chosen)),
        checkpoint=position_of(metadata),
    )


def choose_chain(partition_id: int, candidates: Sequence[Range], written: Iterable[tuple[int, int]]) -> RebuiltLane:
    """Chooses the ranges of a lane.

    Args:
        partition_id: the lane.
        candidates: its complete ranges.
        written: (epoch, start) of every object of the lane, complete or not.
    """
    lane = RebuiltLane(partition_id)
    starts: dict[int, set[int]] = defaultdict(set)
    for epoch, start in written:
        starts[epoch].add(start)
    by_start: dict[tuple[int, int], list[Range]] = defaultdict(list)
    for one in candidates:
        by_start[one.epoch, one.timestamp_from].append(one)
    epochs = sorted(starts)
    progress = 0
    for index, epoch in enumerate(epochs):
        # Where the next epoch began: what this one wrote beyond was never registered.
        end = min((min(starts[later]) for later in epochs[index + 1 :]), default=None)
        places = sorted(start for start in starts[epoch] if end is None or start < end)
        for number, start in enumerate(places):
            if start < progress:
                continue
            until = places[number + 1] if number + 1 < len(places) else end
            fitting = [one for one in by_start[epoch, start] if until is None or one.timestamp_to <= until]
            if not fitting:
                continue
            best = max(fitting, key=lambda one: (one.timestamp_to, one.rows, [o.path for o in one.objects]))
            if start > progress:
                lane.gaps.append((progress, start))
            lane.ranges.append(best)
            progress = best.timestamp_to
    if epochs and lane.ranges:
        lane.unproven = sum(1 for one in lane.ranges[-2:] if one.epoch == epochs[-1])
        known = max(starts[epochs[-1]])
        if known > progress:
            lane.gaps.append((progress, known))
    return lane


def rebuild_lanes(objects: Sequence[FoundObject]) -> list[RebuiltLane]:
    """The lanes of a channel.

    Args:
        objects: every object of the channel.
    """
    candidates = complete_ranges(objects)
    written: dict[int, list[tuple[int, int]]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    for one in objects:
        counts[one.metadata.partition_id] += 1
        if one.metadata.kind is not BinlogKind.STATS:
            written[one.metadata.partition_id].append((one.metadata.epoch, one.metadata.timestamp_from))
    lanes = []
    for partition_id in sorted(counts):
        lane = choose_chain(partition_id, candidates.get(partition_id, []), written[partition_id])
        lane.left = counts[partition_id] - sum(len(one.objects) for one in lane.ranges)
        lanes.append(lane)
    return lanes


def rebuild_checkpoint(objects: Sequence[FoundObject], lanes: Sequence[RebuiltLane], *, claimed: bool) -> Position:
    """The checkpoint of a channel.

    Args:
        objects: every object of the channel.
        lanes: as chosen.
        claimed: whether sinks write the channel: their checkpoint is stored with a range and says which batch it was. A
            datanode's objects name the checkpoint that was stored before them, which is true whatever became of them.
    """
    if claimed:
        positions = [one.checkpoint for lane in lanes for one in lane.ranges]
    else:
        positions = [position_of(one.metadata) for one in objects]
    return max(positions, key=lambda position: position.timestamp, default=START)


def position_of(metadata: BinlogMetadata) -> Position:
    """The checkpoint that an object names; the start of the channel if it names none that can be read."""
    try:
        return Position.from_proto(metadata.read_checkpoint())
    except InvalidFieldError:
        return START
