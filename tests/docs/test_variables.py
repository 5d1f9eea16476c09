"""Variables of the environment: what the packages read is on a page, and what a page names is read."""

import ast
import re
from collections.abc import Iterator

import click
from doc_pages import code, pages, table_rows, text, tracked_files

from coordinator.config import specs
from datacoord.cli import main
from datacoord.credentials import PLAINTEXT_VARIABLE, TOKEN_VARIABLE, VARIABLES
from datacoord.s3 import NAMES, PREFIX, S3Settings

VARIABLE = re.compile(r"(?<![A-Z_])DATACOORD_[A-Z0-9]+(?:_[A-Z0-9]+)*(?![A-Z0-9_])")
"""A whole name; what is put together or stands for several (`DATACOORD_<NAME>`, `DATACOORD_S3_…`) is none."""

PACKAGES = {"coordinator", "datacoord", "datanode_client", "migrations"}
SETTINGS = {f"DATACOORD_{name.upper()}" for name in specs()}
OF_S3 = {PREFIX + name for name in NAMES}


def in_code() -> set[str]:
    """Every variable that the packages name in a text."""
    paths = [path for path in tracked_files() if path.suffix == ".py" and path.parts[0] in PACKAGES]
    texts = [
        node.value
        for path in paths
        if "v1" not in path.parts
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {name for one in texts for name in VARIABLE.findall(one)}


def on_pages() -> set[str]:
    """Every variable that a page names; a setting is named by its row."""
    rows = table_rows("docs/reference/settings.md", "setting", "default", "allowed", "meaning")
    named = {f"DATACOORD_{code(row[0]).upper()}" for row in rows}
    return named | {name for page in pages() for name in VARIABLE.findall(text(page))}


def options_with_variables(command: click.Command) -> Iterator[click.Option]:
    """The options of a command, and of all below it, that a variable can stand for."""
    yield from (option for option in command.params if isinstance(option, click.Option) and option.envvar)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_with_variables(below)


def test_every_variable_that_is_read_is_on_a_page() -> None:
    """Two commands took their addresses from variables that no page named."""
    read = in_code() | SETTINGS | OF_S3 | {TOKEN_VARIABLE, PLAINTEXT_VARIABLE, *VARIABLES.values()}
    assert len(read) > 60
    assert read - on_pages() == set()


def test_every_variable_that_a_page_names_is_read() -> None:
    """A variable that nothing reads is set, believed, and found out at night."""
    by_file = SETTINGS | OF_S3
    known = in_code() | by_file | {f"{name}_FILE" for name in by_file} | set(VARIABLES.values())
    assert on_pages() - known == set()


def test_a_variable_of_a_command_is_documented_with_its_option_and_default() -> None:
    """Whoever reads that something is the default sets nothing."""
    rows = table_rows("docs/reference/settings.md", "variable", "option", "default", "meaning")
    documented = {code(row[0]): (code(row[1]), code(row[2])) for row in rows if row[1]}

    assert documented == {
        str(option.envvar): (option.opts[0], option.default) for option in options_with_variables(main)
    }


def test_the_variables_of_s3_are_documented_with_what_stands_in_for_them() -> None:
    """A retry that AWS's variable was to switch off, or a timeout that is another, shows when the store is slow."""
    rows = table_rows("docs/object-stores.md", "variable", "else", "meaning")
    instead = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    default = S3Settings()

    assert set(instead) == OF_S3
    numbers = {
        "ATTEMPTS": default.attempts_max,
        "CONNECT_TIMEOUT_SECONDS": default.connect_timeout_seconds,
        "REQUEST_TIMEOUT_SECONDS": default.request_timeout_seconds,
    }
    assert {name: float(instead[PREFIX + name].split()[-1]) for name in numbers} == numbers
    assert instead[f"{PREFIX}VIRTUAL_ADDRESSING"] == f"`{str(default.virtual_addressing).lower()}`"
    for name in ("ENDPOINT", "REGION", "CA_FILE", "ATTEMPTS"):
        taken = re.findall(r"`(AWS_\w+)`", instead[PREFIX + name])
        assert taken
        for variable in taken:
            assert S3Settings.from_environment({variable: "7"}) == S3Settings.from_environment({PREFIX + name: "7"})
