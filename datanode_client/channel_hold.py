"""One channel at one epoch, from being assigned to being handed back."""

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

import structlog

from datacoord.errors import ChannelDroppedError, ChannelNotFoundError, CoordinatorUnreachableError, DatacoordError
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2
from datanode_client.broker import Broker
from datanode_client.calls import Backoff
from datanode_client.client_config import SessionConfig
from datanode_client.clock import Clock
from datanode_client.datasync import EndReason
from datanode_client.faults import LastingFault, kind_of_graph_failure

_log = structlog.get_logger(__name__)


class ChannelGraph(Protocol):
    """What a hold needs of a `datasync.DataSyncService`."""

    def start(self) -> None:
        """Starts reading."""

    def set_flush_timestamp(self, ts: int) -> None:
        """Asks for everything up to a timestamp to be registered."""

    def drop_partitions(self, partition_ids: Set[int]) -> None:
        """Throws the rows of these partitions away from now on."""

    async def drain(self) -> Position:
        """Makes everything consumed durable and registered."""

    async def close(self) -> None:
        """Drops everything at once."""

    def report(self) -> data_coord_pb2.DataNodeTtMsg:
        """What a heartbeat says of the channel."""


GraphEnd = Callable[[ChannelGraph, EndReason, BaseException | None], None]
GraphFactory = Callable[[data_coord_pb2.ChannelRecoveryInfo, GraphEnd], ChannelGraph]
"""Makes the graph of a channel; the callback is told once why it ended."""


class Restarts(Backoff):
    """How often a channel's graphs have failed lately, over all its epochs in this process.

    Args:
        config: of the session.

    Attributes:
        lasting: with what they fail.
    """

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(config.restart)
        self.lasting = LastingFault(config.restart_reset_seconds)

    def reset(self) -> None:
        """Forgets the failures: a graph has run for long."""
        super().reset()
        self.lasting.fault = None


@dataclass(frozen=True, slots=True)
class HoldContext:
    """What the holds of one session share.

    Attributes:
        broker: the coordinator.
        make_graph: makes graphs.
        config: time-outs.
        clock: elapsed time.
    """

    broker: Broker
    make_graph: GraphFactory
    config: SessionConfig
    clock: Clock


