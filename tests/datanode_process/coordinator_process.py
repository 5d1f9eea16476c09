"""A real coordinator in a process of its own, that can be killed and comes back on its port."""

import asyncio
import json
import os
import sys
from pathlib import Path

from support.waiting import WAIT_SECONDS_MAX

ROOT = Path(__file__).parents[2]

SETTINGS = {
    "DATACOORD_HEARTBEAT_INTERVAL_SECONDS": "0.1",
    "DATACOORD_DATANODE_LEASE_SECONDS": "10",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_JOB_LEASE_SECONDS": "1",
    "DATACOORD_WATCH_POLL_SECONDS": "0.2",
}
"""Short intervals, so that a test waits for what it tests and not for the next round of a job."""


class CoordinatorProcess:
    """`datacoord serve`, on SQLite unless it is told otherwise.

    Args:
        directory: where it keeps its database, objects, log and ready file.
        flags: of the command, at its next start.
    """

    def __init__(self, directory: Path, *flags: str) -> None:
        self.flags = list(flags)
        self._directory = directory
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def target(self) -> str:
        """Where it listens, host:port."""
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Starts it and waits until it serves."""
        ready = self._directory / "ready.json"
        ready.unlink(missing_ok=True)
        with (self._directory / "coordinator.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "datacoord.cli", "serve", "--data-dir", str(self._directory / "data")),
                *("--grpc-port", str(self._port), "--web-port", "0", "--ready-file", str(ready), *self.flags),
                env={**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not ready.exists():
                if self._process.returncode is not None:
                    raise RuntimeError((self._directory / "coordinator.log").read_text()[-4000:])
                await asyncio.sleep(0.02)
        self._port = json.loads(ready.read_text())["port"]

    async def ended(self) -> int:
        """Waits until it has ended by itself; its exit status."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), WAIT_SECONDS_MAX)

    async def kill(self) -> None:
        """Ends it with SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self.ended()
