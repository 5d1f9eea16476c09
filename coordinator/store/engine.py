"""Transactions: how they begin, where their statements run, and what an error means for what was asked."""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection

from coordinator.store.database_kind import DatabaseKind, DoneAtOnce
from coordinator.store.databases import code_for_callers, database_kind, short_text
from coordinator.store.reader import Reader
from datacoord import failpoints
from datacoord.errors import (
    CommitOutcomeUnknownError,
    DatacoordError,
    InternalError,
    StoreUnavailableError,
)

T = TypeVar("T")
log = structlog.get_logger()

_BEGIN_RETRY_SECONDS = 0.005
_BEGIN_RETRY_SECONDS_MAX = 0.05
_QUICK_COMMIT_SECONDS, _COMMIT_WEIGHT = 0.001, 0.2
"""A COMMIT that takes less, as a rule, takes little more than to have another thread do it."""


class Faults:
    """Where tests make the database fail. Every method may raise what a driver would raise."""

    def statement(self, statement: str) -> None:
        """Before a statement of a write transaction."""

    def commit(self) -> None:
        """Before COMMIT, in the thread that commits."""

    def committed(self) -> None:
        """After COMMIT, before anybody knows of it."""


@dataclass(frozen=True)
class SortedError:
    """What an error of a write transaction means.

    Attributes:
        error: what the callers are told.
        transient: certainly not committed, and worth trying again at once.
        whole: True: it concerns every call of the transaction; False: one call's doing, its neighbours may be tried alone.
    """

    error: DatacoordError
    transient: bool = False
    whole: bool = True


def sort_error(kind: DatabaseKind, error: Exception, *, committing: bool) -> SortedError:
    """The one place that tells *certainly not committed* from *unknown*.

    Args:
        kind: the database.
        error: what a write transaction raised.
        committing: True: COMMIT raised it; False: something before.
    """
    if isinstance(error, DatacoordError):
        return SortedError(error, whole=False)
    if committing and not (isinstance(error, exc.DBAPIError) and kind.commit_was_refused(error)):
        sentence = (
            "the database failed while it committed: perhaps done; repeat the call unchanged until it is answered"
        )
        return SortedError(CommitOutcomeUnknownError(f"{sentence} ({code_for_callers(error)})"))
    if isinstance(error, exc.IntegrityError | exc.DataError):
        # A guard in SQL stopped what core had allowed: a bug, and no repetition helps.
        return SortedError(InternalError("a constraint of the database refused the write; see the log"), whole=False)
    if isinstance(error, exc.DBAPIError):
        unavailable = StoreUnavailableError(
            f"the database did not take the write; repeat the call ({code_for_callers(error)})"
        )
        return SortedError(unavailable, transient=kind.is_transient(error))
    if isinstance(error, exc.SQLAlchemyError | OSError):
        return SortedError(
            StoreUnavailableError(f"the database cannot be reached; repeat the call ({code_for_callers(error)})")
        )
    return SortedError(InternalError(f"a write failed with {type(error).__name__}; see the log"), whole=False)


class AgainError(Exception):
    """What a transaction does must be done another way: nothing of it is kept, and its work asks for another one."""


class WriteFailedError(Exception):
    """A write transaction failed; nothing of it is left open."""

    def __init__(self, outcome: SortedError) -> None:
        super().__init__(outcome.error.message)
        self.outcome = outcome


