"""Transactions that read, each from one snapshot, and what ends those that nobody waits for any more."""

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import structlog
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from coordinator.store.database_kind import DatabaseKind
from coordinator.store.databases import code_for_callers, short_text
from datacoord.errors import StoreUnavailableError

T = TypeVar("T")
log = structlog.get_logger()

_READS_MAX = 4
"""At once; as many connections a reader has."""
_LONG_READS_MAX = 2
"""Reads in steps at once; fewer than there are connections."""
_ENDED_AGAIN_SECONDS = 0.25
"""A statement that begins right after the server was asked to end the one before is not ended by that."""


class _Reading:
    """A transaction in a thread, as others may end it."""

    def __init__(self) -> None:
        self.given_up = False
        self._driver: object = None
        self._lock = threading.Lock()

    @contextmanager
    def on(self, connection: Connection) -> Generator[None, None, None]:
        """While it uses a connection. One that was asked to end is not used again: the server may hear of it late."""
        with self._lock:
            self._driver = connection.connection.driver_connection
        try:
            yield
        finally:
            with self._lock:
                self._driver = None
            if self.given_up:
                connection.invalidate()

    def end(self, kind: DatabaseKind) -> None:
        """Ends its statement, if there is one. Waits for the server."""
        with self._lock:
            if self._driver is not None:
                try:
                    kind.end_statement(self._driver)
                except Exception as error:  # noqa: BLE001 - whatever it is: it is tried again, and a timeout of the server's follows
                    log.warning("statement_not_ended", error=short_text(error))


class Reader:
    """Connections for reading. Belongs to the event loop it is used on."""

    def __init__(self, kind: DatabaseKind, busy_timeout_ms: int) -> None:
        self._kind = kind
        self._engine = kind.reader(busy_timeout_ms)
        self._threads = ThreadPoolExecutor(_READS_MAX, thread_name_prefix="store-read")
        self._ending_thread = ThreadPoolExecutor(1, thread_name_prefix="store-end")
        self._ending: set[asyncio.Task[None]] = set()
        self._long_reads = asyncio.Semaphore(_LONG_READS_MAX)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction. Cancelled, as it is when the time of its call is over, it ends in the database as well.

        Raises:
            StoreUnavailableError: the database did not answer.
            DatacoordError: what `work` raises.
        """
        reading = _Reading()
        if self._kind.runs_on_loop:
            return self._whole(work, reading)
        submitted = self._threads.submit(self._whole, work, reading)
        try:
            return await asyncio.wrap_future(submitted)
        except asyncio.CancelledError:
            # One that waited for a thread is cancelled with it.
            if not submitted.done():
                reading.given_up = True
                task = asyncio.get_running_loop().create_task(self._end(reading, submitted))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
            raise

    def _whole(self, work: Callable[[Connection], T], reading: _Reading) -> T:
        try:
            with self._engine.connect() as connection, reading.on(connection), connection.begin():
                return work(connection)
        except (exc.SQLAlchemyError, OSError) as error:
            raise _unanswered(error, is_waited_for=not reading.given_up) from error

    async def _end(self, reading: _Reading, submitted: Future[T]) -> None:
        while not submitted.done():
            await asyncio.get_running_loop().run_in_executor(self._ending_thread, reading.end, self._kind)
            await asyncio.wait([asyncio.wrap_future(submitted)], timeout=_ENDED_AGAIN_SECONDS)

    async def read_in_steps(self, work: Callable[[Connection], Generator[None, None, T]]) -> T:
        """Runs a long transaction.

        Args:
            work: its statements. Where they run on the event loop, everything else gets a turn whenever it yields.

        Raises:
            StoreUnavailableError: the database did not answer.
            DatacoordError: what `work` raises.
        """
        if not self._kind.runs_on_loop:
            return await self.read(lambda connection: _finish(work(connection)))
        # Others read in between, and must find a connection that is free.
        async with self._long_reads:
            try:
                with self._engine.connect() as connection, connection.begin():
                    result: list[T] = []
                    for _ in _kept(work(connection), result):
                        await asyncio.sleep(0)
                    return result[0]
            except (exc.SQLAlchemyError, OSError) as error:
                raise _unanswered(error, is_waited_for=True) from error

    async def close(self) -> None:
        """Closes its connections; transactions in progress end first."""
        if self._ending:
            await asyncio.wait(self._ending)
        self.abandon(drop=False)

    def abandon(self, *, drop: bool = True) -> None:
        """The same, at once.

        Args:
            drop: what has not begun never does.
        """
        self._threads.shutdown(wait=True, cancel_futures=drop)
        self._ending_thread.shutdown(wait=True, cancel_futures=drop)
        self._engine.dispose()


def _kept(steps: Generator[None, None, T], result: list[T]) -> Generator[None, None, None]:
    """The steps, and what they return in a list."""
    result.append((yield from steps))


def _finish(steps: Generator[None, None, T]) -> T:
    result: list[T] = []
    for _ in _kept(steps, result):
        pass
    return result[0]


def _unanswered(error: Exception, *, is_waited_for: bool) -> StoreUnavailableError:
    if is_waited_for:
        log.warning("read_failed", error=short_text(error))
    return StoreUnavailableError(f"the database did not answer; repeat the call ({code_for_callers(error)})")
