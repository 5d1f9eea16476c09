"""The commands as people and scripts see them: verify, events, restore."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from server.running_coordinator import CoordinatorThread, claim, definition, running, save_part
from support.waiting import eventually

from coordinator.store import sqlite_driver
from datacoord.cli import main
from datacoord.cli.verify import SHOWN_MAX
from datacoord.client import CoordinatorClient
from datacoord.errors import ChannelNotFoundError

from .stage import Copy


def run(*arguments: str) -> Result:
    """Runs a command."""
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def where(copy: Copy) -> list[str]:
    """Options that name a stage."""
    return ["--database", copy.url, "--storage-root", str(copy.objects)]


def test_no_fault_is_said_in_one_line_and_by_exit_status_0(copy: Copy) -> None:
    """What runs every night must be silent about nothing, and short."""
    result = run("verify", *where(copy))

    assert result.exit_code == 0
    assert result.stdout.startswith("no fault, 0 notes; looked at 7 objects, 2 collections, ")
    assert result.stdout.count("\n") == 1


def test_a_fault_is_said_with_what_to_do_and_by_exit_status_3(copy: Copy) -> None:
    """Who is woken by it reads this first."""
    gone = copy.files()[0]
    gone.unlink()

    table, record = run("verify", *where(copy)), run("verify", *where(copy), "-o", "json")

    assert (table.exit_code, record.exit_code) == (3, 3)
    assert "missing_object (1, fault)" in table.stdout
    assert str(gone.relative_to(copy.collection.storage_root)) in table.stdout
    assert "Restore the object" in table.stdout
    ((found,),) = [report["findings"] for report in json.loads(record.stdout)]
    assert found["kind"] == "missing_object"
    assert found["collection"] == "managed"
    assert found["advice"] in " ".join(table.stdout.split())


def test_notes_are_listed_and_are_no_fault(copy: Copy) -> None:
    """Orphans are what kills leave behind: a check that fails for them is switched off."""
    for number in range(SHOWN_MAX + 3):
        copy.create(copy.collection, copy.path(8, copy.default, 1, 100 + number, 101 + number))

    table, record = run("verify", *where(copy)), run("verify", *where(copy), "-o", "json")

    assert (table.exit_code, record.exit_code) == (0, 0)
    assert "… and 3 more" in table.stdout
    (report,) = json.loads(record.stdout)
    assert (report["faults"], report["notes"], len(report["findings"])) == (0, SHOWN_MAX + 3, SHOWN_MAX + 3)


def test_only_the_collections_named_are_looked_at(copy: Copy) -> None:
    """One broken collection must not hide that another is whole."""
    copy.files()[0].unlink()

    assert run("verify", "claimed", *where(copy)).exit_code == 0
    assert run("verify", "managed", "claimed", *where(copy)).exit_code == 3
    unknown = run("verify", "typo", *where(copy))
    assert unknown.exit_code == 1
    assert "COLLECTION_NOT_FOUND" in unknown.stderr


def test_what_cannot_be_looked_at_is_said_in_a_sentence(tmp_path: Path) -> None:
    """An empty answer would pass for health, and the exit status of a fault for one that was found."""
    result = run("verify", "--data-dir", str(tmp_path / "nothing"))

    assert result.exit_code == 1
    assert "DATABASE_NOT_MIGRATED" in result.stderr
    assert not (tmp_path / "nothing").exists()


def test_restore_says_what_it_did_and_what_comes_next(copy: Copy) -> None:
    """Who restores a database does it for the first time."""
    first = run("restore", *where(copy))
    second = run("restore", *where(copy), "--output", "json")

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "4 channels have a new epoch and no owner; 1 sessions were ended." in first.stdout
    for step in ("datacoord verify", "datacoord gc resume"):
        assert step in first.stdout
    (record,) = json.loads(second.stdout)
    assert set(record) == {"channels", "sessions", "epoch", "number"}
    assert run("verify", *where(copy)).exit_code == 0


# ---- beside a running coordinator -------------------------------------------------------------------------------------------


class Served:
    """A coordinator with a collection and two saves."""

    def __init__(self, thread: CoordinatorThread, data_dir: Path) -> None:
        self.thread = thread
        self.data_dir = data_dir
        self.client = CoordinatorClient(thread.address, timeout_seconds=20)
        self.client.create_collection(definition())
        self.first, self.second = claim(self.client)
        for info in (self.first, self.second):
            self.client.save_binlog_paths([save_part(info, 0, 5, info.channel_id)])

    def events(self, *arguments: str) -> list[dict[str, Any]]:
        """What `datacoord events` says."""
        result = run("events", "--address", self.thread.address, "--output", "json", *arguments)
        assert result.exit_code == 0, result.stderr
        records: list[dict[str, Any]] = json.loads(result.stdout)
        return records


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests of this module that only read."""
    data_dir = tmp_path_factory.mktemp("served") / "data"
    with running(data_dir, retention_job_interval_seconds=0.1) as thread:
        filled = Served(thread, data_dir)
        yield filled
        filled.client.close()


