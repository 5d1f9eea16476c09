"""Row *Metrics port*: it shows figures and health, takes no call, and stands apart from gRPC and from the status page."""

import socket
from pathlib import Path

import grpc
import pytest
from server.running_coordinator import CoordinatorThread, running

from datacoord.v1 import admin_pb2
from security.logins import Logins
from security.raw import METHODS, RawChannel, bearer


def test_no_call_of_the_contract_can_be_made_there(guarded: CoordinatorThread, logins: Logins) -> None:
    """Milvus served its whole API, without a login, on the port for metrics (CVE-2026-26190)."""
    with RawChannel(guarded.web_address) as channel:
        for path in METHODS.values():
            answer = channel.call(path, b"", bearer(logins.tokens["admin"]))
            assert answer.code is not grpc.StatusCode.OK
            assert answer.error is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "CONNECT", "PRI", "EVIL"])
def test_only_reading_is_answered(guarded: CoordinatorThread, method: str) -> None:
    """A stop, a drop or a settings call that somebody adds for convenience is a call without a login."""
    host, port = guarded.web_address.split(":")
    body = admin_pb2.FlushAllRequest().SerializeToString()
    for path in ("/", "/metrics", "/healthz", "/stop", "/datacoord.v1.AdminService/FlushAll"):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode() + body)
            status = connection.makefile("rb").readline()
        assert status.split()[1][:1] in {b"4", b"5"}, (path, status)


def test_a_page_that_has_a_port_of_its_own_is_not_on_the_one_for_metrics(tmp_path: Path, unused_tcp_port: int) -> None:
    """Who may scrape figures need not see names of collections and owners."""
    import urllib.error
    import urllib.request

    with running(tmp_path / "data", page_port=unused_tcp_port) as thread:
        assert urllib.request.urlopen(f"http://{thread.web_address}/metrics", timeout=10).status == 200
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{thread.web_address}/", timeout=10)
        assert caught.value.code == 404
