"""A coordinator that starts asks its database whether what it acknowledges will survive: it says what it hears, or ends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.postgres import SHARED_SETTINGS, PostgresServer

from coordinator.store import migrate
from datacoord.errors import ConfigInvalidError
from server.running_coordinator import CoordinatorThread, running

WARNING = "database_may_lose_acknowledged_writes"

_LOSES_SETTINGS = """
CREATE FUNCTION lose_settings() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('synchronous_commit', 'off', false); END $$;
CREATE EVENT TRIGGER loses_settings ON login EXECUTE FUNCTION lose_settings();
ALTER EVENT TRIGGER loses_settings ENABLE ALWAYS;
"""
"""Of a database: every session that begins has another setting than it asked for, as behind a pooler that drops them."""


@pytest.fixture
def migrated_url(postgres_url: str) -> str:
    """A database with the schema of the head revision, of this test alone."""
    migrate.upgrade(postgres_url)
    return postgres_url


@pytest.fixture
def strong_url() -> Iterator[str]:
    """The same on a server with its default settings."""
    server = PostgresServer()
    try:
        server.start()
        url = server.create_database("strong")
        migrate.upgrade(url)
        yield url
    finally:
        server.remove()


def execute(url: str, statements: str) -> None:
    """Runs statements as an administrator."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statements.encode())


def said(output: str) -> list[dict[str, Any]]:
    """Lines of a log that warn of the database."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert "listening" in {line["event"] for line in lines}, "it has not served"
    return [line for line in lines if line["event"] == WARNING]


def test_a_coordinator_on_a_weak_server_says_so_when_it_starts(
    migrated_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has inherited a server with fsync off must hear of it before the power fails: nothing else ever shows it."""
    name = migrated_url.rsplit("/", 1)[-1]
    execute(migrated_url, f"ALTER DATABASE {name} SET zero_damaged_pages = on")

    with running(tmp_path / "data", database_url=migrated_url, storage_root=str(tmp_path / "objects")):
        (warning,) = said(capsys.readouterr().out)

    assert warning["level"] == "warning"
    weak = {setting: SHARED_SETTINGS[setting] for setting in ("fsync", "full_page_writes")}
    assert warning["settings"] == {**weak, "zero_damaged_pages": "on"}


def test_a_coordinator_on_a_server_as_it_should_be_says_nothing(
    strong_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning that is always there is never read."""
    with running(tmp_path / "data", database_url=strong_url, storage_root=str(tmp_path / "objects")):
        assert said(capsys.readouterr().out) == []


def test_a_coordinator_whose_sessions_are_weakened_does_not_serve(migrated_url: str, tmp_path: Path) -> None:
    """It would acknowledge what the server has not written down, and lose it with the server's power."""
    execute(migrated_url, _LOSES_SETTINGS)

    with pytest.raises(ConfigInvalidError, match="synchronous_commit is 'off'"):
        CoordinatorThread(tmp_path / "data", database_url=migrated_url, storage_root=str(tmp_path / "objects"))
