"""What a failed call means is read in one way by every client: what is repeated, what is not."""

from typing import Any

import grpc
import pytest

from datacoord.client import error_of
from datacoord.errors import CommitOutcomeUnknownError, OverloadedError, WrongModeError, to_status
from datacoord.failures import STATUS_DETAILS_KEY, may_be_repeated, retry_delay_seconds, status_of

SAID = to_status(WrongModeError("no")).SerializeToString()


class Failure(grpc.RpcError):
    """What gRPC raises, with this code, text and metadata."""

    def __init__(self, code: grpc.StatusCode, details: str = "", said: bytes = b"") -> None:
        self._code, self._details, self._said = code, details, said

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return ((STATUS_DETAILS_KEY, self._said),) if self._said else ()


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (Failure(grpc.StatusCode.UNAVAILABLE), True),
        (Failure(grpc.StatusCode.DEADLINE_EXCEEDED), True),
        (Failure(grpc.StatusCode.UNKNOWN), True),
        (Failure(grpc.StatusCode.CANCELLED), True),
        (Failure(grpc.StatusCode.RESOURCE_EXHAUSTED), True),
        (Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (9 vs. 8)"), False),
        (Failure(grpc.StatusCode.INTERNAL, "Stream removed"), True),
        (Failure(grpc.StatusCode.INTERNAL, "a bug", to_status(OverloadedError("x")).SerializeToString()), False),
        (Failure(grpc.StatusCode.FAILED_PRECONDITION, "no", SAID), False),
        (Failure(grpc.StatusCode.UNIMPLEMENTED), False),
    ],
    ids=str,
)
def test_only_what_can_come_right_by_itself_is_repeated(failure: Failure, again: bool) -> None:
    """A client that gives up when a connection breaks in mid-answer fails for a restart; one that repeats a refusal hangs."""
    assert may_be_repeated(failure) is again


def test_when_to_come_back_is_what_the_coordinator_said() -> None:
    """Callers that come back sooner keep an overloaded coordinator overloaded."""
    busy = to_status(OverloadedError("busy", retry_delay_ms=1500)).SerializeToString()
    assert retry_delay_seconds(status_of(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", busy))) == 1.5
    assert retry_delay_seconds(status_of(Failure(grpc.StatusCode.FAILED_PRECONDITION, "no", SAID))) is None
    assert retry_delay_seconds(None) is None


def test_an_answer_that_broke_off_is_an_unknown_outcome_and_no_bug_of_the_coordinator() -> None:
    """A person who is told of a bug looks in the wrong place."""
    assert isinstance(error_of(Failure(grpc.StatusCode.INTERNAL, "Stream removed"), "h:1"), CommitOutcomeUnknownError)
