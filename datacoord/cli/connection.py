"""Options of commands that ask a running coordinator."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from datacoord.credentials import TOKEN_VARIABLE, VARIABLES

T = TypeVar("T", bound=Callable[..., Any])

ADDRESS_DEFAULT = "127.0.0.1:13333"

_CREDENTIALS = {
    "tls_ca": "PEM file of the authorities that the coordinator's certificate is checked against, or `system`.",
    "tls_client_cert": "PEM file of a certificate of our own, where the coordinator asks for one.",
    "tls_client_key": "PEM file of its key.",
    "tls_server_name": "Name the coordinator's certificate must hold, where it is not the address's.",
    "token_file": "File that holds the token.",
}


def address_options(command: T) -> T:
    """Adds `--address` and `--timeout`, which the command receives as `address` and `timeout_seconds`, and how to get in.

    The options of credentials go where all clients look: into the environment, for as long as the command runs. So they reach
    whatever it starts, too.
    """
    for name, meaning in reversed(_CREDENTIALS.items()):
        command = click.option(
            "--" + name.replace("_", "-"),
            name,
            expose_value=False,
            callback=_put_into_environment,
            metavar="NAME" if name == "tls_server_name" else "FILE",
            help=f"{meaning.rstrip('.')}; also {VARIABLES[name]}.",
        )(command)
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


def _put_into_environment(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    assert parameter.name is not None  # noqa: S101 - options have names
    variables: dict[str, str | None] = {VARIABLES[parameter.name]: value}
    if parameter.name == "token_file":
        variables[TOKEN_VARIABLE] = None  # an option wins over a variable
    for variable, wanted in variables.items():
        context.call_on_close(_setter(variable, os.environ.get(variable)))
        _setter(variable, wanted)()


def _setter(variable: str, value: str | None) -> Callable[[], None]:
    def put() -> None:
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value

    return put
