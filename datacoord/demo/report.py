"""What the demo says at the end: tables for people, and one JSON object with the same figures for scripts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from datacoord.demo.kills import Kill


@dataclass(frozen=True)
class RpcFigures:
    """Accepted calls of one RPC by one kind of caller, from the events table, so that kills lose nothing.

    Attributes:
        rpc: the method.
        caller: who called.
        calls: how many.
        items: channels or positions in them.
    """

    rpc: str
    caller: str
    calls: int
    items: int

    @property
    def mean_batch(self) -> float:
        """Items per call."""
        return self.items / self.calls if self.calls else 0.0


@dataclass(frozen=True)
class Figures:
    """Everything the demo measured.

    Attributes:
        source: what was read.
        judge: who judged it.
        rows: rows that survive in the collection.
        expected_rows: rows the judge expects.
        mismatches: rows that differ, are missing or are too many.
        duplicates: rows that stand twice.
        operations: rows registered (upserts and deletes).
        binlogs: objects registered.
        binlog_bytes: their size.
        consumed: rows consumed by all datanodes, replays included.
        replayed: rows that were read again after a change of owner.
        filtered: of those, rows that were registered already and filtered.
        rpcs: calls.
        kills: survived kills.
        run_seconds: from the start of the job to the last registered row.
        total_seconds: with start, reading back and judging.
        samples: a few of the mismatches, for people.
    """

    source: str
    judge: str
    rows: int
    expected_rows: int
    mismatches: int
    duplicates: int
    operations: int
    binlogs: int
    binlog_bytes: int
    consumed: int
    replayed: int
    filtered: int
    rpcs: Sequence[RpcFigures]
    kills: Sequence[Kill]
    run_seconds: float
    total_seconds: float
    samples: Sequence[str] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        """Nothing lost, nothing doubled; and if something was killed, something was replayed."""
        return self.mismatches == 0 and self.duplicates == 0 and (not self.kills or self.replayed > 0)


def print_report(figures: Figures, data_dir: Path, collection_name: str, console: Console) -> None:
    """Prints the report for people."""
    console.print()
    verdict = "[bold green]exactly once[/]" if figures.proven else "[bold red]NOT PROVEN[/]"
    console.print(f"{verdict}: {figures.source}, judged by {figures.judge}", highlight=False)
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_row("rows read back / expected", f"{figures.rows:,} / {figures.expected_rows:,}")
    facts.add_row("mismatches / duplicates", f"{figures.mismatches:,} / {figures.duplicates:,}")
    facts.add_row("operations registered", f"{figures.operations:,} (upserts and deletes)")
    facts.add_row("binlogs", f"{figures.binlogs:,} ({figures.binlog_bytes / 1e6:,.1f} MB)")
    facts.add_row("rows replayed / filtered", f"{figures.replayed:,} / {figures.filtered:,}")
    facts.add_row("time to land / in all", f"{figures.run_seconds:.1f} s / {figures.total_seconds:.1f} s")
    console.print(facts)
    for sample in figures.samples:
        console.print(f"  [red]{sample}[/]", highlight=False)
    if figures.kills:
        kills = Table("killed with SIGKILL", "rows buffered", "syncs in flight", "recovered after", box=None)
        for kill in figures.kills:
            kills.add_row(
                kill.victim, f"{kill.buffered_rows:,}", str(kill.syncs_in_flight), f"{kill.recovery_seconds:.2f} s"
            )
        console.print(kills)
    calls = Table("RPC", "caller", "calls", "mean batch", box=None)
    for rpc in figures.rpcs:
        calls.add_row(rpc.rpc, rpc.caller, f"{rpc.calls:,}", f"{rpc.mean_batch:.1f}")
    console.print(calls)
    _print_next(data_dir, collection_name, console)


def _print_next(data_dir: Path, collection_name: str, console: Console) -> None:
    database = data_dir / "datacoord.db"
    console.print(f"\ndatabase {database}\nobjects  {data_dir / 'objects'}", highlight=False)
    console.print("\nLook at it next:", highlight=False)
    serve = f".venv/bin/datacoord serve --data-dir {data_dir}"
    query = "SELECT rpc, caller, count(*), sum(items) FROM events GROUP BY 1, 2"
    for command in (
        f"{serve} &",
        f".venv/bin/datacoord channels {collection_name}",
        f".venv/bin/datacoord segments {collection_name} --output json",
        f".venv/bin/python -c \"import sqlite3; print(*sqlite3.connect('{database}').execute('{query}'), sep='\\n')\"",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)


def to_json(figures: Figures, data_dir: Path) -> str:
    """The figures as one JSON object on one line."""
    record = asdict(figures)
    record["rpcs"] = [{**asdict(rpc), "mean_batch": round(rpc.mean_batch, 2)} for rpc in figures.rpcs]
    record["proven"] = figures.proven
    record["data_dir"] = str(data_dir)
    return json.dumps(record, ensure_ascii=True)
