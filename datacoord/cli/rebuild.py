"""`datacoord rebuild`: the rows of a lost database, from the objects."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from coordinator import logging
from coordinator.store import migrate
from coordinator.store.rebuild import RebuildPlan, plan_rebuild, rows_of, write_rebuild
from datacoord.cli.database_options import database_options, settings_of
from datacoord.cli.output import output_option, print_json
from datacoord.cli.tables import print_table
from datacoord.cli.verify import ProgressBar

UNKNOWN: Final = (
    "the last ranges of a lane may never have been registered: they are complete, and taken; datanodes go on behind them",
    "collections, partitions and segments that were dropped and whose objects are still there have come back",
    "properties and columns that were changed after the last object of their collection was written are lost",
    "if objects were deleted at the end of a channel, nothing says so: compare with the source",
)
"""What objects cannot tell."""


@click.command()
@click.argument("collections", nargs=-1)
@click.option("--root", "roots", multiple=True, help="Where objects lie; may be repeated. Without it: --storage-root.")
@click.option("--dry-run", is_flag=True, help="Only say what would come back.")
@click.option(
    "--allow-gaps", is_flag=True, help="Go on although ranges are missing: their rows are lost, or were dropped."
)
@database_options
@output_option
def rebuild(
    *,
    collections: Sequence[str],
    roots: Sequence[str],
    dry_run: bool,
    allow_gaps: bool,
    output: str,
    config_file: Path | None,
    **where: Any,
) -> None:
    """Rebuild the rows of a lost database from the objects: of COLLECTIONS, or of all.

    Prefer a backup and `datacoord restore`. This is for when there is none: it reads what every object says of itself, chooses one
    chain of ranges per lane, and writes collections, partitions, channels, lanes, segments and objects into an empty database.
    Stop every coordinator before. Channels get new epochs far beyond the old ones, and garbage collection is held.
    """
    settings = settings_of(config_file, where)
    logging.configure(settings.log_level, settings.log_format, sys.stderr)
    with ProgressBar() as bar:
        plan = plan_rebuild(list(roots) or [settings.effective_storage_root], collections, bar)
        if not dry_run:
            if settings.embedded:
                Path(settings.data_dir).mkdir(parents=True, exist_ok=True)
                migrate.upgrade(settings.effective_database_url)
            write_rebuild(settings.effective_database_url, plan, bar, allow_gaps=allow_gaps)
    if output == "json":
        print_json([_record(plan, written=not dry_run)])
    else:
        _print(plan, written=not dry_run)


def _record(plan: RebuildPlan, *, written: bool) -> dict[str, object]:
    return {
        "written": written,
        "collections": [
            {
                "collection_name": one.info.collection_name,
                "collection_id": one.info.collection_id,
                "storage_root": one.storage_root,
                "channels": [
                    {
                        "channel_name": one.name_of(channel),
                        "checkpoint_timestamp": channel.checkpoint.timestamp,
                        "lanes": [
                            {
                                "partition_id": lane.partition_id,
                                "progress": lane.progress,
                                "ranges": len(lane.ranges),
                                "rows": rows_of([lane]),
                                "unproven_ranges": lane.unproven,
                                "objects_left": lane.left,
                                "gaps": [list(gap) for gap in lane.gaps],
                            }
                            for lane in channel.lanes
                        ],
                    }
                    for channel in one.channels
                ],
            }
            for one in plan.collections
        ],
        "superseded": [{"collection_id": number, "collection_name": name} for number, name in plan.superseded],
        "unreadable": [{"path": path, "why": why} for path, why in plan.unreadable],
        "foreign_files": plan.foreign,
        "cannot_be_known": list(UNKNOWN),
    }


def _print(plan: RebuildPlan, *, written: bool) -> None:
    rows = []
    for one in plan.collections:
        lanes = [lane for channel in one.channels for lane in channel.lanes]
        rows.append(
            (
                one.info.collection_name,
                one.info.channel_count,
                sum(len(lane.ranges) for lane in lanes),
                rows_of(lanes),
                sum(lane.unproven for lane in lanes),
                sum(len(lane.gaps) for lane in lanes),
                sum(lane.left for lane in lanes),
            )
        )
    headings = ("collection", "channels", "ranges", "rows", "unproven", "gaps", "objects left")
    print_table(headings, rows, numbers=headings[1:], empty="no object of ours was found")
    for name, partition_id, start, end in plan.gaps:
        click.secho(f"missing: channel {name}, partition {partition_id}, ({start}, {end}]", fg="red")
    for number, name in plan.superseded:
        click.echo(f"left: collection {number}, whose name {name} a younger one has")
    for path, why in plan.unreadable:
        click.echo(f"unreadable: {path}: {why}")
    if plan.foreign:
        click.echo(f"{plan.foreign} files that are no objects of ours were left alone")
    click.secho("What objects cannot tell:", bold=True)
    for sentence in UNKNOWN:
        click.echo(f"  - {sentence}")
    if written:
        click.secho("Written. Garbage collection is held.", bold=True)
        click.echo("Next: datacoord verify; start the coordinators; datacoord gc resume once nothing is missed.")
    else:
        click.secho("Nothing was written (--dry-run).", bold=True)
