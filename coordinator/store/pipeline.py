"""A few statements of PostgreSQL in one round trip: libpq's pipeline mode.

What is sent up to a Sync is one transaction, unless one is open, and the server commits it when it comes there. The driver's own
pipeline would want a thread, and takes half as long again.
"""

import asyncio
import contextlib
import hashlib
import select
from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

Statement = tuple[bytes, Sequence[bytes | None]]
"""With the parameters $1, $2, …; their values in binary form."""

Prepared = dict[bytes, bytes]
"""Names of the statements that a connection has prepared."""

_LOOK_SECONDS = 1.0
_Steps = Generator[Wait, Ready | int, list[PGresult]]
"""What has to be waited for."""


def is_at_hand(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection is idle and, as far as can be told without asking the server, still there.

    Nobody has asked it for anything: if there is something to read, it is the server's farewell or the connection's end.
    """
    if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


async def run(
    connection: psycopg.Connection[Any], statements: Sequence[Statement], prepared: Prepared
) -> list[PGresult]:
    """Runs statements on the event loop, which it does not hold.

    Args:
        connection: nobody else's meanwhile.
        statements: each is prepared once per connection.
        prepared: of the connection, kept up to date.

    Returns:
        the answer to each, its values in binary form.

    Raises:
        psycopg.Error: what the server said of a statement or of the commit. Without a code the connection broke.
    """
    try:
        return await _on_loop(_exchange(connection.pgconn, statements, prepared), connection.fileno())
    except BaseException:
        _leave(connection)
        raise


def run_here(
    connection: psycopg.Connection[Any], statements: Sequence[Statement], prepared: Prepared
) -> list[PGresult]:
    """The same in this thread, which waits."""
    try:
        return connection.wait(_exchange(connection.pgconn, statements, prepared))
    except BaseException:
        _leave(connection)
        raise


def _leave(connection: psycopg.Connection[Any]) -> None:
    # What may still come is the answer to this, and the next transaction would take it for its own.
    if not connection.closed and connection.pgconn.pipeline_status:
        connection.close()


def _exchange(libpq: PGconn, statements: Sequence[Statement], prepared: Prepared) -> _Steps:
    libpq.enter_pipeline_mode()
    # What each answer is to: None = a statement itself.
    sent: list[tuple[bytes, bytes] | None] = []
    for sql, values in statements:
        name = prepared.get(sql)
        if name is None:
            name = b"datacoord_" + hashlib.sha256(sql).hexdigest()[:16].encode()
            # It may be there: we forget what is prepared more often than the server.
            libpq.send_close_prepared(name)
            libpq.send_prepare(name, sql)
            sent += [(b"", b""), (sql, name)]
        libpq.send_query_prepared(name, values, [Format.BINARY] * len(values), Format.BINARY)
        sent.append(None)
    libpq.pipeline_sync()
    answers = yield from _answers(libpq)
    libpq.exit_pipeline_mode()
    # Also of a transaction that failed: what is prepared stays.
    prepared.update(
        named
        for named, answer in zip(sent, answers, strict=False)
        if named is not None and answer.status == ExecStatus.COMMAND_OK
    )
    for answer in answers:
        if answer.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            raise psycopg.errors.error_from_result(answer)
    return [answer for named, answer in zip(sent, answers, strict=True) if named is None]


def _answers(libpq: PGconn) -> _Steps:
    """Sends what is not sent yet, and takes all answers. A Sync has one only if the commit failed."""
    answers: list[PGresult] = []
    while libpq.flush():
        yield Wait.RW
        libpq.consume_input()
    while True:
        while libpq.is_busy():
            yield Wait.R
            libpq.consume_input()
        answer = libpq.get_result()
        if answer is None:  # after those of each statement
            if libpq.status != ConnStatus.OK:
                raise psycopg.OperationalError("the connection broke")
        elif answer.status == ExecStatus.PIPELINE_SYNC:
            return answers
        else:
            answers.append(answer)


async def _on_loop(steps: _Steps, socket: int) -> list[PGresult]:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        wanted = next(steps)
        while True:
            # Anew each time: uvloop watches a socket no more once it has an error, though the server's last words come before that.
            loop.add_reader(socket, ready.set)
            if wanted & Wait.W:
                loop.add_writer(socket, ready.set)
            # Looked at now and then even if nothing comes: nothing that a loop does not tell must be waited for without end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await ready.wait()
            ready.clear()
            # Before the library may close the socket, and another one gets its number.
            loop.remove_reader(socket)
            loop.remove_writer(socket)
            wanted = steps.send(Ready.RW)
    except StopIteration as finished:
        answers: list[PGresult] = finished.value
        return answers
    finally:
        loop.remove_reader(socket)
        loop.remove_writer(socket)
