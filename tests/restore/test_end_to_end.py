"""R7 with every part real: a coordinator killed, its database replaced by an older copy, datanodes that live through it."""

import asyncio
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from datanode_process.conftest import landing
from datanode_process.coordinator_process import ROOT
from datanode_process.landing import MESSAGES, Landing, finished

__all__ = ["landing"]

RESTORE_SECONDS_MAX = 60


async def command(data: Path, name: str) -> tuple[int, list[dict[str, Any]], str]:
    """Runs a command on the database; its exit status, its JSON and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "datacoord.cli", name, "--data-dir", str(data), "--output", "json"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, json.loads(out or "[]"), err.decode()


def back_up(database: Path, copy: Path) -> None:
    """Beside a running coordinator, as docs/backup.md has it."""
    with sqlite3.connect(database) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()


def put_back(copy: Path, database: Path) -> None:
    """As docs/backup.md has it."""
    for file in database.parent.glob(f"{database.name}*"):
        file.unlink()
    shutil.copyfile(copy, database)


async def test_an_older_database_under_living_datanodes_loses_and_doubles_nothing(
    landing: Landing, tmp_path: Path
) -> None:
    """Datanodes know nothing of the restore: they hold epochs, sessions and buffers of a time that will not have been."""
    database = tmp_path / "data" / "datacoord.db"
    landing.source.set_limit(MESSAGES // 4)
    landing.datanodes.start(0)
    landing.datanodes.start(1)
    await landing.until_consumed(MESSAGES // 4)
    await asyncio.to_thread(back_up, database, tmp_path / "backup.db")
    landing.source.set_limit(MESSAGES * 3 // 4)
    await landing.until(lambda channels: all(c.checkpoint.timestamp > MESSAGES // 3 for c in channels))

    status, _, said = await command(tmp_path / "data", "restore")
    assert (status, "DATABASE_IN_USE" in said) == (1, True)
    await landing.coordinator.kill()
    put_back(tmp_path / "backup.db", database)
    async with asyncio.timeout(RESTORE_SECONDS_MAX):
        status, _, said = await command(tmp_path / "data", "restore")
        while status:
            # The backup may hold leases that live for a moment; nothing else may be in the way.
            assert "DATABASE_IN_USE" in said, said
            status, _, said = await command(tmp_path / "data", "restore")
    status, (report,), said = await command(tmp_path / "data", "verify")
    assert (status, report["faults"]) == (0, 0), report["findings"]
    assert {finding["kind"] for finding in report["findings"]} == {"orphan"}
    left = {finding["subject"] for finding in report["findings"]}
    # What landed after the backup is garbage now, and what landed before it is not.
    assert 0 < len(left) < len(list((tmp_path / "data" / "objects").rglob("*.parquet")))

    await landing.coordinator.start()
    landing.source.set_limit(MESSAGES)
    await landing.until(finished)
    await landing.datanodes.stop()
    await landing.check()

    status, (report,), said = await command(tmp_path / "data", "verify")
    assert (status, report["faults"]) == (0, 0), report["findings"]
    assert left <= {finding["subject"] for finding in report["findings"] if finding["kind"] == "orphan"}
