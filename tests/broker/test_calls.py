"""What a failed call means, and how long to wait before the next one."""

import random

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import (
    CODES,
    BatchTooLargeError,
    ConfigInvalidError,
    CoordinatorUnreachableError,
    Reason,
    Refusal,
    to_status,
)
from datanode_client.calls import Backoff, CallFailedError
from datanode_client.client_config import BrokerConfig, RetryConfig, SaveBatchConfig, SessionConfig

REPEATED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def failure(code: grpc.StatusCode, status: status_pb2.Status | None = None, text: str = "oh") -> CallFailedError:
    """What the client makes of an RpcError."""
    trailing = grpc.aio.Metadata()
    if status is not None:
        trailing.add("grpc-status-details-bin", status.SerializeToString())
    raised = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=text)
    return CallFailedError.of(raised, "SaveBinlogPaths", "127.0.0.1:7070")


@pytest.mark.parametrize("reason", list(CODES))
def test_every_reason_on_the_wire_arrives_as_its_type_and_is_repeated_by_its_code(reason: Reason) -> None:
    """A fence that is repeated hammers the coordinator for ever; an unknown outcome that is not repeated loses rows."""
    status = to_status(Refusal(reason, "a sentence", {"epoch": "7"}))

    failed = failure(CODES[reason], status)

    assert failed.error.reason is reason
    assert failed.error.metadata["epoch"] == "7"
    assert failed.again == (CODES[reason] in REPEATED)


def test_the_server_s_retry_delay_is_read_from_retry_info() -> None:
    """A client that comes back earlier than asked keeps an overloaded server overloaded."""
    status = to_status(Refusal(Reason.OVERLOADED, "full", {"retry_delay_ms": "1500"}))

    assert failure(grpc.StatusCode.RESOURCE_EXHAUSTED, status).delay_seconds == 1.5

    proxy = status_pb2.Status(code=8, message="proxy")
    proxy.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=250_000_000)))
    assert failure(grpc.StatusCode.RESOURCE_EXHAUSTED, proxy).delay_seconds == 0.25


def test_a_message_beyond_grpc_s_own_limit_is_not_repeated() -> None:
    """It does not shrink by waiting: repeating it would hold its channel for ever."""
    failed = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, text="SERVER: Received message larger than max (9 vs. 4)")

    assert isinstance(failed.error, BatchTooLargeError)
    assert not failed.again


@pytest.mark.parametrize("code", [*sorted(REPEATED, key=str), grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED])
def test_a_failure_without_details_may_have_been_applied_and_is_repeated(code: grpc.StatusCode) -> None:
    """A broken connection says nothing of what the coordinator did; dropping the graph for it would cost a replay each time."""
    failed = failure(code)

    assert failed.again
    assert isinstance(failed.error, CoordinatorUnreachableError)
    assert "127.0.0.1:7070" in failed.error.message


@given(st.integers(0, 200), st.integers(0, 2**32), st.none() | st.floats(0, 100))
def test_a_delay_is_capped_jittered_and_never_less_than_asked(failures: int, seed: int, asked: float | None) -> None:
    """Without a cap an outage of an hour makes a recovery of an hour; without jitter all datanodes come back at once."""
    config = RetryConfig(0.1, 3.0, 2.0)
    backoff = Backoff(config, random.Random(seed))
    backoff.failures = failures

    delay = backoff.next_delay_seconds(asked)

    assert delay >= (asked or 0.0)
    assert delay <= max(3.0, (asked or 0.0) * 1.25)
    assert delay >= min(0.1 * 2.0 ** min(failures, 64), 3.0) / 2
    backoff.reset()
    assert backoff.next_delay_seconds() <= 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryConfig(delay_seconds_initial=0),
        lambda: RetryConfig(delay_seconds_initial=2, delay_seconds_max=1),
        lambda: RetryConfig(multiplier=0.5),
        lambda: SaveBatchConfig(calls_in_flight_max=0),
        lambda: SaveBatchConfig(another_call_after_seconds=-1),
        lambda: SaveBatchConfig(channels_max=100_000),
        lambda: SaveBatchConfig(message_bytes_max=2**31),
        lambda: BrokerConfig(target=""),
        lambda: BrokerConfig(target="x:1", call_timeout_seconds=0),
        lambda: SessionConfig(drain_timeout_seconds=-1),
    ],
)
def test_a_setting_out_of_range_is_refused_when_it_is_made(make: object) -> None:
    """Found out at the first outage it would cost the outage."""
    with pytest.raises(ConfigInvalidError, match="must be"):
        make()  # type: ignore[operator]
