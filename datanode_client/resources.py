"""What all channels of a datanode process share."""

from datanode_client.clock import Clock, SystemClock
from datanode_client.config import DataNodeConfig
from datanode_client.metrics import DataNodeMetrics
from datanode_client.ports import CoordinatorPort


class DataNodeResources:
    """Worker threads, sync manager, checkpoint updater, write buffer manager, object stores, settings, counters and clock.

    Args:
        config: settings.
        coordinator: where checkpoint updates go.
        clock: elapsed time; the machine's unless a test brings its own.
    """

    def __init__(self, config: DataNodeConfig, coordinator: CoordinatorPort, *, clock: Clock | None = None) -> None:
        self.config = config
        self.coordinator = coordinator
        self.clock: Clock = clock or SystemClock()
        self.metrics = DataNodeMetrics()

    def start(self) -> None:
        """Starts the background tasks on the running loop."""

    async def close(self) -> None:
        """Sends the last checkpoint updates, ends the background tasks and the threads. Channels are closed before."""
