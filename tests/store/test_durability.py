"""Settings of the database: what durability needs is set for our sessions, whatever others set, and the rest is looked at."""

import asyncio
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import event, text
from support.postgres import SHARED_SETTINGS, PostgresServer

from coordinator.store import Store, migrate
from coordinator.store.durability import weak_settings
from coordinator.store.sqlite_driver import SqliteConnection
from datacoord.errors import ConfigInvalidError, StoreUnavailableError

from .databases import Databases
from .support import Clock, ScriptedFaults, World, settings

ONLY_POSTGRESQL = pytest.mark.parametrize("templates", ["postgresql"], indirect=True)
SQLITE = {"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1"}
POSTGRESQL = {
    "synchronous_commit": "on",
    "transaction_read_only": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "data_sync_retry": "off",
    "zero_damaged_pages": "off",
}


async def test_a_store_says_which_settings_of_its_server_are_weak(world: World) -> None:
    """An operator who has inherited a server with fsync off must hear of it before the power fails."""
    weak = await world.store.weak_settings()

    expected = {n: v for n, v in SHARED_SETTINGS.items() if n in POSTGRESQL} if "postgresql" in world.url else {}
    assert weak == expected


@pytest.mark.parametrize("shown", [SQLITE, POSTGRESQL, {**POSTGRESQL, "synchronous_commit": "remote_apply"}])
def test_settings_as_they_should_be_are_not_talked_about(shown: dict[str, str]) -> None:
    """A warning that is always there is never read."""
    assert weak_settings(shown) == {}


@pytest.mark.parametrize(
    ("shown", "name", "value"),
    [
        (SQLITE, "journal_mode", "delete"),
        (SQLITE, "synchronous", "1"),
        (SQLITE, "foreign_keys", "0"),
        (POSTGRESQL, "synchronous_commit", "off"),
        (POSTGRESQL, "synchronous_commit", "local"),
        (POSTGRESQL, "transaction_read_only", "on"),
    ],
)
def test_a_session_that_is_not_as_we_set_it_is_refused(shown: dict[str, str], name: str, value: str) -> None:
    """Then something between us and the database drops settings, and acknowledged writes are not durable."""
    with pytest.raises(ConfigInvalidError, match=f"{name} is '{value}'"):
        weak_settings({**shown, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("fsync", "off"), ("full_page_writes", "off"), ("data_sync_retry", "on"), ("zero_damaged_pages", "on")],
)
def test_a_weak_server_is_named(name: str, value: str) -> None:
    """It may be meant; but it must be said."""
    assert weak_settings({**POSTGRESQL, name: value}) == {name: value}


def test_a_weak_server_is_named_with_all_that_is_weak_about_it() -> None:
    """Whoever mends what was named, and is told of the next one at the next start, stops reading."""
    weak = {"fsync": "off", "full_page_writes": "off", "data_sync_retry": "on", "zero_damaged_pages": "on"}
    assert weak_settings({**POSTGRESQL, **weak}) == weak


@pytest.mark.parametrize("scope", ["DATABASE {database}", "ROLE {role}", "ROLE {role} IN DATABASE {database}"])
async def test_what_an_administrator_set_for_a_role_or_a_database_does_not_weaken_our_sessions(
    postgres_server: PostgresServer, scope: str
) -> None:
    """`ALTER ROLE … SET synchronous_commit = off` was done years ago for a batch job, and nobody remembers."""
    database, role = f"weak_{uuid.uuid4().hex[:12]}", f"role_{uuid.uuid4().hex[:12]}"
    url = postgres_server.create_database(database).replace("datacoord@", f"{role}@")
    admin = psycopg.connect(postgres_server.url("postgres").replace("+psycopg", ""), autocommit=True)
    admin.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
    target = scope.format(database=database, role=role)
    for name, value in (("synchronous_commit", "off"), ("default_transaction_isolation", "'repeatable read'")):
        admin.execute(f"ALTER {target} SET {name} = {value}".encode())
    migrate.upgrade(url)

    world = await World(url, Clock(), ScriptedFaults()).open()
    await world.create()
    await world.store.weak_settings()
    await world.store.close()
    postgres_server.drop_database(database)
    admin.execute(f"DROP ROLE {role}".encode())
    admin.close()


