"""Row *Logs and audit*: who did what stands there, what they sent does not, and nobody can write into it."""

import contextlib
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from server.running_coordinator import CoordinatorProcess, CoordinatorThread, definition

from coordinator import logging
from coordinator.rpc.authentication import Authenticator
from coordinator.rpc.gate import REFUSALS_PER_SECOND_MAX, Gate
from coordinator.rpc.roles import Role
from datacoord.errors import PermissionDeniedError, UnauthenticatedError
from datacoord.v1 import collection_pb2
from security.logins import Logins, log_lines
from security.pki import Authority
from security.raw import METHODS, RawChannel, bearer


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_what_an_admin_does_and_what_is_refused_is_written_down_without_what_was_sent(
    guarded: CoordinatorThread, logins: Logins, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an accident the first question is who; a log that also holds the data is the next accident."""
    drop = collection_pb2.DropCollectionRequest(collection_name="secret_project").SerializeToString()
    path = METHODS["CollectionService.DropCollection"]
    with logins.client(guarded.address, "writer") as writer, RawChannel(guarded.address) as channel:
        writer.create_collection(definition("secret_project"))
        channel.call(path, drop)
        for word in ("reader", "admin", "admin"):
            channel.call(path, drop, bearer(logins.tokens[word]))
    written = capsys.readouterr().out
    lines = log_lines(written, "audit")
    assert [(line["method"], line["name"], line["role"], line["outcome"]) for line in lines] == [
        ("DropCollection", "", "", "UNAUTHENTICATED"),
        ("DropCollection", "the-reader", "reader", "PERMISSION_DENIED"),
        ("DropCollection", "the-admin", "admin", "OK"),
        ("DropCollection", "the-admin", "admin", lines[3]["outcome"]),
    ]
    assert lines[3]["outcome"] in {"OK", "NOT_FOUND"}
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines)
    assert not any("secret_project" in json.dumps(line) for line in lines)
    assert not any(token in written for token in logins.tokens.values())


def test_strangers_who_never_get_in_write_nothing(tmp_path: Path, authority: Authority) -> None:
    """GRPC's own lines about broken handshakes have no form, no limit, and come from whoever can connect."""
    certificate, key = authority.issue("coordinator")
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with CoordinatorProcess(tmp_path / "data", *files, "--log-format", "json") as process:
        host, port = process.address.split(":")
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 50, b"\x00" * 500) * 5:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(junk)
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    while connection.recv(4096):
                        pass
        before = process.output()
        assert process.terminate() == 0
    assert {json.loads(line)["event"] for line in before.splitlines()} == {"database_migrated", "listening"}


class Caller:
    """The context of a call that never was."""

    def __init__(self, metadata: list[tuple[str, str]]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [b'mallory\n{"event": "audit"}\x1b[31m' + b"x" * 1000]}


def test_a_flood_of_refusals_does_not_fill_the_disk_and_is_counted(logins: Logins) -> None:
    """Whoever knocks a thousand times a second writes the log, and what mattered is rotated away."""
    out = io.StringIO()
    logging.configure("info", "json", out)
    seconds = [0.0]
    gate = Gate(Authenticator(logins.path), monotonic_seconds=lambda: seconds[0])
    stranger: Any = Caller([])
    reader: Any = Caller(bearer(logins.tokens["reader"]))
    for _ in range(500):
        with pytest.raises(UnauthenticatedError):
            gate.admit("DropCollection", Role.ADMIN, stranger)
    assert len(log_lines(out.getvalue(), "audit")) == REFUSALS_PER_SECOND_MAX
    seconds[0] = 1.0
    with pytest.raises(PermissionDeniedError):
        gate.admit("DropCollection", Role.ADMIN, reader)
    last = log_lines(out.getvalue(), "audit")[-1]
    assert last["left_out"] == 500 - REFUSALS_PER_SECOND_MAX
    assert len(last["certificate"]) < 200


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("hostile", ["a\nb", "a\r\nb", "\x1b[2J\x1b[31m", "a\u2028b", "a\u0085b", "\x00", "\u202eevil"])
def test_text_of_callers_cannot_forge_a_line_or_speak_to_the_terminal(form: str, hostile: str) -> None:
    """A name with a line break writes a line of its own; one with an escape sequence repaints the screen of whoever reads."""
    out = io.StringIO()
    logging.configure("info", form, out)
    logging.get_logger("test").info("happened", name=hostile, names=[hostile], more={"x": hostile})
    written = out.getvalue()
    assert written.count("\n") == 1
    assert written.endswith("\n")
    assert all(character.isprintable() for character in written[:-1])
