"""Durability settings, locks of other processes, and what each error of a database means."""

import asyncio
import threading
from types import SimpleNamespace

import apsw
import psycopg
import pytest
from sqlalchemy import exc, text
from sqlalchemy.engine import Connection

from coordinator.core.model import Outcome
from coordinator.store import CheckpointMove, checkpoints, engine, sqlite_driver
from coordinator.store.engine import AgainError, sort_error
from coordinator.store.postgresql import Postgresql
from coordinator.store.sqlite import Sqlite
from coordinator.store.transaction import Transaction
from datacoord.errors import (
    CollectionNotFoundError,
    CommitOutcomeUnknownError,
    InternalError,
    StoreUnavailableError,
)

from .support import CALLER, World, lane, position, sqlite_error

SQLITE = Sqlite("sqlite:///x.db")
POSTGRESQL = Postgresql("postgresql://host/db")


def wrapped(code: int) -> exc.DBAPIError:
    """An error of SQLite as SQLAlchemy passes it on."""
    wrapper = exc.IntegrityError if code == apsw.SQLITE_CONSTRAINT else exc.OperationalError
    return wrapper("statement", None, sqlite_error(code))


def postgres_error(state: str) -> exc.DBAPIError:
    """The same of PostgreSQL; an empty state is a connection that broke."""
    origin = psycopg.errors.lookup(state)("on purpose") if state else psycopg.OperationalError("server closed")
    return exc.OperationalError("statement", None, origin)


CERTAIN, UNKNOWN, BUG = StoreUnavailableError, CommitOutcomeUnknownError, InternalError


@pytest.mark.parametrize(
    ("error", "before", "at_commit"),
    [
        (wrapped(apsw.SQLITE_BUSY), CERTAIN, CERTAIN),
        (wrapped(apsw.SQLITE_LOCKED), CERTAIN, CERTAIN),
        (wrapped(apsw.SQLITE_FULL), CERTAIN, UNKNOWN),
        (wrapped(apsw.SQLITE_IOERR), CERTAIN, UNKNOWN),
        (wrapped(apsw.SQLITE_IOERR_FSYNC), CERTAIN, UNKNOWN),
        (wrapped(apsw.SQLITE_READONLY), CERTAIN, UNKNOWN),
        (wrapped(apsw.SQLITE_CORRUPT), CERTAIN, UNKNOWN),
        (wrapped(apsw.SQLITE_CANTOPEN), CERTAIN, UNKNOWN),
        (wrapped(apsw.SQLITE_CONSTRAINT), BUG, UNKNOWN),
        (OSError("no route to host"), CERTAIN, UNKNOWN),
        (exc.TimeoutError("pool"), CERTAIN, UNKNOWN),
        (RuntimeError("a bug"), BUG, UNKNOWN),
        (CollectionNotFoundError("a rule"), CollectionNotFoundError, CollectionNotFoundError),
    ],
)
def test_errors_of_sqlite(error: Exception, before: type[Exception], at_commit: type[Exception]) -> None:
    """Told "not done" although it was, a client does it twice; told "unknown" without need, it only asks again."""
    assert type(sort_error(SQLITE, error, committing=False).error) is before
    assert type(sort_error(SQLITE, error, committing=True).error) is at_commit


