"""The flow graph of one channel: dd node, write node, tt node, fed with the events of a reader (or of a gate in front of it)."""

from collections.abc import Set

from datacoord.positions import Position
from datanode_client.flowgraph.dd_node import DDNode
from datanode_client.flowgraph.tt_node import TTNode
from datanode_client.flowgraph.write_node import WriteNode
from datanode_client.sources.base import (
    DropCollectionMessage,
    DropPartitionMessage,
    EndOfChannel,
    MessageBatch,
    SourceEvent,
    Tick,
)
from datanode_client.writebuffer.policies import SyncReason
from datanode_client.writebuffer.write_buffer import WriteBuffer


class FlowGraph:
    """The nodes of one channel at one epoch, run to completion for every event. Used on the event loop's thread only.

    Args:
        dd_node: checks, filters, folds, sorts by lane.
        write_node: buffers and cuts.
        tt_node: reports the checkpoint.
        write_buffer: the state the nodes share.
    """

    def __init__(self, dd_node: DDNode, write_node: WriteNode, tt_node: TTNode, write_buffer: WriteBuffer) -> None:
        self._dd_node = dd_node
        self._write_node = write_node
        self._tt_node = tt_node
        self.write_buffer = write_buffer
        self.is_dropped = False
        self.has_ended = False

    def reader_opened(self) -> None:
        """A reader was opened right after the consumed position."""
        self._dd_node.reader_opened(self.write_buffer.consumed.timestamp)

    def feed(self, event: SourceEvent) -> None:
        """Takes in one event. Whatever is cut because of it ends exactly behind it.

        Raises:
            SourceInvalidError: the event breaks the rules of `sources.base`.
        """
        match event:
            case MessageBatch():
                self._write_node.operate(self._dd_node.operate(event), event.position)
            case Tick():
                self._advance(event.position)
            case DropPartitionMessage():
                before = self.write_buffer.consumed
                is_news = self._dd_node.drop_partition(event.partition_id)
                if is_news:
                    # Pinned before it is consumed, so that no checkpoint passes the message in between.
                    self._write_node.drop_partition(event.partition_id, before)
                self._advance(event.position)
                self._write_node.sync_due()
            case DropCollectionMessage():
                self._advance(event.position)
                self.is_dropped = True
                self._tt_node.enter_drop_mode()
                self._write_node.sync_all(SyncReason.DROP_CHANNEL)
            case EndOfChannel():
                self._advance(event.position)
                self.has_ended = True
                self._tt_node.end_channel()
                # Nothing will come that could fill the buffers up.
                self._write_node.sync_all(SyncReason.END_OF_CHANNEL)
        self._tt_node.operate()

    def set_flush_timestamp(self, timestamp: int) -> None:
        """Sets, repeats or withdraws (0) a flush target."""
        self.write_buffer.set_flush_timestamp(timestamp)
        self.settle()

    def drop_partitions(self, partition_ids: Set[int]) -> None:
        """Throws the rows of these partitions away from now on: the coordinator says that they are dropped. Repeat at will."""
        self.write_buffer.metacache.drop_partitions(partition_ids)
        self.settle()

    def settle(self) -> None:
        """Looks at what may have become due without an event: by time, by a flush target, by an answer of the coordinator."""
        self._write_node.sync_due()
        self._tt_node.operate()

    def sync(self, partition_id: int, reason: SyncReason) -> None:
        """Cuts a lane: memory is needed."""
        self._write_node.sync(partition_id, reason)

    def sync_all(self, reason: SyncReason) -> None:
        """Cuts all lanes at the consumed position."""
        self._write_node.sync_all(reason)

    def end_reports(self) -> None:
        """No checkpoint is reported by this graph any more."""
        self._tt_node.forget()

    def _advance(self, position: Position) -> None:
        self._dd_node.see(position.timestamp)
        self._write_node.operate((), position)
