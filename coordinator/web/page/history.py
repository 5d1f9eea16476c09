"""What the status page plots: samples of the last hour, kept in memory by this process, of figures that all replicas share."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.store import DataNodeRow, Store
from coordinator.web.lag import event_age_seconds

SAMPLE_SECONDS: Final = 10.0
SAMPLES_MAX: Final = 360
"""An hour."""

CONSUMED_ROWS: Final = "datanode_consumed_rows_total"


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one moment; rates are since the sample before.

    Attributes:
        time_ms: when.
        rows_per_second: rows that datanodes read.
        writes_per_second: positions and ranges that were registered, by anybody on any replica.
        lag_seconds: age of the oldest event that is being read; 0 = every channel has read everything.
    """

    time_ms: float
    rows_per_second: float
    writes_per_second: float
    lag_seconds: float


class History:
    """Samples, oldest first, and what the next one is measured against."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._rows: dict[int, float] = {}
        self._time_ms = 0.0

    def add(self, nodes: Iterable[DataNodeRow], written_items: int, now_ms: float) -> None:
        """Adds a sample. The first one only says what the next is measured against.

        Args:
            nodes: the living sessions with their reports.
            written_items: items of accepted calls since the sample before.
            now_ms: the time.
        """
        rows: dict[int, float] = {}
        lag_seconds = 0.0
        for node in nodes:
            rows[node.node_id] = node.report.metrics.get(CONSUMED_ROWS, 0.0)
            for message in node.report.msgs:
                lag_seconds = max(lag_seconds, event_age_seconds(message, now_ms) or 0.0)
        seconds = (now_ms - self._time_ms) / 1000
        if self._time_ms and seconds > 0:
            # A session counts from 0: one that is new has read all of it since the last sample, or nearly.
            read = sum(max(value - self._rows.get(node_id, 0.0), 0.0) for node_id, value in rows.items())
            self.samples.append(Sample(now_ms, read / seconds, written_items / seconds, lag_seconds))
        self._rows, self._time_ms = rows, now_ms


class HistorySampler:
    """Takes samples, as a job on every replica: each shows its own memory of the same figures.

    Args:
        store: what is sampled.
        history: where samples go.
        clock_ms: the time, in milliseconds since the epoch.
    """

    def __init__(self, store: Store, history: History, clock_ms: Callable[[], float]) -> None:
        self._store = store
        self._history = history
        self._clock_ms = clock_ms
        self._last_event_id = -1

    async def __call__(self) -> None:
        """Takes one sample.

        Raises:
            DatacoordError: the database did not answer; the plot has a hole there, which says it all.
        """
        nodes = await self._store.living_datanodes()
        self._last_event_id, items = await self._store.written_items(self._last_event_id)
        self._history.add(nodes, items, self._clock_ms())
