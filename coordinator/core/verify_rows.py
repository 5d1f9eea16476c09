"""Whether the rows of one channel are consistent with one another. All of them are of one read."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.core.model import ChannelMode, ChannelState, SegmentState
from coordinator.core.verify import Finding, Kind
from datacoord.column_groups import ROW_FIELD_IDS
from datacoord.paths import BinlogKind, BinlogPath


@dataclass(frozen=True, slots=True)
class StoredBinlog:
    """A row of `binlogs`, with the path it names.

    Attributes:
        binlog_id: its number.
        segment_id: its segment.
        path: of its object.
        rows: rows in the object.
        ts_min: smallest timestamp of a row.
        ts_max: largest timestamp of a row.
        size_bytes: size of the object.
    """

    binlog_id: int
    segment_id: int
    path: BinlogPath
    rows: int
    ts_min: int
    ts_max: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A row of `segments`; attributes as there."""

    segment_id: int
    partition_id: int
    state: SegmentState
    rows: int
    delete_rows: int
    size_bytes: int
    binlogs: int
    timestamp_from: int
    timestamp_to: int


@dataclass(frozen=True, slots=True)
class StoredLane:
    """A row of `lanes`; attributes as there."""

    partition_id: int
    progress: int
    growing_segment_id: int | None


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """Everything that is stored of one channel.

    Attributes:
        channel_id: its number.
        name: its name.
        collection_id: its collection.
        collection: name of its collection.
        mode: who may own it.
        state: ACTIVE or DROPPED.
        epoch: now.
        owner_id: 0 = nobody.
        owner_alive: False: the owner has no row, or is a session that is over.
        checkpoint_timestamp: C.
        flush_timestamp: the target it waits for; 0 = none.
        flush_target: the smallest target beyond C that a flush has set; 0 = none.
        dropped_partitions: of its collection.
        lanes: by partition.
        segments: by number.
        binlogs: in the order of their lanes and ranges.
    """

    channel_id: int
    name: str
    collection_id: int
    collection: str
    mode: ChannelMode
    state: ChannelState
    epoch: int
    owner_id: int
    owner_alive: bool
    checkpoint_timestamp: int
    flush_timestamp: int = 0
    flush_target: int = 0
    dropped_partitions: frozenset[int] = frozenset()
    lanes: Mapping[int, StoredLane] = field(default_factory=dict)
    segments: Mapping[int, StoredSegment] = field(default_factory=dict)
    binlogs: Sequence[StoredBinlog] = ()

    def progress(self, partition_id: int) -> int:
        """P of a lane."""
        lane = self.lanes.get(partition_id)
        return lane.progress if lane is not None else 0

    def finding(self, kind: Kind, subject: str, detail: str, partition_id: int | None = None) -> Finding:
        """A finding about this channel."""
        return Finding(kind, subject, detail, self.name, partition_id, self.collection)


@dataclass(frozen=True, slots=True)
class Counters:
    """What the counters of the database have given out.

    Attributes:
        epoch: the last epoch.
        number: the last number of everything else.
    """

    epoch: int
    number: int


def check_rows(channel: StoredChannel, counters: Counters) -> list[Finding]:
    """Every fault in the rows of a channel."""
    return [
        *_check_ranges(channel),
        *_check_segments(channel),
        *_check_pointers(channel),
        *_check_tombstones(channel),
        *_check_owner(channel),
        *_check_numbers(channel, counters),
    ]


def check_epochs(epochs: Iterable[tuple[str, int]]) -> list[Finding]:
    """Whether two channels have one epoch.

    Args:
        epochs: name and epoch of every channel.
    """
    holders: dict[int, str] = {}
    found = []
    for name, epoch in epochs:
        other = holders.setdefault(epoch, name)
        if other != name:
            found.append(Finding(Kind.NUMBERS, f"epoch {epoch}", f"channels {other} and {name} both have it", name))
    return found


