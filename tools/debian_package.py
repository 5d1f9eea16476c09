"""Programs of Debian packages, as root or not, without installing anything: for benchmarks and tests that need a server of others.

What the machine has already is taken. Otherwise the package, and whatever it needs that the machine lacks, is downloaded from the
machine's own apt sources into `.cache/debian` (with package lists, state and cache of its own, so that no rights are needed) and
unpacked there. Signatures and hashes are apt's business and stay checked.

    python tools/debian_package.py etcd-server usr/bin/etcd     # prints where it is
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "debian"
STEP_SECONDS_MAX = 300
"""For one step of apt; a mirror that hangs must end in a sentence."""

_COMPLETE = ".complete"


class PackageUnavailableError(Exception):
    """The package cannot be had on this machine; says why in a sentence."""


@dataclass(frozen=True)
class DebianProgram:
    """A program.

    Attributes:
        path: the executable.
        root: where its package is unpacked; None = it is installed on the machine.
    """

    path: Path
    root: Path | None

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment to run it in: with the libraries that were unpacked beside it, if there are any."""
        if self.root is None:
            return dict(base)
        folders = [folder for folder in _library_folders(self.root) if folder.is_dir()]
        before = base.get("LD_LIBRARY_PATH")
        return {**base, "LD_LIBRARY_PATH": os.pathsep.join([*map(str, folders), *([before] if before else [])])}


def _library_folders(root: Path) -> Iterator[Path]:
    """Where the linker looks, and the private folders of packages that would be found by a path the package was built with."""
    for folder in (root / "usr" / "lib", root / "lib"):
        yield folder
        for architecture in sorted(folder.glob("*-linux-gnu*")):
            yield architecture
            yield from sorted({library.parent for library in architecture.glob("*/lib*.so*")})


def debian_program(package: str, path: str, *, cache: Path = CACHE) -> DebianProgram:
    """Finds a program of a Debian package, or gets it.

    Args:
        package: name of the package.
        path: of the program inside the package, such as `usr/bin/etcd`.
        cache: where packages are kept.

    Raises:
        PackageUnavailableError: no apt on this machine, no such package, no connection, or it has no such program.
    """
    installed = Path("/") / path
    if os.access(installed, os.X_OK):
        return DebianProgram(installed, None)
    root = unpacked(package, cache=cache)
    program = root / path
    if not os.access(program, os.X_OK):
        raise PackageUnavailableError(f"package {package} has no program {path}")
    return DebianProgram(program, root)


def unpacked(package: str, *, cache: Path = CACHE) -> Path:
    """Downloads and unpacks a package with what it needs and the machine lacks; once, whatever the number of processes that ask.

    Returns:
        the folder that stands for `/`.

    Raises:
        PackageUnavailableError: it cannot be had.
    """
    root = cache / package
    if (root / _COMPLETE).exists():
        return root
    missing = [program for program in ("apt-get", "dpkg-deb") if shutil.which(program) is None]
    if missing:
        raise PackageUnavailableError(
            f"package {package} is not installed, and this machine has no {' and no '.join(missing)}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock"):
        if not (root / _COMPLETE).exists():
            _download_and_unpack(package, cache, root)
    return root


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download_and_unpack(package: str, cache: Path, root: Path) -> None:
    state, archives = cache / "state", cache / "archives" / package
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(archives, ignore_errors=True)
    for folder in (state / "lists" / "partial", archives / "partial", cache / "log"):
        folder.mkdir(parents=True, exist_ok=True)
    options = _apt_options(state, archives, cache / "log")
    if not any((state / "lists").glob("*_InRelease")):
        _run(package, "apt-get", *options, "update", "--error-on=any")
    # Only what the machine lacks; then the package itself, which it may have without the program being where it was looked for.
    _run(package, "apt-get", *options, "install", "--yes", "--download-only", "--no-install-recommends", package)
    _run(package, "apt-get", *options, "download", package, folder=archives)
    unpacking = cache / f"{package}.unpacking"
    shutil.rmtree(unpacking, ignore_errors=True)
    for archive in sorted(archives.glob("*.deb")):
        _run(package, "dpkg-deb", "-x", str(archive), str(unpacking))
    (unpacking / _COMPLETE).touch()
    unpacking.rename(root)
    shutil.rmtree(archives)


def _apt_options(state: Path, archives: Path, log: Path) -> list[str]:
    settings = {
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": archives.parent,
        "Dir::Cache::archives": archives,
        "Dir::Log": log,
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Debug::NoLocking": "true",  # the locks of dpkg are root's, and nothing is installed
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
    }
    return ["-qq", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]


def _run(package: str, *command: str, folder: Path | None = None) -> None:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
            timeout=STEP_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        said = f"{command[0]} did not end within {STEP_SECONDS_MAX} s"
    else:
        if done.returncode == 0:
            return
        said = " ".join((done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").split())[:400]
    raise PackageUnavailableError(f"package {package} cannot be had from this machine's apt sources: {said}")


def main() -> int:
    """Prints where a program is."""
    parser = argparse.ArgumentParser(description="Gets a program of a Debian package without installing it.")
    parser.add_argument("package")
    parser.add_argument("path", help="of the program inside the package, such as usr/bin/etcd")
    options = parser.parse_args()
    try:
        program = debian_program(options.package, options.path)
    except PackageUnavailableError as error:
        print(f"debian_package: {error}", file=sys.stderr)
        return 1
    print(program.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
