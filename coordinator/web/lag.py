"""How late channels are, for Prometheus: the worst few by name, all of them as a distribution.

A series per channel would be 100,000 series; the worst few are what a person looks for, and the distribution says whether they are
an exception. Figures come from what datanodes report, on the replica that runs the assignment job.
"""

import heapq
from collections.abc import Iterable
from typing import Final

from coordinator.store import DataNodeRow
from coordinator.web.metrics import EVENT_AGE_BUCKETS_SECONDS, LAG_BUCKETS, Metrics

WORST_CHANNELS: Final = 20
"""So many are shown by name: what fits a table on a dashboard."""


def show_lag(metrics: Metrics, nodes: Iterable[DataNodeRow], now_ms: float) -> None:
    """Replaces what is exported of the lag of channels.

    Args:
        metrics: where to.
        nodes: the living sessions with their reports; none on a replica that does not run the job.
        now_ms: the time, in milliseconds since the epoch.
    """
    lags: list[tuple[float, str]] = []
    ages: list[tuple[float, str]] = []
    for node in nodes:
        for message in node.report.msgs:
            known = message.HasField("lag")
            if known:
                lags.append((message.lag, message.channel_name))
            if message.event_time_ms:
                # What has read everything is not late, however long ago the last event was.
                caught_up = message.finished or (known and message.lag == 0)
                age_seconds = 0.0 if caught_up else max(now_ms - message.event_time_ms, 0.0) / 1000
                ages.append((age_seconds, message.channel_name))
    for gauge, by, values, bounds in (
        (metrics.channel_lag, metrics.channels_by_lag, lags, LAG_BUCKETS),
        (metrics.channel_event_age, metrics.channels_by_event_age, ages, EVENT_AGE_BUCKETS_SECONDS),
    ):
        gauge.clear()
        for value, name in heapq.nlargest(WORST_CHANNELS, values):
            gauge.labels(name).set(value)
        ordered = sorted(value for value, _ in values)
        reached = 0
        for bound in bounds:
            while reached < len(ordered) and ordered[reached] <= bound:
                reached += 1
            by.labels(f"{bound:g}").set(reached)
