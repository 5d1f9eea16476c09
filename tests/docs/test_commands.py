"""The commands that the documents name are commands that exist."""

import re
import subprocess

import click
from doc_pages import ROOT, pages, text


def make_targets() -> set[str]:
    """Targets that `make help` shows."""
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=30)
    return set(re.findall(r"^  make ([a-z-]+)", shown.stdout, re.MULTILINE))


def test_make_help_shows_every_target() -> None:
    """A target without a line of help is known to its author only."""
    phony = re.search(r"^\.PHONY: (.+)$", text("Makefile"), re.MULTILINE)

    assert phony
    assert set(phony.group(1).split()) == make_targets()


def test_the_readme_shows_both_commands() -> None:
    """Who enters must find the two commands without reading further."""
    blocks = "\n".join(re.findall(r"```\w*\n(.*?)```", text("README.md"), re.DOTALL))

    assert re.search(r"^make demo\b", blocks, re.MULTILINE)
    assert re.search(r"^make test\b", blocks, re.MULTILINE)


def test_every_make_command_in_a_document_is_a_target() -> None:
    """Commands in documents are copied into terminals."""
    named = {
        (str(page), target)
        for page in pages()
        for target in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", text(page), re.MULTILINE)
    }

    assert [pair for pair in sorted(named) if pair[1] not in make_targets()] == []
    assert len(named) > 5


def test_every_datacoord_command_in_a_document_exists() -> None:
    """The same for the command of the product."""
    from datacoord.cli import main

    named = {name for page in pages() for name in re.findall(r"(?:`|bin/)datacoord ([a-z][a-z-]*)\b", text(page))}

    commands = main.list_commands(click.Context(main))
    assert sorted(named - set(commands)) == []
    assert len(named) > 5


def test_ci_runs_what_people_run() -> None:
    """A CI that does something else than `make test` lets through what people would have seen."""
    assert re.search(r"^exec make test\b", text(".ci/run"), re.MULTILINE)
