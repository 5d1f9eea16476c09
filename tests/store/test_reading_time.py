"""A read that nobody waits for any more ends in the database too."""

import asyncio
import threading
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection
from support.waiting import eventually, eventually_in_thread, joined

from coordinator.store.databases import database_kind
from coordinator.store.engine import Database
from datacoord.errors import StoreUnavailableError

from .databases import Databases

READERS = 4
"""As many reads as there may be at once."""
LONG = text("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")
"""Without end, on either database."""
PATIENCE_SECONDS = 20.0
on_postgresql = pytest.mark.parametrize("templates", ["postgresql"], indirect=True)


@pytest.fixture
async def database(databases: Databases) -> AsyncIterator[Database]:
    """A database with the schema."""
    opened = Database(databases.migrated(), busy_timeout_ms=60_000)
    yield opened
    await opened.close()


def statements_of_readers(url: str) -> int:
    """How many statements sessions for reading run now."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'datacoord-reader' AND state = 'active' "
            "AND datname = current_database()"
        )
        row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


def answer(connection: Connection) -> object:
    """What any database can say at once."""
    return connection.execute(text("SELECT 1")).scalar()


def test_a_statement_is_ended_from_another_thread(databases: Databases) -> None:
    """Each database has a way of its own, and one that ends nothing would be noticed by nobody."""
    url = databases.migrated()
    kind = database_kind(url)
    engine = kind.reader(1000)
    failed: list[Exception] = []
    begun = threading.Event()
    with engine.connect() as connection:
        driver = connection.connection.driver_connection

        def count() -> None:
            begun.set()
            try:
                connection.execute(LONG)
            except Exception as error:  # noqa: BLE001 - looked at below
                failed.append(error)

        counting = threading.Thread(target=count)
        counting.start()
        assert begun.wait(PATIENCE_SECONDS)

        def ended() -> bool:
            kind.end_statement(driver)
            return not counting.is_alive()

        eventually(ended, PATIENCE_SECONDS)
        joined(counting)
        connection.invalidate()
    engine.dispose()
    assert len(failed) == 1


@on_postgresql
async def test_reads_whose_time_is_over_leave_their_connections_to_others(
    database: Database, databases: Databases
) -> None:
    """Four lists that nobody waits for would hold all reads of a coordinator, and its readiness, for a minute."""
    url = database.kind.url
    reads = [asyncio.create_task(database.read(lambda c: c.execute(LONG).scalar())) for _ in range(READERS + 2)]
    await eventually_in_thread(lambda: statements_of_readers(url) == READERS)
    for read in reads:
        read.cancel()
    ended = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in ended)

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await database.read(answer) == 1
    await eventually_in_thread(lambda: statements_of_readers(url) == 0)


@on_postgresql
async def test_a_read_that_is_given_up_between_two_statements_ends_at_the_next_one(database: Database) -> None:
    """The server is asked to end what it runs now: what begins a moment later would run to its end."""
    between, go_on = threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        answer(connection)
        between.set()
        assert go_on.wait(PATIENCE_SECONDS)
        connection.execute(LONG)

    read = asyncio.create_task(database.read(work))
    await eventually_in_thread(between.is_set)
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    go_on.set()
    await eventually_in_thread(lambda: statements_of_readers(database.kind.url) == 0)


@on_postgresql
async def test_the_end_of_one_read_does_not_end_another_one(database: Database) -> None:
    """The server may hear late that it shall end a statement: it would then be somebody else's, on the same connection."""
    for _ in range(30):
        read = asyncio.create_task(database.read(lambda c: c.execute(text("SELECT pg_sleep(0.01)")).scalar()))
        await asyncio.sleep(0.01)
        read.cancel()
        await asyncio.gather(read, return_exceptions=True)
        others = await asyncio.gather(*(database.read(answer) for _ in range(READERS)), return_exceptions=True)
        assert others == [1] * READERS
    assert not any(isinstance(other, StoreUnavailableError) for other in others)


@on_postgresql
async def test_closing_waits_for_no_read_that_was_given_up(databases: Databases) -> None:
    """A coordinator that is stopped would wait for a minute for what nobody waits for, and be killed."""
    database = Database(databases.migrated(), busy_timeout_ms=60_000)
    read = asyncio.create_task(database.read(lambda c: c.execute(LONG).scalar()))
    await eventually_in_thread(lambda: statements_of_readers(database.kind.url) == 1)
    read.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(read, return_exceptions=True)
        await database.close()
