"""Frames between the coordinator and its gRPC process, over a socket of the operating system that nobody else has.

A frame is a head (bytes that follow it, kind, number of the call) and a body. What is sent in one turn of the event loop leaves
in one piece: under load one system call moves many calls.
"""

import asyncio
import marshal
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, cast

_HEAD: Final = struct.Struct("!IBQ")
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""So much may wait for the other end to read it before this one is told that the other is behind."""


class Kind(IntEnum):
    """What a frame says. Those of a call carry its number."""

    SETTINGS = 1
    """To the gRPC process: all settings of the coordinator."""
    LISTENING = 2
    """From it: the number of the port that it took."""
    REFUSED = 3
    """From it: reason, sentence and metadata of the error that kept it from listening."""
    SERVE = 4
    """To it: accept calls."""
    STOP = 5
    """To it: take no new calls, let those in progress end within so many seconds (None = none), and end."""
    CALL = 10
    """From it: method, deadline (monotonic seconds, or None), peer, metadata, names in the peer's certificate, request."""
    CANCEL = 11
    """From it: nobody waits for this call any more."""
    WRITTEN = 12
    """From it: the message of the stream has left."""
    REPLY = 20
    """To it: the response of a call, which ends it."""
    MESSAGE = 21
    """To it: one message of a stream. The next one follows after WRITTEN."""
    END = 22
    """To it: the stream has no more messages."""
    ABORT = 23
    """To it: the call ends with an error: number of its code, sentence, trailing metadata."""


Receive = Callable[[int, int, bytes], None]


class Link(asyncio.Protocol):
    """One end of the socket.

    Args:
        receive: is given every frame: kind, number of the call, body.
        lost: called once, when the other end is gone.

    Attributes:
        behind: the other end does not read as fast as this one sends.
    """

    def __init__(self, receive: Receive, lost: Callable[[], None]) -> None:
        self.behind = False
        self._receive = receive
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._sending: list[bytes] = []

    async def open(self, end: socket.socket) -> None:
        """Begins to send and to receive over a connected socket, which belongs to the link from now on."""
        await self._loop.create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See the base class."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(UNREAD_BYTES_MAX)

    def pause_writing(self) -> None:
        """See the base class."""
        self.behind = True

    def resume_writing(self) -> None:
        """See the base class."""
        self.behind = False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        """See the base class."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """See the base class."""
        received = self._received
        received += data
        at, end = 0, len(received)
        while end - at >= _HEAD.size:
            size, kind, call = _HEAD.unpack_from(received, at)
            begin = at + _HEAD.size
            if end - begin < size:
                break
            at = begin + size
            self._receive(kind, call, bytes(received[begin:at]))
        del received[:at]

    def send(self, kind: Kind, call: int = 0, body: bytes = b"") -> None:
        """Sends a frame; into the void where the other end is gone."""
        if not self._sending:
            self._loop.call_soon(self._flush)
        self._sending += (_HEAD.pack(len(body), kind, call), body)

    def say(self, kind: Kind, call: int, *values: Any) -> None:
        """Sends a frame of plain values, which `heard` reads."""
        self.send(kind, call, marshal.dumps(values))

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._sending))
        self._sending.clear()

    def close(self) -> None:
        """Ends the link; what was sent before still leaves."""
        if self._transport is not None:
            self._flush()
            self._transport.close()


def heard(body: bytes) -> Any:
    """The values of a frame of `say`. Both ends are one program, and nobody else can speak here."""
    return marshal.loads(body)  # noqa: S302 - see above
