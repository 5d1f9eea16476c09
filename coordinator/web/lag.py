"""How late channels are, for Prometheus: the worst few by name, all of them as a distribution.

A series per channel would be 100,000 series; the worst few are what a person looks for, and the distribution says whether they are
an exception. Figures come from what datanodes report, on the replica that runs the assignment job.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.store import DataNodeRow
from coordinator.web.metrics import EVENT_AGE_BUCKETS_SECONDS, LAG_BUCKETS, Metrics
from datacoord.v1 import data_coord_pb2

WORST_CHANNELS: Final = 20
"""So many are shown by name: what fits a table on a dashboard."""


@dataclass(frozen=True, slots=True)
class LagFigures:
    """How late channels are.

    Attributes:
        worst_lag: the largest distances to the head of the source, by channel.
        by_lag: how many channels are at most at each of LAG_BUCKETS.
        worst_age: the largest ages of the event that was read last, in seconds, by channel.
        by_age: how many channels are at most at each of EVENT_AGE_BUCKETS_SECONDS.
    """

    worst_lag: dict[str, float]
    by_lag: list[int]
    worst_age: dict[str, float]
    by_age: list[int]


def event_age_seconds(message: data_coord_pb2.DataNodeTtMsg, now_ms: float) -> float | None:
    """Age of the event that was read last; 0 for what has read everything, however long ago that was; None = not known."""
    if not message.event_time_ms:
        return None
    caught_up = message.finished or (message.HasField("lag") and message.lag == 0)
    return 0.0 if caught_up else max(now_ms - message.event_time_ms, 0.0) / 1000


def lag_figures(nodes: Iterable[DataNodeRow], now_ms: float) -> LagFigures:
    """Judges what datanodes said. Takes a moment where channels are many: call it in a thread.

    Args:
        nodes: the living sessions with their reports; none on a replica that does not run the job.
        now_ms: the time, in milliseconds since the epoch.
    """
    lags: list[tuple[float, str]] = []
    ages: list[tuple[float, str]] = []
    for node in nodes:
        for message in node.report.msgs:
            if message.HasField("lag"):
                lags.append((message.lag, message.channel_name))
            age_seconds = event_age_seconds(message, now_ms)
            if age_seconds is not None:
                ages.append((age_seconds, message.channel_name))
    return LagFigures(_worst(lags), _counts(lags, LAG_BUCKETS), _worst(ages), _counts(ages, EVENT_AGE_BUCKETS_SECONDS))


def show_lag(metrics: Metrics, figures: LagFigures) -> None:
    """Replaces what is exported of the lag of channels."""
    for gauge, worst in ((metrics.channel_lag, figures.worst_lag), (metrics.channel_event_age, figures.worst_age)):
        gauge.clear()
        for name, value in worst.items():
            gauge.labels(name).set(value)
    for by, bounds, counts in (
        (metrics.channels_by_lag, LAG_BUCKETS, figures.by_lag),
        (metrics.channels_by_event_age, EVENT_AGE_BUCKETS_SECONDS, figures.by_age),
    ):
        for bound, count in zip(bounds, counts, strict=True):
            by.labels(f"{bound:g}").set(count)


def _worst(values: list[tuple[float, str]]) -> dict[str, float]:
    return {name: value for value, name in heapq.nlargest(WORST_CHANNELS, values)}


def _counts(values: list[tuple[float, str]], bounds: Iterable[float]) -> list[int]:
    ordered = sorted(value for value, _ in values)
    return [bisect_right(ordered, bound) for bound in bounds]
