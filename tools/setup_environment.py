"""Builds .venv from the locks: what `make setup` runs, and what every other target runs first.

The environment holds exactly what `requirements/dev.lock` names, by hash, build tools included: nothing that is not in a lock
is ever run. Where Spark would find no Java, `requirements/java.lock` brings one. A digest of all that decides what the environment
must look like is kept inside it, so that a second run costs nothing.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".setup"
LOCK = ROOT / "requirements" / "dev.lock"
JAVA_LOCK = ROOT / "requirements" / "java.lock"
INPUTS = (LOCK, JAVA_LOCK, ROOT / "pyproject.toml", Path(__file__).resolve())

# Spark comes as a source distribution only; setuptools builds it and must be there before it.
BUILD_TOOLS = ("setuptools",)
PYTHON_VERSION_MIN = (3, 11)


def digest() -> str:
    """Identity of everything that decides what the environment must look like."""
    hashed = hashlib.sha256(str(VENV).encode())
    for path in INPUTS:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def is_fresh() -> bool:
    """True when the environment was completely set up from these very inputs."""
    return STAMP.is_file() and STAMP.read_text() == digest()


def say(sentence: str) -> None:
    """Tells the person what happens next; on stderr, because the last line of stdout belongs to the demo."""
    print(f"setup: {sentence}", file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    """Runs a command with its output on stderr.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, stdout=sys.stderr, stdin=subprocess.DEVNULL)


def pip_install(*arguments: str | Path) -> None:
    """Installs with the environment's own pip; without a terminal only problems are shown."""
    quiet = () if sys.stderr.isatty() else ("--quiet",)
    run(VENV_PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *quiet, *arguments)


def lock_entries(lock: Path) -> Iterator[tuple[str, str]]:
    """Cuts a lock into (name of the distribution, its lines with hashes)."""
    for entry in re.split(r"\n(?=\S)", lock.read_text()):
        name = re.match(r"[A-Za-z0-9._-]+", entry)
        if name:
            yield name.group(), entry


def create_venv() -> None:
    """Makes .venv unless there is one that works, is new enough, and was made here: its programs name its place."""
    config = VENV / "pyvenv.cfg"
    made_here = config.exists() and f" {VENV}\n" in config.read_text()
    works = (
        made_here
        and VENV_PYTHON.exists()
        and subprocess.run(
            [VENV_PYTHON, "-c", f"import pip, sys; sys.exit(sys.version_info < {PYTHON_VERSION_MIN})"],
            capture_output=True,
            check=False,
        )
    )
    if works and works.returncode == 0:
        return
    say(f"making .venv with Python {sys.version.split()[0]}")
    run(sys.executable, "-m", "venv", "--clear", VENV)


def install_lock() -> None:
    """Installs what the lock names: build tools first, then everything without any build isolation that would fetch more."""
    entries = dict(lock_entries(LOCK))
    say(f"installing {len(entries)} packages from {LOCK.relative_to(ROOT)}; the first time this takes some minutes")
    with tempfile.TemporaryDirectory() as tmp:
        build_tools = Path(tmp) / "build-tools.lock"
        build_tools.write_text("\n".join(entries[name] for name in BUILD_TOOLS) + "\n")
        pip_install("--require-hashes", "--no-deps", "-r", build_tools)
    pip_install("--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517", "-r", LOCK)


def finds_java(stderr: int | None = None) -> bool:
    """True when the project finds a Java that Spark can use; it is asked, so that there is one answer."""
    program = "from datanode_client.spark.java import find_java; find_java()"
    return subprocess.run([VENV_PYTHON, "-c", program], cwd=ROOT, check=False, stderr=stderr).returncode == 0


def install_java() -> None:
    """Brings a Java where there is none that Spark could use."""
    if finds_java(stderr=subprocess.DEVNULL):
        return
    say(f"no Java that Spark can use was found; installing one from {JAVA_LOCK.relative_to(ROOT)} into .venv")
    pip_install("--require-hashes", "--no-deps", "-r", JAVA_LOCK)
    if not finds_java():
        sys.exit("setup: the Java that was installed does not run here, see above; install Java 17 or newer and repeat")


def main() -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="install nothing; exit status 1 when there is something to do"
    )
    if parser.parse_args().check:
        sys.exit(0 if is_fresh() else 1)
    if sys.version_info < PYTHON_VERSION_MIN:
        sys.exit(f"setup: Python 3.11 or newer is needed, and this is {sys.version.split()[0]}")
    try:
        create_venv()
        install_lock()
        pip_install("--no-deps", "--no-build-isolation", "--editable", ROOT)
        install_java()
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"setup: `{' '.join(error.cmd[:4])} …` failed; the message above says why. "
            "If it was the network, repeat the command: it continues where it stopped. `rm -rf .venv` starts over."
        )
    STAMP.write_text(digest())
    say("done")


if __name__ == "__main__":
    main()
