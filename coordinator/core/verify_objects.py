"""Whether the rows of a channel and the objects of its directory belong together.

The order of looking decides whether a live system raises false alarms:

1. *List the objects, then read the rows* (as the garbage collector does). An epoch or a channel that stands in a listed name
   was given out before the read, so what is said of an object without a row (it can never get one) was true when the rows were
   read, and stays true.
2. A row whose object was not listed, or not with its size, is only a *suspect*: the object may have come after the listing, or
   been half written. So *ask for each of these objects by name, then read its row again*. Names of objects are not given out
   twice, so a row that is there before and after was there in between; an object is durable before its row and deleted after it,
   so then it had to be there too.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from coordinator.core.garbage import LaneEnd, Verdict, can_never_be_registered, is_doubtful
from coordinator.core.model import ChannelMode
from coordinator.core.verify import Finding, Kind
from coordinator.core.verify_rows import Counters, StoredBinlog, StoredChannel
from datacoord.errors import PathNotAllowedError
from datacoord.paths import BinlogKind, BinlogPath


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison found.

    Attributes:
        findings: what is certain.
        suspects: rows whose object was not listed, or with another size than the row's.
    """

    findings: tuple[Finding, ...]
    suspects: tuple[StoredBinlog, ...]


@dataclass(frozen=True, slots=True)
class ObjectContent:
    """What an object says of itself.

    Attributes:
        rows: how many it holds.
        ts_min: smallest timestamp of a row; None = it has no timestamps.
        ts_max: largest timestamp of a row.
        path: the path it was written for; None = it does not say.
    """

    rows: int
    ts_min: int | None
    ts_max: int | None
    path: BinlogPath | None


def compare(channel: StoredChannel, listed: Mapping[str, int]) -> Compared:
    """Compares the rows of a channel with the objects that were listed *before* they were read.

    Args:
        channel: the channel.
        listed: size by path, of every object in the channel's directories.
    """
    suspects = []
    named = set()
    for binlog in channel.binlogs:
        path = str(binlog.path)
        named.add(path)
        if listed.get(path) != binlog.size_bytes:
            suspects.append(binlog)
    findings = (_unregistered(channel, path, size) for path, size in listed.items() if path not in named)
    return Compared(tuple(findings), tuple(suspects))


def _unregistered(channel: StoredChannel, path: str, size: int) -> Finding:
    """An object without a row."""
    parsed = BinlogPath.parse(path)
    kind, why = _class_of(channel, parsed)
    return channel.finding(kind, path, f"{why} ({size} bytes)", parsed.partition_id)


def _class_of(channel: StoredChannel, path: BinlogPath) -> tuple[Kind, str]:
    """What the garbage collector would do with it, and why; or that the checkpoint has passed it."""
    dropped = path.partition_id in channel.dropped_partitions
    lane = LaneEnd(channel.state, channel.epoch, dropped, channel.progress(path.partition_id))
    checkpoint = channel.checkpoint_timestamp
    if is_doubtful(lane, path.epoch):
        why = f"written under epoch {path.epoch}, which its channel has not reached: that is at {lane.epoch}"
        return Kind.NEWER_THAN_DATABASE, why
    verdict = can_never_be_registered(lane, path.epoch, path.timestamp_from)
    if verdict in {Verdict.CHANNEL_DROPPED, Verdict.PARTITION_DROPPED}:
        return Kind.ORPHAN, "its channel or partition is dropped"
    # A sink may be started again as another pipeline; what a datanode reads again is the same.
    if channel.mode is ChannelMode.MANAGED and path.timestamp_from >= lane.progress and path.timestamp_to <= checkpoint:
        why = f"nothing of its range is registered (progress {lane.progress}), and the checkpoint is {checkpoint}"
        return Kind.CHECKPOINT_BEYOND_ROWS, why
    if verdict is Verdict.EPOCH_OVER:
        return Kind.ORPHAN, f"written under epoch {path.epoch}, the channel is at {lane.epoch}"
    if verdict is not None:
        return Kind.ORPHAN, f"it starts at {path.timestamp_from}, the lane is at {lane.progress}"
    return Kind.PENDING_OBJECT, f"the channel is at its epoch {path.epoch}, the lane at {lane.progress}"


def check_size(channel: StoredChannel, binlog: StoredBinlog, size: int) -> list[Finding]:
    """A suspect whose object does exist."""
    if size == binlog.size_bytes:
        return []
    detail = f"it has {size} bytes, its row says {binlog.size_bytes}"
    return [channel.finding(Kind.WRONG_SIZE, str(binlog.path), detail, binlog.path.partition_id)]