def test_the_history_is_shown_newest_first_and_by_channel(served: Served) -> None:
    """The first question about a channel: what happened to it, and when?"""
    every = served.events()
    assert [event["event_id"] for event in every] == sorted((e["event_id"] for e in every), reverse=True)
    assert [event["rpc"] for event in every] == ["SaveBinlogPaths"] * 2 + ["ClaimChannels", "CreateCollection"]
    assert served.events("--limit", "1") == every[:1]

    of_first = served.events("--channel", served.first.channel_name)

    assert [event["rpc"] for event in of_first] == ["SaveBinlogPaths", "ClaimChannels", "CreateCollection"]
    channel_id, epoch = served.first.channel_id, served.first.epoch
    assert [change[:3] for change in of_first[0]["changes"]] == [[channel_id, epoch, 5]]
    table = run("events", "--address", served.thread.address).stdout
    assert table.index("SaveBinlogPaths") < table.index("CreateCollection")
    with pytest.raises(ChannelNotFoundError):
        list(served.client.list_events("typo"))


def test_verify_finds_what_is_missing_beside_a_running_coordinator(served: Served) -> None:
    """Its saves name objects that nobody wrote; the embedded default needs no option but the directory."""
    result = run("verify", "--data-dir", str(served.data_dir), "--output", "json")

    (report,) = json.loads(result.stdout)
    assert result.exit_code == 3
    assert [finding["kind"] for finding in report["findings"]] == ["missing_object"] * 2


def test_restore_refuses_a_running_coordinator(served: Served) -> None:
    """Typed into the wrong terminal it would stop every datanode."""
    result = run("restore", "--data-dir", str(served.data_dir))

    assert result.exit_code == 1
    assert "DATABASE_IN_USE" in result.stderr
    assert served.events("--limit", "1")[0]["rpc"] == "SaveBinlogPaths"


def test_the_coordinator_runs_retention_and_counts_it(tmp_path: Path) -> None:
    """A job that exists and is not started keeps everything for ever."""
    insert = "INSERT INTO events (time_ms, rpc, caller, channels, items, changes) VALUES (?, 'Flush', 'x', 0, 0, '[]')"
    with running(tmp_path / "data", retention_job_interval_seconds=0.1, event_retention_seconds=3600) as thread:
        database = sqlite_driver.connect(str(tmp_path / "data" / "datacoord.db"), busy_timeout_ms=30_000)
        now_ms = time.time() * 1000
        with database:
            database.executemany(insert, [(round(now_ms) - 4_000_000,)] * 5 + [(round(now_ms),)])

        metrics = thread.coordinator._metrics.registry
        eventually(lambda: metrics.get_sample_value("datacoord_retention_deleted_total", {"kind": "events"}) == 5)

        assert database.execute("SELECT count(*) FROM events").fetchone() == (1,)
        database.close()
