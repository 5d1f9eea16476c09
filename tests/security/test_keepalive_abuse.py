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
    head = b""
    while len(head) < 9:
        more = connection.recv(9 - len(head))
        assert more, "the connection was closed without a word"
        head += more
    size = int.from_bytes(head[:3], "big")
    payload = b""
    while len(payload) < size:
        payload += connection.recv(size - len(payload))
    return head[3], payload


def test_who_pings_without_pause_is_sent_away(coordinator: CoordinatorThread) -> None:
    """A flood of pings costs the sender nothing and the server a write each."""
    host, port = coordinator.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(_PREFACE + frame(_SETTINGS))
        for number in range(20):
            connection.sendall(frame(_PING, struct.pack(">Q", number)))
        kind, payload = read_frame(connection)
        while kind != _GOAWAY:
            kind, payload = read_frame(connection)
    assert int.from_bytes(payload[4:8], "big") == _ENHANCE_YOUR_CALM
    assert b"too_many_pings" in payload
