"""Memory of a process: evicted from the largest channel, accounted to the byte, and a limit that stops readers."""

import asyncio
import random

import pytest

from datacoord.errors import InternalError
from datanode_client.config import DataNodeConfig
from datanode_client.writebuffer.manager import WriteBufferManager
from datanode_client.writebuffer.metacache import MetaCache
from datanode_client.writebuffer.policies import SyncReason
from datanode_client.writebuffer.write_buffer import WriteBuffer

from .builders import StillClock, at, deletes, inserts, lane_rows, recovery_info

ROW_BYTES = inserts(1).nbytes + deletes(1).nbytes


class Channel:
    """A channel as the manager sees it."""

    def __init__(self, name: str, manager: WriteBufferManager, config: DataNodeConfig) -> None:
        info = recovery_info()
        self.name = name
        self.write_buffer = WriteBuffer(info, MetaCache(info), config, StillClock(), random.Random(1))
        self.syncs: list[tuple[int, SyncReason]] = []
        self.ticks = 0
        self._manager = manager
        manager.register(name, 1, self)

    def consume(self, ts: int, *partitions: int) -> None:
        """One message, as the write node does it."""
        for partition in partitions:
            before = self.write_buffer.size_bytes
            self.write_buffer.buffer_data(lane_rows(partition, ts))
            self._manager.add_buffered(self.write_buffer.size_bytes - before)
        self.write_buffer.advance(at(ts))

    def sync(self, partition_id: int, reason: SyncReason) -> None:
        """Cuts a lane."""
        self.syncs.append((partition_id, reason))
        task = self.write_buffer.cut(partition_id, reason)
        assert task is not None
        self._manager.add_syncing(task.size_bytes)
        self._manager.add_buffered(-task.size_bytes)

    def on_clock(self) -> None:
        """A tick."""
        self.ticks += 1


def config_of(limit_rows: float, watermark: float = 0.5, enable: bool = True) -> DataNodeConfig:
    """A limit in rows of these tests."""
    return DataNodeConfig(
        memory_limit_bytes=int(limit_rows * ROW_BYTES),
        memory_force_sync_watermark=watermark,
        memory_force_sync_enable=enable,
    )


def test_the_oldest_lane_of_the_largest_channel_goes_first_until_there_is_room() -> None:
    """Evicting many small channels makes many small objects and frees little."""
    config = config_of(10)
    manager = WriteBufferManager(config, StillClock())
    small, large = Channel("small", manager, config), Channel("large", manager, config)
    small.consume(1, 1, 2)
    large.consume(5, 7)
    large.consume(6, 8)
    manager.check_memory()
    assert (small.syncs, large.syncs) == ([], [])
    large.consume(7, 7)
    manager.check_memory()

    assert (small.syncs, large.syncs) == ([], [(7, SyncReason.MEMORY)])
    assert manager.memory.buffered_bytes == 3 * ROW_BYTES
    assert manager.memory.syncing_bytes == 2 * ROW_BYTES


def test_eviction_goes_on_until_buffers_are_below_the_watermark() -> None:
    """One eviction per check would let a fast reader win."""
    config = config_of(10)
    manager = WriteBufferManager(config, StillClock())
    channel = Channel("c", manager, config)
    for ts in range(1, 9):
        channel.consume(ts, ts)
    manager.check_memory()

    assert [partition for partition, _ in channel.syncs] == [1, 2, 3, 4]
    assert manager.memory.buffered_bytes == 4 * ROW_BYTES


def test_nothing_is_evicted_when_that_is_switched_off() -> None:
    """The setting of Milvus; buffers may then fill the memory and do not stop readers for ever."""
    config = config_of(2, enable=False)
    manager = WriteBufferManager(config, StillClock())
    channel = Channel("c", manager, config)
    for ts in range(1, 9):
        channel.consume(ts, ts)
    manager.check_memory()

    assert channel.syncs == []
    assert manager._room.is_set()


async def test_readers_wait_while_rows_take_more_than_the_limit() -> None:
    """With a full disk nothing is written; reading on would end the process instead of waiting."""
    config = config_of(4)
    manager = WriteBufferManager(config, StillClock())
    manager.add_syncing(3 * ROW_BYTES)
    manager.add_buffered(1 * ROW_BYTES)
    waiting = asyncio.ensure_future(manager.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    manager.add_syncing(-1)
    await waiting


def test_a_channel_that_goes_takes_its_buffers_with_it() -> None:
    """Memory of channels that were fenced would count for ever and stop all reading in the end."""
    config = config_of(100)
    manager = WriteBufferManager(config, StillClock())
    Channel("kept", manager, config).consume(1, 1)
    Channel("gone", manager, config).consume(1, 1, 2)
    manager.remove("gone", 1)
    manager.remove("gone", 1)
    manager.remove("never seen", 9)

    assert manager.memory.buffered_bytes == ROW_BYTES
    assert (manager.channels, manager.rows) == (1, 2)


def test_one_epoch_has_one_flow_graph() -> None:
    """S3: two graphs of one epoch would both believe in their ranges."""
    config = config_of(100)
    manager = WriteBufferManager(config, StillClock())
    channel = Channel("c", manager, config)
    with pytest.raises(InternalError, match="already has a flow graph"):
        manager.register("c", 1, channel)
    manager.register("c", 2, channel)

    assert manager.channels == 2
