"""What a benchmark prints: a table, and as the last line one JSON object."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.harness.rounds import Sample, cpu_us_per_item, per_second, ratios, spread
from coordinator.store import sqlite_driver

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
        remarks: what a reader of the table must know of this run, in sentences.
        figures: everything, for machines.
        versions: of the servers that took part.
    """

    name: str
    method: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

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
            "method": self.method,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "bars": bars,
            "remarks": self.remarks,
            "figures": self.figures,
            "machine": machine(),
            "versions": {**software(), **self.versions},
        }

    def show(self) -> None:
        """Prints it."""
        print(f"{self.name}: {self.method}\n\n{table(self.columns, self.rows)}\n")
        for bar in self.bars:
            sign = "≤" if bar.at_most else "≥"
            asked = f"first bar {sign} {bar.first:g}, goal {sign} {bar.goal:g}"
            print(f"  {bar.name}: {bar.value:.2f} ({asked}): {bar.verdict()}")
        for remark in self.remarks:
            print(f"  {remark}")
        sys.stdout.flush()
        print(json.dumps(self.as_json(), ensure_ascii=False), flush=True)

    def best(self, samples: Mapping[str, Sequence[Sample]], prefix: str) -> str:
        """The fastest side whose name begins so."""
        names = [name for name in samples if name.startswith(prefix)]
        return max(names, key=lambda name: spread(samples[name], per_second).median)

    def bar_to_etcd(self, samples: Mapping[str, Sequence[Sample]], name: str, first: float, goal: float) -> Bar:
        """A bar for the rate of a side as a share of etcd's."""
        return Bar(f"{name} to etcd", ratios(samples[name], samples["etcd"], per_second).median, first, goal)


def throughput_report(
    name: str,
    method: str,
    unit: str,
    samples: Mapping[str, Sequence[Sample]],
    *,
    versions: dict[str, str],
    bare: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """A report of rates, with ratios to etcd and, where given, of sides to their bare databases."""
    columns = [
        "side",
        f"{unit}/s",
        "× etcd",
        *(["× its bare database"] if bare else []),
        f"CPU µs/{unit[:-1]}",
        "p99 ms",
    ]
    report = Report(name, method, columns, versions=versions)
    for side, of in samples.items():
        rate, to_etcd = spread(of, per_second), ratios(of, samples["etcd"], per_second)
        figures: dict[str, Any] = {f"{unit}_per_second": rate.as_json(), "to_etcd": to_etcd.as_json()}
        row = [side, rate.shown(0), "1" if side == "etcd" else to_etcd.shown()]
        if bare:
            to_bare = ratios(of, samples[bare[side]], per_second) if side in bare else None
            row.append(to_bare.shown() if to_bare else "")
            figures |= {"to_bare": to_bare.as_json()} if to_bare else {}
        remote = all(sample.latencies_ms for sample in of)
        if remote:
            cpu, slow = spread(of, cpu_us_per_item), spread(of, lambda s: s.percentile_ms(99))
            figures |= {"cpu_us_per_item": cpu.as_json(), "p99_ms": slow.as_json()}
        report.rows.append([*row, cpu.shown(1) if remote else "", slow.shown(0) if remote else ""])
        report.figures[side] = figures
    return report


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown that reads well in a terminal too."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    lines = [_line(columns, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return "| " + " | ".join(padded) + " |"


def machine() -> Mapping[str, Any]:
    """What it was measured on; asked for when the run is over."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load_after": round(os.getloadavg()[0], 2),
    }


def software() -> dict[str, str]:
    """Versions of what runs on both sides."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite_driver.sqlite_version,
        **{package: version(package) for package in _PACKAGES},
    }


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")
