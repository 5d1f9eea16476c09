"""What the demo shows while it runs: a bar on a terminal, a line now and then elsewhere. All of it on standard error."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from datacoord.demo.observe import Seen

_LINE_SECONDS = 5.0


class Progress:
    """Shows how far the channels are.

    Args:
        console: where to.
        description: what is read.
        last_timestamp: the end of the input.
    """

    def __init__(self, console: Console, description: str, last_timestamp: int) -> None:
        self._console = console
        self._started_at = time.monotonic()
        self._last_line_at = 0.0
        self._last_timestamp = last_timestamp
        self._bar: Bar | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, TextColumn("{task.fields[detail]}"), console=console)
            self._task = self._bar.add_task(f"landing {description}", total=last_timestamp, detail="")

    def __enter__(self) -> Self:
        """Starts to show the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops to show the bar."""
        if self._bar is not None:
            self._bar.stop()

    def say(self, sentence: str) -> None:
        """Says one thing."""
        elapsed = time.monotonic() - self._started_at
        self._console.print(f"{elapsed:6.1f} s  {sentence}", highlight=False, markup=False, soft_wrap=True)

    def show(self, seen: Seen) -> None:
        """Shows how far the checkpoints are on average, and what is on the way."""
        if not seen.channels:
            return
        mean = sum(channel.checkpoint.timestamp for channel in seen.channels.values()) // len(seen.channels)
        consumed = seen.metric("datanode_consumed_rows_total")
        nodes = seen.alive()
        buffered = sum(msg.buffered_rows for node in nodes for msg in node.msgs)
        in_flight = sum(msg.syncs_in_flight for node in nodes for msg in node.msgs)
        detail = f"{consumed:,} rows read, {buffered:,} in buffers, {in_flight} syncs under way, {len(nodes)} datanodes"
        if self._bar is not None:
            self._bar.update(self._task, completed=mean, detail=detail)
        elif time.monotonic() - self._last_line_at >= _LINE_SECONDS:
            self._last_line_at = time.monotonic()
            self.say(f"{mean / self._last_timestamp:4.0%} registered; {detail}")
