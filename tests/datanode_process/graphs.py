"""Graphs without rows: they record what the process does to them, and end when a test says so."""

import asyncio
from collections.abc import Callable, Set
from typing import Any

from support.waiting import WAIT_SECONDS_MAX

from datacoord.errors import DatacoordError
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2
from datanode_client.channel_hold import ChannelGraph, GraphEnd
from datanode_client.datasync import EndReason
from datanode_client.resources import DataNodeResources


class Graph:
    """One graph of one channel at one epoch."""

    def __init__(self, info: data_coord_pb2.ChannelRecoveryInfo, on_end: GraphEnd, log: "GraphLog") -> None:
        self.channel_name = info.channel_name
        self.epoch = info.epoch
        self.consumed = info.checkpoint.timestamp + 10
        self.flush_timestamps: list[int] = []
        self.dropped_partitions: Set[int] = frozenset()
        self.running = False
        self.closed = False
        self._on_end = on_end
        self._log = log

    def start(self) -> None:
        self.running = True
        self._log.changed()

    def set_flush_timestamp(self, ts: int) -> None:
        self.flush_timestamps.append(ts)
        self._log.changed()

    def drop_partitions(self, partition_ids: Set[int]) -> None:
        self.dropped_partitions = partition_ids
        self._log.changed()

    async def drain(self) -> Position:
        await self._log.may_drain.wait()
        if self._log.drain_error is not None:
            raise self._log.drain_error
        return Position(self.consumed)

    async def close(self) -> None:
        self.running = False
        self.closed = True
        self._log.changed()

    def report(self) -> data_coord_pb2.DataNodeTtMsg:
        return data_coord_pb2.DataNodeTtMsg(
            channel_name=self.channel_name, epoch=self.epoch, timestamp=self.consumed, finished=True
        )

    def end(self, reason: EndReason, error: BaseException | None = None) -> None:
        self._on_end(self, reason, error)


class GraphLog:
    """All graphs a datanode has made, and a way to wait for something about them."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.may_drain = asyncio.Event()
        self.may_drain.set()
        self.drain_error: DatacoordError | None = None
        self.make_error: Exception | None = None
        self._wakes: list[asyncio.Event] = []

    def make(
        self, info: data_coord_pb2.ChannelRecoveryInfo, _resources: DataNodeResources, on_end: GraphEnd
    ) -> ChannelGraph:
        """The factory to give to a DataNode."""
        if self.make_error is not None:
            raise self.make_error
        graph = Graph(info, on_end, self)
        self.graphs.append(graph)
        return graph

    def running(self) -> dict[str, int]:
        """Epochs of the running graphs by channel; a channel has at most one."""
        names = [graph.channel_name for graph in self.graphs if graph.running]
        assert len(names) == len(set(names))
        return {graph.channel_name: graph.epoch for graph in self.graphs if graph.running}

    def of(self, channel_name: str) -> Graph:
        """The newest graph of a channel."""
        return next(graph for graph in reversed(self.graphs) if graph.channel_name == channel_name)

    def changed(self) -> None:
        for wake in self._wakes:
            wake.set()

    async def until(self, condition: Callable[[], Any], seconds: float = WAIT_SECONDS_MAX) -> None:
        """Waits until a condition holds; it is looked at whenever a graph changes."""
        wake = asyncio.Event()
        self._wakes.append(wake)
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    wake.clear()
                    await wake.wait()
        finally:
            self._wakes.remove(wake)
