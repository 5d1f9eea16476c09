"""Databases for tests, copied from a migrated one: SQLite, and PostgreSQL where DATACOORD_TEST_POSTGRES_URL names a server."""

import os
import shutil
import uuid
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from coordinator.store import migrate

POSTGRES_VARIABLE = "DATACOORD_TEST_POSTGRES_URL"


def kinds() -> list[str]:
    """The databases that can be tested here."""
    return ["sqlite", *(["postgresql"] if os.environ.get(POSTGRES_VARIABLE) else [])]


class Databases:
    """Makes databases of one kind."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self._made: list[str] = []
        self._template = self._empty("template")
        migrate.upgrade(self._template)

    def empty(self) -> str:
        """URL of a database without a schema."""
        return self._empty(f"empty_{uuid.uuid4().hex[:12]}")

    def migrated(self) -> str:
        """URL of a database with the schema of the head revision."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        if self.kind == "sqlite":
            path = self._directory / f"{name}.db"
            shutil.copyfile(self._directory / "template.db", path)
            return f"sqlite:///{path}"
        return self._create(name, f' TEMPLATE "{make_url(self._template).database}"')

    def _empty(self, name: str) -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self._directory / f'{name}.db'}"
        return self._create(f"{name}_{uuid.uuid4().hex[:8]}", "")

    def _create(self, name: str, how: str) -> str:
        self._administer(f'CREATE DATABASE "{name}"{how}')
        self._made.append(name)
        url = make_url(os.environ[POSTGRES_VARIABLE]).set(drivername="postgresql+psycopg", database=name)
        return url.render_as_string(hide_password=False)

    def _administer(self, statement: str) -> None:
        url = make_url(os.environ[POSTGRES_VARIABLE]).set(drivername="postgresql+psycopg")
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()

    def remove(self) -> None:
        """Removes every database it made."""
        for name in self._made:
            self._administer(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
