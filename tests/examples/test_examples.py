"""The examples run as their first lines say, from the command line, against a coordinator of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from datacoord.demo.services import CoordinatorProcess

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_source_of_ones_own_lands_as_the_example_says(tmp_path: Path) -> None:
    """An example that does not run is the first thing a newcomer meets, and the last."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.jsonl").write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n{"id": 1, "name": "c"}\n')
    (logs / "b.jsonl").write_text('{"id": 10, "name": "x"}\n')
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    coordinator = CoordinatorProcess(data_dir, tmp_path / "coordinator.log", {})
    address = coordinator.start().address
    try:
        command = [sys.executable, "examples/land_json_lines.py", str(logs), address]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:
        coordinator.stop()

    assert result.returncode == 0, result.stderr
    table = [line.split() for line in result.stdout.splitlines()]
    assert table[-4:] == [["id", "name"], ["1", "c"], ["2", "b"], ["10", "x"]]
