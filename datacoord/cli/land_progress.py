"""What `datacoord land` shows while it runs: a bar on a terminal, a line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from datacoord.errors import DatacoordError

if TYPE_CHECKING:
    from datanode_client.spark import JobProgress

LINE_SECONDS: Final = 5.0
RATE_SECONDS: Final = 10.0
"""The rate is that of so long: shorter, and it jumps; longer, and a stop is seen late."""


class LandProgress:
    """Shows how far a job is. The bar is what was read of what its sources hold; it pulses while they have not said.

    Args:
        console: where to.
        clock: elapsed seconds; the machine's unless a test brings its own.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._started_at = clock()
        self._line_at = self._started_at
        self._rows: deque[tuple[float, int]] = deque()
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.fields[detail]}"))
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("", total=None, detail="waiting for datanodes")

    def __enter__(self) -> Self:
        """Starts to show."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops to show."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: "JobProgress") -> None:
        """Shows a look at the job."""
        detail = self._detail(progress)
        total = None if progress.behind is None else progress.read + progress.behind
        if self._bar is not None:
            # Of nothing, all is done: a bar of 0 of 0 would stay empty.
            done, all_of_it = (progress.read, total) if total else (total, total)
            self._bar.update(self._task, completed=done or 0, total=all_of_it, detail=detail)
            return
        share = "" if total is None else f"{progress.read / total if total else 1.0:4.0%} read; "
        self._say(share + detail)

    def show_away(self, error: DatacoordError) -> None:
        """Shows that nobody answers now."""
        if self._bar is not None:
            self._bar.update(self._task, detail=f"coordinator: {error.message}")
        else:
            self._say(f"coordinator: {error.message}")

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

    def _say(self, sentence: str) -> None:
        now = self._clock()
        if now - self._line_at >= LINE_SECONDS:
            self._line_at = now
            elapsed = now - self._started_at
            self._console.print(f"{elapsed:6.1f} s  {sentence}", highlight=False, markup=False, soft_wrap=True)
