"""`datacoord config`: the effective settings and where each comes from."""

from pathlib import Path
from typing import Any

import click

from coordinator.config import shown
from datacoord.cli.output import output_option, print_json
from datacoord.cli.settings_options import load_settings, with_settings
from datacoord.cli.tables import print_table


@click.command()
@output_option
@with_settings
def config(output: str, config_file: Path | None, **flags: Any) -> None:
    """Show the settings `datacoord serve` would run with, secrets masked, and where each comes from.

    Takes the same options, file and environment.
    """
    loaded = load_settings(config_file, flags)
    rows = [
        {"setting": name, "value": value, "source": loaded.sources[name]}
        for name, value in shown(loaded.settings).items()
    ]
    if output == "json":
        print_json(rows)
        return
    print_table(
        ("setting", "value", "source"), ((row["setting"], row["value"], row["source"]) for row in rows), empty=""
    )
