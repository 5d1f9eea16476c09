"""A PostgreSQL server with its default settings, which tests may crash, and migrated databases on it."""

import uuid
from collections.abc import Iterator

import pytest
from support.postgres import PostgresServer

from coordinator.store import migrate


@pytest.fixture(scope="session")
def crashing_server() -> Iterator[PostgresServer]:
    """A server; whoever crashes it starts it again."""
    # Deadlocks between replicas are rare, and then found soon.
    server = PostgresServer({"deadlock_timeout": "100ms"})
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def database_url(crashing_server: PostgresServer) -> str:
    """A database with the schema of the head revision; it goes with the server."""
    url = crashing_server.create_database(f"replicas_{uuid.uuid4().hex[:12]}")
    migrate.upgrade(url)
    return url
