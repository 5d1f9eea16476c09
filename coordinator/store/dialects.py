"""Everything in which SQLite and PostgreSQL differ. No other module asks which of them it talks to.

Statements are SQLAlchemy Core and the same for both; `SELECT … FOR NO KEY UPDATE` is one of them (SQLite, where a write transaction
excludes all others from its beginning, has no row locks and compiles it to nothing).
"""

import abc
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import apsw
import psycopg
from sqlalchemy import BigInteger, Engine, Insert, Table, cast, create_engine, event, exc, extract, func, select, text
from sqlalchemy.dialects import postgresql as postgresql_dialect
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg as PostgresqlDialect
from sqlalchemy.engine import URL, Connection, Dialect, make_url
from sqlalchemy.pool import ConnectionPoolEntry

from coordinator.store import sqlite_driver
from coordinator.store.sqlite_driver import SqliteConnection, SqliteDialect
from datacoord.errors import ConfigInvalidError

_SQLITE_DRIVERS = {"sqlite", "sqlite+pysqlite", sqlite_driver.NAME}
"""What a URL may begin with; it is read with our driver whichever it names."""
_WAL_AUTOCHECKPOINT_PAGES = 4000
_CACHE_KIB = 65_536
_MIGRATION_LOCK_KEY = 0x6461_7461_636F_6F72  # "datacoor"
_LOCK_POLL_SECONDS = 0.02
_CONNECT_SECONDS_MAX = 10
_IDLE_IN_TRANSACTION_SECONDS_MAX = 10
"""Statements follow each other at once; what a busy machine or a collection of garbage adds is far less."""
_CLOCK_MS = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)
"""Not `now()`, which is the time the transaction began: it may have waited for locks since."""
_STATEMENT_SECONDS_MAX = 60
"""Longer than any call may take by default; it ends what nobody waits for any more."""


class DatabaseKind(abc.ABC):
    """One of the databases.

    Attributes:
        runs_on_loop: True: statements run on the event loop's own thread and only COMMIT, unless it is quick, in a worker
            (SQLite's driver gives up the GIL with every row, so that statements in a thread beside a busy loop are many times
            slower); False: whole transactions run in a worker thread.
        rows_per_statement: how many values an IN list may have.
        takes_arrays: True: one statement with an array per column is best for many rows; False: one statement per row.
        driver_dialect: compiles statements that go to the driver directly, with positional parameters.
    """

    runs_on_loop: bool
    takes_arrays: bool
    rows_per_statement = 1000
    driver_dialect: Dialect

    def __init__(self, url: str) -> None:
        self.url = url

    @abc.abstractmethod
    def writer(self, busy_timeout_ms: int) -> Engine:
        """An engine whose transactions write: one connection."""

    @abc.abstractmethod
    def reader(self, busy_timeout_ms: int) -> Engine:
        """An engine whose transactions only read, each from one snapshot."""

    @abc.abstractmethod
    def migrator(self, busy_timeout_ms: int) -> Engine:
        """An engine for schema changes: one connection, no foreign keys enforced while tables are rebuilt."""

    @abc.abstractmethod
    def insert_or_ignore(self, table: Table) -> Insert:
        """An insert that does nothing where the row is there already."""

    @abc.abstractmethod
    def lock_for_migration(self, connection: Connection) -> None:
        """Begins the one transaction that may change the schema; waits for others that do."""

    @abc.abstractmethod
    def begin(self, connection: Connection, seconds: float | None) -> int:
        """Begins a transaction that writes.

        Args:
            connection: of the writer.
            seconds: time that each of its statements may take, where the database can bound it; None = as configured.

        Returns:
            the database's clock, in milliseconds since the epoch.
        """

    @abc.abstractmethod
    def clock_ms(self, connection: Connection) -> int:
        """The database's clock, in milliseconds since the epoch."""

    @abc.abstractmethod
    def commit(self, connection: Connection) -> None:
        """Commits, and raises unless what was written is durable for certain."""

    @abc.abstractmethod
    def is_transient(self, error: exc.DBAPIError) -> bool:
        """Whether the same transaction may well succeed at once: a lock was held, two transactions waited for each other."""

    @abc.abstractmethod
    def commit_was_refused(self, error: exc.DBAPIError) -> bool:
        """Whether an error of COMMIT means that nothing was committed; False where that is not known."""

    @abc.abstractmethod
    def is_replica(self, connection: Connection) -> bool:
        """Whether this is a copy that may be behind the truth."""

    @abc.abstractmethod
    def is_missing(self) -> bool:
        """Whether the database does not exist at all, as far as that can be told without creating it."""

    @abc.abstractmethod
    def used_by(self) -> str:
        """What of Datacoord is connected to the database now, in words; empty = nothing, as far as this process may see."""

    @abc.abstractmethod
    def make_place(self) -> None:
        """Creates what a new database needs to be created in."""

    @abc.abstractmethod
    def broken_references(self, connection: Connection) -> str:
        """After a migration: name of a table with rows that refer to nothing; empty = none."""


