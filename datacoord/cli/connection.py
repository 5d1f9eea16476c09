"""Options of commands that ask a running coordinator."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

T = TypeVar("T", bound=Callable[..., Any])

ADDRESS_DEFAULT = "127.0.0.1:13333"


def address_options(command: T) -> T:
    """Adds `--address` and `--timeout`, which the command receives as `address` and `timeout_seconds`."""
    command = click.option(
        "--timeout",
        "timeout_seconds",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="Seconds to wait for the coordinator.",
    )(command)
    return click.option(
        "--address",
        envvar="DATACOORD_ADDRESS",
        default=ADDRESS_DEFAULT,
        show_default=True,
        help="host:port of the coordinator; also DATACOORD_ADDRESS.",
    )(command)