@pytest.mark.parametrize(
    ("state", "at_commit"),
    [
        ("40P01", CERTAIN),
        ("40001", CERTAIN),
        ("55P03", CERTAIN),
        ("23505", CERTAIN),
        ("53100", CERTAIN),
        ("53300", CERTAIN),
        ("25P02", CERTAIN),
        ("25P03", CERTAIN),
        ("25006", CERTAIN),
        ("40003", UNKNOWN),
        ("57014", UNKNOWN),
        ("57P03", UNKNOWN),
        ("08003", UNKNOWN),
        ("08007", UNKNOWN),
        ("08006", UNKNOWN),
        ("57P01", UNKNOWN),
        ("57P02", UNKNOWN),
        ("58030", UNKNOWN),
        ("XX000", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_errors_of_postgresql(state: str, at_commit: type[Exception]) -> None:
    """A connection that breaks in COMMIT says nothing of it; before COMMIT it says that nothing was done."""
    assert type(sort_error(POSTGRESQL, postgres_error(state), committing=True).error) is at_commit
    assert type(sort_error(POSTGRESQL, postgres_error(state), committing=False).error) is CERTAIN


def test_only_locks_are_worth_trying_again_at_once() -> None:
    """A full disk is not: trying again makes the queue stand."""
    assert sort_error(SQLITE, wrapped(apsw.SQLITE_BUSY), committing=False).transient
    assert sort_error(POSTGRESQL, postgres_error("40P01"), committing=True).transient
    assert not sort_error(SQLITE, wrapped(apsw.SQLITE_FULL), committing=False).transient
    assert not sort_error(POSTGRESQL, postgres_error("53100"), committing=False).transient
    assert not sort_error(SQLITE, wrapped(apsw.SQLITE_FULL), committing=True).transient


async def test_everything_that_durability_needs_is_set(world: World) -> None:
    """One forgotten setting, and an acknowledged write is lost with the power."""
    database = world.store._database
    sqlite: list[tuple[str, object]] = [
        ("PRAGMA journal_mode", "wal"),
        ("PRAGMA synchronous", 2),
        ("PRAGMA foreign_keys", 1),
    ]
    postgresql: list[tuple[str, object]] = [
        ("SHOW synchronous_commit", "on"),
        ("SHOW transaction_isolation", "read committed"),
        ("SHOW lock_timeout", "20s"),
        ("SHOW statement_timeout", "1min"),
        ("SHOW idle_in_transaction_session_timeout", "10s"),
        ("SHOW application_name", "datacoord-writer"),
    ]
    with database._connect() as connection:
        for statement, value in sqlite if isinstance(database.kind, Sqlite) else postgresql:
            assert connection.execute(text(statement)).scalar() == value


async def test_reads_cannot_write(world: World) -> None:
    """A read that writes by mistake would do so outside of the queue."""
    with pytest.raises(StoreUnavailableError):
        await world.store._database.read(lambda c: c.execute(text("UPDATE epochs SET value = 5")))


class Lock:
    """Another process that holds the write lock of a SQLite file."""

    def __init__(self, world: World) -> None:
        self._connection = sqlite_driver.connect(world.url.removeprefix("sqlite:///"), busy_timeout_ms=5000)
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


async def test_a_lock_of_another_process_blocks_neither_the_loop_nor_reads(sqlite_world: World) -> None:
    """A backup or somebody's shell locks the whole file, SQLite's one lock: heartbeats and health must go on."""
    world = sqlite_world
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    lock = Lock(world)
    writing = asyncio.get_running_loop().create_task(world.save(channel, lane(world.default, 0, 5), epoch=epoch))
    for _ in range(5):
        await asyncio.sleep(0.001)
        assert (await world.info(channel)).epoch == epoch
    assert not writing.done()
    lock.release()

    assert (await writing).outcome is Outcome.APPLIED


async def test_a_lock_that_is_not_given_back_is_an_error_that_says_so(sqlite_world: World) -> None:
    """Waiting for ever would look like a hang. Again SQLite's lock of the whole file."""
    world = sqlite_world
    await world.store.close()
    await world.open(busy_timeout_ms=100)
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    lock = Lock(world)
    with pytest.raises(StoreUnavailableError, match="SQLITE_BUSY"):
        await world.move(channel, 5, epoch=epoch)
    lock.release()

    assert (await world.move(channel, 5, epoch=epoch)).outcome is Outcome.APPLIED


async def test_reads_during_a_write_see_what_was_before_it(world: World) -> None:
    """And see it at once when the write is answered."""
    channel = world.channels[0]
    epoch = await world.epoch(channel)
    writing = asyncio.get_running_loop().create_task(world.move(channel, 5, epoch=epoch))
    seen = []
    while not writing.done():
        seen.append((await world.info(channel)).checkpoint.timestamp)
        await asyncio.sleep(0)

    assert seen == sorted(seen)
    assert set(seen) <= {0, 5}
    assert (await world.info(channel)).checkpoint.timestamp == 5


class Disk:
    """Takes as long for a COMMIT as a test says, and knows in which thread it was asked."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commit_seconds = 0.0
        self.threads: list[bool] = []
        self._now = 0.0
        monkeypatch.setattr(world.faults, "commit", self._commit)
        monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: self._now, monotonic=lambda: 0.0))

    def _commit(self) -> None:
        self._now += self.commit_seconds
        self.threads.append(threading.current_thread() is not threading.main_thread())


def break_connection(url: str, connection: Connection) -> None:
    """Ends a connection as a database that goes away does: who has it learns of it with the next statement."""
    if url.startswith("sqlite"):
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.close()
        return
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as administrator:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        administrator.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))


async def test_a_group_that_must_be_done_another_way_is_though_its_connection_breaks_before_rollback(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that goes away between a statement and ROLLBACK: nothing can be committed, so nobody may hear "perhaps"."""
    broken = []

    def try_fast(transaction: Transaction, _calls: object) -> None:
        broken.append(transaction)
        break_connection(world.url, transaction.connection)
        raise AgainError

    monkeypatch.setattr(checkpoints, "try_fast", try_fast)

    assert (await world.move(world.channels[0], 5)).outcome is Outcome.APPLIED
    assert len(broken) == 1
    assert (await world.info(world.channels[0])).checkpoint.timestamp == 5


async def test_a_commit_has_the_loop_only_where_it_is_small_and_the_disk_quick(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk heartbeats, reads and health would wait for it; on a quick one another thread costs as much as COMMIT."""
    world = sqlite_world
    one, other = world.channels[:2]
    epochs = {channel: await world.epoch(channel) for channel in (one, other)}
    disk = Disk(world, monkeypatch)
    reached = 0

    async def move(*channels: str) -> bool:
        """Whether it was committed in another thread."""
        nonlocal reached
        reached += 1
        moved = await asyncio.gather(*(world.move(channel, reached, epoch=epochs[channel]) for channel in channels))
        assert {answer.outcome for answer in moved} == {Outcome.APPLIED}
        return disk.threads[-1]

    assert await move(one), "nothing is known of the disk yet"
    disk.commit_seconds = 0.0002
    for _ in range(50):
        await move(one)
    assert not await move(one)
    assert await move(one, other), "many may wait for the loop meanwhile"
    await world.store.weak_settings()
    assert disk.threads[-1], "a call with a transaction of its own may change any number of rows"
    reached += 1
    await world.move(one, reached, epoch=epochs[one])
    many = [CheckpointMove(one, epochs[one], position(reached := reached + 1)) for _ in range(300)]
    await world.store.update_channel_checkpoints(many, caller=CALLER)
    assert disk.threads[-1], "it may be large"
    disk.commit_seconds = 0.1
    assert not await move(one)
    disk.commit_seconds = 0.0002
    assert all([await move(one) for _ in range(10)]), "one that took long is not forgotten at once"
