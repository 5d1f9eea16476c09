"""gRPC reflection, for admins. Imported when it is asked for: its package is not among what a coordinator needs."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc  # type: ignore[import-untyped] # it ships no types

from coordinator.rpc.gate import Gate
from coordinator.rpc.roles import Role
from datacoord.errors import CODES, DatacoordError

_METHOD: Final = "ServerReflectionInfo"


def add_reflection(server: grpc.aio.Server, gate: Gate, services: Sequence[str]) -> None:
    """Serves reflection to admins.

    Args:
        server: where.
        gate: who may call.
        services: what is shown, by full name.
    """
    servicer = _ForAdmins([*services, reflection.SERVICE_NAME], gate)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


class _ForAdmins(reflection.aio.ReflectionServicer):  # type: ignore[misc] # it ships no types
    def __init__(self, services: Sequence[str], gate: Gate) -> None:
        super().__init__(services)
        self._gate = gate

    async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's
        """Answers questions about the contract."""
        try:
            self._gate.admit(_METHOD, Role.ADMIN, context)
        except DatacoordError as error:
            await context.abort(CODES[error.reason], error.message)
        async for response in super().ServerReflectionInfo(request_iterator, context):
            yield response
