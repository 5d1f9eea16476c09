"""`datacoord token`: makes tokens. It asks no coordinator: what lets a token in is a file (docs/security.md)."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from datacoord.cli.output import output_option, print_json
from datacoord.errors import ConfigInvalidError, InvalidFieldError
from datacoord.limits import TOKEN_NAME_CHARS_MAX
from datacoord.tokens import TOKEN_NAME, new_token, tokens_file_entry

ROLES = ("reader", "writer", "admin")


@click.group()
def token() -> None:
    """Make tokens that let callers in."""


@token.command()
@click.option("--name", required=True, help="Who it is for; it stands in the audit log.")
@click.option(
    "--role",
    required=True,
    type=click.Choice(ROLES),
    help="reader: look and read; writer: land rows; admin: everything.",
)
@click.option(
    "--days", type=click.IntRange(1, 3650), help="It counts no more after so many days. Without it, it never ends."
)
@click.option(
    "--add-to",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Tokens file to add the lines to; made if it is not there.",
)
@output_option
def new(*, name: str, role: str, days: int | None, add_to: Path | None, output: str) -> None:
    """Make a token: print it, once, and the lines of the tokens file that let it in.

    The token goes to whoever is to call, the lines go to the end of the file that the setting tokens_file names. Coordinators see
    them within a second. Only the token is written to standard output.
    """
    if not TOKEN_NAME.fullmatch(name):
        raise InvalidFieldError(
            f"--name is {name!r}, but must be 1 to {TOKEN_NAME_CHARS_MAX} of A-Z, a-z, 0-9 and _ . @ -", field="name"
        )
    made = new_token()
    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    entry = tokens_file_entry(name, role, made, expires)
    if add_to is not None:
        _add(add_to, entry)
    if output == "json":
        print_json([{"token": made, "entry": entry}])
        return
    click.echo("The token; nobody can show it again:", err=True)
    click.echo(made)
    if add_to is None:
        click.echo(f"\nFor the tokens file of the coordinators:\n\n{entry}", nl=False, err=True)
    else:
        click.echo(f"{add_to} lets it in.", err=True)


def _add(path: Path, entry: str) -> None:
    """Adds an entry, so that coordinators see the file before or after, and never half of it."""
    from coordinator.rpc.authentication import read_tokens

    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        fresh.write_text(f"{before.rstrip()}\n\n{entry}".lstrip(), encoding="utf-8")
        if before:
            fresh.chmod(path.stat().st_mode & 0o777)
        read_tokens(fresh)
        fresh.replace(path)
    except ConfigInvalidError as error:
        why = error.message.replace(str(fresh), str(path))
        raise ConfigInvalidError(f"nothing was added: {why}", setting="add_to") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalidError(f"tokens file {str(path)!r} cannot be written: {error}", setting="add_to") from error
    finally:
        fresh.unlink(missing_ok=True)
