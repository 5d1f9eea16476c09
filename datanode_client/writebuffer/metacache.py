"""The metacache: what a flow graph knows of its channel's lanes and segments, as the coordinator answered (PROTOCOL S4)."""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from datacoord.v1 import common_pb2, data_coord_pb2


@dataclass(slots=True)
class Lane:
    """One lane.

    Attributes:
        partition_id: the partition; -1 = ALL.
        floor: its progress when the graph started: rows at or below it are registered.
        end: end of the last range that was cut; the next one starts there.
        dropped: the partition is dropped: its rows are thrown away.
    """

    partition_id: int
    floor: int = 0
    end: int = 0
    dropped: bool = False


@dataclass(slots=True)
class Segment:
    """One segment that is not flushed yet.

    Attributes:
        segment_id: its number.
        partition_id: its lane.
        state: GROWING or SEALED.
        timestamp_to: end of its last range.
    """

    segment_id: int
    partition_id: int
    state: common_pb2.SegmentState
    timestamp_to: int


class MetaCache:
    """Lanes and segments of one channel at one epoch.

    Args:
        info: recovery info of the channel.
    """

    def __init__(self, info: data_coord_pb2.ChannelRecoveryInfo) -> None:
        self._lanes = {
            lane.partition_id: Lane(lane.partition_id, lane.timestamp, lane.timestamp, lane.dropped)
            for lane in info.lanes
        }
        self.segments = {
            segment.segment_id: Segment(segment.segment_id, segment.partition_id, segment.state, segment.timestamp_to)
            for segment in info.growing_segments
        }
        self._dropped: Set[int] = frozenset()
        self._growing = {one.partition_id: one.segment_id for one in self.segments.values()}

    def lane(self, partition_id: int) -> Lane:
        """A lane; one that was never written has progress 0."""
        lane = self._lanes.get(partition_id)
        if lane is None:
            lane = self._lanes[partition_id] = Lane(partition_id, dropped=partition_id in self._dropped)
        return lane

    def drop_partition(self, partition_id: int) -> None:
        """Throws the rows of a partition away from now on."""
        self.lane(partition_id).dropped = True

    def drop_partitions(self, partition_ids: Set[int]) -> None:
        """Throws the rows of all of these away from now on; what was dropped before stays so."""
        self._dropped = partition_ids
        for lane in self._lanes.values():
            lane.dropped = lane.dropped or lane.partition_id in partition_ids

    def apply(self, results: Iterable[data_coord_pb2.LaneResult]) -> None:
        """Mirrors what the coordinator answered for lanes of a save."""
        for result in results:
            if result.outcome == common_pb2.OUTCOME_DISCARDED:
                self.drop_partition(result.partition_id)
            if not result.segment_id:
                continue
            before = self.segments.get(self._growing.pop(result.partition_id, 0))
            if before is not None and before.segment_id != result.segment_id:
                # A lane has one growing segment: the coordinator sealed this one by itself, for a flush or by its age.
                before.state = common_pb2.SEGMENT_STATE_SEALED
            open_states = (common_pb2.SEGMENT_STATE_GROWING, common_pb2.SEGMENT_STATE_SEALED)
            if result.segment_state in open_states:
                self.segments[result.segment_id] = Segment(
                    result.segment_id, result.partition_id, result.segment_state, result.progress
                )
            else:
                self.segments.pop(result.segment_id, None)
            if result.segment_state == common_pb2.SEGMENT_STATE_GROWING:
                self._growing[result.partition_id] = result.segment_id

    def sealed_until(self) -> int:
        """Where the checkpoint must come for every sealed segment to be flushed; 0 = none is waiting."""
        sealed = common_pb2.SEGMENT_STATE_SEALED
        return max((one.timestamp_to for one in self.segments.values() if one.state == sealed), default=0)

    def forget_flushed(self, checkpoint_timestamp: int) -> None:
        """Forgets sealed segments that the checkpoint has passed: they are flushed."""
        sealed = common_pb2.SEGMENT_STATE_SEALED
        flushed = [
            one.segment_id
            for one in self.segments.values()
            if one.state == sealed and one.timestamp_to <= checkpoint_timestamp
        ]
        for segment_id in flushed:
            del self.segments[segment_id]
