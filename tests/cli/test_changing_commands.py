"""Commands that change something: collections, partitions, segments, flush of everything. Drops ask first."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from click.testing import CliRunner, Result
from server.running_coordinator import CoordinatorThread, claim, definition, running, save_part

from datacoord.cli import main
from datacoord.client import CoordinatorClient


class Shell:
    """Types commands."""

    def __init__(self, thread: CoordinatorThread) -> None:
        self.thread = thread
        self.client = CoordinatorClient(thread.address)

    def run(self, *arguments: str, typed: str | None = None) -> Result:
        """One command."""
        return CliRunner().invoke(
            main, [*arguments, "--address", self.thread.address], input=typed, catch_exceptions=False
        )

    def records(self, *arguments: str) -> list[Any]:
        """One command, for its JSON."""
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == 0, result.stderr
        records: list[Any] = json.loads(result.stdout)
        return records


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A coordinator for all tests of this module; each has names of its own."""
    directory = tmp_path_factory.mktemp("changing") / "data"
    # It runs in this process, and what it logs would stand among what the commands print.
    with running(directory) as thread, structlog.testing.capture_logs():
        made = Shell(thread)
        yield made
        made.client.close()


def schema_of(shell: Shell, name: str) -> pa.Schema:
    """The schema of a collection."""
    return pa.ipc.read_schema(pa.py_buffer(shell.client.describe_collection(name).arrow_schema))


def test_a_collection_is_created_altered_and_dropped(shell: Shell) -> None:
    """A table should need no program."""
    columns = ["--column", "id:int64!", "--column", "at:timestamp[us]", "--column", "vec:float32[3]", "--key", "id"]
    (created,) = shell.records("collections", "create", "made", *columns, "--channels", "3", "--property", "a=b=c")
    (again,) = shell.records("collections", "create", "made", *columns, "--channels", "3", "--property", "a=b=c")
    assert again == created
    assert (created["channel_mode"], created["timestamp_kind"], created["primary_key"]) == (
        "MANAGED",
        "ORDINAL",
        ["id"],
    )
    assert (len(created["channel_names"]), created["properties"]) == (3, {"a": "b=c"})
    expected = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us")),
            pa.field("vec", pa.list_(pa.float32(), 3)),
        ]
    )
    assert schema_of(shell, "made").equals(expected)

    arguments = ("collections", "alter", "made", "--add-column", "note:string", "--set", "x=1", "--remove", "a")
    outcomes = [shell.records(*arguments)[0]["outcome"] for _ in range(2)]
    assert outcomes == ["APPLIED", "ALREADY_APPLIED"]
    assert schema_of(shell, "made").names == ["id", "at", "vec", "note"]
    assert "is like that already" in shell.run(*arguments).stdout

    (dropped,) = shell.records("collections", "drop", "made", "--yes")
    assert dropped == {"collection_id": created["collection_id"], "outcome": "APPLIED"}
    number = str(created["collection_id"])
    assert "was dropped before" in shell.run("collections", "drop", "made", "--id", number, "--yes").stdout
    assert shell.run("collections", "drop", "made", "--yes").exit_code == 1


