"""What a benchmark prints: a table, and as the last line one JSON object."""

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("grpcio", "protobuf", "psycopg", "sqlalchemy", "uvloop")


@dataclass
class Bar:
    """A ratio with what DESIGN asks of it.

    Attributes:
        name: what is compared with what.
        value: the median.
        first: the first bar.
        goal: the goal.
        at_most: True: smaller is better.
    """

    name: str
    value: float
    first: float
    goal: float
    at_most: bool = False

    def met(self, bar: float) -> bool:
        """Whether a bar holds."""
        return self.value <= bar if self.at_most else self.value >= bar

    def verdict(self) -> str:
        """Which of the two hold."""
        if self.met(self.goal):
            return "goal"
        return "first bar" if self.met(self.first) else "missed"


@dataclass
class Report:
    """Results of one benchmark.

    Attributes:
        name: of the benchmark.
        method: how it was measured, in sentences.
        columns: of the table; the first one says what a row is about.
        rows: of the table.
        bars: ratios with what is asked of them.
        figures: everything, for machines.
        versions: of the servers that took part.
    """

    name: str
    method: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def table(self) -> str:
        """The table as Markdown that reads well in a terminal too."""
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]
        lines = [_line(self.columns, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
        return "\n".join([*lines, *(_line(row, widths) for row in self.rows)])

    def as_json(self) -> dict[str, Any]:
        """The last line."""
        bars = [
            {
                "name": bar.name,
                "value": round(bar.value, 3),
                "first_bar": bar.first,
                "goal": bar.goal,
                "at_most": bar.at_most,
                "verdict": bar.verdict(),
            }
            for bar in self.bars
        ]
        return {
            "benchmark": self.name,
            "machine": machine(),
            "versions": {**software(), **self.versions},
            "figures": self.figures,
            "bars": bars,
        }

    def show(self) -> None:
        """Prints it."""
        print(f"{self.name}: {self.method}\n\n{self.table()}\n")
        for bar in self.bars:
            sign = "≤" if bar.at_most else "≥"
            asked = f"first bar {sign} {bar.first:g}, goal {sign} {bar.goal:g}"
            print(f"  {bar.name}: {bar.value:.2f} ({asked}): {bar.verdict()}")
        sys.stdout.flush()
        print(json.dumps(self.as_json(), ensure_ascii=False), flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return "| " + " | ".join(padded) + " |"


def machine() -> Mapping[str, Any]:
    """What it was measured on."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def software() -> dict[str, str]:
    """Versions of what runs on both sides."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{package: version(package) for package in _PACKAGES},
    }


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")
