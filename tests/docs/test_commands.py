"""The commands that the documents name are commands that exist."""

import re
from pathlib import Path

import pytest
from doc_commands import fault, in_blocks, in_spans, make_targets
from doc_pages import pages, text


def faults(page: str) -> list[str]:
    """What is wrong with the commands of a page."""
    found = [(words, fault(words, complete=True)) for words in in_blocks(page)]
    found += [(words, fault(words, complete=False)) for words in in_spans(page)]
    return [f"{' '.join(words)}: {wrong}" for words, wrong in found if wrong is not None]


def test_make_help_shows_every_target() -> None:
    """A target without a line of help is known to its author only."""
    phony = re.search(r"^\.PHONY: (.+)$", text("Makefile"), re.MULTILINE)

    assert phony
    assert set(phony.group(1).split()) == make_targets()


def test_the_readme_shows_both_commands() -> None:
    """Who enters must find the two commands without reading further."""
    shown = in_blocks(text("README.md"))

    assert ["make", "demo"] in shown
    assert ["make", "test"] in shown


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    """Commands in documents are copied into terminals, and the first that fails is the last one that is tried."""
    assert faults(text(page)) == []


def test_commands_are_found_at_all() -> None:
    """A reader of pages that reads nothing finds every page correct."""
    everything = "".join(text(page) for page in pages())

    for find in (in_blocks, in_spans):
        programs = [words[0].rpartition("/")[2] for words in find(everything)]
        assert programs.count("datacoord") > 20, find
        assert programs.count("make") > 10, find


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("datacoord serv", "no such command: serv"),
        ("datacoord gc puase", "no such command: puase"),
        ("DATACOORD_TOKEN=x .venv/bin/datacoord serve --porrt 1 &", "--porrt"),
        ("datacoord serve --port", "Option '--port' requires an argument."),
        ("datacoord land generated --collection x --rows many", "'many' is not a valid"),
        ("echo one && datacoord channels --output yaml > file 2>&1", "'yaml' is not one of 'table', 'wide', 'json'"),
        ("datacoord channels files more", "nothing takes more"),
        ("datacoord land tikv --collection orders", "no such command: tikv"),
        ("datacoord land git --repository .", "collection_name is missing"),
        ("make dmeo", "make has no target dmeo"),
        ("make demo REPOSITORY=.", "the Makefile reads no REPOSITORY"),
        ("make bench NAME=speed", "there is no benchmark speed"),
        (".venv/bin/python examples/land_nothing.py", "there is no examples/land_nothing.py"),
    ],
)
def test_a_wrong_command_is_found(command: str, wrong: str) -> None:
    """A check that takes everything says nothing about the pages it takes."""
    for page in (f"```sh\nmake setup  # first\n{command}\n```\n", f"3. ```sh quickstart\n   {command}\n   ```\n"):
        (found,) = faults(page)
        assert wrong in found


@pytest.mark.parametrize(
    "page",
    [
        "```sh\ndatacoord gc dry-run [COLLECTION]   # what would go\n```\n",
        "```sh\ndatacoord channels files --output json | head -1; datacoord stuck\n```\n",
        "```sh\npython - <<'PYTHON'\nmake it = datacoord nonsense\nPYTHON\ndatacoord verify\n```\n",
        "`datacoord land … --spark spark://…`, `make bench NAME=…`, `make demo KILL=0`, `datacoord land`",
        "```python\ndatacoord nonsense\n```\n`make_this`, `datacoord.v1`",
    ],
)
def test_a_right_command_is_none(page: str) -> None:
    """A check that finds too much is switched off."""
    assert faults(page) == []


def test_ci_runs_what_people_run() -> None:
    """A CI that does something else than `make test` lets through what people would have seen."""
    assert re.search(r"^exec make test\b", text(".ci/run"), re.MULTILINE)
