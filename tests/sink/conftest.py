"""One coordinator for all tests of this directory; each test has collections of its own."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from server.running_coordinator import CoordinatorThread, running

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator on a database of its own.

    It ends with this directory: the transactions of its jobs pass the points of failure that other tests watch.
    """
    with running(tmp_path_factory.mktemp("sink") / "data", claim_lease_seconds=600.0) as thread:
        yield thread


@pytest.fixture(scope="session")
def new_name() -> Callable[[], str]:
    """Names of collections that nobody has used."""
    return lambda: f"c{next(_numbers)}"
