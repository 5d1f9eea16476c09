"""What the demo sees of the running job: only what the coordinator tells anybody who asks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from datacoord.client import CoordinatorClient
from datacoord.errors import DatacoordError
from datacoord.v1 import admin_pb2, data_coord_pb2

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Seen:
    """One look at the job.

    Attributes:
        channels: every channel of the collection, by name.
        datanodes: every session, ended ones included, by number.
    """

    channels: dict[str, admin_pb2.ChannelInfo] = field(default_factory=dict)
    datanodes: dict[int, admin_pb2.DataNodeInfo] = field(default_factory=dict)

    def metric(self, name: str) -> int:
        """Sum of a counter over all sessions, ended ones included: what was counted before a kill stays counted."""
        return int(sum(node.metrics.get(name, 0.0) for node in self.datanodes.values()))

    def consumed(self) -> dict[str, int]:
        """Last consumed timestamp as reported by each channel's owner; the checkpoint where nobody reports."""
        return {
            name: max(channel.report.timestamp, channel.checkpoint.timestamp) for name, channel in self.channels.items()
        }

    def alive(self) -> list[admin_pb2.DataNodeInfo]:
        """The sessions that are not over."""
        return [node for node in self.datanodes.values() if node.state != data_coord_pb2.DATA_NODE_STATE_ENDED]


class Observer:
    """Looks at the job through the coordinator's API; while the coordinator is away the last look stays.

    Args:
        client: of the coordinator.
        collection_name: the collection.
        on_look: called after every look, for progress.
    """

    def __init__(self, client: CoordinatorClient, collection_name: str, on_look: Callable[[Seen], None]) -> None:
        self._client = client
        self._collection_name = collection_name
        self._on_look = on_look
        self.last = Seen()

    def look(self) -> Seen:
        """Looks once."""
        try:
            channels = {channel.channel_name: channel for channel in self._client.list_channels(self._collection_name)}
            nodes = {node.node_id: node for node in self._client.list_datanodes(include_ended=True)}
        except DatacoordError:
            return self.last
        self.last = Seen(channels, nodes)
        self._on_look(self.last)
        return self.last

    def wait_until(self, condition: Callable[[Seen], bool], what: str, timeout_seconds: float) -> Seen:
        """Looks again and again until a condition holds.

        Raises:
            TimeoutError: it did not in time; the sentence says what was waited for.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            seen = self.look()
            if condition(seen):
                return seen
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout_seconds:.0f} s in vain: {what}")
            time.sleep(_POLL_SECONDS)
