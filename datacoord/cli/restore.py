"""`datacoord restore`: makes a database safe that was restored from a backup, or failed over to an asynchronous standby."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from coordinator import logging
from coordinator.store.restore import restore as do_restore
from datacoord.cli.database_options import database_options, settings_of
from datacoord.cli.output import output_option, print_json


@click.command()
@click.option("--force", is_flag=True, help="Do it although a coordinator seems to be running; restart every one then.")
@database_options
@output_option
def restore(*, force: bool, output: str, config_file: Path | None, **where: Any) -> None:
    """Make a database safe that is older than the world around it, before anything serves it.

    After a backup was restored, or a failover to a standby that may have lagged behind. Stop every coordinator, restore, migrate
    if need be, then run this: channels lose their owners and get epochs that were never given out, sessions end, garbage
    collection is held. Doing it again is harmless.
    """
    settings = settings_of(config_file, where)
    logging.configure(settings.log_level, settings.log_format, sys.stderr)
    done = do_restore(settings.effective_database_url, force=force)
    if output == "json":
        print_json([asdict(done)])
        return
    click.echo(f"{done.channels} channels have a new epoch and no owner; {done.sessions} sessions were ended.")
    click.echo(f"Epochs go on after {done.epoch}, other numbers after {done.number}. Garbage collection is held.")
    click.echo("Next:")
    click.echo("  1. datacoord verify      what the lost time left behind, and what of it is missing")
    click.echo(
        "  2. start the coordinators; datanodes land again what was lost, streams need their checkpoint wound back"
    )
    click.echo("  3. datacoord gc resume   once you need nothing of what verify listed")
