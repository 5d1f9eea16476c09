"""An S3 API server over a real socket (moto), and a proxy before it that makes the network and the service fail on purpose."""

import http.client
import http.server
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from pyarrow import fs as pafs

from .waiting import joined

FAULTS = ("reset", "lost_reply", "500", "503", "stall")
"""What the proxy does to a request: cuts the connection, lets the server do it and cuts then, refuses twice over, says nothing."""

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

_HOP_BY_HOP = {"transfer-encoding", "connection", "content-length", "expect"}

Choice = Callable[[str, str], str | None]
"""From method and path of a request to the fault it meets; None = none."""


@dataclass
class S3Server:
    """A server and the proxy before it.

    Attributes:
        port: of the server itself.
        proxy_port: of the proxy; this is what clients are told.
        choose: which fault a request meets.
        requests: method and path of every request the proxy saw.
    """

    port: int
    proxy_port: int = 0
    choose: Choice = lambda _method, _path: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self.proxy_port}"

    def direct(self) -> pafs.S3FileSystem:
        """The server itself, past the proxy."""
        return pafs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            access_key="testing",
            secret_key="testing-secret",
            allow_bucket_creation=True,
        )

    def make_bucket(self, bucket: str) -> str:
        """Creates a bucket and returns a storage root in it."""
        self.direct().create_dir(bucket)
        return f"s3://{bucket}/objects"

    def names(self, bucket: str) -> list[str]:
        """Every object of a bucket."""
        infos = self.direct().get_file_info(pafs.FileSelector(bucket, recursive=True))
        return sorted(info.path for info in infos if info.type == pafs.FileType.File)

    def fail(self, times: int, fault: str, method: str = "", part: str = "") -> None:
        """The next so many requests of a method whose path holds a text meet a fault."""
        left = [times]

        def choose(asked: str, path: str) -> str | None:
            with self.lock:
                if left[0] > 0 and method in {"", asked} and part in path:
                    left[0] -= 1
                    return fault
            return None

        self.choose = choose

    def heal(self) -> None:
        """No more faults; forgets what it saw."""
        self.choose = lambda _method, _path: None
        self.requests.clear()


def _handler(server: S3Server, stopped: threading.Event) -> type[http.server.BaseHTTPRequestHandler]:
    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self._read_body()
            server.requests.append((self.command, self.path))
            fault = server.choose(self.command, self.path)
            if fault == "stall":
                stopped.wait(30)
            if fault in {"reset", "stall"}:
                self._reset()
            elif fault in {"500", "503"}:
                code = "SlowDown" if fault == "503" else "InternalError"
                self._answer(int(fault), [], f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode())
            else:
                self._forward(body, lose=fault == "lost_reply")

        def _read_body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(chunks)

        def _forward(self, body: bytes, *, lose: bool) -> None:
            upstream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            try:
                # The host stays the client's: it is part of what is signed.
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
                upstream.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
                reply = upstream.getresponse()
                content = reply.read()
            finally:
                upstream.close()
            if lose:
                self._reset()
                return
            replied = [(name, value) for name, value in reply.getheaders() if name.lower() not in _HOP_BY_HOP]
            length = reply.getheader("Content-Length") if self.command == "HEAD" else None
            self._answer(reply.status, replied, content, length)

        def _answer(self, status: int, headers: Any, content: bytes, length: str | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _reset(self) -> None:
            # Linger 0: the peer gets a reset, not an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        def finish(self) -> None:
            try:
                super().finish()
            except (OSError, ValueError):
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - names of http.server

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Proxy


class _Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that were cut on purpose are no news."""


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Starts server and proxy, and points the environment of this process (and of those it starts) at them."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    server = S3Server(moto.get_host_and_port()[1])
    stopped = threading.Event()
    proxy = _Quiet(("127.0.0.1", 0), _handler(server, stopped))
    server.proxy_port = proxy.server_port
    thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), name="S3 proxy")
    thread.start()
    try:
        with mock.patch.dict(os.environ, {**ENVIRONMENT, "DATACOORD_S3_ENDPOINT": server.endpoint}):
            yield server
    finally:
        stopped.set()
        proxy.shutdown()
        joined(thread)
        proxy.server_close()
        moto.stop()
