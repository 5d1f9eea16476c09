"""What a client says of a coordinator that is not there."""

import socket

import pytest

from datacoord.client import CoordinatorClient
from datacoord.errors import CoordinatorUnreachableError


def closed_port() -> str:
    """An address of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "says"),
    [("", "nobody listens there"), ("no-such-host.invalid:13333", "no host of that name is known here")],
)
def test_a_coordinator_that_is_not_there_is_told_from_one_that_is_slow(address: str, says: str) -> None:
    """The words "did not answer in time" send people to look at a coordinator's load that does not run, or runs elsewhere."""
    with (
        CoordinatorClient(address or closed_port(), timeout_seconds=1.0) as client,
        pytest.raises(CoordinatorUnreachableError, match=says),
    ):
        list(client.list_datanodes())
