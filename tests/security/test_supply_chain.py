"""Row *Supply chain*: what is installed is what was tested, by hash. tests/tooling holds the locks to more."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.name))
def test_every_package_is_locked_to_hashes_and_to_no_place(lock: Path) -> None:
    """A package that is replaced on its index, or looked for on another one, is somebody else's program."""
    text = re.sub(r"\\\n\s*", " ", lock.read_text())
    requirements = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    for line in requirements:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z0-9,_-]+\])?==\S+", line), line
        assert "--hash=sha256:" in line, line
    assert not re.search(r"https?://|--(extra-)?index[-]url|--find[-]links|--trusted[-]host|git\+", text)


def test_the_installers_refuse_what_has_no_hash() -> None:
    """A lock that nobody enforces is a list of wishes."""
    for name in ("setup_environment.py", "install_release.py"):
        assert "--require-hashes" in (ROOT / "tools" / name).read_text(), name


def test_no_secret_is_under_version_control() -> None:
    """What was committed once stays in every clone."""
    import subprocess

    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    assert not [name for name in names if name.startswith("deploy/secrets") or name.endswith((".key", ".pem", ".p12"))]
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/secrets/database_url"], cwd=ROOT, check=False)
    assert ignored.returncode == 0
