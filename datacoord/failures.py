"""What gRPC says of a call that failed, read in one way by every client of the contract.

UNAVAILABLE is certainly not done, DEADLINE_EXCEEDED and UNKNOWN are perhaps done: all may be repeated, because every call of the
contract has the effect of one however often it is sent. RESOURCE_EXHAUSTED may be repeated when the server says. Everything else
does not get better by repeating.
"""

from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2

from datacoord.errors import DatacoordError, Reason

STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
"""Metadata key under which a `google.rpc.Status` travels."""

_AGAIN: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        # A server that shuts down cancels what it has not answered; our own cancellations never come as a status.
        grpc.StatusCode.CANCELLED,
    }
)

_PASSING: Final = frozenset(
    {
        Reason.COORDINATOR_UNREACHABLE,
        Reason.OVERLOADED,
        Reason.DEADLINE_EXPIRED,
        Reason.STORE_UNAVAILABLE,
        Reason.COMMIT_OUTCOME_UNKNOWN,
    }
)


def status_of(failure: grpc.RpcError) -> status_pb2.Status | None:
    """The coordinator's own words; None = it was not the coordinator that answered."""
    metadata: Any = failure.trailing_metadata() or ()
    for key, value in metadata:
        if key == STATUS_DETAILS_KEY:
            return status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode("latin-1"))
    return None


def retry_delay_seconds(status: status_pb2.Status | None) -> float | None:
    """When the coordinator wants the call to be repeated; None = it did not say."""
    for detail in status.details if status is not None else ():
        info = error_details_pb2.RetryInfo()
        if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) and detail.Unpack(info):
            return float(info.retry_delay.ToTimedelta().total_seconds())
    return None


def is_too_large(failure: grpc.RpcError) -> bool:
    """Whether gRPC itself refused the message for its size: it does not shrink by waiting."""
    # gRPC tells "your message is too large" and "I am busy" apart by its text only.
    return failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in (failure.details() or "")


def may_be_repeated(failure: grpc.RpcError) -> bool:
    """Whether repeating the call unchanged can help."""
    if failure.code() in _AGAIN:
        return not is_too_large(failure)
    # A connection that breaks in mid-answer shows as INTERNAL without details, which no answer of the coordinator has.
    return failure.code() is grpc.StatusCode.INTERNAL and status_of(failure) is None


def passes_by_itself(error: DatacoordError) -> bool:
    """Whether what a call was refused with can be over by itself, for those who ask again and again.

    Not for them: a collection that is gone, a token that does not count any more, a bug.
    """
    return error.reason in _PASSING
