"""Row *Metrics port*: what a browser may read here is not read by a page that let its own name point here (DNS rebinding)."""

import http.client
from pathlib import Path

import pytest
from server.running_coordinator import running

OURS = ("localhost", "localhost:13334", "LOCALHOST", "127.0.0.1", "127.0.0.1:1", "127.9.9.9", "[::1]:13334")
THEIRS = (
    "evil.example",
    "evil.example:13334",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.1",
    "",
    "[",
    "a b",
)


def status(address: str, name: str, path: str = "/") -> int:
    """What is answered to who asks by this name."""
    host, port = address.split(":")
    connection = http.client.HTTPConnection("127.0.0.1" if host == "0.0.0.0" else host, int(port), timeout=10)
    try:
        connection.putrequest("GET", path, skip_host=True)
        connection.putheader("Host", name)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("own_port", [False, True])
def test_on_loopback_only_names_of_loopback_are_answered(tmp_path: Path, own_port: bool, unused_tcp_port: int) -> None:
    """Whatever page the operator looks at in the morning could otherwise read names, owners and settings."""
    with running(tmp_path / "data", page_port=unused_tcp_port if own_port else 0) as thread:
        for address, paths in (
            (thread.coordinator.page_address, ("/", "/settings", "/static/page.js")),
            (thread.web_address, ("/metrics",)),
        ):
            for path in paths:
                assert {name: status(address, name, path) for name in OURS} == dict.fromkeys(OURS, 200)
                assert {status(address, name, path) for name in THEIRS} <= {400, 421}


def test_a_name_of_a_proxy_is_answered_when_it_is_named(tmp_path: Path) -> None:
    """A page behind a proxy that hands on its own name."""
    with running(tmp_path / "data", page_names="Status.example, other.example") as thread:
        for name, expected in (
            ("status.example", 200),
            ("other.example:443", 200),
            ("localhost", 200),
            ("evil.example", 421),
        ):
            assert status(thread.coordinator.page_address, name) == expected


@pytest.mark.parametrize(("names", "expected"), [("", 200), ("localhost", 421)])
def test_elsewhere_any_name_is_answered_unless_some_are_named(
    tmp_path: Path, names: str, expected: int, unused_tcp_port: int
) -> None:
    """A coordinator does not know what others call its machine; nor may the port for metrics be refused to who scrapes it."""
    with running(tmp_path / "data", web_host="0.0.0.0", page_port=unused_tcp_port, page_names=names) as thread:
        assert status(thread.coordinator.page_address, "machine.example") == expected
        assert status(thread.coordinator.page_address, "127.0.0.1") == 200
        assert status(thread.web_address, "10.1.2.3:13334", "/metrics") == 200
