"""Stages on each kind of database, and copies of the database as a backup makes them."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from store.conftest import logs
from store.databases import Databases
from support.postgres import PostgresServer
from verify.stage import Stage

from coordinator.store import sqlite_driver

from .backup_page import PostgresqlBackup, statement_of_copy

__all__ = ["logs"]

Backup = Callable[[], Callable[[], str]]
"""Takes a copy of a database that is in use; the result gives the URL of a database that is what it was then."""


@pytest.fixture
async def stage(databases: Databases, tmp_path: Path) -> AsyncIterator[Stage]:
    """Two collections, a datanode and a claimant; nothing has landed."""
    stage = await Stage(databases.migrated(), tmp_path).open()
    yield stage
    await stage.world.store.close()


def backup_sqlite(url: str, copy: Path) -> None:
    """By the statement of docs/backup.md. The store is one of this process, where no second library may open its file."""
    connection = sqlite_driver.connect(url.removeprefix("sqlite:///"), busy_timeout_ms=30_000)
    connection.execute(statement_of_copy(copy))
    connection.close()


@pytest.fixture
def backup(stage: Stage, databases: Databases, tmp_path: Path, request: pytest.FixtureRequest) -> Backup:
    """Backups of the stage's database, by the commands of docs/backup.md."""
    if databases.kind == "sqlite":
        copy = tmp_path / "backup.db"

        def take_sqlite() -> Callable[[], str]:
            backup_sqlite(stage.url, copy)
            return lambda: f"sqlite:///{copy}"

        return take_sqlite
    server: PostgresServer = request.getfixturevalue("postgres_server")

    def take_postgresql() -> Callable[[], str]:
        url = databases.empty()
        taken = PostgresqlBackup(server, stage.url, url)
        taken.take()

        def load() -> str:
            taken.load()
            return url

        return load

    return take_postgresql
