"""The datanode: one process that registers, is given channels, and lands them until it is stopped or killed.

Recovery is starting: be assigned, take recovery info, seek the reader, filter by progress. Nothing else is ever needed, so there is
no other way in; a process that lost its session drops its graphs and registers like a new one.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

import structlog

from datacoord.v1 import data_coord_pb2
from datanode_client.broker import Broker
from datanode_client.channel_hold import ChannelGraph, GraphEnd, HoldContext
from datanode_client.client_config import SessionConfig
from datanode_client.clock import Clock, SystemClock
from datanode_client.config import DataNodeConfig
from datanode_client.datasync import DataSyncService
from datanode_client.resources import DataNodeResources
from datanode_client.session import ChannelMemory, DataNodeSession, SessionEnd
from datanode_client.sources.base import ReaderFactory

_log = structlog.get_logger(__name__)

SessionGraphFactory = Callable[[data_coord_pb2.ChannelRecoveryInfo, DataNodeResources, GraphEnd], ChannelGraph]


class DataNode:
    """A datanode. Lives on one event loop, which it should have for itself.

    Args:
        job: the datanode job it belongs to.
        slot: which of the job's datanodes it is.
        collection_names: the collections whose channels it can read.
        reader_factory: makes readers of channels.
        broker: the coordinator; stays open when the datanode has ended.
        config: what it does with its channels.
        session_config: how it holds and hands them back.
        register_again: False: end when the session is lost, for a process that somebody starts again. A task of Spark that was
            given up but lives on would else take its slot back from its own successor, and that one from it, without end.
        clock: elapsed time; the machine's unless a test brings its own.
        make_graph: makes the graph of a channel; a DataSyncService unless a test brings its own.
    """

    def __init__(
        self,
        *,
        job: str,
        slot: int,
        collection_names: Sequence[str],
        reader_factory: ReaderFactory,
        broker: Broker,
        config: DataNodeConfig | None = None,
        session_config: SessionConfig | None = None,
        register_again: bool = True,
        clock: Clock | None = None,
        make_graph: SessionGraphFactory | None = None,
    ) -> None:
        self._job = job
        self._slot = slot
        self._collection_names = tuple(collection_names)
        self._reader_factory = reader_factory
        self._broker = broker
        self._config = config or DataNodeConfig()
        self._session_config = session_config or SessionConfig()
        self._register_again = register_again
        self._clock = clock or SystemClock()
        self._make_graph = make_graph or self._make_data_sync_service
        self._memory = ChannelMemory(self._session_config)
        self._stop_asked = asyncio.Event()
        self._over = asyncio.Event()
        self._session: DataNodeSession | None = None

    async def run(self) -> SessionEnd:
        """Runs until it is stopped (here or through the coordinator), or until its session is lost and it may not have another.

        Raises:
            DatacoordError: the coordinator refuses to register it (an unknown collection, a malformed name).
        """
        try:
            while True:
                end = await self._run_session()
                if end is SessionEnd.STOPPED or self._stop_asked.is_set() or not self._register_again:
                    return end
        finally:
            self._over.set()

    def request_stop(self) -> None:
        """Asks for all channels to be drained and handed back; `run` returns then. Safe to call again."""
        self._stop_asked.set()
        if self._session is not None:
            self._session.stop()

    async def stop(self) -> None:
        """Stops and waits until `run` has returned."""
        self.request_stop()
        await self._over.wait()

    async def _run_session(self) -> SessionEnd:
        registration = await self._register()
        if registration is None:
            return SessionEnd.STOPPED
        # Counters are those of a session: a new one begins at zero, or sums over sessions would count twice.
        resources = DataNodeResources(self._config, self._broker, clock=self._clock)
        context = HoldContext(
            self._broker,
            lambda info, on_end: self._make_graph(info, resources, on_end),
            self._session_config,
            self._clock,
        )
        session = self._session = DataNodeSession(registration, context, self._memory, resources.metrics)
        _log.info("session_started", job=self._job, slot=self._slot, node_id=session.node_id, pid=os.getpid())
        resources.start()
        try:
            if self._stop_asked.is_set():
                session.stop()
            end = await session.run()
        finally:
            self._session = None
            await resources.close()
        if end is SessionEnd.STOPPED:
            await session.farewell()
        _log.info("session_ended", job=self._job, slot=self._slot, node_id=session.node_id, end=end.value)
        return end

    async def _register(self) -> data_coord_pb2.RegisterDataNodeResponse | None:
        """Registers, however long the coordinator is away; None when it is stopped before."""
        request = data_coord_pb2.RegisterDataNodeRequest(
            job=self._job,
            slot=self._slot,
            collection_names=self._collection_names,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        registering = asyncio.ensure_future(self._broker.register(request))
        stopping = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait((registering, stopping), return_when=asyncio.FIRST_COMPLETED)
            return registering.result() if registering.done() else None
        finally:
            for task in (registering, stopping):
                task.cancel()
            await asyncio.gather(registering, stopping, return_exceptions=True)

    def _make_data_sync_service(
        self, info: data_coord_pb2.ChannelRecoveryInfo, resources: DataNodeResources, on_end: GraphEnd
    ) -> ChannelGraph:
        return DataSyncService(
            info=info,
            reader_factory=self._reader_factory,
            coordinator=self._broker,
            resources=resources,
            on_end=on_end,
        )
