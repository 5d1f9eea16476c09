"""`make setup` on machines that lack something says what is missing, and costs nothing the second time."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

TOOLS = {"git": "exit 0", "bash": "exit 0"}
"""Programs that a fresh machine has, as far as the setup asks for them."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with what the setup reads, and nothing built."""
    root = tmp_path / "checkout"
    for name in ["tools/setup.sh", "tools/setup_environment.py", "pyproject.toml"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "requirements", root / "requirements")
    return root


def machine(tmp_path: Path, **programs: str) -> dict[str, str]:
    """An environment whose PATH holds the basic tools and these programs, given as shell scripts, and nothing else."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for tool in ["sh", "dirname"]:
        found = shutil.which(tool)
        assert found
        (bin_dir / tool).symlink_to(found)
    for name, script in programs.items():
        program = bin_dir / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return {"PATH": str(bin_dir), "HOME": str(tmp_path)}


def setup(checkout: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the setup as make does."""
    command = ["sh", str(checkout / "tools" / "setup.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_without_python_the_setup_says_so(tmp_path: Path, checkout: Path) -> None:
    """`python3: not found` from the middle of a recipe tells nobody which Python is wanted."""
    result = setup(checkout, machine(tmp_path, **TOOLS))

    assert result.returncode == 1
    assert "Python 3.11 or newer was not found" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_old_python_or_a_shim_that_runs_nothing_does_not_count(tmp_path: Path, checkout: Path) -> None:
    """Version managers leave names on PATH that answer with an error."""
    result = setup(checkout, machine(tmp_path, **TOOLS, python3="exit 1", **{"python3.12": "exit 127"}))

    assert result.returncode == 1
    assert "Python 3.11 or newer was not found" in result.stderr


def test_a_python_without_venv_is_named_with_the_remedy(tmp_path: Path, checkout: Path) -> None:
    """Debian's python3 has no venv: the traceback of ensurepip does not name the package that is missing."""
    no_venv = 'case "$*" in *ensurepip*) exit 1;; *) exit 0;; esac'

    result = setup(checkout, machine(tmp_path, **TOOLS, python3=no_venv))

    assert result.returncode == 1
    assert "python3 has no venv module" in result.stderr
    assert "python3-venv" in result.stderr


@pytest.mark.parametrize("missing", ["git", "bash"])
def test_a_missing_program_is_named(tmp_path: Path, checkout: Path, missing: str) -> None:
    """The demo needs git, and Spark's starter needs bash; better said now than by a stack trace later."""
    tools = {name: script for name, script in TOOLS.items() if name != missing}

    result = setup(checkout, machine(tmp_path, python3="exit 0", **tools))

    assert result.returncode == 1
    assert f"{missing} was not found" in result.stderr


def test_the_first_python_with_everything_is_taken(tmp_path: Path, checkout: Path) -> None:
    """A newer Python without venv must not stand in the way of one that works."""
    no_venv = 'case "$*" in *ensurepip*) exit 1;; *) exit 0;; esac'
    works = 'case "$1" in -c) exit 0;; *) echo "built with 3.11: $1";; esac'

    result = setup(checkout, machine(tmp_path, **TOOLS, **{"python3.13": no_venv, "python3.11": works}))

    assert result.returncode == 0
    assert result.stdout.strip() == "built with 3.11: tools/setup_environment.py"


@pytest.mark.parametrize("changed", ["requirements/dev.lock", "requirements/java.lock", "pyproject.toml"])
def test_an_environment_is_fresh_until_its_inputs_change(checkout: Path, changed: str) -> None:
    """A stale environment runs yesterday's versions and calls the result tested."""
    tool = checkout / "tools" / "setup_environment.py"
    program = f"import sys; sys.path.insert(0, {str(tool.parent)!r}); import setup_environment as s; "
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}

    def check() -> int:
        command = [sys.executable, str(tool), "--check"]
        return subprocess.run(command, env=environment, timeout=60, check=False).returncode

    assert check() == 1
    stamp = "s.VENV.mkdir(); s.STAMP.write_text(s.digest())"
    subprocess.run([sys.executable, "-c", program + stamp], env=environment, timeout=60, check=True)
    assert check() == 0

    with (checkout / changed).open("a") as file:
        file.write("\n# changed\n")

    assert check() == 1