def test_columns_may_come_from_a_file(shell: Shell, tmp_path: Path) -> None:
    """Nobody types two hundred columns."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"k": [1], "nested": [{"a": [1.5]}]}), path)
    shell.records("collections", "create", "filed", "--schema-from", str(path), "--mode", "claimed")

    assert schema_of(shell, "filed").equals(pq.read_schema(path))
    (path.parent / "no.parquet").write_text("no")
    refused = shell.run("collections", "create", "x", "--schema-from", str(path.parent / "no.parquet"))
    assert (refused.exit_code, "is not a Parquet file" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["collections", "create", "x"],
        ["collections", "create", "x", "--column", "id"],
        ["collections", "create", "x", "--column", "id:number"],
        ["collections", "create", "x", "--column", "v:nothing[3]"],
        ["collections", "alter", "x", "--set", "novalue"],
        ["flush"],
        ["flush", "x", "--all"],
        ["flush", "--all", "--timestamp", "3"],
        ["segments", "drop"],
        ["segments", "seal", "0"],
    ],
)
def test_what_is_typed_wrong_is_said(shell: Shell, arguments: list[str]) -> None:
    """One sentence and status 2, never a traceback and never half a change."""
    result = shell.run(*arguments)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert 0 < len(result.stderr.splitlines()) < 8


def test_drops_ask_first_and_no_answer_is_a_no(shell: Shell) -> None:
    """A slip in a terminal must not cost a table; a script without --yes must not hang."""
    shell.client.create_collection(definition("asked"))
    first = claim(shell.client, "asked")[0]
    shell.client.save_binlog_paths([save_part(first, 0, 5, 1)])
    shell.client.create_partition("asked", "p")
    segment = str(shell.records("segments", "asked")[0]["segment_id"])
    drops = [["segments", "drop", segment], ["partitions", "drop", "asked", "p"], ["collections", "drop", "asked"]]
    for drop in drops:
        for typed in ("n\n", ""):
            refused = shell.run(*drop, typed=typed)
            assert (refused.exit_code, refused.stdout) == (1, "")
    assert [row["state"] for row in shell.records("segments", "asked")] == ["GROWING"]
    assert [row["partition_name"] for row in shell.records("partitions", "asked")] == ["_default", "p"]
    for drop in drops:
        assert shell.run(*drop, typed="y\n").exit_code == 0
    assert shell.run("partitions", "asked").exit_code == 1


def test_partitions_are_listed_created_and_dropped(shell: Shell) -> None:
    """By name; the number is what the answer is about."""
    shell.client.create_collection(definition("parted"))
    (created,) = shell.records("partitions", "create", "parted", "p")
    listed = shell.records("partitions", "list", "parted")
    assert created in listed
    (dropped,) = shell.records("partitions", "drop", "parted", "p", "--yes")

    assert dropped == {"partition_id": created["partition_id"], "outcome": "APPLIED"}
    assert [row["partition_name"] for row in shell.records("partitions", "parted")] == ["_default"]
    assert "was dropped before" in shell.run("partitions", "drop", "parted", "p", "--yes").stdout
    assert "PARTITION_NOT_FOUND" in shell.run("partitions", "drop", "parted", "q", "--yes").stderr
    assert shell.run("partitions", "drop", "parted", "_default", "--yes").exit_code == 2


def test_segments_are_sealed_and_dropped_each_with_its_answer(shell: Shell) -> None:
    """One that is not there must not hide what became of the others."""
    shell.client.create_collection(definition("cut"))
    first, second = claim(shell.client, "cut")
    shell.client.save_binlog_paths([save_part(first, 0, 5, 1), save_part(second, 0, 5, 2)])
    one, two = [str(row["segment_id"]) for row in shell.records("segments", "list", "cut")]

    sealed = shell.records("segments", "seal", one)
    assert [(row["outcome"], row["state"]) for row in sealed] == [("APPLIED", "FLUSHED")]
    result = shell.run("segments", "drop", one, "999999", two, "--yes", "--output", "json")
    assert result.exit_code == 1
    assert [row["outcome"] for row in json.loads(result.stdout)] == ["APPLIED", "UNSPECIFIED", "APPLIED"]
    table = shell.run("segments", "drop", one, "999999", "--yes")
    assert "ALREADY_APPLIED" in table.stdout
    assert "there is no segment 999999" in table.stdout
    assert {row["state"] for row in shell.records("segments", "cut")} == {"DROPPED"}
    partly = shell.run("segments", "seal", "999999", one)
    assert partly.exit_code == 1
    assert "999999" in partly.stdout
    assert one in partly.stdout, "what became of the others is told, too"


def test_a_flush_of_everything_names_whom_it_waits_for(shell: Shell) -> None:
    """The one stuck channel of a hundred thousand, and who has it."""
    shell.client.create_collection(definition("flushed"))
    first, second = claim(shell.client, "flushed")
    shell.client.save_binlog_paths([save_part(first, 0, 5, 1)])
    done = shell.run("flush", "--all", "--wait", "30")
    assert (done.exit_code, "of everything is done in" in done.stdout) == (0, True)
    assert {row["state"] for row in shell.records("segments", "flushed")} == {"FLUSHED"}
    (record,) = shell.records("flush", "--all")
    assert (record["flushed"], record["pending_channels"], record["pending"]) == (True, 0, [])

    late = shell.run("flush", "flushed", "--timestamp", "9", "--wait", "0.2")
    assert late.exit_code == 1
    assert [first.owner in line for line in late.stdout.splitlines() if first.channel_name in line] == [True]
    (record,) = shell.records("flush", "flushed", "--timestamp", "9")
    assert {(row["channel_name"], row["owner"], row["timestamp"]) for row in record["pending"]} == {
        (info.channel_name, info.owner, 9) for info in (first, second)
    }