@ONLY_POSTGRESQL
async def test_a_database_that_takes_no_writes_is_refused_with_a_sentence(
    databases: Databases, postgres_server: PostgresServer
) -> None:
    """A standby, or one that was made read-only: found at start, not by the first datanode that saves."""
    url = databases.migrated()
    name = url.rsplit("/", 1)[-1]
    with psycopg.connect(postgres_server.url("postgres").replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        with pytest.raises(StoreUnavailableError, match="read-only"):
            await Store.open(url, settings())
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())


@ONLY_POSTGRESQL
async def test_a_pooler_that_loses_our_settings_is_found_at_start(databases: Databases) -> None:
    """It hands out sessions that others have used, and drops what a client asks for when it connects."""
    world = await World(databases.migrated(), Clock(), ScriptedFaults()).open()

    @event.listens_for(world.store._database._writer, "connect")
    def _weaken(connection: psycopg.Connection, _entry: object) -> None:
        connection.execute("SET synchronous_commit = off")
        connection.commit()

    world.store._database._close_writer()
    with pytest.raises(ConfigInvalidError, match="synchronous_commit"):
        await world.store.weak_settings()
    await world.store.close()


async def test_a_sqlite_file_that_cannot_have_a_write_ahead_log_is_refused(sqlite_world: World) -> None:
    """Where SQLite cannot do WAL (some network file systems) it stays with another journal and says nothing."""

    @event.listens_for(sqlite_world.store._database._writer, "connect")
    def _without_wal(connection: SqliteConnection, _entry: object) -> None:
        connection.execute("PRAGMA journal_mode=DELETE")

    sqlite_world.store._database._close_writer()
    sqlite_world.store._database._reader._engine.dispose()
    with pytest.raises(ConfigInvalidError, match="journal_mode is 'delete'"):
        await sqlite_world.store.weak_settings()


async def test_readers_are_set_up_like_the_writer(world: World) -> None:
    """A reader that checkpoints the log without syncing it would lose what the writer had made durable."""

    async def shown(statement: str) -> object:
        return await world.store._database.read(lambda connection: connection.execute(text(statement)).scalar())

    if "postgresql" in world.url:
        assert await shown("SHOW transaction_read_only") == "on"
        assert await shown("SHOW synchronous_commit") == "on"
    else:
        assert await shown("PRAGMA journal_mode") == "wal"
        assert await shown("PRAGMA synchronous") == 2


@pytest.fixture(scope="module")
def standby(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A standby of the suite's server."""
    server = PostgresServer(SHARED_SETTINGS, standby_of=postgres_server)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@ONLY_POSTGRESQL
async def test_a_standby_is_refused_with_a_sentence(databases: Databases, standby: PostgresServer) -> None:
    """It answers reads, of a while ago: a coordinator on it would look alive."""
    url = standby.url(databases.migrated().rsplit("/", 1)[-1])

    async def refused() -> str:
        with pytest.raises(StoreUnavailableError) as raised:
            await Store.open(url, settings())
        return raised.value.message

    async with asyncio.timeout(30):
        # The database has to arrive there first.
        while "does not exist" in (said := await refused()):  # noqa: ASYNC110 - another server
            await asyncio.sleep(0.05)
    assert "read-only" in said


@ONLY_POSTGRESQL
async def test_of_several_hosts_the_one_that_takes_writes_is_chosen_for_reads_too(
    databases: Databases, postgres_server: PostgresServer, standby: PostgresServer
) -> None:
    """Read from the standby, an acknowledged save would not be seen yet."""
    database = databases.migrated().rsplit("/", 1)[-1]
    hosts = f"host=127.0.0.1:{standby.port}&host=127.0.0.1:{postgres_server.port}"
    world = await World(f"postgresql://datacoord@/{database}?{hosts}", Clock(), ScriptedFaults()).open()
    await world.create()

    database_of = world.store._database
    for connect in (database_of._connect, database_of._reader._engine.connect):
        with connect() as connection:
            assert connection.execute(text("SELECT inet_server_port()")).scalar() == postgres_server.port
    assert (await world.store.describe_collection("t")).channel_names == world.channels
    await world.store.close()
