"""Statements in one round trip, on the loops that a coordinator may have: the end of a connection is noticed, however it comes."""

import asyncio
import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
import uvloop
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

from coordinator.store import pipeline

from .databases import Databases

pytestmark = pytest.mark.parametrize("templates", ["postgresql"], indirect=True)

SECONDS_MAX = 10.0
LAST_WORDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Between a client and a server, until it ends the connection as a server does that has no time left.

    Attributes:
        port: of the proxy.
    """

    def __init__(self, host: str, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._there = (host, port)
        self._over = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listening.accept()
        with socket.create_connection(self._there) as server:
            while not self._over.is_set():
                for end in select.select([client, server], [], [], 0.01)[0]:
                    data = end.recv(65536)
                    (server if end is client else client).sendall(data)
            client.sendall(b"E" + struct.pack("!i", len(LAST_WORDS) + 4) + LAST_WORDS)
            # What is closed with this option is not ended but reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        self._ended.set()

    def reset(self) -> None:
        """Says the server's last words, and resets the connection."""
        self._over.set()
        assert self._ended.wait(SECONDS_MAX)

    def close(self) -> None:
        self._over.set()
        self._listening.close()


@pytest.fixture
def proxy(databases: Databases) -> Iterator[tuple[Proxy, str]]:
    """A proxy, and how to reach the database through it."""
    given = make_url(databases.empty()).set(drivername="postgresql").render_as_string(hide_password=False)
    where = conninfo_to_dict(given)
    between = Proxy(str(where["host"]), int(str(where["port"])))
    yield between, psycopg.conninfo.make_conninfo(given, host="127.0.0.1", port=between.port)
    between.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_is_reset_after_its_last_words_is_an_end_and_not_a_wait(
    proxy: tuple[Proxy, str], new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop says nothing more of a socket with an error: the queue of writes would stand still, and the coordinator not end."""
    monkeypatch.setattr(pipeline, "_LOOK_SECONDS", 1000.0)
    between, conninfo = proxy

    async def answer() -> object:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            running = asyncio.create_task(pipeline.run(connection, [(b"SELECT pg_sleep(60)::text", [])], {}))
            await asyncio.sleep(0)
            await asyncio.to_thread(between.reset)
            async with asyncio.timeout(SECONDS_MAX):
                return await running

    loop = new_loop()
    with contextlib.closing(loop), pytest.raises(psycopg.Error):
        loop.run_until_complete(answer())
