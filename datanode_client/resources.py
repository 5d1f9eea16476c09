"""What all channels of a datanode process share."""

import asyncio
import random
import threading
from concurrent.futures import Executor

from datacoord import reported_metrics as names
from datacoord.objectstore import ObjectStore
from datanode_client.checkpoint_updater import ChannelCheckpointUpdater
from datanode_client.clock import Clock, SystemClock
from datanode_client.config import DataNodeConfig
from datanode_client.metrics import DataNodeMetrics
from datanode_client.ports import CoordinatorPort
from datanode_client.syncmgr.manager import SyncManager
from datanode_client.writebuffer.manager import WriteBufferManager


class DataNodeResources:
    """Worker threads, sync manager, checkpoint updater, write buffer manager, object stores, settings, counters and clock.

    Made and used on one event loop; `object_store` alone may be called from any thread.

    Args:
        config: settings.
        coordinator: where checkpoint updates go.
        clock: elapsed time; the machine's unless a test brings its own.
        rng: source of jitter.
        executor: runs blocking work; threads of its own unless a test brings something else.
    """

    def __init__(
        self,
        config: DataNodeConfig,
        coordinator: CoordinatorPort,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self.metrics = DataNodeMetrics()
        self.write_buffers = WriteBufferManager(config, self.clock)
        self.checkpoint_updater = ChannelCheckpointUpdater(coordinator, config, self.clock, self.metrics)
        self.sync_manager = SyncManager(
            config=config,
            clock=self.clock,
            metrics=self.metrics,
            rng=self.rng,
            account=self.write_buffers.add_syncing,
            executor=executor,
        )
        self._stores: dict[str, ObjectStore] = {}
        self._stores_lock = threading.Lock()
        self._background: list[asyncio.Task[None]] = []
        self._name_gauges()

    def object_store(self, storage_root: str) -> ObjectStore:
        """The object store of a storage root, opened once. Blocks: call it from a worker thread.

        Raises:
            ConfigInvalidError, ObjectStoreError: it cannot be opened.
        """
        with self._stores_lock:
            store = self._stores.get(storage_root)
            if store is None:
                store = self._stores[storage_root] = ObjectStore.from_uri(storage_root)
            return store

    def start(self) -> None:
        """Starts the background tasks on the running loop."""
        loop = asyncio.get_running_loop()
        self._background = [loop.create_task(self.write_buffers.run()), loop.create_task(self.checkpoint_updater.run())]

    async def close(self) -> None:
        """Sends the last checkpoint updates, ends the background tasks and the threads. Drain or close the channels before."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.checkpoint_updater.close()
        self.sync_manager.close()

    def _name_gauges(self) -> None:
        buffers = self.write_buffers
        self.metrics.gauge(names.CHANNELS, lambda: buffers.channels)
        self.metrics.gauge(names.BUFFERED_ROWS, lambda: buffers.rows)
        self.metrics.gauge(names.BUFFERED_BYTES, lambda: buffers.memory.buffered_bytes)
        self.metrics.gauge(names.SYNCING_BYTES, lambda: buffers.memory.syncing_bytes)
