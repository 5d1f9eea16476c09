"""One option per setting of the coordinator, so that the command, the file and the environment never differ."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from coordinator.config import specs
from coordinator.config_sources import ENVIRONMENT_PREFIX, LoadedSettings, load

ALIASES = {"grpc_port": "--port", "grpc_host": "--host"}
"""Short forms of what people type most."""


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of all settings and `--config` to a command, which receives them as `**flags`."""
    for name, spec in reversed(specs().items()):
        flag = "--" + name.replace("_", "-")
        declarations = [flag, ALIASES[name], name] if name in ALIASES else [flag, name]
        default = "" if spec.default == "" else f"  [default: {spec.default}]"
        documentation = spec.metadata["doc"].replace("`", "") + default
        if spec.type is bool:
            option = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=documentation)
        else:
            metavar = "|".join(spec.metadata["choices"]) or type(spec.default).__name__.upper()
            option = click.option(*declarations, default=None, metavar=metavar, help=documentation)
        command = option(command)
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        help=f"TOML file with settings. Every setting also is a variable: {ENVIRONMENT_PREFIX}<NAME>.",
    )(command)


def load_settings(config_file: Path | None, flags: dict[str, Any]) -> LoadedSettings:
    """Loads the settings as every command of the coordinator does.

    Raises:
        ConfigInvalidError: with a sentence that names the setting.
    """
    return load(file=config_file, environment=os.environ, flags=flags)
