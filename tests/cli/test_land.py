"""`datacoord land`: a job on the command line lands everything, and stops in order when it is told to."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server.running_coordinator import CoordinatorThread, command, environment, running
from support.commands import run
from support.waiting import eventually

from datacoord.client import CoordinatorClient
from datacoord.reading import to_arrow


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorThread]:
    """A coordinator that assigns at once, and ends no lease within a test: what has no owner was handed back."""
    with running(tmp_path / "data", datanode_lease_seconds=600.0) as thread:
        yield thread


@pytest.fixture
def run_there(coordinator: CoordinatorThread, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a command against it, in a directory of its own."""
    address = ("--address", coordinator.address)
    return lambda *words: run(command(*words, *address), directory=tmp_path, environment=environment())


@pytest.mark.spark
def test_everything_of_a_bounded_source_is_registered_when_the_command_ends(
    coordinator: CoordinatorThread, run_there: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    """A command that ends before its rows are registered tells a script that they are there when they are not."""
    arguments = ("land", "generated", "--collection", "made", "--channels", "4", "--rows", "3000", "--datanodes", "1")
    result = run_there(*arguments)
    assert result.returncode == 0, result.stderr
    assert "everything is registered" in result.stderr
    with CoordinatorClient(coordinator.address) as client:
        assert to_arrow(client, "made").num_rows > 0
        channels = list(client.list_channels("made"))
        assert {channel.owner for channel in channels} == {""}, "a channel was not handed back"
        assert len({channel.checkpoint.timestamp for channel in channels}) == 1, "a channel is not at the end"


@pytest.mark.spark
def test_a_directory_lands_with_two_commands(
    coordinator: CoordinatorThread, run_there: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    """Whoever has files and no program must not have to write one."""
    files = tmp_path / "orders"
    files.mkdir()
    (files / "1.jsonl").write_text('{"id": 1, "op": "upsert"}\n{"id": 2, "op": "upsert"}\n')
    (files / "2.jsonl").write_text('{"id": 1, "op": "delete"}\n{"id": 3, "op": "upsert"}\n')
    land = ("land", "jsonl", str(files), "--collection", "orders", "--datanodes", "1", "--until-head")
    assert run_there("collections", "create", "orders", "--column", "id:int64!", "--key", "id").returncode == 0
    result = run_there(*land, "--operation-column", "op")
    assert result.returncode == 0, result.stderr
    with CoordinatorClient(coordinator.address) as client:
        assert sorted(to_arrow(client, "orders").column("id").to_pylist()) == [2, 3]


@pytest.mark.spark
def test_sigterm_drains_and_says_that_it_is_not_done(coordinator: CoordinatorThread, tmp_path: Path) -> None:
    """An orchestrator that stops the job must not leave channels to wait for a lease, nor hear that all is landed."""
    arguments = (
        "land",
        "generated",
        "--collection",
        "made",
        "--channels",
        "4",
        "--rows",
        "400000000",
        "--datanodes",
        "1",
    )
    process = subprocess.Popen(
        [*command(), *arguments, "--address", coordinator.address],
        env=environment(),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with CoordinatorClient(coordinator.address) as client:

            def owned() -> bool:
                return any(channel.owner for channel in client.list_channels() if channel.collection_name == "made")

            eventually(owned, timeout_seconds=80)
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=80)
            assert process.returncode == 3, stderr
            assert "run it again to go on" in stderr
            assert not owned(), "a channel was not handed back"
    finally:
        process.kill()
        process.wait(10)
