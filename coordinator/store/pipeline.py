"""A few statements of PostgreSQL as one transaction in one round trip, on the event loop: libpq's pipeline mode.

What is sent up to a Sync is one transaction, which the server commits when it comes there. The driver's own pipeline would want a
thread, and takes half as long again.
"""

import asyncio
import itertools
import select
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

Statement = tuple[bytes, Sequence[bytes | None]]
"""With the parameters $1, $2, …; their values in binary form."""

_numbers = itertools.count()
Prepared = dict[bytes, bytes]
"""Names of the statements that a connection has prepared."""


def is_at_hand(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection is idle and, as far as can be told without asking the server, still there.

    Nobody has asked it for anything: if there is something to read, it is the server's farewell or the connection's end.
    """
    if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


async def run(connection: psycopg.Connection[Any], statements: Sequence[Statement], prepared: Prepared) -> PGresult:
    """Runs statements and commits them.

    Args:
        connection: idle, and nobody else's meanwhile.
        statements: each is prepared once per connection.
        prepared: of the connection, kept up to date.

    Returns:
        the answer to the last one, its values in binary form.

    Raises:
        psycopg.Error: what the server said of a statement or of the commit. Without a code the connection broke.
    """
    libpq = connection.pgconn
    preparing: list[tuple[bytes, bytes] | None] = []
    try:
        libpq.enter_pipeline_mode()
        for sql, values in statements:
            name = prepared.get(sql)
            if name is None:
                name = b"datacoord_%d" % next(_numbers)
                libpq.send_prepare(name, sql)
                preparing.append((sql, name))
            libpq.send_query_prepared(name, values, [Format.BINARY] * len(values), Format.BINARY)
            preparing.append(None)
        libpq.pipeline_sync()
        answers = await _answers(libpq)
        libpq.exit_pipeline_mode()
    except BaseException:
        # What may still come is the answer to this, and the next transaction would take it for its own.
        connection.close()
        raise
    # Also of a transaction that failed: what is prepared stays.
    for named, answer in zip(preparing, answers, strict=False):
        if named is not None and answer.status == ExecStatus.COMMAND_OK:
            prepared.update([named])
    for answer in answers:
        if answer.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            raise psycopg.errors.error_from_result(answer)
    return answers[-1]


async def _answers(libpq: PGconn) -> list[PGresult]:
    """Sends what is not sent yet, and takes all answers. A Sync has one only if the commit failed."""
    loop = asyncio.get_running_loop()
    socket = libpq.socket
    ready = asyncio.Event()
    answers: list[PGresult] = []

    async def wait() -> None:
        await ready.wait()
        ready.clear()
        libpq.consume_input()

    loop.add_reader(socket, ready.set)
    try:
        while libpq.flush():
            loop.add_writer(socket, ready.set)
            await wait()
            loop.remove_writer(socket)
        while True:
            while libpq.is_busy():
                await wait()
            answer = libpq.get_result()
            if answer is None:  # after those of each statement
                if libpq.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection broke")
            elif answer.status == ExecStatus.PIPELINE_SYNC:
                return answers
            else:
                answers.append(answer)
    finally:
        loop.remove_reader(socket)
        loop.remove_writer(socket)
