"""`datacoord stuck|top|health`: what a person on call types first."""

import json
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from server.running_coordinator import CoordinatorThread, definition, running
from support.waiting import eventually

from datacoord.cli import main
from datacoord.client import CoordinatorClient
from datacoord.v1 import common_pb2


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator with a collection of sinks and one that no datanode reads."""
    with running(tmp_path_factory.mktemp("operating") / "data") as thread:
        with CoordinatorClient(thread.address) as client:
            client.create_collection(definition("sinks"))
            client.create_collection(
                definition("unread", channel_mode=common_pb2.CHANNEL_MODE_MANAGED, channel_count=30)
            )
        yield thread


def run(coordinator: CoordinatorThread, *arguments: str) -> Result:
    """Runs a command against it."""
    return CliRunner().invoke(main, [*arguments, "--address", coordinator.address], catch_exceptions=False)


def test_what_is_stuck_is_named_with_what_to_do_and_scripts_learn_it_from_the_status(
    coordinator: CoordinatorThread,
) -> None:
    """A command that says "ok" while nothing moves is worse than none."""
    result = run(coordinator, "stuck", "--limit", "3")
    assert result.exit_code == 1
    assert result.stdout.count("NO_DATANODE") == 3
    assert "> Start the collection's datanode job" in result.stdout
    assert "… and 27 more" in result.stdout
    findings = json.loads(run(coordinator, "stuck", "--collection", "unread", "--output", "json").stdout)
    assert {finding["severity"] for finding in findings} == {"STUCK"}


def test_where_nothing_is_stuck_the_answer_is_one_line(coordinator: CoordinatorThread) -> None:
    """Nobody should have to read a table to learn that all is well."""
    result = run(coordinator, "stuck", "--collection", "sinks")
    assert (result.exit_code, result.stdout) == (0, "Nothing is stuck: every channel is owned, read and written.\n")


def test_a_channel_asked_for_by_name_always_gets_an_answer(coordinator: CoordinatorThread) -> None:
    """Silence about a channel reads as "all is well" also where it does not exist."""
    with CoordinatorClient(coordinator.address) as client:
        name = next(row.channel_name for row in client.list_channels("sinks"))
    result = run(coordinator, "stuck", name)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"WELL  {name}  NOTHING")
    unknown = run(coordinator, "stuck", "nobody_1v0")
    assert unknown.exit_code == 1
    assert "CHANNEL_NOT_FOUND" in unknown.stderr


def test_top_shows_what_is_late_and_ends_by_itself_when_asked_once(coordinator: CoordinatorThread) -> None:
    """A picture of the service for a ticket, without a terminal."""
    result = run(coordinator, "top", "--once", "--interval", "0.2")
    assert result.exit_code == 0
    assert "something is stuck" in result.stdout
    assert "32 channels, 0 owned, 0 moved; 0 datanodes" in result.stdout
    assert "No datanode lives." in result.stdout


def test_health_tells_the_process_from_its_database(coordinator: CoordinatorThread) -> None:
    """An orchestrator that restarts a coordinator whose database is away makes it worse."""
    web_address = ("--web-address", coordinator.web_address)
    assert CliRunner().invoke(main, ["health", *web_address]).exit_code == 0
    assert CliRunner().invoke(main, ["health", "--live", *web_address]).exit_code == 0
    gone = CliRunner().invoke(main, ["health", "--web-address", "127.0.0.1:9", "--timeout", "1"])
    assert gone.exit_code == 1
    assert "does not answer" in gone.stderr


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"no http at all\r\n"])
def test_health_asks_the_coordinator_and_nobody_in_between(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment that answers for a coordinator which is not there keeps a dead container in service."""
    with socketserver.TCPServer(("127.0.0.1", 0), lambda *request: Answering(said, *request)) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv("http_proxy", f"http://{address}")
        gone = CliRunner().invoke(main, ["health", "--web-address", "127.0.0.1:9", "--timeout", "1"])
        assert (gone.exit_code, "does not answer" in gone.stderr) == (1, True)
        asked = CliRunner().invoke(main, ["health", "--web-address", address, "--timeout", "1"])
        proxy.shutdown()
    assert asked.exit_code == (0 if said.startswith(b"HTTP") else 1)
    assert asked.exception is None or isinstance(asked.exception, SystemExit), "a traceback is no sentence"


class Answering(socketserver.BaseRequestHandler):
    """Says the same to everybody."""

    def __init__(self, said: bytes, *request: Any) -> None:
        self._said = said
        super().__init__(*request)

    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(self._said)


def test_health_says_no_while_the_coordinator_drains(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A balancer that goes on sending calls to a coordinator that ends makes callers wait."""
    with running(tmp_path_factory.mktemp("draining") / "data") as thread:
        thread.coordinator._web.drain()
        answers: list[Result] = []

        def refused() -> bool:
            answers.append(CliRunner().invoke(main, ["health", "--web-address", thread.web_address]))
            return answers[-1].exit_code == 1

        eventually(refused)
        assert "503" in answers[-1].stderr
