"""R7 with every part real: a coordinator killed, its database replaced by an older copy, datanodes that live through it."""

import asyncio
import json
import os
import shutil
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from datanode_process.coordinator_process import ROOT
from datanode_process.landing import MESSAGES, Landing, finished
from support.postgres import PostgresServer

from coordinator.store import migrate

from .backup_page import PostgresqlBackup, copy_sqlite, sqlite_copies

RESTORE_SECONDS_MAX = 60


class Place(ABC):
    """Where the coordinator of a landing keeps what it knows; copied and put back as docs/backup.md has it.

    Attributes:
        data: directory of the coordinator.
        flags: what tells the coordinator where its database is.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self.flags: list[str] = []

    @abstractmethod
    def back_up(self) -> None:
        """Takes the copy, beside the coordinator."""

    @abstractmethod
    def put_back(self) -> None:
        """Has the copy in the place of the database, of which nothing is left."""


class Embedded(Place):
    """SQLite."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self._database = data / "datacoord.db"
        self._copy = data.with_name("backup.db")

    def back_up(self) -> None:
        """See the base class."""
        copy_sqlite(sqlite_copies()[0], self._database, self._copy)

    def put_back(self) -> None:
        """See the base class."""
        for file in self.data.glob(f"{self._database.name}*"):
            file.unlink()
        shutil.copyfile(self._copy, self._database)


class Deployed(Place):
    """PostgreSQL, where the copy becomes another database."""

    def __init__(self, data: Path, server: PostgresServer) -> None:
        super().__init__(data)
        self._server = server
        self._names = [f"{name}_{uuid.uuid4().hex[:12]}" for name in ("landing", "restored")]
        url = server.create_database(self._names[0])
        migrate.upgrade(url)
        self._restored = server.url(self._names[1])
        self._backup = PostgresqlBackup(server, url, self._restored)
        self._use(url)

    def _use(self, url: str) -> None:
        self.flags = ["--database-url", url, "--storage-root", str(self.data / "objects")]

    def back_up(self) -> None:
        """See the base class."""
        self._backup.take()

    def put_back(self) -> None:
        """See the base class."""
        self._server.drop_database(self._names.pop(0))
        self._backup.create()
        self._backup.load()
        self._use(self._restored)

    def remove(self) -> None:
        """Leaves nothing on the server."""
        self._server.drop_database(self._names[0])


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place of each kind."""
    if request.param == "sqlite":
        yield Embedded(tmp_path / "data")
        return
    deployed = Deployed(tmp_path / "data", request.getfixturevalue("postgres_server"))
    yield deployed
    deployed.remove()


@pytest.fixture
async def landing(place: Place, tmp_path: Path) -> AsyncIterator[Landing]:
    """A coordinator process with one collection of 8 channels of 400 messages each, and no datanodes yet."""
    async with Landing(tmp_path, *place.flags) as made:
        yield made


async def command(place: Place, name: str) -> tuple[int, list[dict[str, Any]], str]:
    """Runs a command on the database; its exit status, its JSON and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "datacoord.cli", name, "--data-dir", str(place.data), *place.flags, "--output", "json"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, json.loads(out or "[]"), err.decode()


async def test_an_older_database_under_living_datanodes_loses_and_doubles_nothing(
    landing: Landing, place: Place
) -> None:
    """Datanodes know nothing of the restore: they hold epochs, sessions and buffers of a time that will not have been."""
    landing.source.set_limit(MESSAGES // 4)
    landing.datanodes.start(0)
    landing.datanodes.start(1)
    await landing.until_consumed(MESSAGES // 4)
    await asyncio.to_thread(place.back_up)
    landing.source.set_limit(MESSAGES * 3 // 4)
    await landing.until(lambda channels: all(c.checkpoint.timestamp > MESSAGES // 3 for c in channels))

    status, _, said = await command(place, "restore")
    assert (status, "DATABASE_IN_USE" in said) == (1, True)
    await landing.coordinator.kill()
    await asyncio.to_thread(place.put_back)
    async with asyncio.timeout(RESTORE_SECONDS_MAX):
        status, _, said = await command(place, "restore")
        while status:
            # The backup may hold leases that live for a moment; nothing else may be in the way.
            assert "DATABASE_IN_USE" in said, said
            status, _, said = await command(place, "restore")
    status, (report,), said = await command(place, "verify")
    assert (status, report["faults"]) == (0, 0), report["findings"]
    assert {finding["kind"] for finding in report["findings"]} == {"orphan"}
    left = {finding["subject"] for finding in report["findings"]}
    # What landed after the backup is garbage now, and what landed before it is not.
    assert 0 < len(left) < len(list((place.data / "objects").rglob("*.parquet")))

    landing.coordinator.flags = place.flags
    await landing.coordinator.start()
    landing.source.set_limit(MESSAGES)
    await landing.until(finished)
    await landing.datanodes.stop()
    await landing.check()

    status, (report,), said = await command(place, "verify")
    assert (status, report["faults"]) == (0, 0), report["findings"]
    assert left <= {finding["subject"] for finding in report["findings"] if finding["kind"] == "orphan"}
