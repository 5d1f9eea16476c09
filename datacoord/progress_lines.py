"""What a command shows while it works: a bar on a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TextColumn

LINE_SECONDS: Final = 5.0
"""Between two lines, where there is no terminal."""


class ProgressLines:
    """Shows one task. Used in a `with`; what is shown of what, a subclass says.

    Args:
        console: where to.
        columns: of the bar; what `update` says stands behind them.
        description: of the task.
        total: of the task; None = not known.
        detail: what stands there first.
        clock: elapsed seconds; the machine's unless a test brings its own.
    """

    def __init__(
        self,
        console: Console,
        columns: tuple[ProgressColumn, ...],
        *,
        description: str = "",
        total: int | None = None,
        detail: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._clock = clock
        self._started_at = self._line_at = clock()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(*columns, TextColumn("{task.fields[detail]}"), console=console)
            self._task = self._bar.add_task(description, total=total, detail=detail)

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

    def update(self, detail: str, *, line: str, completed: int | None = None, total: int | None = None) -> None:
        """Shows how far it is.

        Args:
            detail: behind the bar.
            line: instead of the bar, where there is none, now and then.
            completed: so much is done; None = as before.
            total: of so much; None = as before.
        """
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, total=total, detail=detail)
        elif self._clock() - self._line_at >= LINE_SECONDS:
            self._line_at = self._clock()
            self.say(line)

    def say(self, sentence: str) -> None:
        """Says one thing, with the time."""
        elapsed = self._clock() - self._started_at
        self._console.print(f"{elapsed:6.1f} s  {sentence}", highlight=False, markup=False, soft_wrap=True)
