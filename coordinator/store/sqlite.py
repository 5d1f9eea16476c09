"""SQLite, the embedded database, as a DatabaseKind."""

import contextlib
import time
from pathlib import Path

import apsw
from sqlalchemy import Engine, Insert, Table, create_engine, event, exc, text
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.pool import ConnectionPoolEntry

from coordinator.store import sqlite_driver
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.sqlite_driver import SqliteConnection, SqliteDialect
from datacoord.errors import ConfigInvalidError

_SQLITE_DRIVERS = {"sqlite", "sqlite+pysqlite", sqlite_driver.NAME}
"""What a URL may begin with; it is read with our driver whichever it names."""
_WAL_AUTOCHECKPOINT_PAGES = 4000
_CACHE_KIB = 65_536
_LOCK_POLL_SECONDS = 0.02


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

    def reader(self, busy_timeout_ms: int, *, patient: bool = False) -> Engine:  # noqa: ARG002
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

    def end_statement(self, driver_connection: object) -> None:
        """See the base class."""
        assert isinstance(driver_connection, SqliteConnection)  # noqa: S101 - the only driver this kind is made with
        driver_connection.interrupt()

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
