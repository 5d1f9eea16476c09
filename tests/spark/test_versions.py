"""Versions: rows land with the oldest and with the newest Java of this machine, and the page says no more than that."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
from server.running_coordinator import ROOT, CoordinatorProcess

from datanode_client.spark.java import find_java

pytestmark = pytest.mark.spark

JAVA_LEAST = 17

SPARK_BEFORE = "4.2.1"
PROVING = ("test_landing", "test_sink", "test_reading")
"""A datanode job under a kill, the sink, the readers."""


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


def are_enough(found: Mapping[int, Path], environment: Mapping[str, str]) -> bool:
    """Whether so many Javas prove what the table says: one is enough on somebody's own machine only."""
    return len(found) >= 2 or environment.get("CI") != "true"


def test_one_java_proves_nothing_where_the_table_is_proven() -> None:
    """A machine that loses its second Java would go on to say that both work."""
    one, two = {17: Path("a")}, {17: Path("a"), 25: Path("b")}

    assert [are_enough(found, {"CI": "true"}) for found in (one, two)] == [False, True]
    assert are_enough(one, {})


@pytest.mark.timeout(400)
def test_rows_land_with_the_oldest_and_the_newest_java_of_this_machine(tmp_path: Path) -> None:
    """Spark passes flags to Java that come and go with its versions; the first to see it would be a user.

    All other tests of Spark prove the Java that is found by itself.
    """
    found = javas()
    ours = find_java().version
    print(f"Javas: {found}; the other tests run with {ours}")
    assert ours in found
    assert are_enough(found, os.environ), f"where the table is proven, two Javas must be there to try: only {found} are"
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
    assert f"| Spark | {SPARK_BEFORE} |" in page
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert any(python in row.split("|")[2] for row in page.splitlines() if row.startswith("| Python |"))
    assert f"| Java | {JAVA_LEAST} |" in page


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_rows_land_with_the_spark_before(tmp_path: Path) -> None:
    """A cluster is not upgraded on the day on which Spark is released. Its PySpark comes from the package index, as for anybody."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=120)
    python = str(environment / "bin" / "python")
    pip = f"-m pip --python {python} install --quiet --no-deps pyspark=={SPARK_BEFORE}".split()
    subprocess.run([sys.executable, *pip], check=True, timeout=900)
    # All else is what these tests run with; behind that Spark, so that it is the one that is found.
    beside = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
    packages = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "beside.pth").write_text(beside)
    path = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}

    def said(*arguments: str) -> str:
        run = subprocess.run(
            [python, *arguments],
            cwd=ROOT,
            env={**os.environ, **path},
            capture_output=True,
            text=True,
            check=False,
            timeout=2400,
        )
        assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]
        return run.stdout

    assert said("-c", "import pyspark; print(pyspark.__version__)").strip() == SPARK_BEFORE
    # Limits of time are those of this test: a second Spark on the machine of the first is a slow one.
    pytest_words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=900", "-m"]
    said(*pytest_words, "not long", *(f"tests/spark/{name}.py" for name in PROVING))
