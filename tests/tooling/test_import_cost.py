"""What a process loads: the packages stay apart at run time too, and the command answers at once."""

import json
import subprocess
import sys

import pytest

PROGRAM = "import importlib, json, sys; importlib.import_module(sys.argv[1]); print(json.dumps(sorted(sys.modules)))"


def loaded_by(module: str) -> set[str]:
    """Top-level names of everything that importing a module loads, in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, module]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return {name.partition(".")[0] for name in json.loads(result.stdout)}


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("datacoord.cli", {"pyspark", "coordinator", "datanode_client", "pyarrow"}),
        ("datacoord.cli.events", {"pyspark", "sqlalchemy", "datanode_client"}),
        ("coordinator.core.save", {"sqlalchemy", "uvloop", "aiohttp", "pyarrow", "pyspark"}),
        ("datanode_client.datanode", {"pyspark", "sqlalchemy", "aiohttp", "coordinator"}),
        ("datanode_client.sources.base", {"pyspark", "sqlalchemy", "coordinator"}),
    ],
)
def test_importing_one_part_does_not_load_the_others(module: str, never: set[str]) -> None:
    """A command that loads Spark to print its help takes seconds; an executor that loads SQL drivers carries them for nothing."""
    assert loaded_by(module) & never == set()
