"""The pages on performance, made of the newest figures of each benchmark, which stand beside them in docs/figures, a file each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.report import table

FIGURES = "figures"
"""The directory below docs."""

_HOW_TO_READ = """\
Sides take turns, several rounds: a figure with brackets is median (smallest–largest), and a ratio with brackets is taken within a
round. All processes share one machine. Each section says what its sides sync, when its clock starts, and on what, when and with
which arguments it was measured: sections may be of different runs. A load average much above the number of cores means that other
work ran beside; rates then say little, ratios more, and processor time per item, which is that of all processes together, most.
"""


@dataclass(frozen=True)
class Page:
    """A page of docs.

    Attributes:
        file: its name.
        names: of the benchmarks whose figures it shows, in this order.
        head: what stands before them.
    """

    file: str
    names: tuple[str, ...]
    head: str


COORDINATOR = Page(
    "performance.md",
    (
        "checkpoints",
        "latency",
        "saves",
        "commits",
        "scale",
        "recovery_info",
        "overload",
        "refusals",
        "checkpoint_updater",
        "scrape",
        "git_source",
    ),
    f"""# Performance

Written by `make bench NAME=all` from [figures](figures/), which it measures; run it on your machine, or a part of it
(`make bench NAME=all ARGS="--only saves"`). The benchmarks with Spark stand in [performance-spark.md](performance-spark.md).

{_HOW_TO_READ}""",
)

SPARK = Page(
    "performance-spark.md",
    ("datanode_job", "stream_sink", "datanode_figures"),
    f"""# Performance with Spark

How the datanode job and the stream sink stand against Spark's own writers. Written by `make bench NAME=all` from
[figures](figures/), which it measures; these alone: `make bench NAME=all ARGS="--only datanode_job stream_sink datanode_figures"`.
"× last" is the ratio to the table's last side. The rest stands in [performance.md](performance.md).

{_HOW_TO_READ}""",
)

PAGES = (COORDINATOR, SPARK)


@dataclass(frozen=True)
class Record:
    """What one run of one benchmark found.

    Attributes:
        utc_time: when it ended.
        arguments: it was given.
        report: its JSON object.
        note: what else a reader must know; nothing for a run that is what its arguments say.
    """

    utc_time: datetime
    arguments: Sequence[str]
    report: Mapping[str, Any]
    note: str = ""

    @property
    def name(self) -> str:
        """Of the benchmark."""
        return str(self.report["benchmark"])

    def write(self, directory: Path) -> None:
        """Stores it in place of the one before."""
        run = {"utc_time": f"{self.utc_time:%Y-%m-%dT%H:%M:%SZ}", "arguments": list(self.arguments), "note": self.note}
        directory.mkdir(exist_ok=True)
        text = json.dumps({**run, "report": self.report}, ensure_ascii=False, indent=1)
        (directory / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def read_records(directory: Path) -> dict[str, Record]:
    """All that are stored, by name."""
    records = {}
    for path in sorted(directory.glob("*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        utc_time = datetime.strptime(stored["utc_time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        records[path.stem] = Record(utc_time, stored["arguments"], stored["report"], stored["note"])
    return records


def render(page: Page, records: Mapping[str, Record]) -> str:
    """The whole page; a benchmark that has never run is left out."""
    shown = [records[name] for name in page.names if name in records]
    return "\n".join([page.head, _bars(shown), *(_section(record) for record in shown)])


def write_pages(docs: Path) -> None:
    """Makes the pages anew of the figures that are stored beside them."""
    records = read_records(docs / FIGURES)
    for page in PAGES:
        (docs / page.file).write_text(render(page, records), encoding="utf-8")


def _bars(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        for bar in record.report["bars"]:
            sign = "≤" if bar["at_most"] else "≥"
            asked = (f"{sign} {bar['first_bar']:g}", f"{sign} {bar['goal']:g}")
            rows.append((record.name, bar["name"], f"{bar['value']:.2f}", *asked, bar["verdict"]))
    return f"## Bars\n\n{table(('benchmark', 'ratio', 'measured', 'first bar', 'goal', 'reached'), rows)}\n"


def _section(record: Record) -> str:
    report = record.report
    paragraphs = [f"## {record.name}", report["method"], table(report["columns"], report["rows"])]
    return "\n\n".join([*paragraphs, *report["remarks"], _circumstances(record)]) + "\n"


def _circumstances(record: Record) -> str:
    machine, versions = record.report["machine"], record.report["versions"]
    arguments = f"`{' '.join(record.arguments)}`" if record.arguments else "no arguments"
    sentences = (
        f"Measured on {record.utc_time:%Y-%m-%d %H:%M} UTC with {arguments}: {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['system']}; load average at its end {machine['load_after']:g}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}."
    )
    return f"{sentences} **{record.note}**" if record.note else sentences
