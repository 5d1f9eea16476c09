"""A disk that is full: typed refusals, nothing acknowledged is lost, and writes go on once there is room."""

import resource
from pathlib import Path
from typing import Any

import apsw
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from datacoord.client import CoordinatorClient
from datacoord.errors import DatacoordError
from datacoord.v1 import common_pb2, data_coord_pb2
from server.running_coordinator import CoordinatorProcess, claim, definition, running, save_part
from server.wire import Wire

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY_APPLIED = common_pb2.OUTCOME_ALREADY_APPLIED


def test_a_full_disk_refuses_writes_and_loses_nothing(tmp_path: Path) -> None:
    """Whatever was acknowledged stays, whatever was refused can be repeated, reads go on, and so do writes once there is room."""
    with (
        CoordinatorProcess(tmp_path / "data") as process,
        CoordinatorClient(process.address, timeout_seconds=10) as client,
    ):
        client.create_collection(definition())
        info = claim(client)[0]
        assert client.save_binlog_paths([save_part(info, 0, 1, 1)])[0].outcome == APPLIED
        # The kernel refuses every byte beyond this size of any file, as a full disk does; the limit can be lifted again.
        sizes = [path.stat().st_size for path in (tmp_path / "data").iterdir()]
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (max(sizes), resource.RLIM_INFINITY))
        landed, failure = land_until_refused(process.address, info)
        assert failure in {"STORE_UNAVAILABLE", "COMMIT_OUTCOME_UNKNOWN"}
        (listed, _) = client.list_binlogs("files")
        assert listed.checkpoint.timestamp >= landed
        assert process.process.poll() is None
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for step in range(landed, landed + 5):
            assert client.save_binlog_paths([save_part(info, step, step + 1, step + 1)])[0].outcome in {
                APPLIED,
                ALREADY_APPLIED,
            }
        (listed, _) = client.list_binlogs("files")
        assert [binlog.range_to for binlog in listed.binlogs] == list(range(1, landed + 6))


def test_sqlite_full_is_a_typed_refusal(tmp_path: Path) -> None:
    """SQLite's own "database or disk is full" is certainly not committed: the caller must be told that, and may repeat."""
    pages_max = 1_000_000

    def limit_pages(connection: Connection) -> None:
        # By whoever is about to use the connection: another thread may not touch it while it is in use.
        driver = connection.connection.driver_connection
        assert isinstance(driver, apsw.Connection)
        driver.execute(f"PRAGMA max_page_count = {pages_max}")

    event.listen(Engine, "begin", limit_pages)
    try:
        with running(tmp_path / "data") as thread, CoordinatorClient(thread.address) as client:
            client.create_collection(definition())
            info = claim(client)[0]
            client.save_binlog_paths([save_part(info, 0, 1, 1)])
            pages_max = 1  # SQLite takes it as: not one page more than there are
            landed, failure = land_until_refused(thread.address, info)
            assert failure == "STORE_UNAVAILABLE"
            assert next(client.list_binlogs("files")).checkpoint.timestamp == landed
            pages_max = 1_000_000
            assert client.save_binlog_paths([save_part(info, landed, landed + 1, landed + 1)])[0].outcome == APPLIED
            assert [b.range_to for b in next(client.list_binlogs("files")).binlogs] == list(range(1, landed + 2))
    finally:
        event.remove(Engine, "begin", limit_pages)


def land_until_refused(address: str, info: Any) -> tuple[int, str]:
    """Saves range after range, each once, until one is refused; the last that was acknowledged, and the reason."""
    wire = Wire(address)
    try:
        for step in range(1, 100_000):
            part = save_part(info, step, step + 1, step + 1)
            try:
                wire.call(wire.data_coord.SaveBinlogPaths, data_coord_pb2.SaveBinlogPathsRequest(channels=[part]))
            except DatacoordError as error:
                return step, error.reason.value
    finally:
        wire.channel.close()
    raise AssertionError("the disk never became full")
