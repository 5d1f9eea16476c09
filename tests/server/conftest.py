"""Coordinators for the tests of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from datacoord.client import CoordinatorClient
from server.running_coordinator import CoordinatorThread, running
from server.wire import Wire


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorThread]:
    """A coordinator on an empty database."""
    with running(tmp_path / "data") as thread:
        yield thread


@pytest.fixture
def client(coordinator: CoordinatorThread) -> Iterator[CoordinatorClient]:
    """A client of it."""
    with CoordinatorClient(coordinator.address, caller="demo", timeout_seconds=10) as connected:
        yield connected


@pytest.fixture
def wire(coordinator: CoordinatorThread) -> Iterator[Wire]:
    """The stubs of the coordinator."""
    stubs = Wire(coordinator.address)
    yield stubs
    stubs.channel.close()
