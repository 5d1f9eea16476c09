"""The commands of the pages are run as they stand, against a coordinator that serves; those that are not, have a reason."""

import os
import sys
from itertools import dropwhile
from pathlib import Path

import pytest
from doc_commands import ASSIGNMENT, in_blocks
from doc_pages import pages, text
from server.running_coordinator import definition, running
from support.commands import ROOT, run

from datacoord.client import CoordinatorClient

ELSEWHERE = {
    "quickstart.md": "run as a whole by test_quickstart.py",
    "security.md": "tokens, TLS and roles are run by tests/security",
    "postgresql.md": "needs a database server by that name; migrate and serve on PostgreSQL are run by tests/replicas",
}
"""Pages whose commands are not run here."""

EXCUSED = {
    "serve": "one serves already",
    "top": "it never ends by itself; run by tests/cli",
    "restore": "it refuses while a coordinator serves; run by tests/restore",
    "rebuild": "it wants a new database; run by tests/rebuild",
    "land git": "run by tests/cli/test_land.py",
    "land jsonl": "needs the bucket of the page; run by tests/cli/test_land.py",
    "land kafka": "needs the brokers of the page; run by tests/examples",
    "verify --database": "needs the database of the page",
    "channels move": "needs the sessions of the page; run by tests/cli/test_moving_channels.py",
}
"""Commands that are not run here, by how they begin."""


def datacoord_commands(page: Path) -> list[list[str]]:
    """The arguments of every `datacoord` in the blocks of a page."""
    found = []
    for command in in_blocks(text(page)):
        words = list(dropwhile(ASSIGNMENT.match, command))
        if words and Path(words[0]).name == "datacoord":
            found.append(words[1:])
    return found


def excuse_of(arguments: list[str]) -> str | None:
    """Why a command is not run here; None = it is."""
    return next((begin for begin in EXCUSED if " ".join(arguments).startswith(begin)), None)


def test_every_excuse_is_used() -> None:
    """An excuse for a command that no page has any more hides the next one that begins so."""
    said = {
        excuse_of(arguments) for page in pages() if page.name not in ELSEWHERE for arguments in datacoord_commands(page)
    }
    assert said - {None} == set(EXCUSED)
    assert {page.name for page in pages()} >= set(ELSEWHERE)


@pytest.mark.timeout(240)
def test_the_commands_of_the_pages_do_what_they_say(tmp_path: Path) -> None:
    """A command that is copied from a page into a terminal at night must not be refused."""
    with running(tmp_path / "data") as coordinator, CoordinatorClient(coordinator.address) as client:
        client.create_collection(definition("files"))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DATACOORD_")},
            "DATACOORD_ADDRESS": coordinator.address,
            "DATACOORD_DATA_DIR": str(tmp_path / "data"),
            "PYTHONPATH": str(ROOT),
        }
        ran = []
        for page in pages():
            for arguments in datacoord_commands(page) if page.name not in ELSEWHERE else []:
                if excuse_of(arguments) is not None:
                    continue
                given = ["files" if word == "[COLLECTION]" else word for word in arguments]
                done = run([sys.executable, "-m", "datacoord.cli", *given], environment=environment)
                assert done.returncode == 0, f"{page.name}: datacoord {' '.join(given)}: {done.stdout}{done.stderr}"
                ran.append(given[0])
        assert {"stuck", "gc", "verify", "channels", "collections"} <= set(ran)
