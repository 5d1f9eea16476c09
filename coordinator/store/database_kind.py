"""Everything in which SQLite and PostgreSQL differ; each has a module that says how. No other one asks which of them it talks to.

Statements are SQLAlchemy Core and the same for both; `SELECT … FOR NO KEY UPDATE` is one of them (SQLite, where a write transaction
excludes all others from its beginning, has no row locks and compiles it to nothing).
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, Insert, Table, exc
from sqlalchemy.engine import Connection, Dialect


@dataclass(frozen=True, slots=True)
class DoneAtOnce:
    """What a statement says that was a transaction of its own.

    Attributes:
        now_ms: the database's clock when it began.
        seconds: what it took before its commit.
    """

    now_ms: int
    seconds: float


class AtOnceKind(abc.ABC):
    """Statements that are transactions of their own, in one round trip, and fail where they should not be done.

    Attributes:
        dialect: compiles them.
        now_ms: the database's clock when the transaction began.
        micros: what the transaction took so far, in microseconds.
    """

    dialect: Dialect
    now_ms: ColumnElement[int]
    micros: ColumnElement[int]

    @abc.abstractmethod
    def required(self, condition: ColumnElement[bool]) -> ColumnElement[bool]:
        """True where the condition is; otherwise the statement fails."""

    @abc.abstractmethod
    def is_at_hand(self, connection: Connection) -> bool:
        """Whether a connection can take such a statement: as far as can be told without a round trip it is not broken."""

    @abc.abstractmethod
    def run_all(self, connection: Connection, statements: Sequence[tuple[bytes, Sequence[bytes | None]]]) -> list[int]:
        """Runs statements of a transaction in one round trip; how many rows each changed."""

    @abc.abstractmethod
    async def run(
        self, connection: Connection, sql: bytes, values: Sequence[bytes | None], seconds: float | None
    ) -> DoneAtOnce | None:
        """Runs one, without holding the loop, and raises unless what it wrote is durable for certain.

        Args:
            connection: at hand.
            sql: an insert that returns `now_ms` and `micros`.
            values: of its parameters, as the wire has them.
            seconds: time that it may take; None = as configured.

        Returns:
            None: what it required was not so, or it could not be tried; nothing of it is kept.
        """


class DatabaseKind(abc.ABC):
    """One of the databases.

    Attributes:
        runs_on_loop: True: statements run on the event loop's own thread and only COMMIT, unless it is quick, in a worker
            (SQLite's driver gives up the GIL with every row, so that statements in a thread beside a busy loop are many times
            slower); False: whole transactions run in a worker thread.
        rows_per_statement: how many values an IN list may have.
        takes_arrays: True: one statement with an array per column is best for many rows; False: one statement per row.
        driver_dialect: compiles statements that go to the driver directly, with positional parameters.
        at_once: how a statement is a transaction of its own; None: that gains nothing here.
    """

    runs_on_loop: bool
    takes_arrays: bool
    rows_per_statement = 1000
    driver_dialect: Dialect
    at_once: AtOnceKind | None = None

    def __init__(self, url: str) -> None:
        self.url = url

    @abc.abstractmethod
    def writer(self, busy_timeout_ms: int) -> Engine:
        """An engine whose transactions write: one connection."""

    @abc.abstractmethod
    def reader(self, busy_timeout_ms: int, *, patient: bool = False) -> Engine:
        """An engine whose transactions only read, each from one snapshot.

        Args:
            busy_timeout_ms: how long it waits for another process's lock.
            patient: for somebody who waits, and works through what is read within the transaction: that may take an hour.
        """

    @abc.abstractmethod
    def end_statement(self, driver_connection: object) -> None:
        """Ends the statement that another thread runs on a connection of a reader, or none if it runs none just now."""

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
