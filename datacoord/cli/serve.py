"""`datacoord serve`: runs a coordinator."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from coordinator import logging, server
from coordinator.config import Settings
from datacoord.cli.settings_options import load_settings, with_settings
from datacoord.errors import ConfigInvalidError
from datacoord.version import version


@click.command()
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Written (JSON: address, web_address, port, web_port, pid) once the coordinator serves, removed when it ends.",
)
@with_settings
def serve(ready_file: Path | None, config_file: Path | None, **flags: Any) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C.

    Without options it is embedded: SQLite and objects in ./datacoord-data, gRPC on 127.0.0.1:13333, metrics and health on
    http://127.0.0.1:13334. Settings come from defaults < --config file < environment < options.
    """
    settings = load_settings(config_file, flags).settings
    logging.configure(settings.log_level, settings.log_format)

    def on_ready(coordinator: server.Coordinator) -> None:
        if ready_file is not None:
            _write_ready_file(ready_file, coordinator)
        if sys.stdout.isatty():
            _announce(coordinator, settings)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(server.serve(settings, on_ready))
    finally:
        if ready_file is not None:
            _remove_own_ready_file(ready_file)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _announce(coordinator: server.Coordinator, settings: Settings) -> None:
    place = f"data in {Path(settings.data_dir).absolute()}" if settings.embedded else "shared database"
    click.secho(f"datacoord {version()} is ready", bold=True)
    click.echo(f"  gRPC     {coordinator.address}")
    click.echo(f"  status   http://{coordinator.page_address}/")
    click.echo(f"  metrics  http://{coordinator.web_address}/metrics")
    click.echo(f"  {place}; Ctrl-C ends it in order")


def _write_ready_file(path: Path, coordinator: server.Coordinator) -> None:
    ready = {
        "address": coordinator.address,
        "web_address": coordinator.web_address,
        "port": int(coordinator.address.rpartition(":")[2]),
        "web_port": int(coordinator.web_address.rpartition(":")[2]),
        "pid": os.getpid(),
    }
    # Whoever waits for the file must never read half of it.
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(ready) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigInvalidError(
            f"--ready-file {str(path)!r} cannot be written: {error.strerror or error}; choose another place", path=path
        ) from error


def _remove_own_ready_file(path: Path) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads(path.read_text(encoding="utf-8"))["pid"] == os.getpid():
            path.unlink()