class Database:
    """Connections to one database. Belongs to the event loop it is used on.

    Writes must not overlap: the queue of group commit sees to that.
    """

    def __init__(self, url: str, *, busy_timeout_ms: int, faults: Faults | None = None) -> None:
        self.kind = database_kind(url)
        self.commit_seconds = 0.0
        self._busy_timeout_seconds = busy_timeout_ms / 1000
        self._faults = faults
        self._writer = self.kind.writer(busy_timeout_ms)
        self._reader = Reader(self.kind, busy_timeout_ms)
        self.read = self._reader.read
        self.read_in_steps = self._reader.read_in_steps
        self._kept: Connection | None = None
        self._usual_commit_seconds = 1.0
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="store-commit")
        if faults is not None:
            event.listen(self._writer, "before_cursor_execute", self._fault_of_statement)

    def _fault_of_statement(self, _connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        if self._faults is not None and not statement.startswith("PRAGMA"):
            try:
                self._faults.statement(statement)
            except Exception as error:
                raise exc.OperationalError(statement, None, error) from error

    async def write(
        self, work: Callable[[Connection, int], T], seconds: float | None = None, *, quick: bool = False
    ) -> T:
        """Runs a transaction that writes, and commits it.

        Args:
            work: its statements, given the connection and the database's clock in milliseconds since the epoch. May run again
                after a failure that certainly left nothing behind, and in another thread.
            seconds: time that each of its statements may take, where the database can bound it; None = as configured.
            quick: it is small, and nobody is known to wait for the loop: where COMMIT is quick as a rule, the loop may wait for it.

        Raises:
            WriteFailedError: it failed, and what that means.
            AgainError: `work` raised it.
        """
        loop = asyncio.get_running_loop()
        if not self.kind.runs_on_loop:
            return await loop.run_in_executor(self._write_thread, self._whole, work, seconds)
        with self._keeping(self._connect()) as connection:
            now_ms = await self._begin(connection, seconds)
            result = self._statements(connection, now_ms, work)
            if quick and self._usual_commit_seconds < _QUICK_COMMIT_SECONDS and not failpoints.are_on():
                self._commit(connection)
            else:
                await loop.run_in_executor(self._write_thread, self._commit, connection)
            return result

    async def write_at_once(
        self, statement_of: Callable[[], tuple[bytes, Sequence[bytes | None]] | None], seconds: float | None
    ) -> DoneAtOnce | None:
        """Runs a statement that is a transaction of its own, on the loop, which it does not hold.

        Args:
            statement_of: makes it, and the values of its parameters; None = there is none.
            seconds: time that it may take; None = as configured.

        Returns:
            None: there is none, or no connection is at hand to try it on: any other transaction finds another one.

        Raises:
            WriteFailedError: it failed, and what that means.
            AgainError: it refused; nothing of it is kept.
        """
        at_once = self.kind.at_once
        if at_once is None or self._kept is None or not at_once.is_at_hand(self._kept):
            return None

        def made(connection: Connection, _now_ms: int) -> tuple[bytes, Sequence[bytes | None]] | None:
            statement = statement_of()
            if statement is not None:
                self._fault_of_statement(connection, None, statement[0].decode())
            return statement

        with self._keeping(self._connect()) as connection:
            statement = self._statements(connection, 0, made)
            if statement is None:
                return None
            with self._committing(connection):
                await self._pass(self._before_commit)
                done = await at_once.run(connection, *statement, seconds)
                if done is not None:
                    await self._pass(self._after_commit)
        if done is None:
            raise AgainError
        self.commit_seconds -= done.seconds
        return done

    def _connect(self) -> Connection:
        """The connection that was kept, or another one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            return kept
        try:
            return self._writer.connect()
        except Exception as error:
            raise WriteFailedError(sort_error(self.kind, error, committing=False)) from error

    @contextmanager
    def _keeping(self, connection: Connection) -> Generator[Connection, None, None]:
        """Keeps a connection for the next transaction, or gives it back where this one fails.

        What the pool does around each transaction costs as much as a small one.
        """
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._kept = connection

    def _whole(self, work: Callable[[Connection, int], T], seconds: float | None) -> T:
        connection, now_ms = self._begun(seconds)
        with self._keeping(connection):
            result = self._statements(connection, now_ms, work)
            self._commit(connection)
            return result

    def _begun(self, seconds: float | None) -> tuple[Connection, int]:
        """A connection in a transaction; another one, where the one that lay idle turns out to be broken."""
        failed: Exception | None = None
        for _ in range(2):
            connection = self._connect()
            try:
                return connection, self.kind.begin(connection, seconds)
            except Exception as error:  # noqa: BLE001 - whatever it is, the connection goes
                connection.invalidate()
                connection.close()
                failed = error
        assert failed is not None  # noqa: S101
        raise WriteFailedError(sort_error(self.kind, failed, committing=False)) from failed

    async def _begin(self, connection: Connection, seconds: float | None) -> int:
        """Takes the write lock without blocking the loop while another process has it."""
        deadline = time.monotonic() + self._busy_timeout_seconds
        delay = _BEGIN_RETRY_SECONDS
        while True:
            try:
                return self.kind.begin(connection, seconds)
            except Exception as error:
                outcome = sort_error(self.kind, error, committing=False)
                if not outcome.transient or time.monotonic() >= deadline:
                    raise WriteFailedError(SortedError(outcome.error)) from error
                await asyncio.sleep(delay)
                delay = min(delay * 2, _BEGIN_RETRY_SECONDS_MAX)

    def _statements(self, connection: Connection, now_ms: int, work: Callable[[Connection, int], T]) -> T:
        try:
            return work(connection, now_ms)
        except AgainError:
            self._roll_back(connection)
            raise
        except Exception as error:
            outcome = sort_error(self.kind, error, committing=False)
            if isinstance(outcome.error, InternalError):
                log.exception("write_failed", error=short_text(error), reason=outcome.error.reason.value)
            elif outcome.error is not error:
                log.warning("write_failed", error=short_text(error), reason=outcome.error.reason.value)
            self._roll_back(connection, outcome)
            raise WriteFailedError(outcome) from error

    def _commit(self, connection: Connection) -> None:
        with self._committing(connection):
            self._before_commit()
            self.kind.commit(connection)
            self._after_commit()

    @contextmanager
    def _committing(self, connection: Connection) -> Generator[None, None, None]:
        """Around what commits: how long it took, and what its errors mean."""
        started = time.perf_counter()
        try:
            yield
        except Exception as error:
            outcome = sort_error(self.kind, error, committing=True)
            log.warning("commit_failed", error=short_text(error), reason=outcome.error.reason.value)
            self._roll_back(connection, outcome)
            raise WriteFailedError(outcome) from error
        finally:
            took = time.perf_counter() - started
            self.commit_seconds += took
            # One that takes long counts at once, and is forgotten slowly.
            usual = self._usual_commit_seconds
            self._usual_commit_seconds = max(took, usual + _COMMIT_WEIGHT * (took - usual))

    def _before_commit(self) -> None:
        if self._faults is not None:
            self._faults.commit()
        failpoints.hit("coordinator.before_commit")

    def _after_commit(self) -> None:
        failpoints.hit("coordinator.after_commit")
        if self._faults is not None:
            self._faults.committed()

    async def _pass(self, moment: Callable[[], None]) -> None:
        """Passes a moment of a COMMIT on the loop, which must not be held there."""
        if failpoints.are_on():
            await asyncio.get_running_loop().run_in_executor(self._write_thread, moment)
        else:
            moment()

    def _roll_back(self, connection: Connection, outcome: SortedError | None = None) -> None:
        """Leaves no transaction open.

        A connection that cannot even do that, or met more than a lock or one call's error, is not used again.

        Args:
            connection: with a transaction that is given up.
            outcome: of the error that it met; None = none.
        """
        try:
            connection.rollback()
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection goes
            log.warning("rollback_failed", error=short_text(error))
            connection.invalidate()
        else:
            if outcome is not None and outcome.whole and not outcome.transient:
                connection.invalidate()

    async def close(self) -> None:
        """Closes all connections; transactions in progress end first."""
        self._write_thread.shutdown(wait=True)
        await self._reader.close()
        self._close_writer()

    def abandon(self) -> None:
        """Lets go of everything as a process that dies does: nothing open is committed. For tests of crashes."""
        self._write_thread.shutdown(wait=True, cancel_futures=True)
        self._reader.abandon()
        self._close_writer()

    def _close_writer(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._writer.dispose()
