"""Reads the commands that documents name, in `sh` blocks and in code spans, and holds them against what exists."""

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import click
from doc_pages import ROOT, text

from datacoord.cli import main

BLOCK = re.compile(r"^[ \d.]*```sh\b[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
HERE_DOCUMENT = re.compile(r"<<-?\s*'?(\w+)'?([^\n]*)\n.*?^\s*\1$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^[ \d.]*```.*?^ *```$", re.DOTALL | re.MULTILINE)
ASSIGNMENT = re.compile(r"[A-Z_]+=")
ENDS = frozenset(("&", "&&", "|", "||", ";", "(", ")"))
REDIRECTIONS = frozenset((">", ">>", "<", ">&"))
SOMETHING = "…"
"""What a document writes where it means anything at all."""


def commands(script: str) -> list[list[str]]:
    """The simple commands of a shell script, as words: no redirections, comments, and here documents."""
    found: list[list[str]] = []
    for line in HERE_DOCUMENT.sub(r"\2", script).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        target_follows = False
        for word in lexer:
            if word in ENDS:
                found, words = [*found, words], []
            elif word in REDIRECTIONS:
                target_follows = True
                words = words[:-1] if words[-1:] == ["2"] else words
            elif target_follows:
                target_follows = False
            else:
                words.append(word)
        found.append(words)
    return [words for words in found if words]


def in_blocks(page: str) -> list[list[str]]:
    """The commands of a page's `sh` blocks: complete, to be typed as they stand."""
    return [words for script in BLOCK.findall(page) for words in commands(script)]


def in_spans(page: str) -> list[list[str]]:
    """The commands that a page names in a sentence: perhaps without what they need."""
    spans = SPAN.findall(FENCED.sub("", page))
    return [words for span in spans if re.search(r"(?:^|[ /])(?:datacoord|make) \S", span) for words in commands(span)]


def fault(words: list[str], *, complete: bool) -> str | None:
    """What is wrong with a command; None = nothing, or it is none of ours.

    Args:
        words: of it.
        complete: it is to be typed as it stands, so nothing that is required may be missing.
    """
    while words and ASSIGNMENT.match(words[0]):
        words = words[1:]
    program, arguments = (Path(words[0]).name, words[1:]) if words else ("", [])
    if program == "datacoord":
        return _fault_of_datacoord(main, [word.strip("[]") for word in arguments], complete=complete)
    if program == "make":
        return _fault_of_make(arguments)
    if program in {"python", "sh"} and arguments and arguments[0].endswith((".py", ".sh")):
        return None if (ROOT / arguments[0]).is_file() else f"there is no {arguments[0]}"
    return None


@cache
def make_targets() -> frozenset[str]:
    """Targets that `make help` shows."""
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=30)
    return frozenset(re.findall(r"^  make ([a-z-]+)", shown.stdout, re.MULTILINE))


def _fault_of_make(arguments: list[str]) -> str | None:
    for argument in arguments:
        name, is_variable, value = argument.partition("=")
        if not is_variable:
            if name not in make_targets():
                return f"make has no target {name}"
        elif not re.search(rf"\$[({{$]?{name}\b|\(filter [^,]*,\$\({name}\)", text("Makefile")):
            return f"the Makefile reads no {name}"
        elif name == "NAME" and value != SOMETHING and not (ROOT / "benchmarks" / f"{value}.py").is_file():
            return f"there is no benchmark {value}"
    return None


def _fault_of_datacoord(command: click.Command, arguments: list[str], *, complete: bool) -> str | None:
    context = click.Context(command)
    if isinstance(command, click.Group):
        if arguments[:1] == [SOMETHING]:  # whichever: one of them must take the rest
            ways = [command.get_command(context, name) for name in command.list_commands(context)]
            faults = [_fault_of_datacoord(way, arguments[1:], complete=False) for way in ways if way]
            return None if None in faults else faults[0]
        if arguments and not arguments[0].startswith("-"):
            found = command.get_command(context, arguments[0])
            if found is not None:
                return _fault_of_datacoord(found, arguments[1:], complete=complete)
        listing = command.get_command(context, "list")  # `datacoord channels files` is short for `channels list files`
        if listing is not None:
            return _fault_of_datacoord(listing, arguments, complete=complete)
        if arguments and not arguments[0].startswith("-"):
            return f"no such command: {arguments[0]}"
    return _fault_of_parameters(command, context, [word for word in arguments if word != SOMETHING], complete=complete)


def _fault_of_parameters(
    command: click.Command, context: click.Context, arguments: list[str], *, complete: bool
) -> str | None:
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(arguments))
        for parameter in command.params:
            value = values.get(str(parameter.name))
            if complete and parameter.required and not (isinstance(value, str | list | tuple) and value):
                return f"{parameter.name} is missing"
            if isinstance(value, str) and not isinstance(parameter.type, click.Path | click.File):
                parameter.type.convert(value, parameter, context)
    except click.UsageError as error:
        return error.format_message()
    return f"nothing takes {' '.join(rest)}" if rest else None
