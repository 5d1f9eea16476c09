"""The metacache mirrors what the coordinator says of lanes and segments."""

from datacoord.v1 import common_pb2
from datanode_client.writebuffer.metacache import MetaCache

from .builders import lane_result, recovery_info

SEALED = common_pb2.SEGMENT_STATE_SEALED


def test_a_lane_starts_where_its_progress_is() -> None:
    """R3 start: end(l) := P; a lane without a row has progress 0 (B5)."""
    cache = MetaCache(recovery_info(5, {1: 40, 2: 7}))

    assert [(cache.lane(one).floor, cache.lane(one).end) for one in (1, 2, 3)] == [(40, 40), (7, 7), (0, 0)]


def test_dropped_partitions_are_known_from_the_start() -> None:
    """Rows of a partition dropped by command are nowhere in the log."""
    cache = MetaCache(recovery_info(5, {1: 40, 2: 7}, dropped=(2,)))

    assert not cache.lane(1).dropped
    assert cache.lane(2).dropped


def test_a_discarded_range_drops_the_lane() -> None:
    """The partition was dropped by command while this graph ran: from now on its rows are not even buffered."""
    cache = MetaCache(recovery_info())
    cache.apply([lane_result(1, 0, 9, outcome=common_pb2.OUTCOME_DISCARDED), lane_result(2, 5, 9)])

    assert cache.lane(1).dropped
    assert not cache.lane(2).dropped
    assert list(cache.segments) == [5]


def test_a_sealed_segment_waits_for_the_checkpoint_and_is_forgotten_then() -> None:
    """FLUSHED is derived: sealed, and the checkpoint has reached its end."""
    cache = MetaCache(recovery_info(growing=((4, 1),)))
    assert cache.sealed_until() == 0
    cache.apply([lane_result(1, 4, 30, state=SEALED), lane_result(2, 6, 20, state=SEALED), lane_result(3, 7, 90)])
    assert cache.sealed_until() == 30
    cache.forget_flushed(29)
    assert (cache.sealed_until(), sorted(cache.segments)) == (30, [4, 7])
    cache.forget_flushed(30)

    assert (cache.sealed_until(), sorted(cache.segments)) == (0, [7])


def test_segments_that_are_no_longer_open_are_not_kept() -> None:
    """A flow graph runs for months; every segment it ever saw must not stay in memory."""
    cache = MetaCache(recovery_info(growing=((4, 1),)))
    cache.apply([lane_result(1, 4, 30, state=common_pb2.SEGMENT_STATE_DROPPED)])

    assert cache.segments == {}


def test_a_segment_the_coordinator_sealed_by_itself_is_known_by_its_successor() -> None:
    """A flush or old age seals without a word to the datanode: the segment would grow here for ever, one more each time."""
    cache = MetaCache(recovery_info(growing=((4, 1),)))
    cache.apply([lane_result(1, 5, 40), lane_result(2, 6, 40)])
    cache.apply([lane_result(1, 7, 50), lane_result(2, 6, 50)])
    assert [cache.segments[one].state == SEALED for one in (4, 5, 6, 7)] == [True, True, False, False]
    assert cache.sealed_until() == 40
    cache.forget_flushed(40)

    assert sorted(cache.segments) == [6, 7]
