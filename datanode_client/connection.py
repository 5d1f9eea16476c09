"""A gRPC channel to the coordinator, of one process and one event loop.

gRPC for asyncio does not survive a fork: a child of a process that has made a call hangs at its first one, whatever channel it
uses. So channels are made lazily (Spark's workers are forked before they import this), and a child that comes too late is told so
instead of hanging. `GRPC_ENABLE_FORK_SUPPORT` stays unset: with 0 the parent's own calls hang after a fork.
"""

import asyncio
import os
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message

from datacoord.access import Access
from datacoord.errors import ConfigInvalidError, CoordinatorUnreachableError
from datacoord.v1 import collection_pb2_grpc, data_coord_pb2_grpc
from datanode_client.calls import CallFailedError
from datanode_client.client_config import BrokerConfig

_log = structlog.get_logger(__name__)

_pids_with_grpc: list[int] = []
"""The process in which gRPC was started, as this process or the one it was forked from remembers it; at most one."""


class Connection:
    """The channel and its stubs. Made inside a running event loop.

    Args:
        config: target and caller.

    Raises:
        CoordinatorUnreachableError: this process was forked from one that had called already.
        ConfigInvalidError: the credentials cannot be used; see `datacoord.access.Access`.
    """

    def __init__(self, config: BrokerConfig) -> None:
        if not _pids_with_grpc:
            _pids_with_grpc.append(os.getpid())
        elif _pids_with_grpc[0] != os.getpid():
            raise CoordinatorUnreachableError(
                f"process {os.getpid()} was forked from {_pids_with_grpc[0]}, which had called the coordinator before, and gRPC "
                "does not survive that: fork first and call then, or start processes with the 'spawn' method",
                pid=os.getpid(),
                parent_pid=_pids_with_grpc[0],
            )
        self._config = config
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._access = Access(config.target, config.credentials, caller=config.client_name)
        self._closings: set[asyncio.Task[None]] = set()
        self._open()

    def _open(self) -> None:
        self._channel = self._access.open_aio_channel()
        self._stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._collections: Any = collection_pb2_grpc.CollectionServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def _open_again_if_outdated(self) -> None:
        """A certificate was replaced: calls from now on show the new one, those under way end on the old channel."""
        if self._access.outdated():
            old = self._channel
            try:
                self._open()
            except ConfigInvalidError as error:
                _log.warning("tls_files_refused", error=error.message)
                return
            closing = asyncio.create_task(old.close(self._config.call_timeout_seconds))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)

    def belongs_here(self) -> bool:
        """False in another process or event loop than it was made in: leave it alone and make a new one."""
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
            self._open_again_if_outdated()
            stub = self._stub if hasattr(self._stub, method) else self._collections
            return await getattr(stub, method)(request, timeout=timeout_seconds, metadata=self._access.metadata())
        except grpc.aio.AioRpcError as error:
            raise CallFailedError.of(error, method, self._config.target) from error

    def stream(self, method: str, request: Message, timeout_seconds: float) -> Any:
        """Opens a response stream; iterating over it raises grpc.aio.AioRpcError."""
        self._open_again_if_outdated()
        return getattr(self._stub, method)(request, timeout=timeout_seconds, metadata=self._access.metadata())

    async def close(self) -> None:
        """Closes the channel; calls under way are cancelled."""
        await self._channel.close()
        for closing in list(self._closings):
            closing.cancel()
        await asyncio.gather(*self._closings, return_exceptions=True)
