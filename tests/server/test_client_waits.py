"""The client of the contract waits as long as an overloaded coordinator asks it to: seen from the server, by when it comes back."""

import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from datacoord.client import RETRY_DELAY_SECONDS_FIRST, CoordinatorClient
from datacoord.errors import OverloadedError, to_status
from datacoord.failures import STATUS_DETAILS_KEY
from datacoord.transport import server_options
from datacoord.v1 import admin_pb2, admin_pb2_grpc

ASKED_MS = 300


class Overloaded(admin_pb2_grpc.AdminServiceServicer):
    """Refuses the first calls, and answers the next.

    Attributes:
        refusals: that are left.
        arrivals: when each call came.
    """

    def __init__(self, *refusals: OverloadedError) -> None:
        self.refusals = list(refusals)
        self.arrivals: list[float] = []

    def MoveChannel(self, request: Any, context: Any) -> admin_pb2.MoveChannelResponse:
        """See the class."""
        self.arrivals.append(time.monotonic())
        if self.refusals:
            status = to_status(self.refusals.pop(0))
            context.set_trailing_metadata([(STATUS_DETAILS_KEY, status.SerializeToString())])
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, status.message)
        return admin_pb2.MoveChannelResponse()

    def gaps_ms(self) -> list[float]:
        """Times between calls."""
        return [1000 * (after - before) for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]


@pytest.fixture
def overloaded() -> Iterator[tuple[Overloaded, CoordinatorClient]]:
    """A server that refuses twice and says when to come back, on a real socket, and a client of it."""
    servicer = Overloaded(*(OverloadedError("the queue is full", retry_delay_ms=ASKED_MS) for _ in range(2)))
    server = grpc.server(futures.ThreadPoolExecutor(2), options=server_options())
    admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with CoordinatorClient(f"127.0.0.1:{port}", timeout_seconds=20) as client:
        yield servicer, client
    server.stop(None).wait(20)


def test_a_client_comes_back_no_earlier_than_it_was_asked_to(overloaded: tuple[Overloaded, CoordinatorClient]) -> None:
    """Clients that come back when they like keep an overloaded coordinator overloaded: it reads their calls to refuse them."""
    servicer, client = overloaded
    assert 1000 * 2 * RETRY_DELAY_SECONDS_FIRST < ASKED_MS, (
        "what it would wait by itself is as long: this shows nothing"
    )

    client.move_channel("a")

    first, second = servicer.gaps_ms()
    assert min(first, second) >= ASKED_MS


def test_a_client_that_cannot_wait_so_long_says_at_once_what_it_was_told(
    overloaded: tuple[Overloaded, CoordinatorClient],
) -> None:
    """Sleeping until its time is over would tell the caller the same, later, and perhaps as "nobody answers"."""
    servicer, client = overloaded
    servicer.refusals = [OverloadedError("the queue is full", retry_delay_ms=3_600_000)]

    with pytest.raises(OverloadedError, match="queue is full"):
        client.move_channel("a")

    assert len(servicer.arrivals) == 1
