"""The gRPC port: what is served there, and how it is taken."""

from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2

from coordinator.config import Settings
from coordinator.listening import bind_socket, join_address, port_in_use
from coordinator.rpc.gate import Gate
from coordinator.rpc.transport_security import ServerCertificates, check_exposure
from datacoord.errors import ConfigInvalidError
from datacoord.limits import HARD_CALLS_MARGIN
from datacoord.transport import server_options
from datacoord.v1 import admin_pb2, collection_pb2, data_coord_pb2

SERVICES: Final = {
    "data_coord": data_coord_pb2.DESCRIPTOR.services_by_name["DataCoordService"],
    "collections": collection_pb2.DESCRIPTOR.services_by_name["CollectionService"],
    "admin": admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
}

_HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
METHODS: Final = {
    f"/{service.full_name}/{method.name}": method.server_streaming
    for service in (*SERVICES.values(), _HEALTH)
    for method in service.methods
    if service is not _HEALTH or method.name in vars(health.aio.HealthServicer)
}
assert not any(method.client_streaming for service in SERVICES.values() for method in service.methods)  # noqa: S101 - nor served so
"""Full names of the methods there are, each with whether it answers with a stream."""


def open_port(settings: Settings, certificates: ServerCertificates | None) -> tuple[grpc.aio.Server, int]:
    """A server that has its port but does not serve yet.

    Args:
        settings: where.
        certificates: what it shows; None = it speaks in plain text.

    Returns:
        the server, and the number of its port.

    Raises:
        PortInUseError: another process listens there.
        ConfigInvalidError: the address cannot be used.
    """
    check_exposure(settings)
    # A library that cannot bind says so on standard error, in its own words: ask the kernel first, for one sentence.
    bind_socket(settings.grpc_host, settings.grpc_port, setting="grpc_port").close()
    server = grpc.aio.server(
        options=server_options(), maximum_concurrent_rpcs=settings.grpc_max_concurrent_rpcs + HARD_CALLS_MARGIN
    )
    where = join_address(settings.grpc_host, settings.grpc_port)
    try:
        if certificates is None:
            return server, server.add_insecure_port(where)
        return server, server.add_secure_port(where, certificates.credentials())
    except RuntimeError as error:
        raise port_in_use(settings.grpc_host, settings.grpc_port, setting="grpc_port") from error


def enable_reflection(server: grpc.aio.Server, gate: Gate) -> None:
    """Serves reflection, for admins.

    Raises:
        ConfigInvalidError: its package is not installed.
    """
    try:
        from coordinator.rpc.reflection import add_reflection
    except ImportError as error:
        raise ConfigInvalidError(
            "grpc_reflection is on, but the package grpcio-reflection is not installed; install it or switch the setting off"
        ) from error
    add_reflection(server, gate, [*(service.full_name for service in SERVICES.values()), health.SERVICE_NAME])
