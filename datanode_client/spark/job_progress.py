"""How far a datanode job is, put together from what the coordinator says, look by look.

Owners come and go, and a new one begins at the checkpoint again; what was seen once is not taken back for that.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from datacoord.client import CoordinatorClient
from datacoord.reported_metrics import CONSUMED_ROWS
from datacoord.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class JobProgress:
    """One look at a job, through the coordinator.

    Attributes:
        channels: the channels of its collections, dropped ones not counted.
        finished_channels: how many of them have nothing more to land: the source has ended, every row is registered, and the
            checkpoint has passed it.
        datanodes: its living sessions.
        rows: rows that its sessions have read since the first look, those that ended meanwhile included; never less than before.
            Rows that were read again count again.
        read: how far the channels were read since the first look, in timestamps, all together; never less than before.
        behind: how far the heads of the sources are from there, in timestamps, all together; None = not every source has said.
        lag: the same for the channel that is furthest from its head.
    """

    channels: int
    finished_channels: int
    datanodes: tuple[admin_pb2.DataNodeInfo, ...]
    rows: int = 0
    read: int = 0
    behind: int | None = None
    lag: int | None = None

    @property
    def finished(self) -> bool:
        """Every channel is finished."""
        return self.finished_channels == self.channels

    def __str__(self) -> str:
        how_far = f"{self.rows:,} rows read" if self.lag is None else f"lag {self.lag:,}"
        return f"{self.finished_channels:,}/{self.channels:,} channels done, {how_far}"


@dataclass(slots=True)
class _Channel:
    """What was seen of a channel, in timestamps.

    Attributes:
        start: its checkpoint at the first look.
        read: the furthest that any owner has read.
        head: the end of its source as last reported; None = it never was.
    """

    start: int
    read: int
    head: int | None = None

    def behind(self, finished: bool) -> int | None:
        if finished:
            return 0
        return None if self.head is None else max(self.head - self.read, 0)


class ProgressObserver:
    """Looks at a job, and remembers what it saw. Any thread may use it.

    Args:
        job_name: the job.
        collections: names of its collections.
    """

    def __init__(self, job_name: str, collections: Sequence[str]) -> None:
        self._job_name = job_name
        self._collections = tuple(collections)
        self._channels: dict[str, _Channel] = {}
        self._rows: dict[int, int] = {}
        self._living: frozenset[int] = frozenset()
        self._lock = threading.Lock()

    def look(self, client: CoordinatorClient) -> JobProgress:
        """Asks the coordinator.

        Raises:
            DatacoordError: it does not answer, or does not know a collection.
        """
        channels = [
            channel
            for name in self._collections
            for channel in client.list_channels(name)
            if channel.state != admin_pb2.CHANNEL_STATE_DROPPED
        ]
        nodes = tuple(client.list_datanodes(self._job_name))
        with self._lock:
            living = frozenset(node.node_id for node in nodes)
            gone = self._living - living
        # Those that ended are asked for only when one has: a job that has run for weeks has had many.
        ended = tuple(client.list_datanodes(self._job_name, include_ended=True)) if gone else ()
        with self._lock:
            self._living = living
            self._count_rows(nodes, ended)
            finished = [channel for channel in channels if is_finished(channel)]
            behind = [self._see(channel).behind(is_finished(channel)) for channel in channels]
            known = [distance for distance in behind if distance is not None]
            all_known = len(known) == len(channels)
            return JobProgress(
                channels=len(channels),
                finished_channels=len(finished),
                datanodes=nodes,
                rows=sum(self._rows.values()),
                read=sum(seen.read - seen.start for seen in self._channels.values()),
                behind=sum(known) if all_known else None,
                lag=max(known, default=0) if all_known else None,
            )

    def _count_rows(self, living: Sequence[admin_pb2.DataNodeInfo], ended: Sequence[admin_pb2.DataNodeInfo]) -> None:
        first = min(self._rows, default=0)
        for node in (*living, *(node for node in ended if node.node_id >= first)):
            rows = int(node.metrics.get(CONSUMED_ROWS, 0))
            self._rows[node.node_id] = max(rows, self._rows.get(node.node_id, 0))

    def _see(self, channel: admin_pb2.ChannelInfo) -> _Channel:
        checkpoint = channel.checkpoint.timestamp
        seen = self._channels.setdefault(channel.channel_name, _Channel(checkpoint, checkpoint))
        report = channel.report
        seen.read = max(seen.read, checkpoint, report.timestamp)
        if report.HasField("lag"):
            seen.head = report.timestamp + report.lag
        return seen


def is_finished(channel: admin_pb2.ChannelInfo) -> bool:
    """A report of another epoch may be of another run of a source that has grown since; a checkpoint behind hides rows."""
    return (
        channel.report.finished
        and channel.report.epoch == channel.epoch
        and channel.checkpoint.timestamp >= channel.report.timestamp
    )