class ChannelHold:
    """Holds a channel at an epoch: takes its recovery info, runs one graph, drains it and hands the channel back.

    Args:
        channel_name: the channel.
        epoch: the epoch to hold it at; never held before in this process.
        context: what holds share.
        restarts: how often the channel's graphs have failed lately, over all its epochs.
        on_over: told once when nothing is left to do.
    """

    def __init__(
        self,
        channel_name: str,
        epoch: int,
        context: HoldContext,
        restarts: Restarts,
        on_over: Callable[["ChannelHold"], None],
    ) -> None:
        self.channel_name = channel_name
        self.epoch = epoch
        self._context = context
        self._restarts = restarts
        self._on_over = on_over
        self._flush_timestamp = 0
        self._dropped_partitions: Set[int] = frozenset()
        self._release_asked = asyncio.Event()
        self._ended = asyncio.Event()
        self._end: tuple[EndReason, BaseException | None] | None = None
        self._graph: ChannelGraph | None = None
        self._started = 0.0
        # The channel may have been with others since: what failed here long ago says nothing of now.
        old_seconds = 2 * context.config.restart.delay_seconds_max + context.config.restart_reset_seconds
        fault = restarts.lasting.fault
        if fault is not None and context.clock.monotonic() - fault.met > old_seconds:
            restarts.reset()

    def start(self) -> None:
        """Begins, in a task of the running loop."""
        self._task = asyncio.create_task(self._hold(), name=f"hold {self.channel_name}@{self.epoch}")

    def order(self, watch: data_coord_pb2.VchannelWatch) -> None:
        """Takes what the desired state wants of the channel. Level-triggered: repeat at will."""
        self._flush_timestamp = watch.flush_timestamp
        if self._graph is not None:
            self._graph.set_flush_timestamp(watch.flush_timestamp)
        if watch.release:
            self.release()

    def drop_partitions(self, partition_ids: Set[int]) -> None:
        """Takes which partitions are dropped, as of a desired state."""
        self._dropped_partitions = partition_ids
        if self._graph is not None:
            self._graph.drop_partitions(partition_ids)

    def release(self) -> None:
        """Asks for the channel to be drained and handed back."""
        self._release_asked.set()

    def report(self) -> data_coord_pb2.DataNodeTtMsg | None:
        """What a heartbeat says of the channel; None = nothing yet."""
        lasting, now = self._restarts.lasting, self._context.clock.monotonic()
        if self._graph is None:
            if lasting.fault is None:
                return None
            message = data_coord_pb2.DataNodeTtMsg(channel_name=self.channel_name, epoch=self.epoch)
        else:
            message = self._graph.report()
            lasting.runs(since=self._started, read_to=message.timestamp, now=now)
        if lasting.fault is not None and not message.fault:
            lasting.fault.put_into(message, now)
        return message

    async def close(self) -> None:
        """Drops everything at once: the channel is somebody else's, or will be by its lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _hold(self) -> None:
        try:
            position = None if self._release_asked.is_set() else await self._run()
            await self._hand_back(position)
            _log.info("channel_released", channel=self.channel_name, epoch=self.epoch)
        except _NotOursError as error:
            _log.info("channel_lost", channel=self.channel_name, epoch=self.epoch, why=str(error))
        except CoordinatorUnreachableError:
            _log.warning("channel_not_released", channel=self.channel_name, epoch=self.epoch, reason="broker_closed")
        finally:
            self._on_over(self)

    async def _hand_back(self, position: Position | None) -> None:
        """Hands the channel back, however often that is refused: heartbeats keep a channel whose graph is over from everybody."""
        while True:
            try:
                await self._context.broker.release_channel(self.channel_name, self.epoch, position)
                return
            except CoordinatorUnreachableError:
                raise  # this process closes its broker
            except DatacoordError as error:
                delay_seconds = self._restarts.next_delay_seconds()
                _log.error(
                    "channel_not_released",
                    channel=self.channel_name,
                    epoch=self.epoch,
                    reason=error.reason.value,
                    delay_seconds=round(delay_seconds, 3),
                )
            # The position may be what is refused. Without it the next owner replays more, and that is all.
            position = None
            await self._context.clock.sleep(delay_seconds)

    async def _run(self) -> Position | None:
        """Runs the channel's graph until it is to be handed back.

        Returns:
            the position to release with; None = the checkpoint stays.

        Raises:
            _NotOursError: the epoch is over, or the channel; there is nothing to hand back.
        """
        self._started = self._context.clock.monotonic()
        read_to = 0
        try:
            graph = await self._start_graph()
            await _first(self._ended, self._release_asked)
            if self._end is None:
                return await self._drain(graph)
            reason, error = self._end
        except (ChannelNotFoundError, ChannelDroppedError) as gone:
            raise _NotOursError(gone.reason.value) from gone
        except _NotOursError:
            raise
        except Exception as failure:  # noqa: BLE001  # whatever stops a graph from starting, the channel must not stay dead
            reason, error = EndReason.FAILED, failure
        finally:
            if self._graph is not None:
                read_to = self._graph.report().timestamp
                await self._graph.close()
                self._graph = None
        if reason is not EndReason.FAILED:
            raise _NotOursError(reason.value)
        if self._context.clock.monotonic() - self._started > self._context.config.restart_reset_seconds:
            self._restarts.reset()
        if error is not None:
            kind, now = kind_of_graph_failure(error), self._context.clock.monotonic()
            self._restarts.lasting.failed(kind, error, read_to=read_to, now=now)
        delay_seconds = self._restarts.next_delay_seconds()
        _log.error(
            "channel_failed",
            channel=self.channel_name,
            epoch=self.epoch,
            failures=self._restarts.failures,
            delay_seconds=round(delay_seconds, 3),
            error=repr(error),
        )
        await _wait(self._release_asked, self._context.clock, delay_seconds)
        return None

    async def _start_graph(self) -> ChannelGraph:
        info = await self._context.broker.get_recovery_info(self.channel_name)
        if info.epoch != self.epoch:
            raise _NotOursError(f"the channel is at epoch {info.epoch}")
        self._graph = graph = self._context.make_graph(info, self._on_end)
        graph.start()
        graph.set_flush_timestamp(self._flush_timestamp)
        if self._dropped_partitions:
            # Said while the recovery info, which may be older, was on its way.
            graph.drop_partitions(self._dropped_partitions)
        _log.info("channel_held", channel=self.channel_name, epoch=self.epoch, checkpoint=info.checkpoint.timestamp)
        return graph

    def _on_end(self, _graph: ChannelGraph, reason: EndReason, error: BaseException | None) -> None:
        self._end = (reason, error)
        self._ended.set()

    async def _drain(self, graph: ChannelGraph) -> Position | None:
        draining = asyncio.ensure_future(graph.drain())
        timer = asyncio.ensure_future(self._context.clock.sleep(self._context.config.drain_timeout_seconds))
        try:
            await asyncio.wait((draining, timer), return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                return draining.result()
        except DatacoordError as error:
            if self._end is not None and self._end[0] in {EndReason.FENCED, EndReason.DROPPED}:
                raise _NotOursError(self._end[0].value) from error
            _log.warning("drain_failed", channel=self.channel_name, epoch=self.epoch, error=repr(error))
            return None
        finally:
            draining.cancel()
            timer.cancel()
            await asyncio.gather(draining, timer, return_exceptions=True)
        # What is not registered is read again by the next owner: handing back late is worse than handing back a replay.
        _log.warning("drain_timed_out", channel=self.channel_name, epoch=self.epoch)
        return None


class _NotOursError(Exception):
    """The channel, or this epoch of it, is over."""


async def _first(*events: asyncio.Event) -> None:
    """Waits until one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _wait(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Waits until the event is set, but no longer than so long."""
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
