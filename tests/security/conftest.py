"""Coordinators that ask who calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server.running_coordinator import CoordinatorThread, running

from security.logins import Logins
from security.pki import Authority


@pytest.fixture
def logins(tmp_path: Path) -> Logins:
    """A token per role, and the file that lets them in."""
    return Logins(tmp_path)


@pytest.fixture
def guarded(tmp_path: Path, logins: Logins) -> Iterator[CoordinatorThread]:
    """A coordinator with these tokens, on loopback."""
    with running(tmp_path / "data", tokens_file=str(logins.path)) as thread:
        yield thread


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority whose certificates count."""
    return Authority(tmp_path)


@pytest.fixture(autouse=True)
def _no_credentials_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the suite may have a token; these tests give their own."""
    import os

    for variable in [name for name in os.environ if name.startswith("DATACOORD_TLS") or "TOKEN" in name]:
        monkeypatch.delenv(variable)