def _check_ranges(channel: StoredChannel) -> Iterator[Finding]:
    by_lane: dict[int, list[StoredBinlog]] = defaultdict(list)
    ends: dict[int, int] = {}
    for segment in channel.segments.values():
        ends[segment.partition_id] = max(segment.timestamp_to, ends.get(segment.partition_id, 0))
    named: dict[BinlogPath, int] = {}
    for binlog in channel.binlogs:
        by_lane[binlog.path.partition_id].append(binlog)
        other = named.setdefault(binlog.path, binlog.binlog_id)
        if other != binlog.binlog_id:
            detail = f"rows {other} and {binlog.binlog_id} of `binlogs` name it"
            yield channel.finding(Kind.DOUBLED_OBJECT, str(binlog.path), detail, binlog.path.partition_id)
    for partition_id, binlogs in by_lane.items():
        yield from _check_lane(channel, partition_id, binlogs)
    for partition_id, end in ends.items():
        # The lanes of a dropped channel go.
        if channel.state is ChannelState.ACTIVE and end > channel.progress(partition_id):
            detail = f"its progress is {channel.progress(partition_id)}, but a segment ends at {end}"
            yield channel.finding(Kind.PROGRESS_BACK, f"partition {partition_id}", detail, partition_id)


def _check_lane(channel: StoredChannel, partition_id: int, binlogs: Sequence[StoredBinlog]) -> Iterator[Finding]:
    """The ranges of one lane: one after the other, under growing epochs, all of them at or before its progress.

    What lies between two ranges proves nothing here: a range may have no object (all its rows folded away), an object may end
    before its range (a sink's), and rows of dropped segments go. Gaps are found in the history.
    """
    lane = f"partition {partition_id}"
    end, epoch = 0, 0
    for start, of_range in _by_start(binlogs):
        range_end = max(binlog.path.timestamp_to for binlog in of_range)
        if start < end:
            detail = f"the range ({start}, {range_end}] starts before {end}, the end of the one before it"
            yield channel.finding(Kind.DOUBLED_RANGE, lane, detail, partition_id)
        epochs = {binlog.path.epoch for binlog in of_range}
        if len(epochs) > 1:
            detail = f"the range from {start} has objects of epochs {', '.join(map(str, sorted(epochs)))}"
            yield channel.finding(Kind.DOUBLED_RANGE, lane, detail, partition_id)
        if min(epochs) < epoch:
            detail = f"the range ({start}, {range_end}] was written under epoch {min(epochs)}, the one before it under {epoch}"
            yield channel.finding(Kind.EPOCH_BACK, lane, detail, partition_id)
        end, epoch = max(end, range_end), max(epoch, *epochs)
    if epoch > channel.epoch:
        detail = f"objects are registered under epoch {epoch}, the channel is at {channel.epoch}"
        yield channel.finding(Kind.EPOCH_BACK, lane, detail, partition_id)


def _by_start(binlogs: Sequence[StoredBinlog]) -> list[tuple[int, list[StoredBinlog]]]:
    ranges: dict[int, list[StoredBinlog]] = defaultdict(list)
    for binlog in binlogs:
        ranges[binlog.path.timestamp_from].append(binlog)
    return sorted(ranges.items())


def _check_segments(channel: StoredChannel) -> Iterator[Finding]:
    objects: dict[int, list[StoredBinlog]] = defaultdict(list)
    for binlog in channel.binlogs:
        objects[binlog.segment_id].append(binlog)
    for segment in channel.segments.values():
        # The rows of a dropped segment go one after the other.
        if segment.state is not SegmentState.DROPPED:
            yield from _check_segment(channel, segment, objects[segment.segment_id])


