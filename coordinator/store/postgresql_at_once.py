"""Statements of PostgreSQL that are transactions of their own."""

import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import BigInteger, ColumnElement, Integer, case, cast, exc, extract, func, literal_column
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg as PostgresqlDialect
from sqlalchemy.engine import Connection
from sqlalchemy.pool import ConnectionPoolEntry

from coordinator.store import pipeline
from coordinator.store.database_kind import AtOnceKind, DoneAtOnce

_BOUND = b"SELECT set_config('statement_timeout', $1, true)"
_REFUSAL: ColumnElement[str] = literal_column("'datacoord: a row has changed meanwhile, it is done another way'")
"""What the server's log says of a statement that fails as it should: its error is that this is no number."""
_REFUSED, _NOT_PREPARED = "22P02", "26000"
"""That error; and a statement that is not prepared any more."""
_PREPARED = "prepared at once"
_NUMBER = struct.Struct("!q")


class PostgresqlAtOnce(AtOnceKind):
    """See the base class. By libpq's pipeline mode, so that what bounds the statement needs no round trip.

    Args:
        seconds_max: that a statement may take where nobody says less.
    """

    dialect = PostgresqlDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    now_ms = cast(extract("epoch", func.now()) * literal_column("1000"), BigInteger)
    micros = cast(extract("epoch", func.clock_timestamp() - func.now()) * literal_column("1000000"), BigInteger)

    def __init__(self, seconds_max: int) -> None:
        self._seconds_max = seconds_max

    def required(self, condition: ColumnElement[bool]) -> ColumnElement[bool]:
        """See the base class. SQL has no statement that fails; what fails says why to those who read the server's log."""
        number = case((condition, literal_column("'1'")), else_=_REFUSAL)
        return cast(number, Integer) == literal_column("1")

    def is_at_hand(self, connection: Connection) -> bool:
        """See the base class."""
        return pipeline.is_at_hand(_driver_of(connection))

    def run_all(self, connection: Connection, statements: Sequence[pipeline.Statement]) -> list[int]:
        """See the base class."""
        for sql, _ in statements:
            # SQLAlchemy does not see them, and who listens wants to.
            for listener in connection.dispatch.before_cursor_execute:
                listener(connection, None, sql.decode(), None, None, False)
        prepared: pipeline.Prepared = connection.info.setdefault(_PREPARED, {})
        try:
            answers = pipeline.run_here(_driver_of(connection), statements, prepared)
        except psycopg.Error as error:
            raise exc.DBAPIError.instance("in a pipeline", None, error, psycopg.Error) from error
        return [answer.command_tuples or 0 for answer in answers]

    async def run(
        self, connection: Connection, sql: bytes, values: Sequence[bytes | None], seconds: float | None
    ) -> DoneAtOnce | None:
        """See the base class."""
        driver = _driver_of(connection)
        prepared: pipeline.Prepared = connection.info.setdefault(_PREPARED, {})
        bound = self._seconds_max if seconds is None else min(seconds, self._seconds_max)
        milliseconds = str(max(1, round(bound * 1000))).encode()
        try:
            with warnings_are_errors(driver, "COMMIT"):
                _, answer = await pipeline.run(driver, [(_BOUND, [milliseconds]), (sql, values)], prepared)
        except psycopg.Error as error:
            if error.sqlstate == _NOT_PREPARED:
                connection.info.pop(_PREPARED, None)
            if error.sqlstate in {_REFUSED, _NOT_PREPARED}:
                return None
            raise exc.DBAPIError.instance(sql.decode(), None, error, psycopg.Error) from error
        now_ms, micros = (_NUMBER.unpack(answer.get_value(0, column) or b"")[0] for column in range(2))
        return DoneAtOnce(now_ms, micros / 1_000_000)


@contextmanager
def warnings_are_errors(driver: psycopg.Connection[Any], statement: str) -> Generator[None, None, None]:
    """Around what commits: it warns if its wait for a synchronous standby was cut short, and has happened on this server only.

    Raises:
        sqlalchemy.exc.OperationalError: the server has warned of something.
    """
    warnings: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            warnings.append(diagnostic.message_primary or "")

    driver.add_notice_handler(note)
    try:
        yield
    finally:
        driver.remove_notice_handler(note)
    if warnings:
        raise exc.OperationalError(statement, None, psycopg.OperationalError("; ".join(warnings)))


def forget_prepared(_driver: object, record: ConnectionPoolEntry, _state: object) -> None:
    """When a connection goes back to its pool, a transaction has failed: after a rollback the driver makes the server forget."""
    record.info.pop(_PREPARED, None)


def _driver_of(connection: Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the only driver this kind is made with
    return driver
