"""The command line that all benchmarks have."""

import argparse
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop

from benchmarks.harness.report import Report
from coordinator import logging


@dataclass(frozen=True)
class Options:
    """How much is measured.

    Attributes:
        rounds: how often every side runs.
        scale: amount of data, as a share of the standard run.
        work: calls of a run, likewise.
        long: also what takes long.
    """

    rounds: int = 5
    scale: float = 1.0
    work: float = 1.0
    long: bool = False

    def scaled(self, number: int, minimum: int = 1) -> int:
        """An amount of data of the standard run, scaled."""
        return max(minimum, round(number * self.scale))

    def calls(self, number: int) -> int:
        """A number of calls of the standard run, scaled."""
        return max(1, round(number * self.work))


def main(measure: Callable[[Options], Coroutine[Any, Any, Report]], doc: str | None) -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=Options.rounds, help="how often every side runs (default %(default)s)"
    )
    parser.add_argument("--scale", type=float, default=Options.scale, help="amount of data, 1 = the standard run")
    parser.add_argument("--work", type=float, default=Options.work, help="calls per run, 1 = the standard run")
    parser.add_argument("--long", action="store_true", help="also what takes long")
    given = parser.parse_args()
    logging.configure("warning", "console")
    uvloop.run(measure(Options(given.rounds, given.scale, given.work, given.long))).show()
