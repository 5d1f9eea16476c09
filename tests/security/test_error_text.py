"""Row *Error text*: callers learn what to do, and nothing of how it is made or where it runs."""

import contextlib
from pathlib import Path

import psycopg
import pytest
from server.conftest import client, coordinator
from server.running_coordinator import CoordinatorThread, definition
from sqlalchemy import exc

from coordinator.store import sqlite_driver
from coordinator.store.databases import database_kind
from coordinator.store.engine import sort_error
from datacoord.client import CoordinatorClient
from datacoord.errors import StoreUnavailableError
from datacoord.v1 import collection_pb2
from security.raw import METHODS, RawChannel

__all__ = ["client", "coordinator"]


@pytest.mark.parametrize("committing", [False, True])
def test_what_the_database_says_stays_with_the_coordinator(committing: bool) -> None:
    """A driver's error names hosts, users, statements and values; whoever can make one happen can read them."""
    text = 'connection to server at "db.internal" (10.1.2.3) failed: password authentication failed for user "admin"'
    statement = "SELECT secret FROM vault WHERE pin = %(pin)s"
    error = exc.OperationalError(statement, {"pin": 4711}, psycopg.OperationalError(text))
    told = sort_error(database_kind("postgresql://h/d"), error, committing=committing).error
    shown = told.message + str(told.metadata)
    for part in ("db.internal", "10.1.2.3", "admin", "password", "SELECT", "vault", "4711"):
        assert part not in shown
    assert "log of the coordinator" in shown


def test_a_broken_database_tells_callers_nothing_of_its_tables(
    coordinator: CoordinatorThread,
    client: CoordinatorClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole way, over the wire: a table that is gone is a statement in the driver's message."""
    client.create_collection(definition())
    path = str(tmp_path / "data" / "datacoord.db")
    with contextlib.closing(sqlite_driver.connect(path, busy_timeout_ms=30_000)) as database:
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("ALTER TABLE partitions RENAME TO hidden_place")
    request = collection_pb2.DescribeCollectionRequest(collection_name="files").SerializeToString()
    with RawChannel(coordinator.address) as channel:
        told = channel.call(METHODS["CollectionService.DescribeCollection"], request).error
    assert isinstance(told, StoreUnavailableError)
    shown = told.message + str(told.metadata)
    for part in ("partitions", "SELECT", "Traceback", str(tmp_path), "sqlalche", "no such table"):
        assert part not in shown
    assert "no such table" in capsys.readouterr().out, "whoever runs the coordinator does learn it"
