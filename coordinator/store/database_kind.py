"""Everything in which SQLite and PostgreSQL differ; each has a module that says how. No other one asks which of them it talks to.

Statements are SQLAlchemy Core and the same for both; `SELECT … FOR NO KEY UPDATE` is one of them (SQLite, where a write transaction
excludes all others from its beginning, has no row locks and compiles it to nothing).
"""

import abc

from sqlalchemy import Engine, Insert, Table, exc
from sqlalchemy.engine import Connection, Dialect


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
