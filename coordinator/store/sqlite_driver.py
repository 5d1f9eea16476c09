"""SQLite by APSW, as SQLAlchemy wants a driver (PEP 249), and the dialect that uses it.

APSW brings a SQLite of its own. It must be the only one in a process that opens a database: each copy of the library keeps its own
account of the locks, and the operating system drops those of both when one of them closes the file (sqlite.org/howtocorrupt.html).
"""

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self, cast

import apsw
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import URL, Connection
from sqlalchemy.engine.interfaces import ConnectArgsType, DBAPIModule
from sqlalchemy.pool import PoolProxiedConnection

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"
sqlite_version = apsw.sqlite_lib_version()
sqlite_version_info = tuple(map(int, sqlite_version.split(".")))
SAFE_VERSION_INFO: Final = (3, 51, 3)
"""From here on a checkpoint beside a commit that begins the log anew loses nothing (sqlite.org/wal.html#walresetbug)."""
Error = apsw.Error
Binary = bytes
NAME: Final = "sqlite+apsw"
_DESCRIPTION: Final[Any] = vars(apsw.Cursor)["description"]

_DBAPI_NAMES = {
    apsw.ConstraintError: "IntegrityError",
    apsw.MismatchError: "IntegrityError",
    apsw.TooBigError: "DataError",
    apsw.InternalError: "InternalError",
    apsw.SQLError: "OperationalError",
    apsw.BindingsError: "ProgrammingError",
    apsw.MisuseError: "ProgrammingError",
    apsw.RangeError: "ProgrammingError",
    apsw.ConnectionClosedError: "ProgrammingError",
    apsw.CursorClosedError: "ProgrammingError",
    apsw.ThreadingViolationError: "ProgrammingError",
}
"""What PEP 249 calls an error; all others are OperationalError."""


class Cursor(apsw.Cursor):
    """A cursor as PEP 249 has it.

    Attributes:
        rowcount: rows that the statement changed, all executions of it together, and what triggers and foreign keys changed with
            them; 0 where it returns rows.
        description: of the columns; None = the statement has none.
    """

    arraysize = 1
    description: Sequence[Any] | None = None  # type: ignore[assignment] # APSW's own is there only while there are rows

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self.rowcount = -1

    @property
    def lastrowid(self) -> int:
        """Of the row that was inserted last."""
        return self.connection.last_insert_rowid()

    def execute(self, statement: str, bindings: Any = None) -> Self:  # type: ignore[override] # without APSW's options
        """Executes a statement once."""
        self.exec_trace = _describe
        before = self.connection.total_changes()
        super().execute(statement, bindings)
        self.rowcount = self.connection.total_changes() - before
        return self

    def executemany(self, statement: str, rows: Iterable[Any]) -> Self:  # type: ignore[override]
        """Executes a statement that gives no rows once for each of `rows`."""
        self.exec_trace = None
        self.description = None
        before = self.connection.total_changes()
        super().executemany(statement, rows)
        self.rowcount = self.connection.total_changes() - before
        return self

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next rows."""
        return list(itertools.islice(self, size or self.arraysize))

    def close(self, force: bool = True) -> None:
        """Ends the statement, also where not all of its rows were fetched."""
        super().close(force)


def _describe(cursor: apsw.Cursor, _statement: str, _bindings: Any) -> bool:
    """Keeps the description; APSW asks here before a statement runs, when the columns are known also of one without rows.

    Not a method: a cursor that refers to itself would stay open until garbage is collected, and its tables locked.
    """
    cast("Cursor", cursor).description = _DESCRIPTION.__get__(cursor) or None
    return True


class SqliteConnection(apsw.Connection):
    """A connection as PEP 249 has it, but that a transaction begins when it is told to. A file that is not there is created.

    Args:
        path: of the database's file.
        busy_timeout_ms: how long a statement waits for a lock.
        begin: the statement that begins a transaction.

    Raises:
        apsw.CantOpenError: the file cannot be opened.
    """

    def __init__(self, path: str, *, busy_timeout_ms: int = 0, begin: str = "BEGIN") -> None:
        super().__init__(path)
        # The base class makes our cursors, for it closes what it has made, and only then the file.
        self.cursor_factory = Cursor
        self.set_busy_timeout(busy_timeout_ms)
        self._begin = begin

    def cursor(self) -> Cursor:
        """See the base class."""
        return cast("Cursor", super().cursor())

    def begin(self) -> None:
        """Begins a transaction."""
        self.execute(self._begin)

    def commit(self) -> None:
        """Commits, where a transaction is open."""
        if self.in_transaction:
            self.execute("COMMIT")

    def rollback(self) -> None:
        """Rolls back, where a transaction is open."""
        if self.in_transaction:
            self.execute("ROLLBACK")


connect = SqliteConnection


def code_name(error: BaseException) -> str:
    """The name of what SQLite calls an error, such as SQLITE_BUSY; "" = it is none of SQLite's."""
    code: int = getattr(error, "extendedresult", 0)
    extended, plain = apsw.mapping_extended_result_codes, apsw.mapping_result_codes
    return str(extended.get(code) or plain.get(code, "")) if code else ""


class SqliteDialect(SQLiteDialect):
    """SQLAlchemy's SQLite over this driver."""

    driver = "apsw"
    default_paramstyle = "qmark"
    supports_statement_cache = True
    returns_native_bytes = True
    dbapi_exception_translation_map = {  # noqa: RUF012 - as the base class has it
        kind.__name__: _DBAPI_NAMES.get(kind, "OperationalError") for kind in apsw.Error.__subclasses__()
    }

    @classmethod
    def import_dbapi(cls) -> DBAPIModule:
        """See the base class."""
        return sys.modules[__name__]

    def _get_server_version_info(self, connection: Connection) -> tuple[int, ...]:  # noqa: ARG002
        return sqlite_version_info

    def create_connect_args(self, url: URL) -> ConnectArgsType:
        """See the base class."""
        return [url.database or ""], {}

    def do_begin(self, dbapi_connection: PoolProxiedConnection) -> None:
        """See the base class. By the driver itself: SQLAlchemy's way costs ten times what SQLite needs for it."""
        cast("SqliteConnection", dbapi_connection.driver_connection).begin()


registry.register(NAME.replace("+", "."), __name__, SqliteDialect.__name__)
