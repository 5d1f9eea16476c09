"""Lag as Prometheus sees it: the worst channels by name, all of them as a distribution, few series however many channels."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.store import DataNodeRow, DataNodeState
from coordinator.web.lag import WORST_CHANNELS, lag_figures, show_lag
from coordinator.web.metrics import EVENT_AGE_BUCKETS_SECONDS, LAG_BUCKETS, Metrics
from datacoord.v1 import data_coord_pb2

NOW_MS = 1_700_000_000_000.0


def node(messages: list[data_coord_pb2.DataNodeTtMsg], node_id: int = 1) -> DataNodeRow:
    """A living session that said this."""
    return DataNodeRow(
        node_id=node_id,
        job="j",
        slot=node_id,
        state=DataNodeState.HEALTHY,
        host="h",
        pid=1,
        channels=len(messages),
        lease_until_time_ms=0,
        register_time_ms=0,
        report=data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, msgs=messages),
    )


def said(name: str, lag: int | None, age_seconds: float, finished: bool = False) -> data_coord_pb2.DataNodeTtMsg:
    """What a datanode says of a channel."""
    event_time_ms = int(NOW_MS - age_seconds * 1000)
    return data_coord_pb2.DataNodeTtMsg(channel_name=name, lag=lag, event_time_ms=event_time_ms, finished=finished)


def samples(metrics: Metrics, name: str) -> dict[str, float]:
    """Values of one metric by its only label."""
    text = generate_latest(metrics.registry).decode()
    found = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
    return {next(iter(sample.labels.values())): sample.value for sample in found}


@given(st.lists(st.integers(0, 10**7), max_size=60))
def test_the_worst_are_named_and_all_are_counted(lags: list[int]) -> None:
    """A channel that is far behind must be seen, whatever thousands of others do."""
    metrics = Metrics()
    messages = [said(f"c{number}", lag, 0) for number, lag in enumerate(lags)]
    show_lag(metrics, lag_figures([node(messages[::2], 1), node(messages[1::2], 2)], NOW_MS))
    named = samples(metrics, "datacoord_channel_lag")
    assert sorted(named.values(), reverse=True) == [float(lag) for lag in sorted(lags, reverse=True)[:WORST_CHANNELS]]
    by_lag = samples(metrics, "datacoord_channels_by_lag")
    assert by_lag == {f"{bound:g}": sum(lag <= bound for lag in lags) for bound in LAG_BUCKETS}


def test_a_hundred_thousand_channels_are_few_series() -> None:
    """A series per channel kills a Prometheus: the bound must not depend on the number of channels."""
    metrics = Metrics()
    messages = [said(f"c{number}", number, number) for number in range(100_000)]
    show_lag(metrics, lag_figures([node(messages)], NOW_MS))
    names = ("channel_lag", "channels_by_lag", "channel_event_age_seconds", "channels_by_event_age")
    series = sum(len(samples(metrics, f"datacoord_{name}")) for name in names)
    assert series == 2 * WORST_CHANNELS + len(LAG_BUCKETS) + len(EVENT_AGE_BUCKETS_SECONDS)


def test_what_has_read_everything_is_not_late_however_old_its_last_event_is() -> None:
    """An alarm for a quiet source at night teaches people to look away."""
    metrics = Metrics()
    quiet = [said("finished", None, 9999, finished=True), said("caught_up", 0, 9999), said("late", 5, 77)]
    show_lag(metrics, lag_figures([node(quiet)], NOW_MS))
    ages = samples(metrics, "datacoord_channel_event_age_seconds")
    assert ages == {"finished": 0.0, "caught_up": 0.0, "late": 77.0}


def test_a_replica_that_lost_the_job_shows_no_lag_any_more() -> None:
    """Two replicas that both show a channel, one of them as it was an hour ago, tell nobody anything."""
    metrics = Metrics()
    show_lag(metrics, lag_figures([node([said("c", 5, 5)])], NOW_MS))
    show_lag(metrics, lag_figures([], NOW_MS))
    assert samples(metrics, "datacoord_channel_lag") == {}
    assert set(itertools.chain(samples(metrics, "datacoord_channels_by_lag").values())) == {0.0}
