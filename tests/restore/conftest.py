"""Stages on each kind of database, and copies of the database as a backup makes them."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from store.conftest import logs
from store.databases import Databases
from support.postgres import PostgresServer
from verify.stage import Stage

from coordinator.store import sqlite_driver

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
    """As docs/backup.md says: one statement beside a running coordinator."""
    connection = sqlite_driver.connect(url.removeprefix("sqlite:///"), busy_timeout_ms=30_000)
    connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()


@pytest.fixture
def backup(stage: Stage, databases: Databases, tmp_path: Path, request: pytest.FixtureRequest) -> Backup:
    """Backups of the stage's database."""
    if databases.kind == "sqlite":
        copy = tmp_path / "backup.db"

        def take_sqlite() -> Callable[[], str]:
            backup_sqlite(stage.url, copy)
            return lambda: f"sqlite:///{copy}"

        return take_sqlite
    server: PostgresServer = request.getfixturevalue("postgres_server")

    def take_postgresql() -> Callable[[], str]:
        dump = server.run("pg_dump", _conninfo(stage.url))

        def load() -> str:
            url = databases.empty()
            server.run("psql", "--quiet", "--set=ON_ERROR_STOP=1", _conninfo(url), given=dump)
            return url

        return load

    return take_postgresql


def _conninfo(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")
