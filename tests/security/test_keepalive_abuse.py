"""Row *Keepalive abuse*: whoever pings without pause is sent away."""

import socket
import struct

from server.conftest import coordinator
from server.running_coordinator import CoordinatorThread

__all__ = ["coordinator"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _PING, _GOAWAY = 4, 6, 7
_ENHANCE_YOUR_CALM = 11


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """A frame of HTTP/2, of the connection as a whole."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", 0) + payload


def read_frame(connection: socket.socket) -> tuple[int, bytes]:
    """The next frame: its kind and its payload."""
    head = read_exactly(connection, 9)
    return head[3], read_exactly(connection, int.from_bytes(head[:3], "big"))


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes."""
    read = b""
    while len(read) < size:
        more = connection.recv(size - len(read))
        assert more, "the connection was closed without a word"
        read += more
    return read


def test_who_pings_without_pause_is_sent_away(coordinator: CoordinatorThread) -> None:
    """A flood of pings costs the sender nothing and the server a write each."""
    host, port = coordinator.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        pings = b"".join(frame(_PING, struct.pack(">Q", number)) for number in range(20))
        # At once: what comes after the server has hung up breaks the connection, and takes with it what the server has said.
        connection.sendall(_PREFACE + frame(_SETTINGS) + pings)
        kind, payload = read_frame(connection)
        while kind != _GOAWAY:
            kind, payload = read_frame(connection)
    assert int.from_bytes(payload[4:8], "big") == _ENHANCE_YOUR_CALM
    assert b"too_many_pings" in payload
