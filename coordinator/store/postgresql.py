"""PostgreSQL, the deployed database, as a DatabaseKind."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import psycopg
from sqlalchemy import BigInteger, Engine, Insert, Table, cast, create_engine, event, exc, extract, func, select, text
from sqlalchemy.dialects import postgresql as postgresql_dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg as PostgresqlDialect
from sqlalchemy.engine import Connection, make_url

from coordinator.store.database_kind import DatabaseKind
from coordinator.store.postgresql_at_once import PostgresqlAtOnce, forget_prepared, warnings_are_errors

_MIGRATION_LOCK_KEY = 0x6461_7461_636F_6F72  # "datacoor"
_CONNECT_SECONDS_MAX = 10
_IDLE_IN_TRANSACTION_SECONDS_MAX = 10
"""Statements follow each other at once; what a busy machine or a collection of garbage adds is far less. It does not end a process
that stands still while it sends several statements: to the server those are one that runs."""
_CLOCK_MS = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)
"""Not `now()`, which is the time the transaction began: it may have waited for locks since."""
_STATEMENT_SECONDS_MAX = 60
"""Longer than any call may take by default; it ends what nobody waits for any more."""
_PATIENT_SECONDS_MAX = 3600
"""Not for ever: a snapshot that stays open keeps the server from cleaning up."""


class Postgresql(DatabaseKind):
    """The deployed one: synchronous_commit=on, rows locked before they are decided on."""

    runs_on_loop = False
    takes_arrays = True

    def __init__(self, url: str) -> None:
        super().__init__(make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False))
        self.driver_dialect = PostgresqlDialect(paramstyle="format")  # type: ignore[no-untyped-call]
        if (
            psycopg.capabilities.has_send_close_prepared()
        ):  # the library of the wheel can, an older one of the system cannot
            self.at_once = PostgresqlAtOnce(_STATEMENT_SECONDS_MAX)

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
        engine = self._engine("writer", busy_timeout_ms, isolation_level="AUTOCOMMIT", pre_ping=False, more=settings)
        event.listen(engine, "reset", forget_prepared)
        return engine

    def reader(self, busy_timeout_ms: int, *, patient: bool = False) -> Engine:
        """See the base class."""
        engine = self._engine(
            "reader",
            busy_timeout_ms,
            pool_size=4,
            isolation_level="REPEATABLE READ",
            statement_seconds=_PATIENT_SECONDS_MAX if patient else _STATEMENT_SECONDS_MAX,
            idle_seconds=_PATIENT_SECONDS_MAX if patient else _IDLE_IN_TRANSACTION_SECONDS_MAX,
        )
        return engine.execution_options(postgresql_readonly=True)

    def end_statement(self, driver_connection: object) -> None:
        """See the base class."""
        assert isinstance(driver_connection, psycopg.Connection)  # noqa: S101 - the only driver this kind is made with
        driver_connection.cancel_safe(timeout=_CONNECT_SECONDS_MAX)

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
        idle_seconds: int = _IDLE_IN_TRANSACTION_SECONDS_MAX,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Engine:
        asked = make_url(self.url).query
        settings = {
            # Weaker, and an acknowledged write is lost with the server's power.
            "synchronous_commit": "on",
            "lock_timeout": busy_timeout_ms,
            "statement_timeout": statement_seconds * 1000,
            # A process that stands still in a transaction (stopped, swapped out, cut off) must not keep its locks from the others.
            "idle_in_transaction_session_timeout": idle_seconds * 1000,
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
        with warnings_are_errors(driver, "COMMIT"):
            connection.commit()
            if driver.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS:
                # Without a statement SQLAlchemy knows of no transaction, and the connection is kept.
                driver.commit()

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
