"""What only PostgreSQL can do to a write: other sessions' locks, deadlocks, a server that goes away, a COMMIT that only warns."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import BigInteger, LargeBinary, SmallInteger, Text, event, select, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from coordinator.core.model import Outcome
from coordinator.store import driver_statement
from coordinator.store.engine import WriteFailedError
from coordinator.store.tables import epochs
from coordinator.store.verify import verify
from datacoord.errors import CommitOutcomeUnknownError, StoreUnavailableError

from .databases import Databases, Templates
from .other_session import Session, until_waiting
from .support import CALLER, Clock, ScriptedFaults, World, lane, position, reasons, save

SCANS = {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan"}
PREPARED_AFTER = 8
"""More executions than psycopg waits for before it prepares a statement."""

pytestmark = pytest.mark.parametrize("templates", ["postgresql"], indirect=True)


@pytest.fixture
async def other(world: World) -> AsyncIterator["Session"]:
    """Another session of the same database."""
    session = Session(world.url)
    yield session
    session.close()


@pytest.mark.parametrize("how", ["save", "move"])
async def test_a_zombie_that_waits_for_a_claim_in_progress_is_fenced_by_it(
    world: World, other: Session, how: str
) -> None:
    """Joined without a lock the fence reads a snapshot: the zombie's write goes through behind the claimant's back."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    await world.move(channel, 1, epoch=epoch)  # so that the next one may take the fast path
    other.take(channel)
    writing = asyncio.get_running_loop().create_task(
        world.save(channel, lane(world.default, 0, 5), epoch=epoch, checkpoint=5)
        if how == "save"
        else world.move(channel, 5, epoch=epoch)
    )
    await until_waiting(other)
    other.connection.commit()

    assert reasons([await writing]) == ["FENCED"]
    assert (await world.info(channel)).checkpoint.timestamp == 1
    assert await world.registered(channel) == {}


async def test_a_save_that_waited_for_another_one_sees_what_that_one_registered(world: World, other: Session) -> None:
    """Read before it waits, the progress of the lane would still be the old one, and the rows would be registered twice."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    await world.move(channel, 1, epoch=epoch)  # so that the save may go the usual way
    other.lock(channel)
    sent = save(channel, epoch, lane(world.default, 0, 5), checkpoint=5)
    saving = asyncio.get_running_loop().create_task(world.store.save_binlog_paths([sent], caller=CALLER))
    await until_waiting(other)
    other.connection.execute(
        "INSERT INTO lanes (channel_id, partition_id, progress) SELECT channel_id, %s, 5 FROM vchannels WHERE name = %s",
        (world.default, channel),
    )
    other.connection.commit()

    assert reasons(await saving) == ["APPLIED"], "its checkpoint"
    assert await world.registered(channel) == {}


NOBODY_COUNTS = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema()
    LOOP EXECUTE 'ALTER TABLE ' || quote_ident(name) || ' SET (autovacuum_enabled = off)'; END LOOP;
    DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace);
    UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE relnamespace = current_schema()::regnamespace;
END $$
"""
"""The server does not count the tables' rows and forgets that it did: another test may have had this database for minutes. Only a
superuser, as which the tests run it, may say so."""


@pytest.mark.parametrize("counted", [False, True], ids=["never counted", "counted while empty"])
async def test_a_bulk_statement_finds_each_row_by_its_key(world: World, counted: bool) -> None:
    """Planned while a table is nearly empty, a statement may walk a whole index for every row, and goes on so when it is full."""
    await world.store._database.write(lambda connection, _now_ms: connection.exec_driver_sql(NOBODY_COUNTS))
    if counted:
        with psycopg.connect(world.url.replace("+psycopg", ""), autocommit=True) as session:
            session.execute("VACUUM (ANALYZE)")
    await world.start_datanode()
    name = world.channels[0]
    epoch = await world.epoch(name)
    for start in range(0, 20 * PREPARED_AFTER, 10):
        await world.save(
            name, lane(world.default, start, start + 5, seal=start % 20 == 0), epoch=epoch, checkpoint=start + 5
        )
        await world.save(name, lane(world.default, start + 5, start + 10), epoch=epoch)
        await world.move(name, start + 10, epoch=epoch)

    scans = {}
    with world.store._database._connect() as connection:
        prepared = connection.execute(
            text("SELECT name, statement, parameter_types::text[] FROM pg_prepared_statements")
        )
        for number, statement, types in prepared.all():
            nothing = ", ".join(f"NULL::{kind}" for kind in types)
            explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) EXECUTE {number}({nothing})").scalar_one()
            if "unnest" in statement:
                scans[statement] = [node for node in nodes_of(explained[0]["Plan"]) if node["Node Type"] in SCANS]
    written = {"UPDATE segments", "UPDATE lanes", "UPDATE channel_state", "WITH changed"}
    assert written <= {" ".join(s.split()[:2]) for s in scans}
    for statement, found in scans.items():
        for node in found:
            # Every call is about a channel, so its table may lead, once: a handful of rows is walked until they are counted again.
            leads = (
                counted and node.get("Relation Name") == "channel_state" and node.get("Parent Relationship") == "Outer"
            )
            assert "Index Cond" in node or leads, f"{statement}: {node}"


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """A plan and all below it."""
    return [plan, *(node for below in plan.get("Plans", ()) for node in nodes_of(below))]