class Sqlite(DatabaseKind):
    """The embedded default: WAL, synchronous=FULL, BEGIN IMMEDIATE."""

    runs_on_loop = True
    takes_arrays = False

    def __init__(self, url: str) -> None:
        given = make_url(url)
        path = given.database or ""
        shown = given.set(query={}).render_as_string()
        if not path or path == ":memory:":
            message = f"the database {shown!r} has no file; a coordinator that forgets is of no use: name a file"
            raise ConfigInvalidError(message, database_url=shown)
        is_file = given == URL.create(given.drivername, database=path) and not path.startswith("file:")
        if not is_file or given.drivername not in _SQLITE_DRIVERS:
            message = (
                f"the database {shown!r} names a driver, or says more than its file; write it as "
                "sqlite:////var/lib/datacoord/datacoord.db"
            )
            raise ConfigInvalidError(message, database_url=shown)
        if sqlite_driver.sqlite_version_info < sqlite_driver.SAFE_VERSION_INFO:
            message = (
                f"SQLite {sqlite_driver.sqlite_version} may lose committed writes (sqlite.org/wal.html#walresetbug); install the "
                "apsw package of the lock, which brings a newer one"
            )
            raise ConfigInvalidError(message, version=sqlite_driver.sqlite_version)
        super().__init__(given.set(drivername=sqlite_driver.NAME).render_as_string())
        self.driver_dialect = SqliteDialect()
        self.path = path

    def writer(self, busy_timeout_ms: int) -> Engine:  # noqa: ARG002 - the caller waits, so that the loop does not
        """See the base class. A transaction takes the write lock when it begins: an upgrade from read to write cannot wait."""
        return self._engine("BEGIN IMMEDIATE", pool_size=1, busy_timeout_ms=0, pragmas=["foreign_keys=ON"])

    def reader(self, busy_timeout_ms: int) -> Engine:
        """See the base class. In WAL mode readers wait for nobody."""
        return self._engine("BEGIN", pool_size=4, busy_timeout_ms=busy_timeout_ms, pragmas=["query_only=ON"])

    def migrator(self, busy_timeout_ms: int) -> Engine:
        """See the base class."""
        return self._engine(
            "BEGIN IMMEDIATE", pool_size=1, busy_timeout_ms=busy_timeout_ms, pragmas=["foreign_keys=OFF"]
        )

    def _engine(self, begin: str, *, pool_size: int, busy_timeout_ms: int, pragmas: list[str]) -> Engine:
        engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            connect_args={"busy_timeout_ms": busy_timeout_ms, "begin": begin},
        )

        @event.listens_for(engine, "connect")
        def _set_up(connection: SqliteConnection, _entry: ConnectionPoolEntry) -> None:
            _journal_in_wal(connection)
            for pragma in (
                "synchronous=FULL",
                f"wal_autocheckpoint={_WAL_AUTOCHECKPOINT_PAGES}",
                f"cache_size=-{_CACHE_KIB}",
                "temp_store=MEMORY",
                *pragmas,
            ):
                connection.execute(f"PRAGMA {pragma}")

        return engine

    def insert_or_ignore(self, table: Table) -> Insert:
        """See the base class."""
        return sqlite_dialect.insert(table).on_conflict_do_nothing()

    def lock_for_migration(self, connection: Connection) -> None:
        """See the base class."""
        connection.begin()

    def begin(self, connection: Connection, seconds: float | None) -> int:  # noqa: ARG002
        """See the base class."""
        connection.begin()
        return self.clock_ms(connection)

    def clock_ms(self, connection: Connection) -> int:  # noqa: ARG002
        """See the base class. SQLite has no clock of its own: it is the machine's, which all its users share."""
        return time.time_ns() // 1_000_000

    def commit(self, connection: Connection) -> None:
        """See the base class.

        After some errors SQLite rolls back by itself; each statement that follows is a transaction of its own.
        """
        driver = connection.connection.driver_connection
        assert isinstance(driver, SqliteConnection)  # noqa: S101 - the only driver this kind is made with
        if not driver.in_transaction:
            raise exc.OperationalError("COMMIT", None, apsw.AbortError("SQLite had rolled the transaction back"))
        connection.commit()

    def is_transient(self, error: exc.DBAPIError) -> bool:
        """See the base class."""
        return isinstance(error.orig, apsw.BusyError | apsw.LockedError)

    def commit_was_refused(self, error: exc.DBAPIError) -> bool:
        """See the base class.

        Only a lock refuses for certain. After a failed write or sync the frame that commits may be in the log file already, and
        count after a crash.
        """
        return self.is_transient(error)

    def is_replica(self, connection: Connection) -> bool:  # noqa: ARG002
        """See the base class. A file has no copies that follow it."""
        return False

    def is_missing(self) -> bool:
        """See the base class."""
        return not Path(self.path).exists()

    def used_by(self) -> str:
        """See the base class. A connection in WAL mode holds the file as long as it is open; alone, one may have it exclusively."""
        try:
            with contextlib.closing(sqlite_driver.connect(self.path)) as connection:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except apsw.BusyError:
            return "another connection has the file open"
        except apsw.Error as error:
            raise exc.OperationalError("BEGIN IMMEDIATE", None, error) from error
        return ""

    def make_place(self) -> None:
        """See the base class."""
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)

    def broken_references(self, connection: Connection) -> str:
        """See the base class. Tables are rebuilt with foreign keys off."""
        broken = connection.execute(text("PRAGMA foreign_key_check")).first()
        return str(broken[0]) if broken is not None else ""


