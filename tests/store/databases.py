"""Databases for tests, of both kinds, made once and used again: what one test wrote is deleted for the next."""

import shutil
import uuid
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from support.postgres import PostgresServer

from coordinator.store import migrate
from coordinator.store.tables import metadata

KINDS = ("sqlite", "postgresql")

_CLEAN_SECONDS_MAX = 5
_SEQUENCES = (("binlogs", "binlog_id"), ("events", "event_id"))


class Templates:
    """Databases of one kind for a whole run.

    Args:
        kind: one of KINDS.
        directory: for files.
        server: of PostgreSQL; None for SQLite.
    """

    def __init__(self, kind: str, directory: Path, server: PostgresServer | None) -> None:
        self.kind = kind
        self.server = server
        self.directory = directory
        self._clean: list[str] = []
        self._template = f"template_{uuid.uuid4().hex[:12]}"
        migrate.upgrade(self.empty(self._template))
        self._seeded = self._read_seeded() if server is not None else {}

    def empty(self, name: str) -> str:
        """URL of a new database without a schema."""
        if self.server is None:
            return f"sqlite:///{self.directory / f'{name}.db'}"
        return self.server.create_database(name)

    def take(self) -> str:
        """URL of a database with the schema of the head revision, and nothing in it."""
        if self._clean:
            return self._clean.pop()
        name = f"test_{uuid.uuid4().hex[:12]}"
        if self.server is None:
            shutil.copyfile(self.directory / f"{self._template}.db", self.directory / f"{name}.db")
            return self.empty(name)
        with psycopg.connect(_conninfo(self.server.url("postgres")), autocommit=True) as connection:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(self._template)))
        return self.server.url(name)

    def give_back(self, url: str) -> None:
        """Cleans a database that `take` gave, and keeps it for another test; one that cannot be cleaned is dropped."""
        if self.server is None:
            path = Path(url.removeprefix("sqlite:///"))
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()
            return
        try:
            self._delete_everything(url)
        except psycopg.Error:
            self.drop(url)
        else:
            self._clean.append(url)

    def drop(self, url: str) -> None:
        """Removes a database of the server."""
        if self.server is not None:
            self.server.drop_database(url.rsplit("/", 1)[-1])

    def _delete_everything(self, url: str) -> None:
        # Cheaper than TRUNCATE, which makes new files for each table, and far cheaper than a new database.
        with psycopg.connect(_conninfo(url)) as connection:
            connection.execute(f"SET statement_timeout = '{_CLEAN_SECONDS_MAX}s'")
            for table in reversed(metadata.sorted_tables):
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))
            for table_name, column in _SEQUENCES:
                connection.execute("SELECT setval(pg_get_serial_sequence(%s, %s), 1, false)", (table_name, column))
            for table_name, rows in self._seeded.items():
                values = sql.SQL(", ").join([sql.Placeholder()] * len(rows[0]))
                statement = sql.SQL("INSERT INTO {} VALUES ({})").format(sql.Identifier(table_name), values)
                connection.cursor().executemany(statement, rows)
            connection.execute("UPDATE alembic_version SET version_num = %s", (migrate.head(),))

    def _read_seeded(self) -> dict[str, list[tuple[Any, ...]]]:
        # What the migrations put into the tables: it has to be there again for the next test.
        assert self.server is not None
        with psycopg.connect(_conninfo(self.server.url(self._template))) as connection:
            rows = {
                table.name: connection.execute(
                    sql.SQL("SELECT * FROM {}").format(sql.Identifier(table.name))
                ).fetchall()
                for table in metadata.sorted_tables
            }
        return {name: found for name, found in rows.items() if found}


class Databases:
    """The databases of one test.

    Attributes:
        kind: one of KINDS.
    """

    def __init__(self, templates: Templates) -> None:
        self.kind = templates.kind
        self._templates = templates
        self._taken: list[str] = []
        self._empty: list[str] = []

    def empty(self) -> str:
        """URL of a database without a schema."""
        self._empty.append(self._templates.empty(f"empty_{uuid.uuid4().hex[:12]}"))
        return self._empty[-1]

    def migrated(self) -> str:
        """URL of a database with the schema of the head revision."""
        self._taken.append(self._templates.take())
        return self._taken[-1]

    def give_back(self, url: str) -> None:
        """A database that the test needs no more, where it needs many."""
        self._taken.remove(url)
        self._templates.give_back(url)

    def close(self) -> None:
        """After the test."""
        while self._taken:
            self._templates.give_back(self._taken.pop())
        for url in self._empty:
            self._templates.drop(url)


def _conninfo(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")