_COLUMNS: list[tuple[type[TypeEngine[Any]], list[list[Any]]]] = [
    (BigInteger, [[0], [-(2**63), 2**63 - 1, 5], [1, None, -1], [None]]),
    (SmallInteger, [[1, 2, 3], [-(2**15), None, 2**15 - 1]]),
    (Text, [["", ""], ["a", "b"], ["a", "ß", ""], ["one"]]),
    (LargeBinary, [[b"", b""], [b"\x00\xff", b"ab"], [b"a", b"", b"abc"], [bytes(300)] * 3]),
]


@pytest.mark.parametrize(("kind", "columns"), _COLUMNS)
def test_an_array_means_to_the_server_what_it_was_made_of(
    kind: type[TypeEngine[Any]], columns: list[list[Any]], other: Session
) -> None:
    """We write its binary form ourselves: a length too many moves every value behind it into another row."""
    for values in columns:
        row = other.connection.execute("SELECT %s", (driver_statement._PACKERS[kind](values),)).fetchone()
        assert row == (values,)


async def test_a_lock_that_is_kept_is_waited_for_no_longer_than_the_setting_says(world: World, other: Session) -> None:
    """Somebody's open transaction in a shell must not hang every caller."""
    await world.store.close()
    await world.open(busy_timeout_ms=100)
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    other.lock(channel)
    with pytest.raises(StoreUnavailableError, match="55P03"):
        await world.move(channel, 5, epoch=epoch)
    other.connection.rollback()

    assert (await world.move(channel, 5, epoch=epoch)).outcome is Outcome.APPLIED


async def test_the_rest_of_a_deadline_bounds_the_statement(world: World, other: Session) -> None:
    """A caller that has gone must not hold the one writer, and the rows it has locked, until the lock timeout."""
    await world.store.close()
    await world.open(busy_timeout_ms=100_000)
    channel = world.channels[0]
    part = save(channel, await world.epoch(channel), lane(world.default, 0, 5))
    other.lock(channel)
    deadline = asyncio.get_running_loop().time() + 2.0
    with pytest.raises(StoreUnavailableError, match="57014"):
        await world.store.save_binlog_paths([part], caller=CALLER, deadline=deadline)
    other.connection.rollback()

    # And the bound is gone with the transaction.
    assert await world.store._database.read(lambda c: c.execute(text("SHOW statement_timeout")).scalar()) == "1min"
    assert reasons(await world.store.save_binlog_paths([part], caller=CALLER)) == ["APPLIED"]


async def test_a_writer_that_stands_still_loses_its_locks(world: World) -> None:
    """A stopped process keeps its connection open, and with it every row it has locked, for as long as it is stopped."""
    database = world.store._database
    with database._connect() as connection:
        # The setting is ten seconds (test_engine): nobody waits that long for a test.
        connection.execute(text("SET idle_in_transaction_session_timeout = '2s'"))
        database.kind.begin(connection, None)
        connection.execute(select(epochs).with_for_update())
        with psycopg.connect(world.url.replace("+psycopg", "")) as waiting:
            waiting.execute("SET statement_timeout = '30s'")
            waiting.execute("SELECT * FROM epochs FOR UPDATE")
        connection.invalidate()

    assert (await world.move(world.channels[0], 5)).outcome is Outcome.APPLIED


async def test_two_replicas_that_wait_for_each_other_both_get_through(world: World, other: Session) -> None:
    """A deadlock is certainly not committed: whichever is chosen, it is tried again and nobody hears of it."""
    await world.store.close()
    # A session looks for a deadlock once, so long after it began to wait: not before there is one.
    world.url += "?options=-c%20deadlock_timeout%3D2s"
    await world.open()
    first, second = world.channels
    epochs_ = [await world.epoch(channel) for channel in (first, second)]
    parts = [save(c, e, lane(world.default, 0, 5)) for c, e in zip((first, second), epochs_, strict=True)]
    other.lock(second)
    writing = asyncio.get_running_loop().create_task(world.store.save_binlog_paths(parts, caller=CALLER))
    await until_waiting(other)
    # The store has the first and waits for the second. The server picks a victim: the one that finds the deadlock.
    other.connection.execute("SET deadlock_timeout = '60s'")
    await asyncio.to_thread(other.lock, first)
    other.connection.commit()

    assert reasons(await writing) == ["APPLIED", "APPLIED"]