def _journal_in_wal(connection: SqliteConnection) -> None:
    # Several processes that open a new file at once get SQLITE_BUSY here without the busy handler being asked.
    deadline = time.monotonic() + 10
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return


class Postgresql(DatabaseKind):
    """The deployed one: synchronous_commit=on, rows locked before they are decided on."""

    runs_on_loop = False
    takes_arrays = True

    def __init__(self, url: str) -> None:
        super().__init__(make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False))
        self.driver_dialect = PostgresqlDialect(paramstyle="format")  # type: ignore[no-untyped-call]

    def writer(self, busy_timeout_ms: int) -> Engine:
        """See the base class.

        The driver begins no transactions, `begin` does. Bulk statements are planned once, for few rows: then they follow the order
        of their input, in which every transaction locks rows.
        """
        settings = {
            "default_transaction_isolation": "read\\ committed",
            "plan_cache_mode": "force_generic_plan",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            # A plan made while a table was nearly empty would read the whole of it for every row, until somebody analyses it.
            "enable_seqscan": "off",
            # Nor keep the whole of it and compare every row with that.
            "enable_material": "off",
        }
        return self._engine("writer", busy_timeout_ms, isolation_level="AUTOCOMMIT", pre_ping=False, more=settings)

    def reader(self, busy_timeout_ms: int) -> Engine:
        """See the base class."""
        engine = self._engine("reader", busy_timeout_ms, pool_size=4, isolation_level="REPEATABLE READ")
        return engine.execution_options(postgresql_readonly=True)

    def migrator(self, busy_timeout_ms: int) -> Engine:
        """See the base class."""
        return self._engine("migrate", busy_timeout_ms, statement_seconds=0, isolation_level="READ COMMITTED")

    def _engine(
        self,
        role: str,
        busy_timeout_ms: int,
        *,
        isolation_level: str,
        pool_size: int = 1,
        pre_ping: bool = True,
        statement_seconds: int = _STATEMENT_SECONDS_MAX,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Engine:
        asked = make_url(self.url).query
        settings = {
            # Weaker, and an acknowledged write is lost with the server's power.
            "synchronous_commit": "on",
            "lock_timeout": busy_timeout_ms,
            "statement_timeout": statement_seconds * 1000,
            # A process that stands still in a transaction (stopped, swapped out, cut off) must not keep its locks from the others.
            "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION_SECONDS_MAX * 1000,
            "timezone": "UTC",
            **more,
        }
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        defaults: dict[str, Any] = {
            "application_name": f"datacoord-{role}",
            "connect_timeout": _CONNECT_SECONDS_MAX,
            # Of several hosts the one that takes writes, also for reads: a standby lags behind.
            "target_session_attrs": "read-write",
            # A server that vanishes without a word is noticed within half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
            "tcp_user_timeout": 30_000,
        }
        return create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            pool_pre_ping=pre_ping,
            isolation_level=isolation_level,
            connect_args={
                **{name: value for name, value in defaults.items() if name not in asked},
                # The last one counts.
                "options": f"{asked.get('options', '')} {ours}".strip(),
            },
        )

    def insert_or_ignore(self, table: Table) -> Insert:
        """See the base class."""
        return postgresql_dialect.insert(table).on_conflict_do_nothing()

    def lock_for_migration(self, connection: Connection) -> None:
        """See the base class. The lock ends with the transaction."""
        connection.begin()
        connection.execute(text("SET LOCAL lock_timeout = '300s'"))
        connection.execute(select(func.pg_advisory_xact_lock(cast(_MIGRATION_LOCK_KEY, BigInteger))))

    def begin(self, connection: Connection, seconds: float | None) -> int:
        """See the base class.

        One round trip: what stands before BEGIN in the same query belongs to the transaction.
        """
        wanted = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        if seconds is not None and seconds < _STATEMENT_SECONDS_MAX:
            wanted += f", set_config('statement_timeout', '{max(1, round(seconds * 1000))}', true)"
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the only driver this kind is made with
        try:
            row = driver.execute(f"SELECT {wanted}; BEGIN".encode(), prepare=False).fetchone()
        except psycopg.Error as error:
            raise exc.OperationalError("BEGIN", None, error) from error
        assert row is not None  # noqa: S101
        return int(row[0])

    def clock_ms(self, connection: Connection) -> int:
        """See the base class."""
        return int(connection.execute(select(_CLOCK_MS)).scalar_one())

    def commit(self, connection: Connection) -> None:
        """See the base class.

        Two things that PostgreSQL does not call errors: COMMIT of a transaction in which a statement failed rolls back, and one
        whose wait for a synchronous standby was cut short warns that it has committed here only.
        """
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the only driver this kind is made with
        if driver.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
            failed = psycopg.errors.InFailedSqlTransaction("a statement of the transaction had failed")
            raise exc.InternalError("COMMIT", None, failed)
        warnings: list[str] = []

        def note(diagnostic: psycopg.errors.Diagnostic) -> None:
            if diagnostic.severity_nonlocalized == "WARNING":
                warnings.append(diagnostic.message_primary or "")

        driver.add_notice_handler(note)
        try:
            connection.commit()
            if driver.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS:
                # Without a statement SQLAlchemy knows of no transaction, and the connection is kept.
                driver.commit()
        finally:
            driver.remove_notice_handler(note)
        if warnings:
            raise exc.OperationalError("COMMIT", None, psycopg.OperationalError("; ".join(warnings)))

    def is_transient(self, error: exc.DBAPIError) -> bool:
        """See the base class. Serialization failure, deadlock, lock not available."""
        return _sqlstate(error) in {"40001", "40P01", "55P03"}

    def commit_was_refused(self, error: exc.DBAPIError) -> bool:
        """See the base class.

        The server answered, and not that it is going away or was interrupted (class 57), that the connection failed (08), that
        it does not know itself (40003), or that something is broken (58, F0, XX).
        """
        state = _sqlstate(error)
        return bool(state) and state != "40003" and state[:2] not in {"08", "57", "58", "F0", "XX"}

    def is_replica(self, connection: Connection) -> bool:
        """See the base class."""
        return bool(connection.execute(select(func.pg_is_in_recovery())).scalar_one())

    def is_missing(self) -> bool:
        """See the base class. Connecting tells."""
        return False

    def used_by(self) -> str:
        """See the base class. Sessions are found by the names that `_engine` gives them, unless the URL gives another."""
        ours = text(
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND application_name LIKE 'datacoord-%' ORDER BY application_name"
        )
        engine = self._engine("look", 1000, isolation_level="READ COMMITTED")
        try:
            with engine.connect() as connection:
                names = connection.execute(ours).scalars().all()
        finally:
            engine.dispose()
        return f"sessions are open: {', '.join(names)}" if names else ""

    def make_place(self) -> None:
        """See the base class. Databases are made by their administrators."""

    def broken_references(self, connection: Connection) -> str:  # noqa: ARG002
        """See the base class. It checks them itself."""
        return ""


def _sqlstate(error: exc.DBAPIError) -> str:
    origin: Any = error.orig
    return (origin.sqlstate or "") if isinstance(origin, psycopg.Error) else ""


def error_code(error: BaseException) -> str:
    """What the database calls an error of its driver, such as 40P01 or SQLITE_BUSY; "" = it has no name there."""
    return getattr(error, "sqlstate", None) or sqlite_driver.code_name(error)


def database_kind(url: str) -> DatabaseKind:
    """The database a URL names.

    Raises:
        ConfigInvalidError: it names none that Datacoord supports.
    """
    try:
        backend = make_url(url).get_backend_name()
    except exc.ArgumentError as error:
        message = (
            "the database URL cannot be read; it looks like sqlite:////var/lib/datacoord/datacoord.db or postgresql://…"
        )
        raise ConfigInvalidError(message) from error
    if backend == "sqlite":
        return Sqlite(url)
    if backend == "postgresql":
        return Postgresql(url)
    message = f"databases of kind {backend!r} are not supported; use sqlite or postgresql"
    raise ConfigInvalidError(message, backend=backend)
