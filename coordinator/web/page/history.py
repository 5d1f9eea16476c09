"""What the status page plots: samples of the last hour, kept in memory by this process, of figures that all replicas share."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.logging import get_logger
from coordinator.store import DataNodeRow, Store
from datacoord.errors import DatacoordError

SAMPLE_SECONDS: Final = 10.0
SAMPLES_MAX: Final = 360
"""An hour."""

CONSUMED_ROWS: Final = "datanode_consumed_rows_total"

_log = get_logger("page")


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one moment; rates are since the sample before.

    Attributes:
        time_ms: when.
        rows_per_second: rows that datanodes read.
        writes_per_second: positions and ranges that were registered, by anybody on any replica.
        lag_seconds: age of the oldest event that is being read; 0 = every channel has read everything.
        datanodes: living sessions.
    """

    time_ms: float
    rows_per_second: float
    writes_per_second: float
    lag_seconds: float
    datanodes: int


class History:
    """Samples, oldest first, and what the next one is measured against."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._rows: dict[int, float] = {}
        self._time_ms = 0.0
        self.last_event_id = -1

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
                caught_up = message.finished or (message.HasField("lag") and message.lag == 0)
                if message.event_time_ms and not caught_up:
                    lag_seconds = max(lag_seconds, (now_ms - message.event_time_ms) / 1000)
        seconds = (now_ms - self._time_ms) / 1000
        if self._time_ms and seconds > 0:
            # A session counts from 0: one that is new has read all of it since the last sample, or nearly.
            read = sum(max(value - self._rows.get(node_id, 0.0), 0.0) for node_id, value in rows.items())
            self.samples.append(Sample(now_ms, read / seconds, written_items / seconds, lag_seconds, len(rows)))
        self._rows, self._time_ms = rows, now_ms


class HistorySampler:
    """Samples on and on, on every replica: each shows its own memory of the same figures.

    Args:
        store: what is sampled.
        history: where samples go.
        clock_ms: the time, in milliseconds since the epoch.
    """

    def __init__(self, store: Store, history: History, clock_ms: Callable[[], float]) -> None:
        self._store = store
        self._history = history
        self._clock_ms = clock_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.create_task(self._run(), name="page-history")

    async def stop(self) -> None:
        """Ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def sample(self) -> None:
        """Takes one sample.

        Raises:
            DatacoordError: the database did not answer.
        """
        nodes: list[DataNodeRow] = []
        page_token = ""
        while True:
            page = await self._store.list_datanodes(page_token=page_token)
            nodes += page.items
            page_token = page.next_page_token
            if not page_token:
                break
        last, items = await self._store.written_items(self._history.last_event_id)
        self._history.last_event_id = last
        self._history.add(nodes, items, self._clock_ms())

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except DatacoordError as error:  # a plot with a hole says it all
                _log.info("history_sample_failed", reason=error.reason.value)
            await asyncio.sleep(SAMPLE_SECONDS)
