"""What the status page plots is what was there: rates between samples, whatever sessions come, go and count anew."""

from collections.abc import Iterable

from coordinator.store import DataNodeRow, DataNodeState
from coordinator.web.page.history import History
from datacoord.v1 import data_coord_pb2

START_MS = 1_700_000_000_000.0


def session(node_id: int, rows: int, messages: Iterable[data_coord_pb2.DataNodeTtMsg] = ()) -> DataNodeRow:
    """A living session that has read so many rows."""
    return DataNodeRow(
        node_id=node_id,
        job="j",
        slot=node_id,
        state=DataNodeState.HEALTHY,
        host="h",
        pid=1,
        channels=1,
        lease_until_time_ms=0,
        register_time_ms=0,
        report=data_coord_pb2.ReportDataNodeTtMsgsRequest(
            node_id=node_id, msgs=messages, metrics={"datanode_consumed_rows_total": rows}
        ),
    )


def test_a_rate_is_of_what_came_since_the_sample_before() -> None:
    """A first sample that counted all that was ever read would be a peak that never was."""
    history = History()
    history.add([session(1, 1_000_000)], 500, START_MS)
    assert not history.samples
    history.add([session(1, 1_000_400)], 30, START_MS + 10_000)
    (sample,) = history.samples
    assert (sample.rows_per_second, sample.writes_per_second) == (40.0, 3.0)


def test_sessions_that_come_and_go_make_no_negative_rate_and_hide_no_rows() -> None:
    """A datanode that was killed takes its counter with it; its successor counts from 0."""
    history = History()
    history.add([session(1, 5_000), session(2, 100)], 0, START_MS)
    history.add([session(2, 150), session(3, 70)], 0, START_MS + 10_000)
    assert history.samples[-1].rows_per_second == 12.0


def test_lag_is_of_the_latest_channel_and_none_of_what_has_read_everything() -> None:
    """A quiet source at night is no lag."""
    messages = [
        data_coord_pb2.DataNodeTtMsg(channel_name="quiet", event_time_ms=int(START_MS) - 900_000, lag=0),
        data_coord_pb2.DataNodeTtMsg(channel_name="late", event_time_ms=int(START_MS) - 5_000, lag=9),
        data_coord_pb2.DataNodeTtMsg(channel_name="unknown", lag=9),
    ]
    history = History()
    history.add([], 0, START_MS - 10_000)
    history.add([session(1, 1, messages)], 0, START_MS)
    assert history.samples[-1].lag_seconds == 5.0
