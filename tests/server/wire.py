"""The contract's stubs with typed errors, one attempt per call."""

from typing import Any

import grpc

from datacoord.client import error_of
from datacoord.transport import client_options
from datacoord.v1 import admin_pb2_grpc, data_coord_pb2_grpc


class Wire:
    """The stubs of a coordinator, with typed errors."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=client_options())
        self.data_coord: Any = data_coord_pb2_grpc.DataCoordServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self._address = address

    def call(self, method: Any, request: Any) -> Any:
        """Calls once."""
        try:
            return method(request, timeout=10)
        except grpc.RpcError as error:
            raise error_of(error, self._address) from error
