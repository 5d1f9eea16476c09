"""What `datacoord land` shows while it runs: a bar on a terminal, a line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TimeElapsedColumn

from datacoord.errors import DatacoordError
from datacoord.progress_lines import ProgressLines

if TYPE_CHECKING:
    from datanode_client.spark import JobProgress

RATE_SECONDS: Final = 10.0
"""The rate is that of so long: shorter, and it jumps; longer, and a stop is seen late."""


class LandProgress(ProgressLines):
    """Shows how far a job is. The bar is what was read of what its sources hold; it pulses while they have not said.

    Args:
        console: where to.
        clock: elapsed seconds; the machine's unless a test brings its own.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        super().__init__(console, columns, detail="waiting for datanodes", clock=clock)
        self._rows: deque[tuple[float, int]] = deque()

    def show(self, progress: "JobProgress") -> None:
        """Shows a look at the job."""
        detail = self._detail(progress)
        if progress.behind is None:
            self.update(detail, line=detail)
            return
        total = progress.read + progress.behind
        # Of nothing, all is done.
        line = f"{progress.read / total if total else 1.0:4.0%} read; {detail}"
        self.update(detail, line=line, completed=progress.read, total=total)

    def show_away(self, error: DatacoordError) -> None:
        """Shows that nobody answers now."""
        away = f"coordinator: {error.message}"
        self.update(away, line=away)

    def _detail(self, progress: "JobProgress") -> str:
        behind = "" if progress.lag is None else f", at most {progress.lag:,} behind"
        return (
            f"{progress.rows:,} rows read, {self._rows_per_second(progress.rows):,.0f}/s{behind}; "
            f"{progress.finished_channels:,}/{progress.channels:,} channels done; {len(progress.datanodes):,} datanodes"
        )

    def _rows_per_second(self, rows: int) -> float:
        now = self._clock()
        self._rows.append((now, rows))
        while len(self._rows) > 2 and self._rows[1][0] <= now - RATE_SECONDS:
            self._rows.popleft()
        then, before = self._rows[0]
        return (rows - before) / (now - then) if now > then else 0.0
