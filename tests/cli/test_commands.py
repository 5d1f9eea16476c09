"""The `datacoord` command: tables for people, JSON for scripts, one sentence for what went wrong, and a quick start."""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from server.running_coordinator import (
    CoordinatorThread,
    claim,
    command,
    definition,
    environment,
    running,
    save_part,
)
from support.commands import run
from support.waiting import eventually

from datacoord.cli import main
from datacoord.cli.listings import lateness
from datacoord.cli.output import age, size
from datacoord.client import CoordinatorClient
from datacoord.natural_order import natural_key
from datacoord.v1 import admin_pb2, common_pb2, data_coord_pb2, data_coord_pb2_grpc

COMMANDS = ["serve", "migrate", "config", "collections", "channels", "segments", "datanodes", "flush", "version"]


class Filled:
    """A coordinator with a collection, two saves and a datanode."""

    def __init__(self, thread: CoordinatorThread) -> None:
        self.thread = thread
        self.client = CoordinatorClient(thread.address)
        self.client.create_collection(definition(properties={"[red]": "[/]"}))
        self.client.create_collection(definition("managed", channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
        self.first, self.second = claim(self.client)
        self.client.save_binlog_paths([save_part(self.first, 0, 5, 1)])
        self._channel = grpc.insecure_channel(thread.address)
        stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(self._channel)  # type: ignore[no-untyped-call]
        request = data_coord_pb2.RegisterDataNodeRequest(
            job="j", slot=3, collection_names=["managed"], host="h", pid=42
        )
        self.node_id: int = stub.RegisterDataNode(request).node_id

    def run(self, *arguments: str) -> Result:
        """Runs a command against it."""
        return CliRunner().invoke(main, [*arguments, "--address", self.thread.address], catch_exceptions=False)

    def records(self, *arguments: str) -> Sequence[Any]:
        """Runs a command for its JSON."""
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == 0, result.stderr
        records: Sequence[Any] = json.loads(result.stdout)
        return records

    def close(self) -> None:
        """Closes what it opened."""
        self._channel.close()
        self.client.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """One coordinator for all of these tests."""
    with running(tmp_path_factory.mktemp("cli") / "data", datanode_lease_seconds=600.0) as thread:
        made = Filled(thread)
        yield made
        made.close()


def test_collections(filled: Filled) -> None:
    """Names, keys and columns, for people and for scripts."""
    table = filled.run("collections")
    assert "append-only" not in table.stdout
    assert "CLAIMED" in table.stdout
    first, second = filled.records("collections")
    assert (first["collection_name"], second["collection_name"]) == ("files", "managed")
    assert first["columns"] == {"path": "string", "mode": "int32"}
    assert first["channel_mode"] == "CLAIMED"
    assert first["primary_key"] == ["path"]
    assert first["properties"] == {"[red]": "[/]"}
    assert isinstance(first["collection_id"], int)


def test_channels(filled: Filled) -> None:
    """Owner, epoch and checkpoint of each; numbers stay numbers in JSON."""
    table = filled.run("channels", "files")
    lines = table.stdout.splitlines()
    assert len(lines) == 3
    assert filled.first.channel_name in lines[1]
    assert "query-1" in lines[1]
    first, second = filled.records("channels", "files")
    assert first["checkpoint"]["timestamp"] == 5
    assert first["epoch"] == filled.first.epoch
    assert first["state"] == "ACTIVE"
    assert first["report"] is None
    assert second["checkpoint"]["timestamp"] == 0
    assert len(filled.records("channels")) == 4


def test_channels_are_filtered_and_sorted(filled: Filled) -> None:
    """Among ten thousand channels the ones that matter are found by the command, not by the eye."""
    names = [row["channel_name"] for row in filled.records("channels", "--collection", "files")]
    assert names == [filled.first.channel_name, filled.second.channel_name]
    assert {row["owner"] for row in filled.records("channels", "--owner", "query")} == {"query-1"}
    free = filled.records("channels", "--owner", "nobody", "--state", "active")
    assert {row["collection_name"] for row in free} == {"managed"}
    assert filled.records("channels", "--state", "DROPPED") == []
    assert "no such channel" in filled.run("channels", "--state", "dropped").stdout
    assert filled.run("channels", "files", "--collection", "managed").exit_code == 2
    assert "done here" in filled.run("channels", "list", "--help").stdout


def test_the_channel_that_is_furthest_behind_comes_first_and_equal_ones_in_their_order() -> None:
    """By name alone the one that is looked for stands anywhere."""
    lags = {"a_1v10": 5, "a_1v9": 5, "a_1v2": None, "a_1v3": 70}
    rows = [
        admin_pb2.ChannelInfo(channel_name=name, report=data_coord_pb2.DataNodeTtMsg(lag=lag))
        for name, lag in lags.items()
    ]
    rows.sort(key=lambda row: natural_key(row.channel_name))
    assert [row.channel_name for row in sorted(rows, key=lateness, reverse=True)] == [
        "a_1v3",
        "a_1v9",
        "a_1v10",
        "a_1v2",
    ]


def test_segments(filled: Filled) -> None:
    """Segments, and only those of a state."""
    assert "GROWING" in filled.run("segments", "files").stdout
    (segment,) = filled.records("segments", "files", "--state", "growing")
    assert (segment["state"], segment["rows"], segment["binlogs"]) == ("GROWING", 1, 1)
    assert filled.records("segments", "files", "--state", "DROPPED") == []
    assert "no such segment" in filled.run("segments", "files", "--state", "DROPPED").stdout


def test_datanodes(filled: Filled) -> None:
    """Sessions, with where they run."""
    assert "h (pid 42)" in filled.run("datanodes").stdout
    (node,) = filled.records("datanodes", "--job", "j")
    assert (node["node_id"], node["slot"], node["state"]) == (filled.node_id, 3, "INITIALIZING")
    assert filled.records("datanodes", "--job", "another") == []


def test_flush_says_what_it_waits_for(filled: Filled) -> None:
    """A flush that hangs must name the channel that holds it up, and a script must see that it is not done."""
    result = filled.run("flush", "files", "--timestamp", "9", "--wait", "0.3")
    assert result.exit_code == 1
    assert "0 of 2 channels" in result.stdout
    assert filled.second.channel_name in result.stdout
    (state,) = filled.records("flush", "files", "--timestamp", "9")
    assert state["flushed"] is False
    assert [row["timestamp"] for row in state["pending"]] == [9, 9]


def test_flush_waits_until_it_is_done(filled: Filled) -> None:
    """And ends as soon as it is."""
    name = "flushed"
    filled.client.create_collection(definition(name, channel_count=1))
    (info,) = claim(filled.client, name)
    results: list[Result] = []
    waiting = threading.Thread(
        target=lambda: results.append(filled.run("flush", name, "--timestamp", "4", "--wait", "30"))
    )
    waiting.start()
    eventually(lambda: any(row.flush_timestamp for row in filled.client.list_channels(name)))
    filled.client.save_binlog_paths([save_part(info, 0, 4, 1)])
    waiting.join(30)
    assert results[0].exit_code == 0
    assert "is done in 1 channels" in results[0].stdout


@pytest.mark.parametrize(
    ("arguments", "reason", "status"),
    [
        (["channels", "nobody"], "COLLECTION_NOT_FOUND", 1),
        (["channels", "nobody", "-o", "json"], "COLLECTION_NOT_FOUND", 1),
        (["flush", "nobody"], "COLLECTION_NOT_FOUND", 1),
        (["channels", "no name"], "INVALID_FIELD", 2),
    ],
)
def test_a_refusal_is_one_sentence(filled: Filled, arguments: list[str], reason: str, status: int) -> None:
    """A traceback tells a person on call nothing but that somebody was lazy."""
    result = filled.run(*arguments)
    assert result.exit_code == status
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("datacoord: ")
    assert line.endswith(f"({reason})")


def test_a_coordinator_that_is_away_is_one_sentence() -> None:
    """The most common of all mistakes."""
    result = CliRunner().invoke(main, ["channels", "--address", "127.0.0.1:1", "--timeout", "0.2"])
    assert result.exit_code == 1
    assert "is it running" in result.stderr
    assert "COORDINATOR_UNREACHABLE" in result.stderr


def test_the_address_can_come_from_the_environment(filled: Filled) -> None:
    """Who works with one coordinator all day types its address once."""
    variables = {"DATACOORD_ADDRESS": filled.thread.address}
    result = CliRunner().invoke(main, ["channels", "files", "-o", "json"], env=variables, catch_exceptions=False)
    assert len(json.loads(result.stdout)) == 2


def test_config_shows_sources_and_masks_secrets(tmp_path: Path) -> None:
    """The first question to a misbehaving service is what it believes it was told."""
    file = tmp_path / "c.toml"
    file.write_text("grpc_port = 4000\n")
    variables = {"DATACOORD_DATABASE_URL": "postgresql://u:hunter2@h/d"}
    arguments = ["config", "--config", str(file), "--web-port", "4001"]
    shown = CliRunner().invoke(main, arguments, env=variables, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "hunter2" not in shown.output
    answered = CliRunner().invoke(main, [*arguments, "-o", "json"], env=variables, catch_exceptions=False)
    rows = {row["setting"]: row for row in json.loads(answered.stdout)}
    assert rows["grpc_port"] == {"setting": "grpc_port", "value": 4000, "source": f"file {file}"}
    assert rows["web_port"]["source"] == "flag"
    assert rows["database_url"]["value"] == "******"
    refused = CliRunner().invoke(main, ["config", "--grpc-port", "x"])
    assert refused.exit_code == 2
    assert "CONFIG_INVALID" in refused.stderr


def test_a_script_learns_what_migrate_did(tmp_path: Path) -> None:
    """A deployment that asks whether the database was changed must not read a sentence for it."""
    arguments = ["migrate", "--data-dir", str(tmp_path / "data"), "--output", "json"]
    first, again = [json.loads(CliRunner().invoke(main, arguments, catch_exceptions=False).stdout) for _ in range(2)]
    assert (first[0]["before"], first[0]["changed"]) == ("", True)
    assert again == [{"before": first[0]["now"], "now": first[0]["now"], "changed": False}]


def test_version_names_what_matters() -> None:
    """For bug reports."""
    (versions,) = json.loads(CliRunner().invoke(main, ["version", "-o", "json"]).stdout)
    assert versions["grpcio"] == grpc.__version__
    assert versions["datacoord"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    """And none of them needs a coordinator for it."""
    result = CliRunner().invoke(main, [name, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_the_list_of_commands_is_complete_and_quick() -> None:
    """`datacoord --help` must not import gRPC, SQLAlchemy and Arrow to print ten lines."""
    listed = CliRunner().invoke(main, ["--help"]).stdout
    assert all(f"  {name} " in listed for name in COMMANDS)
    program = (
        "import sys; from datacoord.cli import main; main(['--help'], standalone_mode=False);"
        "print(sorted({'grpc', 'sqlalchemy', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    done = run([sys.executable, "-c", program], environment=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_wrong_usage() -> None:
    """Click says it, with exit status 2."""
    done = run(command("frobnicate"), environment=environment())
    assert done.returncode == 2
    assert "frobnicate" in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["chanels"], "channels"), (["stuk"], "stuck"), (["datanode"], "datanodes"), (["gc", "puase"], "pause")],
)
def test_a_command_that_is_mistyped_is_named(typed: list[str], meant: str) -> None:
    """At night the list of twenty commands is one more page to read."""
    result = CliRunner().invoke(main, typed)
    assert result.exit_code == 2
    assert f"'{meant}'" in result.stderr
    assert "Did you mean" in result.stderr


def test_a_shell_completes_commands_and_options() -> None:
    """And without importing what it only names: the key is pressed in every line."""
    program = (
        "import sys, click; from datacoord.cli import main; main.shell_complete(click.Context(main), ''); "
        "print(sorted({'grpc', 'sqlalchemy', 'rich'} & set(sys.modules)))"
    )
    assert run([sys.executable, "-c", program], environment=environment()).stdout == "[]\n"
    asked = {"_DATACOORD_COMPLETE": "bash_complete", "COMP_WORDS": "datacoord c", "COMP_CWORD": "1"}
    done = run(command(), environment=environment(**asked))
    assert done.stdout.splitlines() == ["plain,config", "plain,collections", "plain,channels"]
    asked |= {"COMP_WORDS": "datacoord stuck --coll", "COMP_CWORD": "2"}
    assert run(command(), environment=environment(**asked)).stdout.splitlines() == ["plain,--collection"]
    script = run(command(), environment=environment(_DATACOORD_COMPLETE="bash_source"))
    assert "complete -o nosort -F _datacoord_completion datacoord" in script.stdout


def test_output_of_tables_is_not_cut_where_a_program_reads() -> None:
    """Rich would fold lines at 80 columns in a pipe, in the middle of a name."""
    from datacoord.cli.tables import WIDE, console

    assert console().width == WIDE


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB")])
def test_sizes_are_for_people(value: int, text: str) -> None:
    """Ten digits in a row are not."""
    assert size(value) == text


@pytest.mark.parametrize(
    ("ago_ms", "text"),
    [(0, "0 s ago"), (59_000, "59 s ago"), (120_000, "2 min ago"), (7_200_000, "2 h ago"), (-5000, "0 s ago")],
)
def test_ages_are_for_people(ago_ms: int, text: str) -> None:
    """A clock that is a little ahead must not show the future."""
    assert age(1_000_000_000_000 - ago_ms, now_ms=1_000_000_000_000) == text
    assert age(0) == "never"
