"""Versions: rows land with the oldest and with the newest Java of this machine, and the page says no more than that."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from server.running_coordinator import ROOT, CoordinatorProcess

from datanode_client.spark.java import find_java

pytestmark = pytest.mark.spark

JAVA_LEAST = 17


def java_version(home: Path) -> int:
    """The feature version of a Java; 0 = it does not run."""
    command = [str(home / "bin" / "java"), "-XshowSettings:properties", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr
    match = re.search(r"java\.specification\.version = (\d+)", said)
    return int(match.group(1)) if match else 0


def javas() -> dict[int, Path]:
    """Every Java that Spark may use, by version: where packages of systems put them, and the one that is found by itself."""
    homes = [path.parent.parent.resolve() for path in Path("/usr/lib/jvm").glob("*/bin/java")]
    found = {java_version(home): home for home in [*homes, find_java().home]}
    return {version: home for version, home in sorted(found.items()) if version >= JAVA_LEAST}


@pytest.mark.timeout(400)
def test_rows_land_with_the_oldest_and_the_newest_java_of_this_machine(tmp_path: Path) -> None:
    """Spark passes flags to Java that come and go with its versions; the first to see it would be a user.

    All other tests of Spark prove the Java that is found by itself.
    """
    found = javas()
    ours = find_java().version
    print(f"Javas: {found}; the other tests run with {ours}")
    assert ours in found
    for version in sorted({min(found), max(found)} - {ours}):
        with CoordinatorProcess(tmp_path / f"java{version}") as coordinator:
            run = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("short_jobs.py")), coordinator.address, "true", "1"],
                env={**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": str(found[version])},
                capture_output=True,
                text=True,
                check=False,
                timeout=180,
            )
        lines = run.stdout.splitlines()
        assert run.returncode == 0, run.stderr[-4000:]
        assert f"java {version}" in lines, "another Java was taken"
        assert any(line.startswith("landed ") for line in lines)


def test_the_page_names_the_versions_that_the_tests_run_with() -> None:
    """A table of versions that nobody compares with anything is a wish."""
    page = (ROOT / "docs" / "versions.md").read_text()

    assert f"| Spark | {importlib.metadata.version('pyspark')} |" in page
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert any(python in row.split("|")[2] for row in page.splitlines() if row.startswith("| Python |"))
    assert f"| Java | {JAVA_LEAST} |" in page
