"""Options of commands that work on the database itself, beside or without a running coordinator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from coordinator.config import Settings
from datacoord.cli.settings_options import load_settings

T = TypeVar("T", bound=Callable[..., Any])


def database_options(command: T) -> T:
    """Adds `--database`, `--data-dir`, `--storage-root` and `--config`; the command receives them as `**where`."""
    for option in (
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            help="TOML file with the coordinator's settings.",
        ),
        click.option("--storage-root", help="As of the coordinator; also DATACOORD_STORAGE_ROOT."),
        click.option("--data-dir", help="As of the coordinator; also DATACOORD_DATA_DIR."),
        click.option(
            "--database",
            "--database-url",
            "database_url",
            help="URL of the database; also DATACOORD_DATABASE_URL. Without it: the embedded one in --data-dir.",
        ),
    ):
        command = option(command)
    return command


def settings_of(config_file: Path | None, where: dict[str, Any]) -> Settings:
    """The settings of the coordinator whose database it is.

    Raises:
        ConfigInvalidError: with a sentence that names the setting.
    """
    return load_settings(config_file, where).settings
