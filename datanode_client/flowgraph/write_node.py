"""The write node: buffers rows, runs the sync policies, and submits what they choose."""

from collections.abc import Sequence

from datacoord.positions import Position
from datanode_client.syncmgr.dispatcher import ChannelDispatcher
from datanode_client.writebuffer.buffers import LaneRows
from datanode_client.writebuffer.manager import WriteBufferManager
from datanode_client.writebuffer.policies import SyncReason
from datanode_client.writebuffer.write_buffer import WriteBuffer


class WriteNode:
    """Second node of the flow graph.

    Args:
        write_buffer: of the channel.
        dispatcher: of the channel.
        manager: of the process; accounts for memory.
    """

    def __init__(self, write_buffer: WriteBuffer, dispatcher: ChannelDispatcher, manager: WriteBufferManager) -> None:
        self._write_buffer = write_buffer
        self._dispatcher = dispatcher
        self._manager = manager

    def operate(self, lanes: Sequence[LaneRows], position: Position) -> None:
        """Takes in whole messages and what is consumed with them; cuts the lanes the policies choose, always behind `position`."""
        write_buffer = self._write_buffer
        size_before = write_buffer.size_bytes
        touched = [write_buffer.buffer_data(lane_rows) for lane_rows in lanes]
        self._manager.add_buffered(write_buffer.size_bytes - size_before)
        before = write_buffer.consumed.timestamp
        write_buffer.advance(position)
        if before < write_buffer.flush_timestamp <= write_buffer.consumed.timestamp:
            self.sync_due()
        else:
            for partition_id, reason in write_buffer.choose(touched):
                self.sync(partition_id, reason)
        self._manager.check_memory()

    def drop_partition(self, partition_id: int, before: Position) -> None:
        """Has the coordinator told that a message of the log dropped a partition; `before` was consumed before it."""
        self._dispatcher.drop_partition(partition_id, before)

    def sync_due(self) -> None:
        """Cuts every lane a policy chooses."""
        for partition_id, reason in self._write_buffer.choose(self._write_buffer.lanes.values()):
            self.sync(partition_id, reason)

    def sync_all(self, reason: SyncReason) -> None:
        """Cuts every lane."""
        for partition_id in list(self._write_buffer.lanes):
            self.sync(partition_id, reason)

    def sync(self, partition_id: int, reason: SyncReason) -> None:
        """Cuts a lane and submits the sync; a lane without rows is left alone."""
        size_before = self._write_buffer.size_bytes
        task = self._write_buffer.cut(partition_id, reason)
        if task is not None:
            # In this order, so that memory is never counted as free in between.
            self._dispatcher.submit(task)
            self._manager.add_buffered(self._write_buffer.size_bytes - size_before)
