"""Installs Datacoord for production into a fresh virtual environment: what the Dockerfile runs, and any other installer may.

    python tools/install_release.py /app [--without-spark]

Everything comes from the locks by hash. Wheels are built in an environment of their own, so that the target holds no build tool.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.setup_environment import LOCK, ROOT, lock_entries

RUN_LOCK = ROOT / "requirements" / "run.lock"
BILL_OF_MATERIALS = "sbom.cdx.json"
"""In the target: what was installed."""
BUILD_TOOLS = ("setuptools", "hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")
SPARK_ONLY = ("pyspark", "py4j", "pandas", "python-dateutil", "pytz", "six", "tzdata")
"""What only the spark extra needs: half a gigabyte that a coordinator can do without."""


def run(*command: str | Path) -> None:
    """Runs a command.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, stdin=subprocess.DEVNULL)


def pip(python: Path, *arguments: str | Path) -> None:
    """Runs an environment's pip."""
    run(python, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", *arguments)


def write_lock(path: Path, lock: Path, *, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> Path:
    """Writes the part of a lock that is wanted."""
    entries = [entry for name, entry in lock_entries(lock) if (not only or name in only) and name not in without]
    path.write_text("\n".join(entries) + "\n")
    return path


def bill_of_materials(entries: Iterable[str], version: str) -> dict[str, object]:
    """What is installed, in CycloneDX 1.5, from a lock: nothing but the lock, so that it says the same on every machine.

    Args:
        entries: requirements with their hashes, as the lock has them.
        version: of Datacoord.
    """
    components = []
    for entry in entries:
        pinned = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", entry)
        if pinned is None:
            raise ValueError(f"no version is pinned by {entry.splitlines()[0]!r}")
        name, pin = re.sub(r"[-_.]+", "-", pinned[1]).lower(), pinned[2]
        # A hash for each file of this version that pip would have taken, a wheel for each machine and the source.
        hashes = [
            {"alg": "SHA-256", "content": digest} for digest in re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        ]
        purl = f"pkg:pypi/{name}@{pin}"
        components.append(
            {"type": "library", "bom-ref": purl, "name": name, "version": pin, "purl": purl, "hashes": hashes}
        )
    about = {"type": "application", "bom-ref": "datacoord", "name": "datacoord", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": about},
        "components": components,
    }


def install(target: Path, *, without_spark: bool) -> None:
    """Makes the environment.

    Raises:
        subprocess.CalledProcessError: a step failed; what it said stands above.
    """
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        builder = scratch / "builder" / "bin" / "python"
        run(sys.executable, "-m", "venv", scratch / "builder")
        tools = write_lock(scratch / "tools.lock", LOCK, only=BUILD_TOOLS)
        pip(builder, "install", "--require-hashes", "--no-deps", "-r", tools)
        wheels = scratch / "wheels"
        wanted = write_lock(scratch / "run.lock", RUN_LOCK, without=SPARK_ONLY if without_spark else ())
        wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels)
        pip(builder, *wheel, "--require-hashes", "--use-pep517", "-r", wanted)
        pip(builder, *wheel, ROOT)
        run(sys.executable, "-m", "venv", "--clear", target)
        pip(target / "bin" / "python", "install", "--no-index", "--no-deps", *sorted(wheels.glob("*.whl")))
        entries = [entry for _, entry in lock_entries(wanted)]
    of_project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    materials = bill_of_materials(entries, of_project["version"])
    (target / BILL_OF_MATERIALS).write_text(json.dumps(materials, indent=1) + "\n")
    run(target / "bin" / "datacoord", "version")


def main() -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="directory of the environment; made anew")
    parser.add_argument("--without-spark", action="store_true", help="for coordinators: no PySpark")
    arguments = parser.parse_args()
    try:
        install(arguments.target.absolute(), without_spark=arguments.without_spark)
    except subprocess.CalledProcessError as error:
        sys.exit(f"install: `{' '.join(map(str, error.cmd[:6]))} …` failed; the message above says why")


if __name__ == "__main__":
    main()
