"""The coordinator as a process of its own, that can be killed and brought back on the same ports."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from datacoord.errors import CoordinatorUnreachableError

_READY_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Endpoints:
    """Where a coordinator listens.

    Attributes:
        address: host:port of gRPC.
        web_address: host:port of metrics and health.
        pid: its process.
    """

    address: str
    web_address: str
    pid: int


class CoordinatorProcess:
    """Starts `datacoord serve` on a data directory and keeps its ports over restarts.

    Args:
        data_dir: where database and objects live.
        log_path: where its output goes.
        settings: more environment variables (DATACOORD_…).
    """

    def __init__(self, data_dir: Path, log_path: Path, settings: dict[str, str]) -> None:
        self._data_dir = data_dir
        self._log_path = log_path
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoints: Endpoints | None = None

    @property
    def endpoints(self) -> Endpoints:
        """Where it listens; it must have been started."""
        if self._endpoints is None:
            raise RuntimeError("the coordinator was never started")
        return self._endpoints

    def start(self) -> Endpoints:
        """Starts the process and waits until it serves.

        Raises:
            CoordinatorUnreachableError: it ended or did not get ready in time; the sentence names its log.
        """
        port, web_port = ("0", "0")
        if self._endpoints is not None:
            port = self._endpoints.address.rpartition(":")[2]
            web_port = self._endpoints.web_address.rpartition(":")[2]
        ready_path = self._data_dir / "ready.json"
        ready_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "datacoord.cli", "serve", "--data-dir", str(self._data_dir)]
        command += ["--port", port, "--web-port", web_port, "--ready-file", str(ready_path)]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self._settings}
            )
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not ready_path.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log_path.read_text(errors="replace").strip().splitlines()
                raise CoordinatorUnreachableError(
                    f"the coordinator did not get ready; its log {self._log_path} ends with: {said[-1] if said else '(nothing)'}",
                    log_path=self._log_path,
                )
            time.sleep(_POLL_SECONDS)
        ready = json.loads(ready_path.read_text())
        self._endpoints = Endpoints(ready["address"], ready["web_address"], ready["pid"])
        return self._endpoints

    def kill(self) -> None:
        """Ends the process with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> int:
        """Asks the process to end (SIGTERM) and waits; returns its exit status."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()
