"""One channel at one epoch: reader, flow graph, saves, and how they end."""

import asyncio
from collections.abc import Callable, Set
from contextlib import suppress
from enum import StrEnum

import structlog

from datacoord import reported_metrics as names
from datacoord.errors import (
    ChannelDroppedError,
    DatacoordError,
    FencedError,
    InternalError,
    SourceInvalidError,
    SourceLostError,
)
from datacoord.limits import DEFAULT_PARTITION_NAME
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.binlog.writer import BinlogWriter
from datanode_client.faults import LastingFault
from datanode_client.flowgraph.dd_node import DDNode
from datanode_client.flowgraph.graph import FlowGraph
from datanode_client.flowgraph.tt_node import TTNode
from datanode_client.flowgraph.write_node import WriteNode
from datanode_client.ports import CoordinatorPort
from datanode_client.resources import DataNodeResources
from datanode_client.sources.base import ChannelContext, ChannelReader, ReaderFactory
from datanode_client.syncmgr.dispatcher import ChannelDispatcher
from datanode_client.writebuffer.metacache import MetaCache
from datanode_client.writebuffer.policies import SyncReason
from datanode_client.writebuffer.write_buffer import WriteBuffer

_log = structlog.get_logger(__name__)


class EndReason(StrEnum):
    """Why a DataSyncService ended."""

    FENCED = "fenced"
    """Another epoch owns the channel."""
    DROPPED = "dropped"
    """The channel is dropped: by this graph, or by somebody else."""
    RELEASED = "released"
    """`drain` is done: everything consumed is registered, and the channel can be handed back."""
    FAILED = "failed"
    """Anything that waiting does not cure: the graph must be rebuilt under a new epoch."""


