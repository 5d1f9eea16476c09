"""Frames between the coordinator and its gRPC process, over a socket of the operating system that nobody else has.

A frame is a head (kind, number of the call, bytes of facts and of the body), facts as JSON, and a body as it came from gRPC. What
is sent in one turn of the event loop leaves in one piece: under load one system call moves many calls.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, cast

from datacoord.limits import UNREAD_BYTES_MAX

_HEAD: Final = struct.Struct("!BQII")


class Kind(IntEnum):
    """What a frame says. Those of a call carry its number; what stands in brackets is its facts."""

    SETTINGS = 1
    """To the gRPC process: listen [all settings of the coordinator]."""
    LISTENING = 2
    """From it: the port is taken [its number]."""
    REFUSED = 3
    """From it: it cannot listen [reason, sentence and metadata of the error]."""
    SERVE = 4
    """To it: accept calls."""
    SERVING = 6
    """From it: it does."""
    STOP = 5
    """To it: take no new calls, let those in progress end [within so many seconds; None = not at all], and end."""
    CALL = 10
    """From it: a request [method, deadline in monotonic seconds or None, peer, metadata, names in the peer's certificate]."""
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
    """To it: the call ends with an error [number of its code, sentence, trailing metadata]."""


Receive = Callable[[int, int, list[Any], bytes], None]
Metadata = Iterable[tuple[str, str | bytes]]


class Link(asyncio.Protocol):
    """One end of the socket.

    Args:
        receive: is given every frame: kind, number of the call, facts, body.
        lost: called once, when the other end is gone.
    """

    def __init__(self, receive: Receive, lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._sending: list[bytes] = []
        self._sending_bytes = 0

    @property
    def behind(self) -> bool:
        """Whether more than `UNREAD_BYTES_MAX` wait for the other end to read them."""
        unsent_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._sending_bytes + unsent_bytes > UNREAD_BYTES_MAX

    async def open(self, end: socket.socket) -> None:
        """Begins to send and to receive over a connected socket, which belongs to the link from now on."""
        await self._loop.create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See the base class."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        """See the base class."""
        if self._transport is not None:
            self._transport = None
            self._lost()

    def data_received(self, data: bytes) -> None:
        """See the base class."""
        received = self._received
        received += data
        at, end = 0, len(received)
        while end - at >= _HEAD.size:
            kind, call, facts_bytes, body_bytes = _HEAD.unpack_from(received, at)
            begin = at + _HEAD.size
            body_at = begin + facts_bytes
            if end < body_at + body_bytes:
                break
            at = body_at + body_bytes
            facts = json.loads(received[begin:body_at]) if facts_bytes else []
            with memoryview(received) as seen:
                body = bytes(seen[body_at:at])
            self._receive(kind, call, facts, body)
        del received[:at]

    def send(self, kind: Kind, call: int = 0, *facts: Any, body: bytes = b"") -> None:
        """Sends a frame; into the void where the other end is gone."""
        if not self._sending:
            self._loop.call_soon(self._flush)
        said = json.dumps(facts).encode() if facts else b""
        self._sending += (_HEAD.pack(kind, call, len(said), len(body)), said, body)
        self._sending_bytes += len(said) + len(body)

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._sending))
        self._sending.clear()
        self._sending_bytes = 0

    def close(self) -> None:
        """Ends the link; what was sent before still leaves. Nobody is told that the other end is gone."""
        if self._transport is not None:
            # Where opening was cancelled the transport is closed already, and would refuse even nothing.
            if self._sending:
                self._flush()
            self._transport.close()
            self._transport = None


def packed(metadata: Metadata) -> list[tuple[str, str, bool]]:
    """Metadata as facts can hold it: whether a value is bytes says the third."""
    return [
        (key, value, False) if isinstance(value, str) else (key, value.decode("latin-1"), True)
        for key, value in metadata
    ]


def unpacked(facts: Iterable[tuple[str, str, bool]]) -> tuple[tuple[str, str | bytes], ...]:
    """What `packed` was given."""
    return tuple((key, value.encode("latin-1") if is_bytes else value) for key, value, is_bytes in facts)
