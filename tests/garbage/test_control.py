"""What operators say to the collector, over the wire and on the command line."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result
from server.running_coordinator import CoordinatorThread, claim, definition, running, save_part
from support.waiting import eventually

from datacoord.cli import main
from datacoord.client import CoordinatorClient
from datacoord.errors import CollectionNotFoundError, GcPausedError, InvalidFieldError
from datacoord.v1 import admin_pb2

Action = admin_pb2.GcAction


class Stage:
    """A coordinator with one registered object and one that lost against it."""

    def __init__(self, thread: CoordinatorThread) -> None:
        self.thread = thread
        self.client = CoordinatorClient(thread.address, timeout_seconds=10)
        self.client.create_collection(definition())
        self.root = Path(self.client.describe_collection("files").storage_root.removeprefix("file://"))
        info = claim(self.client)[0]
        self.kept, self.orphan = (self._put(save_part(info, 0, 5, log_id)) for log_id in (1, 2))
        self.client.save_binlog_paths([save_part(info, 0, 5, 1)])

    def _put(self, part: Any) -> str:
        path: str = part.lanes[0].insert_logs[0].binlogs[0].log_path
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(b"0123456789")
        return path

    def ask(self, action: Any, **more: Any) -> admin_pb2.GcControlResponse:
        """One call."""
        return self.client.gc_control(admin_pb2.GcControlRequest(action=action, **more))

    def run(self, *arguments: str) -> Result:
        """One command."""
        return CliRunner().invoke(main, ["gc", *arguments, "--address", self.thread.address], catch_exceptions=False)

    def files(self) -> set[str]:
        """Objects that are there."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*.parquet")}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A coordinator whose first round is over and whose next one is an hour away."""
    # It runs in this process, and what it logs would stand among what the commands print.
    with running(tmp_path / "data") as thread, structlog.testing.capture_logs():
        client = CoordinatorClient(thread.address)
        status = admin_pb2.GcControlRequest(action=Action.GC_ACTION_STATUS)
        eventually(lambda: client.gc_control(status).round.start_time_ms > 0)
        client.close()
        made = Stage(thread)
        yield made
        made.client.close()


def test_a_round_that_is_asked_for_begins_soon_and_says_what_it_did(stage: Stage) -> None:
    """Nobody waits an hour to see whether it works."""
    before = stage.ask(Action.GC_ACTION_STATUS).round.start_time_ms
    assert stage.ask(Action.GC_ACTION_RUN).run_requested
    eventually(lambda: stage.ask(Action.GC_ACTION_STATUS).round.start_time_ms > before)
    status = stage.ask(Action.GC_ACTION_STATUS)

    assert stage.files() == {stage.kept}
    assert (status.paused, status.run_requested, status.round.error) == (False, False, "")
    assert (status.round.objects_listed, status.round.objects_deleted, status.round.bytes_deleted) == (2, 1, 10)
    with urllib.request.urlopen(f"http://{stage.thread.web_address}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'datacoord_gc_objects_deleted_total{reason="RANGE_TAKEN"} 1.0' in metrics
    assert 'datacoord_gc_objects_deleted_total{reason="EPOCH_OVER"} 0.0' in metrics


def test_while_it_is_paused_nothing_begins_and_asking_for_a_round_is_refused(stage: Stage) -> None:
    """The refusal says why, so that nobody resumes what a colleague has paused for a reason."""
    answer = stage.ask(Action.GC_ACTION_PAUSE, pause_ms=60_000, reason="ticket 7")
    assert (answer.paused, answer.reason) == (True, "ticket 7")
    assert answer.paused_until_time_ms > 0
    with pytest.raises(GcPausedError, match="ticket 7") as refused:
        stage.ask(Action.GC_ACTION_RUN)
    assert refused.value.metadata["reason"] == "ticket 7"

    assert stage.ask(Action.GC_ACTION_DRY_RUN).round.objects_deleted == 1
    assert stage.orphan in stage.files()
    assert not stage.ask(Action.GC_ACTION_RESUME).paused
    stage.ask(Action.GC_ACTION_RUN)
    eventually(lambda: stage.files() == {stage.kept})


def test_a_dry_run_names_what_would_go_and_why(stage: Stage) -> None:
    """Per object, so that it can be looked at before it is gone."""
    answer = stage.ask(Action.GC_ACTION_DRY_RUN, collection_name="files")

    (candidate,) = answer.candidates
    assert (candidate.path, candidate.size_bytes) == (stage.orphan, 10)
    assert candidate.verdict == admin_pb2.GC_VERDICT_RANGE_TAKEN
    assert stage.files() == {stage.kept, stage.orphan}


@pytest.mark.parametrize(
    "request_",
    [
        {"action": 0},
        {"action": 99},
        {"action": Action.GC_ACTION_PAUSE, "pause_ms": -1},
        {"action": Action.GC_ACTION_PAUSE, "pause_ms": 2**62},
        {"action": Action.GC_ACTION_PAUSE, "reason": "x" * 257},
        {"action": Action.GC_ACTION_PAUSE, "reason": "a\0b"},
        {"action": Action.GC_ACTION_RESUME, "reason": "why"},
        {"action": Action.GC_ACTION_RUN, "collection_name": "files"},
        {"action": Action.GC_ACTION_DRY_RUN, "collection_name": "no name"},
    ],
)
def test_malformed_requests_are_refused_and_change_nothing(stage: Stage, request_: dict[str, Any]) -> None:
    """A field that is silently ignored makes somebody believe that only one collection is collected."""
    with pytest.raises(InvalidFieldError):
        stage.client.gc_control(admin_pb2.GcControlRequest(**request_))
    assert not stage.ask(Action.GC_ACTION_STATUS).paused


def test_a_plan_for_a_collection_that_does_not_exist_is_refused(stage: Stage) -> None:
    """No plan looks like "nothing would go"."""
    with pytest.raises(CollectionNotFoundError):
        stage.ask(Action.GC_ACTION_DRY_RUN, collection_name="nothing")


def test_the_history_says_who_paused_and_what_went(stage: Stage) -> None:
    """The first question after a loss."""
    stage.ask(Action.GC_ACTION_PAUSE, reason="looking")
    stage.ask(Action.GC_ACTION_RESUME)
    stage.ask(Action.GC_ACTION_RUN)
    eventually(lambda: stage.files() == {stage.kept})

    async def calls() -> set[tuple[str, str]]:
        found = await stage.thread.coordinator._store.call_statistics()
        return {(row.rpc, row.caller) for row in found}

    eventually(lambda: ("GarbageJob", "job") in stage.thread.run(calls()))
    assert ("GcControl", "other") in stage.thread.run(calls())


def test_where_it_is_switched_off_the_status_says_so_of_this_replica_and_no_round_is_promised(tmp_path: Path) -> None:
    """A flag in the database that nobody will ever look at is worse than a refusal."""
    with running(tmp_path / "data", gc_enabled=False) as thread:
        stage = Stage(thread)
        with pytest.raises(GcPausedError, match="gc_enabled"):
            stage.ask(Action.GC_ACTION_RUN)
        status = stage.ask(Action.GC_ACTION_STATUS)
        assert not status.paused, "other replicas may delete"
        assert "gc_enabled" in status.reason
        assert "not by this replica" in stage.run("status").stdout
        assert stage.ask(Action.GC_ACTION_DRY_RUN).round.objects_deleted == 1
        stage.client.close()


# ---- the command -----------------------------------------------------------------------------------------------------------------


def test_the_command_tells_people_and_scripts_the_same(stage: Stage) -> None:
    """At night by hand, and from a script before a migration."""
    assert "no, until it is resumed" in stage.run("pause", "--reason", "night").stdout
    assert "night" in stage.run("status").stdout
    assert "no, until 2" in stage.run("pause", "--for", "15min").stdout
    (record,) = json.loads(stage.run("status", "--output", "json").stdout)
    assert record["paused"]
    assert record["paused_until_time_ms"] > 0
    refused = stage.run("run")
    assert refused.exit_code == 1
    assert "GC_PAUSED" in refused.stderr
    assert "yes" in stage.run("resume").stdout

    plan = stage.run("dry-run", "files")
    assert stage.orphan in plan.stdout
    assert "RANGE_TAKEN" in plan.stdout
    assert "1 would go (10 B)" in plan.stdout
    (record,) = json.loads(stage.run("dry-run", "-o", "json").stdout)
    assert record["candidates"] == [{"path": stage.orphan, "size_bytes": 10, "verdict": "RANGE_TAKEN"}]
    stage.run("run")
    eventually(lambda: stage.files() == {stage.kept})
    eventually(lambda: "1 (10 B)" in stage.run("status").stdout)
    assert "There is no garbage." in stage.run("dry-run").stdout


@pytest.mark.parametrize("wrong", ["15", "0s", "-1h", "1 h", "h", "1w"])
def test_a_time_that_is_none_is_refused_with_an_example(stage: Stage, wrong: str) -> None:
    """A pause of 15 of something."""
    result = stage.run("pause", "--for", wrong)
    assert result.exit_code == 2
    assert "15min" in result.stderr


def test_a_coordinator_that_ends_does_not_wait_for_its_round(tmp_path: Path) -> None:
    """SIGTERM in the middle of a round: it ends in order, and soon."""
    with running(tmp_path / "data", gc_interval_seconds=0.1) as thread:
        stage = Stage(thread)
        eventually(lambda: stage.files() == {stage.kept})
        stage.client.close()
