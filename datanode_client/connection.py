"""A gRPC channel to the coordinator, of one process and one event loop.

gRPC's channels do not cross forks and Spark forks its workers, so a connection knows where it was made and is never used anywhere
else. (`GRPC_ENABLE_FORK_SUPPORT` stays unset: with 0 the parent's own calls hang after a fork.)
"""

import asyncio
import os
from typing import Any

import grpc
from google.protobuf.message import Message

from datacoord.limits import MESSAGE_BYTES_MAX
from datacoord.v1 import admin_pb2_grpc, data_coord_pb2_grpc
from datanode_client.calls import CallFailedError
from datanode_client.client_config import BrokerConfig

CLIENT_METADATA_KEY = "datacoord-client"


class Connection:
    """The channel and its stubs. Made inside a running event loop.

    Args:
        config: target, limits, pings.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._channel = grpc.aio.insecure_channel(config.target, options=_channel_options(config))
        self._metadata = ((CLIENT_METADATA_KEY, config.client_name),)
        self._stubs: tuple[Any, ...] = (
            data_coord_pb2_grpc.DataCoordServiceStub(self._channel),  # type: ignore[no-untyped-call]
            admin_pb2_grpc.AdminServiceStub(self._channel),  # type: ignore[no-untyped-call]
        )

    def belongs_here(self) -> bool:
        """False after a fork or in another event loop: make a new connection and leave this one alone."""
        return self._pid == os.getpid() and self._loop is asyncio.get_running_loop()

    async def call(self, method: str, request: Message, timeout_seconds: float) -> Any:
        """Makes one attempt of a call.

        Args:
            method: name of the method.
            request: its request.
            timeout_seconds: the deadline of this attempt.

        Returns:
            its response, as the contract types it.

        Raises:
            CallFailedError: it failed.
        """
        try:
            return await self._method(method)(request, timeout=timeout_seconds, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise CallFailedError.of(error, method, self._config.target) from error

    def stream(self, method: str, request: Message, timeout_seconds: float) -> Any:
        """Opens a response stream; iterating over it raises grpc.aio.AioRpcError."""
        return self._method(method)(request, timeout=timeout_seconds, metadata=self._metadata)

    async def close(self) -> None:
        """Closes the channel; calls under way are cancelled."""
        await self._channel.close()

    def _method(self, name: str) -> Any:
        for stub in self._stubs:
            if hasattr(stub, name):
                return getattr(stub, name)
        raise AttributeError(name)


def _channel_options(config: BrokerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", int(config.keep_alive.time_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(config.keep_alive.timeout_seconds * 1000)),
        # gRPC would wait up to two minutes before it dials a coordinator that was away again.
        ("grpc.initial_reconnect_backoff_ms", int(config.retry.delay_seconds_initial * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(config.retry.delay_seconds_max * 1000)),
        # Repetition is decided in one place, which knows what may be repeated and counts it.
        ("grpc.enable_retries", 0),
    ]
