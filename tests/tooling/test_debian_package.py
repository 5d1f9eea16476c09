"""Programs of Debian packages without installing them: the machine's own first, the rest unpacked once, failures as sentences."""

import os
import subprocess
from pathlib import Path

import pytest

from tools.debian_package import DebianProgram, PackageUnavailableError, debian_program

APT = """#!/bin/sh
echo "$*" >> "$APT_CALLS"
case "$*" in
  *" update "*) touch "$APT_LISTS/some_InRelease" ;;
  *" download tool") cp "$APT_PACKAGE" . ;;
  *" install "*tool) ;;
  *) echo "E: Unable to locate package" >&2; exit 100 ;;
esac
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, and an apt that has one package: `tool`, with the program /usr/bin/the-tool-of-this-test."""
    package = tmp_path / "package"
    program = package / "usr" / "bin" / "the-tool-of-this-test"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho works\n")
    program.chmod(0o755)
    control = package / "DEBIAN" / "control"
    control.parent.mkdir()
    control.write_text("Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: d\n")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", package, tmp_path / "tool.deb"], check=True, capture_output=True
    )
    (tmp_path / "bin").mkdir()
    apt = tmp_path / "bin" / "apt-get"
    apt.write_text(APT)
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("APT_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("APT_PACKAGE", str(tmp_path / "tool.deb"))
    monkeypatch.setenv("APT_LISTS", str(tmp_path / "cache" / "state" / "lists"))
    return tmp_path / "cache"


def test_a_package_is_unpacked_once_and_its_program_runs(cache: Path) -> None:
    """A benchmark that downloads anew each time, or that needs root, is run by nobody."""
    first = debian_program("tool", "usr/bin/the-tool-of-this-test", cache=cache)
    calls = (cache.parent / "calls").read_text()
    second = debian_program("tool", "usr/bin/the-tool-of-this-test", cache=cache)
    assert first == second
    assert first.root == cache / "tool"
    assert (cache.parent / "calls").read_text() == calls
    assert subprocess.check_output([first.path], env=first.environment(), text=True) == "works\n"


def test_what_is_installed_is_taken(cache: Path) -> None:
    """Also where there is no apt and no connection."""
    assert debian_program("tool", "bin/sh", cache=cache) == DebianProgram(Path("/bin/sh"), None)
    assert not (cache.parent / "calls").exists()


def test_what_cannot_be_had_is_a_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback of a subprocess tells nobody that a package name is wrong or that there is no connection."""
    with pytest.raises(PackageUnavailableError, match="package other cannot be had from this machine's apt sources"):
        debian_program("other", "usr/bin/other-of-this-test", cache=cache)
    with pytest.raises(PackageUnavailableError, match="has no program usr/bin/another"):
        debian_program("tool", "usr/bin/another", cache=cache)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PackageUnavailableError, match="no apt-get and no dpkg-deb"):
        debian_program("third", "usr/bin/third-of-this-test", cache=cache)
