"""Whether the history (`events`) and the rows tell the same story. The history is read once, in order, and folded.

It may begin anywhere (older entries are deleted after a time), so what is compared is what it says from its first mention of a
channel or lane on; for a collection whose creation it still holds, from zero on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.core.model import ChannelState, SegmentState
from coordinator.core.verify import Finding, Kind
from coordinator.core.verify_rows import StoredChannel


@dataclass(frozen=True, slots=True)
class PastRange:
    """A range that a save registered.

    Attributes:
        partition_id: the lane.
        start: exclusive.
        end: inclusive.
        objects: how many.
        ts_min: smallest timestamp in them; None = the entry does not say.
        segment_id: the segment that took them; 0 = none did, None = the entry does not say.
    """

    partition_id: int
    start: int
    end: int
    objects: int
    ts_min: int | None = None
    segment_id: int | None = None


@dataclass(slots=True)
class _PastSegment:
    start: int
    objects: int = 0


@dataclass(slots=True)
class _Past:
    """What the history says of one channel, up to where it is read."""

    epoch: int | None = None
    checkpoint: int | None = None
    born: bool = False
    dropped: bool = False
    progress: dict[int, int] = field(default_factory=dict)
    segments: dict[int, _PastSegment] = field(default_factory=dict)
    trouble: list[tuple[Kind, str, int | None]] = field(default_factory=list)


class History:
    """The fold. Feed it entries in their order, then compare.

    Attributes:
        entries: how many were fed.
    """

    def __init__(self) -> None:
        self.entries = 0
        self._past: dict[int, _Past] = {}
        self._unknown: dict[str, int] = {}

    def created(self, channel_ids: Sequence[int]) -> None:
        """Channels were created: from here on everything of them is in the history."""
        for channel_id in channel_ids:
            past = self._of(channel_id)
            past.born = True
            past.checkpoint = 0

    def checkpoint_moved(self, event_id: int, channel_id: int, epoch: int, checkpoint: int) -> None:
        """UpdateChannelCheckpoint."""
        past = self._of(channel_id)
        self._written(past, event_id, epoch)
        self._move(past, event_id, checkpoint)

    def saved(
        self, event_id: int, channel_id: int, epoch: int, checkpoint: int | None, ranges: Sequence[PastRange]
    ) -> None:
        """SaveBinlogPaths, or the last save of DropVirtualChannel."""
        past = self._of(channel_id)
        self._written(past, event_id, epoch)
        for range_ in ranges:
            self._register(past, event_id, range_)
        if checkpoint is not None:
            self._move(past, event_id, checkpoint)

    def dropped(self, channel_id: int) -> None:
        """DropVirtualChannel, after its last save."""
        self._of(channel_id).dropped = True

    def owner_changed(self, event_id: int, channel_id: int, epoch: int, checkpoint: int) -> None:
        """Any change of owner: a new epoch, and the checkpoint after it."""
        past = self._of(channel_id)
        if past.epoch is not None and epoch <= past.epoch:
            past.trouble.append((Kind.EPOCH_BACK, f"event {event_id} gives epoch {epoch} after {past.epoch}", None))
        self._alive(past, event_id)
        past.epoch = epoch
        if past.checkpoint is not None and checkpoint < past.checkpoint:
            detail = f"event {event_id} has checkpoint {checkpoint} after {past.checkpoint}"
            past.trouble.append((Kind.CHECKPOINT_BACK, detail, None))
        past.checkpoint = checkpoint

    def unknown(self, rpc: str) -> None:
        """An entry of a kind that is not known."""
        self._unknown[rpc] = self._unknown.get(rpc, 0) + 1

    def _of(self, channel_id: int) -> _Past:
        return self._past.setdefault(channel_id, _Past())

    def _alive(self, past: _Past, event_id: int) -> None:
        if past.dropped:
            past.trouble.append((Kind.TOMBSTONE, f"event {event_id} changes it after it was dropped", None))

    def _written(self, past: _Past, event_id: int, epoch: int) -> None:
        if past.epoch is not None and epoch < past.epoch:
            detail = f"event {event_id} writes under epoch {epoch} after {past.epoch}"
            past.trouble.append((Kind.EPOCH_BACK, detail, None))
        self._alive(past, event_id)
        past.epoch = max(epoch, past.epoch or 0)

    def _move(self, past: _Past, event_id: int, checkpoint: int) -> None:
        if past.checkpoint is not None and checkpoint <= past.checkpoint:
            detail = f"event {event_id} moves the checkpoint to {checkpoint} after {past.checkpoint}"
            past.trouble.append((Kind.CHECKPOINT_BACK, detail, None))
        past.checkpoint = checkpoint

    def _register(self, past: _Past, event_id: int, range_: PastRange) -> None:
        lane = range_.partition_id
        shown = f"event {event_id} registers ({range_.start}, {range_.end}]"
        end = past.progress.get(lane, 0 if past.born else None)
        if end is not None and range_.start > end:
            past.trouble.append((Kind.GAP, f"{shown} after a range that ends at {end}", lane))
        if end is not None and range_.start < end:
            past.trouble.append((Kind.DOUBLED_RANGE, f"{shown} after a range that ends at {end}", lane))
        past.progress[lane] = max(range_.end, end or 0)
        first = range_.ts_min if range_.ts_min is not None else range_.end
        if range_.objects and past.checkpoint is not None and first <= past.checkpoint:
            detail = f"{shown} with rows from {first} on, when the checkpoint was {past.checkpoint} already"
            past.trouble.append((Kind.CHECKPOINT_BEYOND_ROWS, detail, lane))
        if range_.segment_id and range_.objects:
            segment = past.segments.setdefault(range_.segment_id, _PastSegment(range_.start))
            segment.objects += range_.objects

    def compare(self, channel: StoredChannel) -> list[Finding]:
        """What of the history of a channel is wrong in itself, or does not lead to its rows of the same read."""
        past = self._past.get(channel.channel_id)
        if past is None:
            return []
        found = [
            channel.finding(kind, f"channel {channel.name}" if lane is None else f"partition {lane}", detail, lane)
            for kind, detail, lane in past.trouble
        ]
        if self._unknown:
            # It may have changed anything.
            return found
        return [*found, *_compare_positions(channel, past), *_compare_segments(channel, past)]

    def unknown_entries(self) -> list[Finding]:
        """Entries of kinds that are not known."""
        return [
            Finding(Kind.UNKNOWN_EVENT, rpc, f"{count} entries of the history") for rpc, count in self._unknown.items()
        ]


def _compare_positions(channel: StoredChannel, past: _Past) -> list[Finding]:
    found = []
    subject = f"channel {channel.name}"
    stored = channel.checkpoint_timestamp
    if past.checkpoint is not None and stored != past.checkpoint:
        kind = Kind.CHECKPOINT_BACK if stored < past.checkpoint else Kind.HISTORY_INCOMPLETE
        found.append(
            channel.finding(kind, subject, f"its checkpoint is {stored}, the history ends at {past.checkpoint}")
        )
    if past.epoch is not None and channel.state is ChannelState.ACTIVE and channel.epoch != past.epoch:
        kind = Kind.EPOCH_BACK if channel.epoch < past.epoch else Kind.HISTORY_INCOMPLETE
        found.append(
            channel.finding(kind, subject, f"it is at epoch {channel.epoch}, the history ends at {past.epoch}")
        )
    for lane, end in past.progress.items():
        progress = channel.progress(lane)
        # The lanes of a dropped channel go.
        if progress != end and (progress or channel.state is ChannelState.ACTIVE):
            kind = Kind.PROGRESS_BACK if progress < end else Kind.HISTORY_INCOMPLETE
            detail = f"its progress is {progress}, the history ends at {end}"
            found.append(channel.finding(kind, f"partition {lane}", detail, lane))
    return found


def _compare_segments(channel: StoredChannel, past: _Past) -> list[Finding]:
    """Whether every object that was registered has a row still, in segments that nobody dropped."""
    stored: dict[int, list[int]] = {number: [] for number in past.segments}
    for binlog in channel.binlogs:
        if binlog.segment_id in stored:
            stored[binlog.segment_id].append(binlog.path.timestamp_from)
    found = []
    for number, segment in past.segments.items():
        row = channel.segments.get(number)
        if row is not None and row.state is SegmentState.DROPPED:
            continue
        if row is None and channel.state is ChannelState.DROPPED:
            continue
        objects = sum(1 for start in stored[number] if start >= segment.start)
        if objects != segment.objects:
            kind = Kind.LOST_ROWS if objects < segment.objects else Kind.DOUBLED_RANGE
            detail = f"from {segment.start} on {segment.objects} objects were registered in it, it has {objects}"
            partition_id = row.partition_id if row is not None else None
            found.append(channel.finding(kind, f"segment {number}", detail, partition_id))
    return found