def _check_segment(
    channel: StoredChannel, segment: StoredSegment, objects: Sequence[StoredBinlog]
) -> Iterator[Finding]:
    sums = {
        "binlogs": len(objects),
        "rows": sum(
            # A row stands once where its timestamp is, however many objects its columns take.
            b.rows
            for b in objects
            if b.path.kind is BinlogKind.INSERT and b.path.field_id in ROW_FIELD_IDS
        ),
        "delete_rows": sum(b.rows for b in objects if b.path.kind is BinlogKind.DELTA),
        "size_bytes": sum(b.size_bytes for b in objects),
    }
    wrong = [
        f"{name} is {getattr(segment, name)}, its objects have {found}"
        for name, found in sums.items()
        if getattr(segment, name) != found
    ]
    start = min((b.path.timestamp_from for b in objects), default=segment.timestamp_from)
    end = max((b.path.timestamp_to for b in objects), default=segment.timestamp_to)
    if start != segment.timestamp_from or end > segment.timestamp_to:
        wrong.append(
            f"its range is ({segment.timestamp_from}, {segment.timestamp_to}], its objects have ({start}, {end}]"
        )
    if wrong:
        subject = f"segment {segment.segment_id}"
        yield channel.finding(Kind.SEGMENT_COUNTERS, subject, "; ".join(wrong), segment.partition_id)


def _check_pointers(channel: StoredChannel) -> Iterator[Finding]:
    pointed = set()
    for lane in channel.lanes.values():
        number = lane.growing_segment_id
        if number is None:
            continue
        pointed.add(number)
        segment = channel.segments.get(number)
        if segment is None or segment.partition_id != lane.partition_id or segment.state is not SegmentState.GROWING:
            state = "not of this lane" if segment is None else segment.state.name
            detail = f"it names segment {number} as growing, which is {state}"
            yield channel.finding(Kind.GROWING_POINTER, f"partition {lane.partition_id}", detail, lane.partition_id)
    for segment in channel.segments.values():
        if segment.state is SegmentState.GROWING and segment.segment_id not in pointed:
            detail = "it is GROWING, and its lane does not name it"
            yield channel.finding(Kind.GROWING_POINTER, f"segment {segment.segment_id}", detail, segment.partition_id)


def _check_tombstones(channel: StoredChannel) -> Iterator[Finding]:
    dropped = channel.state is ChannelState.DROPPED
    if dropped and channel.owner_id:
        yield channel.finding(
            Kind.TOMBSTONE, f"channel {channel.name}", f"it is dropped, and owner {channel.owner_id} has it"
        )
    for segment in channel.segments.values():
        if segment.state is SegmentState.DROPPED:
            continue
        if dropped or segment.partition_id in channel.dropped_partitions:
            what = "channel" if dropped else "partition"
            detail = f"it is {segment.state.name}, and its {what} is dropped"
            yield channel.finding(Kind.TOMBSTONE, f"segment {segment.segment_id}", detail, segment.partition_id)


def _check_owner(channel: StoredChannel) -> Iterator[Finding]:
    if channel.owner_id and not channel.owner_alive:
        detail = f"its owner {channel.owner_id} has no row, or is a session that is over"
        yield channel.finding(Kind.OWNER, f"channel {channel.name}", detail)
    if channel.state is ChannelState.ACTIVE and channel.flush_timestamp != channel.flush_target:
        detail = f"it waits for the flush target {channel.flush_timestamp}, its flushes say {channel.flush_target}"
        yield channel.finding(Kind.FLUSH_TARGET, f"channel {channel.name}", detail)


def _check_numbers(channel: StoredChannel, counters: Counters) -> Iterator[Finding]:
    if channel.epoch > counters.epoch:
        detail = f"it is at epoch {channel.epoch}, the last one given out is {counters.epoch}"
        yield channel.finding(Kind.NUMBERS, f"channel {channel.name}", detail)
    for what, number in [("channel", channel.channel_id), *(("segment", number) for number in channel.segments)]:
        if number > counters.number:
            yield channel.finding(Kind.NUMBERS, f"{what} {number}", f"the last number given out is {counters.number}")
