"""Options that pass settings on to the client of a source; secrets come from files or the environment, and are never shown."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from datacoord.errors import ConfigInvalidError

T = TypeVar("T", bound=Callable[..., Any])

_SECRET: Final = re.compile(r"password|secret|(^|\.)key\.pem$|sasl\.jaas|oauthbearer\.config$")
"""Settings of librdkafka that are secrets, or hold some."""


def client_options(command: T) -> T:
    """Adds `--option`, `--option-file` and `--option-env`; the command receives them as `option`, `option_file`, `option_env`."""
    for option in (
        click.option("--option-env", multiple=True, metavar="KEY=VARIABLE", help="The same, from the environment."),
        click.option(
            "--option-file", multiple=True, metavar="KEY=PATH", help="The same, the value from a file: for secrets."
        ),
        click.option(
            "--option",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of librdkafka, like security.protocol=SASL_SSL.",
        ),
    ):
        command = option(command)
    return command


def read_client_options(
    values: Iterable[str],
    files: Iterable[str],
    variables: Iterable[str],
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The settings, by name. What is wrong is said without a value: it may be a secret.

    Args:
        values: KEY=VALUE each.
        files: KEY=PATH each; an end of line at the end of the file is not of the value.
        variables: KEY=VARIABLE each.
        environment: where variables are.

    Raises:
        ConfigInvalidError: one is not of this form, there is no such file or variable, a setting is there twice, or a secret
            stands on the command line.
    """
    settings: dict[str, str] = {}

    def add(option: str, key: str, value: str) -> None:
        if key in settings:
            raise ConfigInvalidError(f"{option}: {key} is given twice", setting=key)
        settings[key] = value

    for key, value in _pairs("--option", values):
        if _SECRET.search(key):
            raise ConfigInvalidError(
                f"--option: {key} is a secret, and everybody on the machine sees a command line: use --option-file {key}=PATH "
                f"or --option-env {key}=VARIABLE",
                setting=key,
            )
        add("--option", key, value)
    for key, path in _pairs("--option-file", files):
        try:
            add("--option-file", key, Path(path).read_text().removesuffix("\n").removesuffix("\r"))
        except (OSError, UnicodeDecodeError) as error:
            what = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigInvalidError(f"--option-file: the file of {key} cannot be read: {what}", setting=key) from None
    for key, variable in _pairs("--option-env", variables):
        if variable not in environment:
            raise ConfigInvalidError(f"--option-env: the variable of {key} is not set", setting=key)
        add("--option-env", key, environment[variable])
    return settings


def _pairs(option: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key or not value:
            # Without the text: a secret is often what is in the wrong place.
            raise ConfigInvalidError(f"{option}: one is not of the form KEY=…", setting=option)
        yield key, value
