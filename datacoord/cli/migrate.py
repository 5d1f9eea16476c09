"""`datacoord migrate`: brings a database up to this version."""

import sys
from pathlib import Path
from typing import Any

import click

from coordinator import logging
from coordinator.server import make_data_dir
from coordinator.store.migrate import head, upgrade
from datacoord.cli.output import output_option, print_json
from datacoord.cli.settings_options import load_settings, with_settings


@click.command()
@output_option
@with_settings
def migrate(output: str, config_file: Path | None, **flags: Any) -> None:
    """Bring the database up to this version: a separate step before `serve` where --database-url is set.

    Safe to repeat, and safe when several run at once. Takes the options, file and environment of `serve`.
    """
    settings = load_settings(config_file, flags).settings
    if settings.embedded:
        make_data_dir(Path(settings.data_dir))
    logging.configure(settings.log_level, settings.log_format, sys.stderr)
    before, now = upgrade(settings.effective_database_url), head()
    if output == "json":
        print_json([{"before": before, "now": now, "changed": before != now}])
    elif before == now:
        click.echo(f"The database already has the schema of this version ({now}).")
    else:
        click.echo(f"The database now has the schema of this version ({now}); before it had {before or 'none'}.")