class DataSyncService:
    """Owns the flow graph of one channel at one epoch (PROTOCOL R3). Used on the event loop's thread only.

    `on_end` is called exactly once, on the loop's thread, when the graph ends by itself or by `drain`; never after `close`.

    Args:
        info: of the channel, read after the epoch was taken.
        reader_factory: makes readers of the channel.
        coordinator: where saves go.
        resources: of the process, started.
        on_end: told once why the service ended, and the error if there was one.
    """

    def __init__(
        self,
        *,
        info: data_coord_pb2.ChannelRecoveryInfo,
        reader_factory: ReaderFactory,
        coordinator: CoordinatorPort,
        resources: DataNodeResources,
        on_end: Callable[["DataSyncService", EndReason, BaseException | None], None],
    ) -> None:
        self.channel_name: str = info.channel_name
        self.epoch: int = info.epoch
        self._reader_factory = reader_factory
        self._resources = resources
        self._on_end = on_end
        self._log = _log.bind(channel_name=info.channel_name, epoch=info.epoch)
        schema = CollectionSchema.from_info(info)
        self._context = _channel_context(info, schema)
        metacache = MetaCache(info)
        self._write_buffer = WriteBuffer(info, metacache, resources.config, resources.clock, resources.rng)
        self._dispatcher = self._make_dispatcher(info, schema, coordinator)
        self._graph = self._make_graph(info, schema, metacache)
        self._reader: ChannelReader | None = None
        self._reading: asyncio.Task[None] | None = None
        self._source_fault = LastingFault(resources.config.source_retry_delay_seconds_max)
        self._opened_at: float | None = None
        self._changed = asyncio.Event()
        self._ended = False
        self._end_reason: EndReason | None = None
        self._end_error: BaseException | None = None

    def start(self) -> None:
        """Starts reading, in a task of the running loop.

        Raises:
            InternalError: the process has a graph of this channel and epoch already.
        """
        self._resources.write_buffers.register(self.channel_name, self.epoch, self)
        self._log.info("flow_graph_started", checkpoint=self._write_buffer.consumed.timestamp)
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def set_flush_timestamp(self, ts: int) -> None:
        """Asks for everything up to a timestamp to be registered; 0 = no flush is wanted. Level-triggered: repeat at will."""
        if not self._ended and not self._graph.is_dropped:
            self._guarded(lambda: self._graph.set_flush_timestamp(ts))

    def drop_partitions(self, partition_ids: Set[int]) -> None:
        """Throws the rows of these partitions away from now on. Level-triggered: repeat at will."""
        if not self._ended and not self._graph.is_dropped:
            self._guarded(lambda: self._graph.drop_partitions(partition_ids))

    async def drain(self) -> Position:
        """Stops reading, cuts all lanes and waits until every save is answered, however long that takes.

        Returns:
            the final checkpoint, to release the channel with: it may be greater than the stored one.

        Raises:
            DatacoordError: the graph ended otherwise before that (fenced, dropped, failed, closed).
        """
        await self._stop_reading()
        if self._graph.is_dropped and not self._ended:
            # Reading may have been stopped between the message that drops the channel and what follows from it.
            self._guarded(self._dispatcher.drop_channel)
        elif not self._ended:
            self._guarded(lambda: self._graph.sync_all(SyncReason.DRAIN))
        while not self._ended and (self._graph.is_dropped or not self._dispatcher.is_idle):
            self._changed.clear()
            await self._changed.wait()
        if not self._ended:
            self._end(EndReason.RELEASED, None)
        if self._end_reason is EndReason.RELEASED:
            return self._write_buffer.get_checkpoint()
        if self._end_error is not None:
            raise self._end_error
        if self._end_reason is EndReason.DROPPED:
            raise ChannelDroppedError(f"channel {self.channel_name} was dropped by its own log while it drained")
        raise InternalError(f"channel {self.channel_name} was closed while it drained")

    async def close(self) -> None:
        """Drops everything at once; nothing more is sent, and `on_end` is not called any more."""
        if not self._ended:
            self._ended = True
            self._tear_down()
        await self._stop_reading()

    def report(self) -> data_coord_pb2.DataNodeTtMsg:
        """What a heartbeat says of the channel."""
        consumed = self._write_buffer.consumed
        message = data_coord_pb2.DataNodeTtMsg(
            channel_name=self.channel_name,
            epoch=self.epoch,
            timestamp=consumed.timestamp,
            event_time_ms=consumed.event_time_ms,
            lag=self._lag(),
            buffered_rows=self._write_buffer.rows,
            buffered_bytes=self._write_buffer.size_bytes,
            syncs_in_flight=self._dispatcher.syncs_in_flight,
            # The stored checkpoint never passes a pin, so nothing is left once it is at the end.
            finished=self._graph.has_ended and self._write_buffer.persisted.timestamp >= consumed.timestamp,
            oldest_sync_age_ms=round(1000 * self._dispatcher.oldest_sync_age_seconds),
        )
        # What cannot be written holds the checkpoint back, whatever is read.
        self._note_run()
        fault = self._dispatcher.fault or self._source_fault.fault
        if fault is not None:
            fault.put_into(message, self._resources.clock.monotonic())
        return message

    def _note_run(self) -> None:
        """Whatever the source failed with may be over, now that a reader is open."""
        if self._opened_at is not None:
            read_to, now = self._write_buffer.consumed.timestamp, self._resources.clock.monotonic()
            self._source_fault.runs(since=self._opened_at, read_to=read_to, now=now)

    def _lag(self) -> int | None:
        if self._graph.has_ended:
            return 0
        head = None
        if self._reader is not None:
            with suppress(Exception):  # a number for operators is not worth a heartbeat
                head = self._reader.head()
        return None if head is None else max(0, head - self._write_buffer.consumed.timestamp)

    # ---- what the write buffer manager asks (ManagedChannel) ----------------------------------------------------------------

    @property
    def write_buffer(self) -> WriteBuffer:
        """The buffers of the channel."""
        return self._write_buffer

    def sync(self, partition_id: int, reason: SyncReason) -> None:
        """Cuts a lane."""
        self._guarded(lambda: self._graph.sync(partition_id, reason))

    def on_clock(self) -> None:
        """Looks at what depends on time."""
        if not self._ended:
            self._guarded(self._graph.settle)

    # ---- reading ------------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Feeds the graph from one reader after the other until the source has ended or the channel is dropped."""
        try:
            failures = 0
            while True:
                consumed_before = self._write_buffer.consumed.timestamp
                fault = await self._read_with_one_reader()
                if fault is None:
                    break
                moved = self._write_buffer.consumed.timestamp > consumed_before
                failures = 1 if moved else failures + 1
                await self._back_off(fault, failures)
            if self._graph.is_dropped:
                self._dispatcher.drop_channel()
        except Exception as error:  # noqa: BLE001  # whatever ends reading ends the graph, never the process
            self._fail(error)

    async def _read_with_one_reader(self) -> Exception | None:
        """Opens a reader after the consumed position and feeds the graph from it.

        Returns:
            the passing fault that ended the reader; None when there is nothing more to read.

        Raises:
            SourceLostError, SourceInvalidError: the source or its reader fails in a way that waiting does not cure.
            Exception: the graph failed.
        """
        reader: ChannelReader | None = None
        try:
            while not (self._graph.has_ended or self._graph.is_dropped):
                await self._resources.write_buffers.wait_for_room()
                try:
                    reader = reader or await self._open_reader()
                    event = await reader.next()
                except (SourceLostError, SourceInvalidError):
                    raise
                except Exception as fault:  # noqa: BLE001  # the contract of ChannelReader: anything else passes
                    return fault
                self._graph.feed(event)
                # Readers that have much in hand never wait: other channels and heartbeats must get their turn.
                await asyncio.sleep(0)
            return None
        finally:
            await self._close_reader()

    async def _open_reader(self) -> ChannelReader:
        # Kept before it is open: one that fails to open is closed too.
        reader = self._reader = self._reader_factory(self._context)
        await reader.open(self._write_buffer.consumed)
        self._opened_at = self._resources.clock.monotonic()
        self._graph.reader_opened()
        return reader

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        self._note_run()
        self._opened_at = None
        if reader is not None:
            with suppress(Exception):  # it failed already, or its work is done
                await reader.close()

    async def _back_off(self, fault: Exception, failures: int) -> None:
        config = self._resources.config
        grown = config.source_retry_delay_seconds_initial * 2.0 ** min(failures - 1, 32)
        delay_seconds = min(config.source_retry_delay_seconds_max, grown) * self._resources.rng.uniform(0.5, 1.0)
        read_to, now = self._write_buffer.consumed.timestamp, self._resources.clock.monotonic()
        self._source_fault.failed(data_coord_pb2.CHANNEL_FAULT_SOURCE, fault, read_to=read_to, now=now)
        self._resources.metrics.add(names.SOURCE_FAILURES)
        self._log.warning(
            "source_failed",
            consumed=self._write_buffer.consumed.timestamp,
            error=f"{type(fault).__name__}: {fault}",
            failures=failures,
            delay_seconds=round(delay_seconds, 3),
        )
        await self._resources.clock.sleep(delay_seconds)

    async def _stop_reading(self) -> None:
        task = self._reading
        if task is not None and task is not asyncio.current_task() and not task.done():
            task.cancel()
            await asyncio.wait({task})

    # ---- the end ------------------------------------------------------------------------------------------------------------

    def _on_answer(self) -> None:
        if not self._graph.is_dropped:
            self._graph.settle()
        self._changed.set()

    def _on_dropped(self) -> None:
        self._end(EndReason.DROPPED, None)

    def _on_refusal(self, error: Exception) -> None:
        """A save or a checkpoint update was refused for good, or a job of the dispatcher failed."""
        if isinstance(error, DatacoordError):
            self._resources.metrics.add(names.REFUSED, reason=error.reason.value)
        self._fail(error)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs a step of the graph whose failure is this channel's and nobody else's."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  # a bug in one channel must not end its neighbours
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, FencedError):
            self._end(EndReason.FENCED, error)
        elif isinstance(error, ChannelDroppedError):
            self._end(EndReason.DROPPED, error)
        else:
            self._end(EndReason.FAILED, error)

    def _end(self, reason: EndReason, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._end_reason, self._end_error = reason, error
        self._tear_down()
        log = self._log.error if reason is EndReason.FAILED else self._log.info
        log(
            "flow_graph_ended",
            reason=reason.value,
            consumed=self._write_buffer.consumed.timestamp,
            error=None if error is None else f"{type(error).__name__}: {error}",
            exc_info=error if reason is EndReason.FAILED and not isinstance(error, DatacoordError) else None,
        )
        self._on_end(self, reason, error)

    def _tear_down(self) -> None:
        self._resources.write_buffers.remove(self.channel_name, self.epoch)
        self._dispatcher.abandon()
        self._graph.end_reports()
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        self._changed.set()

    # ---- building -----------------------------------------------------------------------------------------------------------

    def _make_dispatcher(
        self, info: data_coord_pb2.ChannelRecoveryInfo, schema: CollectionSchema, coordinator: CoordinatorPort
    ) -> ChannelDispatcher:
        resources, config = self._resources, self._resources.config
        storage_root = info.storage_root
        writer = BinlogWriter(
            info,
            schema,
            lambda: resources.object_store(storage_root),
            config.binlog_compression,
            config.binlog_compression_level,
        )
        return ChannelDispatcher(
            epoch=info.epoch,
            coordinator=coordinator,
            write_buffer=self._write_buffer,
            sync_manager=resources.sync_manager,
            writer=writer,
            joined_sync_max_bytes=config.joined_sync_max_bytes,
            clock=resources.clock,
            metrics=resources.metrics,
            on_answer=self._on_answer,
            on_dropped=self._on_dropped,
            on_error=self._on_refusal,
        )

    def _make_graph(
        self, info: data_coord_pb2.ChannelRecoveryInfo, schema: CollectionSchema, metacache: MetaCache
    ) -> FlowGraph:
        resources = self._resources
        dd_node = DDNode(
            channel_name=info.channel_name,
            schema=schema,
            default_partition_id=info.partitions.get(DEFAULT_PARTITION_NAME),
            metacache=metacache,
            replayed_until=info.consumed_timestamp,
            metrics=resources.metrics,
        )
        tt_node = TTNode(
            epoch=info.epoch,
            write_buffer=self._write_buffer,
            updater=resources.checkpoint_updater,
            interval_seconds=resources.config.update_channel_checkpoint_interval_seconds,
            clock=resources.clock,
            on_error=self._on_refusal,
        )
        write_node = WriteNode(self._write_buffer, self._dispatcher, resources.write_buffers)
        return FlowGraph(dd_node, write_node, tt_node, self._write_buffer)


def _channel_context(info: data_coord_pb2.ChannelRecoveryInfo, schema: CollectionSchema) -> ChannelContext:
    return ChannelContext(
        channel_name=info.channel_name,
        channel_index=info.channel_index,
        channel_count=info.channel_count,
        collection_name=info.collection_name,
        schema=schema.columns,
        primary_key=schema.primary_key,
        partitions=dict(info.partitions),
        properties=dict(info.properties),
    )
