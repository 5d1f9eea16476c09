"""Calls as an attacker makes them: any method, any bytes, any metadata."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import status_pb2

from coordinator.grpc_port import SERVICES
from datacoord.errors import DatacoordError, Reason, from_status

METHODS = {
    f"{service.name}.{method.name}": f"/{service.full_name}/{method.name}"
    for service in SERVICES.values()
    for method in service.methods
}
"""Every method of the contract: path by name."""

STREAMS = {method.name for service in SERVICES.values() for method in service.methods if method.server_streaming}


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        code: of gRPC.
        error: as our clients read it; None = it was none of ours.
        body: of an accepted call.
    """

    code: grpc.StatusCode
    error: DatacoordError | None = None
    body: bytes = b""

    @property
    def reason(self) -> Reason | None:
        """Why it was refused."""
        return self.error.reason if self.error else None


def bearer(token: str) -> list[tuple[str, str]]:
    """Metadata that shows a token."""
    return [("authorization", f"Bearer {token}")]


class RawChannel:
    """A channel without anything of our clients.

    Args:
        address: of the coordinator.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])

    def __enter__(self) -> "RawChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, path: str, body: bytes = b"", metadata: Sequence[tuple[str, str]] = ()) -> Answer:
        """Calls a method by its path."""
        streams = path.rpartition("/")[2] in STREAMS
        method: Any = (self._channel.unary_stream if streams else self._channel.unary_unary)(path)
        try:
            answer = method(body, metadata=metadata, timeout=20)
            return Answer(grpc.StatusCode.OK, None, next(answer) if streams else answer)
        except grpc.RpcError as error:
            call: Any = error
            for key, value in call.trailing_metadata() or ():
                if key == "grpc-status-details-bin":
                    return Answer(call.code(), from_status(status_pb2.Status.FromString(value)))
            return Answer(call.code())