def missing(channel: StoredChannel, binlog: StoredBinlog) -> Finding:
    """A suspect whose object does not exist, and whose row was read again after that was found."""
    detail = f"row {binlog.binlog_id} of `binlogs` (segment {binlog.segment_id}, {binlog.rows} rows) names it"
    return channel.finding(Kind.MISSING_OBJECT, str(binlog.path), detail, binlog.path.partition_id)


def check_content(channel: StoredChannel, binlog: StoredBinlog, content: ObjectContent) -> list[Finding]:
    """Whether an object holds what its row says."""
    wrong = []
    if content.rows != binlog.rows:
        wrong.append(f"it holds {content.rows} rows, its row says {binlog.rows}")
    found = (content.ts_min, content.ts_max)
    if content.ts_min is not None and found != (binlog.ts_min, binlog.ts_max):
        wrong.append(f"its timestamps are {found[0]} to {found[1]}, its row says {binlog.ts_min} to {binlog.ts_max}")
    if content.path is not None and content.path != binlog.path:
        wrong.append(f"it was written as {content.path}")
    if not wrong:
        return []
    return [channel.finding(Kind.WRONG_CONTENT, str(binlog.path), "; ".join(wrong), binlog.path.partition_id)]


def unreadable(channel: StoredChannel, binlog: StoredBinlog, error: str) -> Finding:
    """An object that is no Parquet file any more."""
    detail = f"it cannot be read: {error}"
    return channel.finding(Kind.WRONG_CONTENT, str(binlog.path), detail, binlog.path.partition_id)


_GRAMMAR_PARTS = 5


@dataclass(frozen=True, slots=True)
class Sorted:
    """A listing, by the storage root and the channel that objects belong to.

    Attributes:
        by_root: size by path (relative to the collection's root), by channel, by root (relative to what was listed).
        foreign: size by path (relative to what was listed), of names that the grammar does not know.
        elsewhere: number and bytes of objects, by directories that are no collection's root.
    """

    by_root: dict[str, dict[int, dict[str, int]]]
    foreign: dict[str, int]
    elsewhere: dict[str, tuple[int, int]]


def sort_objects(objects: Iterable[tuple[str, int]], roots: Collection[str]) -> Sorted:
    """Sorts a listing.

    Args:
        objects: path and size.
        roots: storage roots of collections, relative to what was listed; empty = that itself.
    """
    found = Sorted({}, {}, {})
    for path, size in objects:
        # The root of an object is what stands before the parts that the grammar knows.
        parts = path.rsplit("/", _GRAMMAR_PARTS)
        root = parts[0] if len(parts) > _GRAMMAR_PARTS else ""
        name = path[len(root) :].lstrip("/")
        try:
            channel_id = BinlogPath.parse(name).channel_id
        except PathNotAllowedError:
            found.foreign[path] = size
            continue
        if root in roots:
            found.by_root.setdefault(root, {}).setdefault(channel_id, {})[name] = size
        else:
            count, total = found.elsewhere.get(root, (0, 0))
            found.elsewhere[root] = (count + 1, total + size)
    return found


def unknown_objects(place: str, found: Sorted, channel_ids: Collection[int], counters: Counters) -> list[Finding]:
    """What was listed and belongs to no channel of the database.

    Args:
        place: what was listed.
        found: the listing.
        channel_ids: every channel of the database.
        counters: of the same read.
    """
    findings = [
        Finding(Kind.UNKNOWN_OBJECT, f"{place}/{path}", f"its name is none of Datacoord's ({size} bytes)")
        for path, size in found.foreign.items()
    ]
    for root, by_channel in found.by_root.items():
        for channel_id in by_channel.keys() - set(channel_ids):
            objects = by_channel[channel_id]
            subject = f"{len(objects)} objects of channel {channel_id} in {place}/{root}".rstrip("/")
            detail = f"no channel has this number ({sum(objects.values())} bytes, the first is {min(objects)})"
            newer = channel_id > counters.number
            findings.append(Finding(Kind.NEWER_THAN_DATABASE if newer else Kind.UNKNOWN_OBJECT, subject, detail))
    for root, (count, total) in found.elsewhere.items():
        detail = f"{count} objects with names of Datacoord's ({total} bytes)"
        findings.append(Finding(Kind.UNKNOWN_DIRECTORY, f"{place}/{root}", detail))
    return findings


CONTENT_KINDS = frozenset({BinlogKind.INSERT, BinlogKind.DELTA})
"""What a deep check opens: statistics have no rows of their own."""
