"""The commands of docs/backup.md, to be run as they stand there, but for the names of the reader's server, databases and files."""

import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from support.commands import ROOT, run
from support.postgres import PostgresServer

SERVER = "postgresql://datacoord@db.example"
"""Of the page."""
EMBEDDED = "datacoord-data/datacoord.db"
COPY = "backup.db"
DUMP, DATABASE, RESTORED = "datacoord.dump", "datacoord", "datacoord_restored"

_PYTHONS = """
import sqlite3, sys
database, statement = sys.argv[1:]
connection = sqlite3.connect(database)
if statement.startswith(".backup "):
    connection.backup(sqlite3.connect(statement.split()[1]))
else:
    connection.execute(statement)
"""
"""As the page says: `sqlite3.Connection.backup` does what the shell's `.backup` does."""
SHELLS = [[sys.executable, "-c", _PYTHONS], *([found] for found in [shutil.which("sqlite3")] if found)]
"""What runs the page's commands for SQLite: Python's library, and the shell itself where the machine has it."""

_PAGE = ROOT / "docs" / "backup.md"


@cache
def commands(chapter: str) -> tuple[tuple[str, ...], ...]:
    """The words of each command in the first `sh` block of a chapter."""
    text = _PAGE.read_text(encoding="utf-8").split(f"\n## {chapter}\n", 1)[1].split("\n## ", 1)[0]
    block = re.search(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block is not None, f"the chapter {chapter} of {_PAGE} has no commands"
    lines = [tuple(shlex.split(line, comments=True)) for line in block.group(1).splitlines()]
    return tuple(words for words in lines if words)


def sqlite_copies() -> list[list[str]]:
    """The page's ways to copy a database of SQLite, as words for its shell: the database, and what to do with it."""
    found = []
    for program, *arguments in commands("SQLite"):
        assert program == "sqlite3"
        assert arguments[0] == EMBEDDED
        assert len(arguments) == 2
        assert COPY in arguments[1]
        found.append(arguments)
    return found


def statement_of_copy(copy: Path) -> str:
    """The page's statement that copies a database, for those who have it open."""
    (statement,) = (statement for _, statement in sqlite_copies() if not statement.startswith("."))
    return statement.replace(COPY, str(copy))


def copy_sqlite(arguments: Sequence[str], database: Path, copy: Path, *, shell: Sequence[str] = ()) -> None:
    """Copies a database in a process of its own, with SQLite's shell or, where there is none, with Python's library.

    Args:
        arguments: one of `sqlite_copies`.
        database: instead of the page's.
        copy: instead of the page's.
        shell: which one; empty = the best there is.
    """
    replaced = [argument.replace(EMBEDDED, str(database)).replace(COPY, str(copy)) for argument in arguments]
    done = run([*(shell or SHELLS[-1]), *replaced])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def postgresql_commands(url: str, restored: str, dump: str) -> dict[str, list[str]]:
    """The page's commands by program, with these instead of the page's databases and its file.

    Args:
        url: of the database, as PostgreSQL's programs take it.
        restored: of the one it is restored into.
        dump: the file between them.
    """
    names: Mapping[str, str] = {
        f"{SERVER}/{RESTORED}": restored,
        f"{SERVER}/{DATABASE}": url,
        RESTORED: restored.rsplit("/", 1)[-1],
        DUMP: dump,
    }
    pattern = re.compile("|".join(sorted(map(re.escape, names), key=len, reverse=True)))
    found = {}
    for program, *arguments in commands("PostgreSQL"):
        replaced = [pattern.sub(lambda match: names[match.group()], word) for word in arguments]
        assert replaced != arguments, f"{program} names nothing of the page's"
        found[program] = replaced
    assert list(found) == ["pg_dump", "createdb", "pg_restore"], (
        "the page backs up in another way: these tests must, too"
    )
    return found


class PostgresqlBackup:
    """A copy of a database, taken and restored with the page's commands.

    Args:
        server: of both databases.
        url: of the database.
        restored: of the other one.
    """

    def __init__(self, server: PostgresServer, url: str, restored: str) -> None:
        dump = f"{restored.rsplit('/', 1)[-1]}.dump"
        self._server = server
        self._page = postgresql_commands(_conninfo(url), _conninfo(restored), dump)

    def take(self) -> None:
        """Takes the copy, as the database is now."""
        self._server.run("pg_dump", *self._page["pg_dump"])

    def create(self) -> None:
        """Makes the other database."""
        where = ("--host=127.0.0.1", f"--port={self._server.port}", "--username=datacoord")
        self._server.run("createdb", *where, *self._page["createdb"])

    def load(self) -> None:
        """Restores the copy into the other database."""
        self._server.run("pg_restore", *self._page["pg_restore"])


def _conninfo(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")
