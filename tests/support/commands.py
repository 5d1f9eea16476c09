"""Commands as processes of their own: run to their end, within a bound, with all they say."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(
    command: Sequence[str],
    *,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 110.0,
) -> "subprocess.CompletedProcess[str]":
    """Runs a command, however it ends.

    Args:
        command: words.
        directory: where it runs.
        environment: whole; None = ours, with this source tree on the path.
        timeout_seconds: fails after that, with the command.
    """
    return subprocess.run(
        command,
        cwd=directory,
        env=environment if environment is not None else {**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
