"""The pipeline of the examples runs as its first lines say, and again after files were added."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from datacoord.demo.services import CoordinatorProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_stream_lands_as_the_example_says(tmp_path: Path) -> None:
    """An ordinary pipeline is what most people come with: it must run from its first line to its table."""
    older, newer = tmp_path / "z.jsonl", tmp_path / "a.jsonl"
    older.write_text(
        '{"id": 1, "item": "Tea", "quantity": 2, "price": 3.5, "status": "placed"}\n'
        '{"id": 2, "item": "tea", "quantity": 1, "price": 3.0, "status": "placed"}\n'
        '{"id": 1, "item": "TEA", "quantity": 4, "price": 3.5, "status": "placed"}\n'
        '{"id": 3, "item": "milk", "quantity": 0, "price": 9.0, "status": "placed"}\n'
        '{"id": 4, "item": "rum", "quantity": 1, "price": 9.0, "status": "placed"}\n'
    )
    os.utime(older, (1_700_000_000, 1_700_000_000))
    newer.write_text('{"id": 4, "item": "rum", "quantity": 1, "price": 9.0, "status": "cancelled"}\n')
    (tmp_path / "data").mkdir()
    coordinator = CoordinatorProcess(tmp_path / "data", tmp_path / "coordinator.log", {})
    address = coordinator.start().address
    try:
        command = [sys.executable, "examples/stream_orders.py", str(tmp_path), address]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:
        coordinator.stop()

    assert result.returncode == 0, result.stderr
    table = [line.strip("|").split("|") for line in result.stdout.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in table[1:]] == [["tea", "17.0", "2"]]