async def test_a_connection_that_was_ended_while_idle_is_replaced_unnoticed(world: World, other: Session) -> None:
    """An administrator, a firewall, a restart: the next call finds a dead connection in the pool."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    await world.move(channel, 1, epoch=epoch)
    other.end(other.pid_of_writer())

    assert (await world.move(channel, 5, epoch=epoch)).outcome is Outcome.APPLIED


async def test_a_connection_that_breaks_before_commit_is_certainly_not_done(world: World, other: Session) -> None:
    """And one that breaks in COMMIT is unknown: the next test."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    other.lock(channel)
    writing = asyncio.get_running_loop().create_task(world.move(channel, 5, epoch=epoch))
    await until_waiting(other)
    other.end(other.pid_of_writer())
    with pytest.raises(StoreUnavailableError):
        await writing
    other.connection.rollback()

    assert (await world.info(channel)).checkpoint.timestamp == 0
    assert (await world.move(channel, 5, epoch=epoch)).outcome is Outcome.APPLIED


async def test_a_connection_that_breaks_at_commit_is_unknown_and_settled_by_repeating(
    world: World, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for "not done", the client would do something else instead of the same again."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    await world.move(channel, 1, epoch=epoch)
    pid = other.pid_of_writer()

    def break_it() -> None:
        monkeypatch.undo()
        other.end(pid)

    monkeypatch.setattr(world.faults, "commit", break_it)
    with pytest.raises(CommitOutcomeUnknownError):
        await world.move(channel, 5, epoch=epoch)

    assert (await world.move(channel, 5, epoch=epoch)).outcome is not None
    assert (await world.info(channel)).checkpoint == position(5)


WARNS_AT_COMMIT = """
CREATE TEMP TABLE written (n int);
CREATE FUNCTION pg_temp.warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'not replicated'; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER warn AFTER INSERT ON written DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION pg_temp.warn();
INSERT INTO written VALUES (1)
"""


async def test_a_commit_that_warns_is_unknown(world: World) -> None:
    """Cut short while it waits for a synchronous standby, COMMIT warns, and has happened on this server only."""
    with pytest.raises(WriteFailedError) as raised:
        await world.store._database.write(lambda connection, _now_ms: connection.exec_driver_sql(WARNS_AT_COMMIT))

    assert isinstance(raised.value.outcome.error, CommitOutcomeUnknownError)
    assert "not replicated" in str(raised.value.__cause__)
    assert (await world.move(world.channels[0], 5)).outcome is Outcome.APPLIED


async def test_a_failed_transaction_cannot_be_committed(world: World) -> None:
    """PostgreSQL answers COMMIT of one with ROLLBACK and no error: the caller would be told that it was done."""

    def swallow_an_error(connection: Connection, _now_ms: int) -> None:
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 1/0"))

    with pytest.raises(WriteFailedError) as raised:
        await world.store._database.write(swallow_an_error)

    assert isinstance(raised.value.outcome.error, StoreUnavailableError)
    assert (await world.move(world.channels[0], 5)).outcome is Outcome.APPLIED


async def test_a_bounded_number_of_connections_is_used(world: World, other: Session) -> None:
    """The server has a limit that all replicas share: sized as documented, one writer and four readers each."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    await asyncio.gather(
        *(world.info(channel) for _ in range(40)), *(world.move(channel, n, epoch=epoch) for n in range(1, 20))
    )
    row = other.connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'datacoord-%' AND datname = current_database()"
    ).fetchone()

    assert row is not None
    assert 2 <= row[0] <= 5


async def test_what_the_url_says_is_kept_and_durability_wins(templates: Templates, databases: Databases) -> None:
    """A schema in `options` must still be found; a weaker `synchronous_commit` there must not count."""
    url = f"{databases.migrated()}?application_name=mine&options=-c%20search_path%3Dpublic%20-c%20synchronous_commit%3Doff"
    world = await World(url, Clock(), ScriptedFaults()).open()
    shown = []
    for name in ("application_name", "search_path", "synchronous_commit"):
        statement = text(f"SHOW {name}")
        shown.append(await world.store._database.read(lambda c, s=statement: c.execute(s).scalar()))  # type: ignore[misc]
    await world.store.close()

    assert shown == ["mine", "public", "on"]


async def test_a_transaction_without_a_statement_is_not_left_open(world: World) -> None:
    """The connection is kept: it would lie idle in a transaction, with its snapshot, until the server ends it."""
    database = world.store._database
    await database.write(lambda _connection, _now_ms: None)
    with database._connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


def test_verify_may_take_its_time_between_two_statements(databases: Databases) -> None:
    """It looks at a channel within its snapshot: at a large one for longer than a replica that stands still may keep locks."""
    found: set[str] = set()

    def ask(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        name = driver.info.get_parameters().get("application_name")
        if name == "datacoord-reader" and "collections" in statement:
            row = driver.execute("SHOW idle_in_transaction_session_timeout").fetchone()
            assert row is not None
            found.add(row[0])

    event.listen(Engine, "before_cursor_execute", ask)
    try:
        verify(databases.migrated())
    finally:
        event.remove(Engine, "before_cursor_execute", ask)
    assert found == {"1h"}
