"""`datacoord stuck|top|health`: what a person on call types first."""

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from server.running_coordinator import ROOT, CoordinatorThread, definition, running
from support.waiting import eventually

from datacoord.cli import main
from datacoord.cli.output import FOUND_STATUS
from datacoord.cli.stuck import all_is_well
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2, common_pb2


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
    assert result.exit_code == 3
    assert result.stdout.count("NO_DATANODE") == 3
    assert "> Start the collection's datanode job" in result.stdout
    assert "… and 27 more" in result.stdout
    said = run(coordinator, "stuck", "--collection", "unread", "--output", "json")
    (answer,) = json.loads(said.stdout)
    assert said.exit_code == 3
    assert {finding["severity"] for finding in answer["findings"]} == {"STUCK"}
    assert (len(answer["findings"]), answer["total"]) == (20, 30), "a script must see that there are more"


def test_where_nothing_is_stuck_the_answer_is_one_line(coordinator: CoordinatorThread) -> None:
    """Nobody should have to read a table to learn that all is well; "every channel is owned" is no answer where none is."""
    result = run(coordinator, "stuck", "--collection", "sinks")
    assert result.exit_code == 0
    assert result.stdout == "Nothing is stuck. Of 2 channels: 2 of sinks, claimed by none now.\n"
    asked = run(coordinator, "stuck", "--collection", "sinks", "--output", "json")
    assert json.loads(asked.stdout) == [{"total": 0, "findings": []}]


@pytest.mark.parametrize(
    ("channels", "sentence"),
    [
        ([], "there is no channel."),
        ([{"state": admin_pb2.CHANNEL_STATE_DROPPED}], "there is no channel."),
        ([{}], "Of 1 channel: 1 without an owner and in need of none: the source has ended."),
        (
            [{}, {"owner": "land/0#7"}],
            "Of 2 channels: 1 owned, and what its owner reads is written; 1 without an owner",
        ),
    ],
)
def test_what_is_said_of_a_service_without_findings_is_true(channels: list[dict[str, Any]], sentence: str) -> None:
    """When a job has ended, nobody owns its channels: who reads that all are owned looks for the fault in the command."""
    rows = [
        admin_pb2.ChannelInfo(
            **{"state": admin_pb2.CHANNEL_STATE_ACTIVE, "mode": common_pb2.CHANNEL_MODE_MANAGED, **row}
        )
        for row in channels
    ]
    assert sentence in all_is_well(rows)


def test_a_command_that_could_not_look_has_found_nothing(coordinator: CoordinatorThread) -> None:
    """A script that pages somebody for a stuck channel must not do so for a typo or for a coordinator that restarts."""
    away = CliRunner().invoke(main, ["stuck", "--address", "127.0.0.1:9", "--timeout", "0.5"])
    assert (away.exit_code, "COORDINATOR_UNREACHABLE" in away.stderr) == (1, True)
    assert run(coordinator, "stuck", "--collection", "typo").exit_code == 1
    assert run(coordinator, "stuck", "--limit", "0").exit_code == 2


def test_every_command_that_looks_for_something_says_its_exit_status() -> None:
    """A status that no help names is guessed."""
    for name in ("stuck", "verify", "health"):
        assert "Exit status" in (told := CliRunner().invoke(main, [name, "--help"]).stdout)
        assert f"{FOUND_STATUS}:" in told
    operations = (ROOT / "docs/operations.md").read_text()
    assert re.search(rf"^\| {FOUND_STATUS} \|.*`stuck`.*`verify`.*`health`", operations, re.MULTILINE)


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
    (well,) = json.loads(CliRunner().invoke(main, ["health", *web_address, "-o", "json"]).stdout)
    assert (well["well"], well["status"], well["problem"]) == (True, 200, "")
    told = CliRunner().invoke(main, ["health", "--web-address", "127.0.0.1:9", "-o", "json"])
    (away,) = json.loads(told.stdout)
    assert (told.exit_code, away["well"], away["status"]) == (1, False, 0)
    assert "does not answer" in away["problem"]


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"no http at all\r\n"])
def test_health_asks_the_coordinator_and_nobody_in_between(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment that answers for a coordinator which is not there keeps a dead container in service."""
    with socketserver.TCPServer(("127.0.0.1", 0), lambda *request: Answering(said, *request)) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv("http_proxy", f"http://{address}")
        gone = CliRunner().invoke(main, ["health", "--web-address", "127.0.0.1:9", "--timeout", "20"])
        assert (gone.exit_code, "does not answer" in gone.stderr) == (1, True)
        asked = CliRunner().invoke(main, ["health", "--web-address", address, "--timeout", "20"])
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
    """A balancer that goes on sending calls to a coordinator that ends makes callers wait. It answers: it is not away."""
    with running(tmp_path_factory.mktemp("draining") / "data") as thread:
        thread.coordinator._web.drain()
        answers: list[Result] = []

        def refused() -> bool:
            answers.append(CliRunner().invoke(main, ["health", "--web-address", thread.web_address]))
            return answers[-1].exit_code == 3

        eventually(refused)
        assert "503" in answers[-1].stderr
