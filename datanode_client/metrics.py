"""What a datanode process counts, as it travels in heartbeats. The metrics themselves stand in `datacoord.reported_metrics`.

Counted on the event loop's thread only.
"""

from collections import defaultdict
from collections.abc import Callable

from datacoord.reported_metrics import REPORTED, series
from datacoord.v1 import common_pb2


class DataNodeMetrics:
    """Counters and gauges of one datanode process since its session began."""

    def __init__(self) -> None:
        # A series that begins with its first count has no rate before, and on a dashboard looks like one that is lost.
        known = (one for metric in REPORTED.values() if metric.is_counter for one in metric.known())
        self._values: defaultdict[str, float] = defaultdict(float, dict.fromkeys(known, 0.0))
        self._gauges: dict[str, Callable[[], float]] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Counts.

        Args:
            name: of `datacoord.reported_metrics`.
            amount: how much.
            labels: at most one label, of a bounded set of values.
        """
        self._values[series(name, labels)] += amount

    def observe(self, name: str, value: float) -> None:
        """Counts one measurement into the pair `<name>_sum`, `<name>_count`."""
        self._values[f"{name}_sum"] += value
        self._values[f"{name}_count"] += 1

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Names what is read at every export."""
        self._gauges[name] = read

    def value(self, name: str, **labels: str) -> float:
        """A counter as it stands; 0 if it never counted."""
        return self._values.get(series(name, labels), 0.0)

    def export(self) -> dict[str, float]:
        """All series and their values, for a heartbeat."""
        gauges = {name: float(read()) for name, read in self._gauges.items()}
        return {**self._values, **gauges}


def outcome_label(outcome: common_pb2.Outcome) -> str:
    """An outcome as the value of a label: applied, already_applied, discarded."""
    return common_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_").lower()
