"""How commands answer: JSON for scripts, and how numbers, sizes and times are written for people; tables are in `tables`."""

import base64
import json
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:  # `datacoord health` runs every few seconds in a container, and needs none of it
    from google.protobuf.message import Message

T = TypeVar("T", bound=Callable[..., Any])

FOUND_STATUS = 3
"""Exit status of a command that looked and found what it looks for (something stuck, a fault, a coordinator that says no): a script
must not take it for a command that could not look, which is 1, or 2 where the command was wrong."""


def output_option(command: T) -> T:
    """Adds `--output`, which the command receives as `output`."""
    return _option(["table", "json"], "table for people, json for scripts.")(command)


def list_output_option(command: T) -> T:
    """The same of a command that prints a table of many columns: `wide` shows all of them where the terminal is narrow."""
    return _option(
        ["table", "wide", "json"], "table and wide for people (wide: nothing is shortened), json for scripts."
    )(command)


def _option(choices: list[str], meaning: str) -> Callable[[T], T]:
    return click.option("--output", "-o", type=click.Choice(choices), default="table", show_default=True, help=meaning)


def yes_option(command: T) -> T:
    """Adds `--yes`, which the command receives as `yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(yes: bool, question: str) -> None:
    """Asks before something is done that cannot be undone. No answer is a no: also where nobody can be asked.

    Args:
        yes: it was answered on the command line.
        question: what to ask.
    """
    if not yes:
        click.confirm(question, abort=True, err=True)


def enum_record(message: "Message", field: str) -> str:
    """Name of the value of an enum field, without the enum's prefix."""
    return enum_name(message.DESCRIPTOR.fields_by_name[field], getattr(message, field))


def print_json(records: Iterable[object]) -> None:
    """Prints one JSON array, a record per line: readable for programs as a whole and for people line by line.

    Nothing is printed before the first record is there: a command that fails at once leaves standard output empty.
    """
    opened = False
    for record in records:
        click.echo(",\n" if opened else "[\n", nl=False)
        click.echo(json.dumps(record, ensure_ascii=False), nl=False)
        opened = True
    click.echo("\n]" if opened else "[]")


def to_record(message: "Message") -> dict[str, Any]:
    """A message as plain data: every field by its name in the contract, enums by name, bytes as base64, numbers as numbers.

    (protobuf's own JSON turns 64-bit numbers into text, which makes every script convert them back.)
    """
    record: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            record[field.name] = dict(value)
        elif field.is_repeated:
            record[field.name] = [_plain(field, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            record[field.name] = None
        else:
            record[field.name] = _plain(field, value)
    return record


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_record(value)
    if field.enum_type is not None:
        return enum_name(field, value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value


def enum_name(field: Any, value: int) -> str:
    """Name of an enum value without the enum's prefix."""
    known = field.enum_type.values_by_number.get(value)
    return str(value) if known is None else short_name(field.enum_type.name, known.name)


def short_name(enum: str, name: str) -> str:
    """`SEGMENT_STATE_GROWING` of the enum SegmentState is `GROWING`."""
    prefix = "".join(f"_{char}" if char.isupper() else char.upper() for char in enum).lstrip("_") + "_"
    return name.removeprefix(prefix)


def size(value: int) -> str:
    """Bytes for people."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def age(time_ms: int, now_ms: float | None = None) -> str:
    """How long ago a time was, for people; `never` for 0."""
    if time_ms == 0:
        return "never"
    seconds = max(((time.time() * 1000 if now_ms is None else now_ms) - time_ms) / 1000, 0)
    for limit, unit, length in ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} d ago"
