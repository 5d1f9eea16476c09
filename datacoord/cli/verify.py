"""`datacoord verify`: proves rows, objects and history consistent."""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coordinator import logging
from coordinator.core.verify import ABOUT, Finding, Kind
from coordinator.store.verify import Report
from coordinator.store.verify import verify as look
from datacoord.cli.database_options import database_options, settings_of
from datacoord.cli.output import FOUND_STATUS, output_option, print_json
from datacoord.cli.tables import print_table

SHOWN_MAX = 20
"""Findings of one kind in a table; JSON has all of them."""


@click.command()
@click.argument("collections", nargs=-1)
@click.option("--deep", is_flag=True, help="Also open every object: its rows and timestamps must be what its row says.")
@database_options
@output_option
def verify(*, collections: Sequence[str], deep: bool, output: str, config_file: Path | None, **where: Any) -> None:
    """Prove that rows, objects and history of COLLECTIONS (or of all) belong together.

    Reads the database and lists the objects itself: the coordinator may run or not, and nothing is changed. What is merely in
    flight is no fault. Exit status 3: there is a fault; 0: there is none (notes, orphans say, are listed and are none); 1: it could
    not look; 2: the command was wrong.
    """
    settings = settings_of(config_file, where)
    logging.configure(settings.log_level, settings.log_format, sys.stderr)
    with ProgressBar() as bar:
        report = look(
            settings.effective_database_url,
            collections,
            storage_root=settings.storage_root if settings.database_url else settings.effective_storage_root,
            deep=deep,
            progress=bar,
        )
    if output == "json":
        print_json([_record(report)])
    else:
        _print(report)
    if report.faults:
        sys.exit(FOUND_STATUS)


class ProgressBar:
    """Draws how far it is on standard error; nothing where that is no terminal."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int | None) -> None:
        """See coordinator.store.verify.Progress."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total)

    def advance(self, count: int) -> None:
        """See coordinator.store.verify.Progress."""
        if self._task is not None:
            self._progress.advance(self._task, count)


def _record(report: Report) -> dict[str, object]:
    return {
        "faults": report.faults,
        "notes": len(report.findings) - report.faults,
        "checked": report.checked,
        "findings": [
            {
                "kind": finding.kind.value,
                "fault": finding.fault,
                "collection": finding.collection,
                "channel": finding.channel,
                "partition_id": finding.partition_id,
                "subject": finding.subject,
                "detail": finding.detail,
                "advice": ABOUT[finding.kind].advice,
            }
            for finding in report.findings
        ],
    }


def _print(report: Report) -> None:
    for kind, of_kind in groupby(report.findings, lambda finding: finding.kind):
        _print_kind(kind, list(of_kind))
    looked_at = ", ".join(f"{count} {what}" for what, count in report.checked.items())
    notes = len(report.findings) - report.faults
    verdict = f"{report.faults} faults" if report.faults else "no fault"
    click.secho(f"{verdict}, {notes} notes; looked at {looked_at}", bold=True)


def _print_kind(kind: Kind, findings: Sequence[Finding]) -> None:
    about = ABOUT[kind]
    word = "fault" if about.fault else "note"
    click.secho(f"{kind.value} ({len(findings)}, {word})", bold=True, fg="red" if about.fault else None)
    click.echo(f"  {about.meaning}\n  {about.advice}")
    print_table(
        ("", "collection", "channel", "what", "why"),
        (("", f.collection, f.channel, f.subject, f.detail) for f in findings[:SHOWN_MAX]),
        empty="",
    )
    if len(findings) > SHOWN_MAX:
        click.echo(f"  … and {len(findings) - SHOWN_MAX} more; --output json has all of them")
    click.echo()
