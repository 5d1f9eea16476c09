"""One channel at one epoch: reader, flow graph, saves, and how they end."""

from collections.abc import Callable
from enum import StrEnum

from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2
from datanode_client.ports import CoordinatorPort
from datanode_client.resources import DataNodeResources
from datanode_client.sources.base import ReaderFactory


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
    """Owns the flow graph of one channel at one epoch (PROTOCOL R3).

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

    def start(self) -> None:
        """Starts reading, in a task of the running loop."""
        raise NotImplementedError

    def set_flush_timestamp(self, ts: int) -> None:
        """Asks for everything up to a timestamp to be registered; 0 = no flush is wanted. Level-triggered: repeat at will."""
        raise NotImplementedError

    async def drain(self) -> Position:
        """Stops reading, cuts all lanes and waits until every save is answered.

        Returns:
            the final checkpoint, to release the channel with.

        Raises:
            DatacoordError: the graph ended before that (fenced, dropped, failed).
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Drops everything at once; nothing more is sent."""
        raise NotImplementedError

    def report(self) -> data_coord_pb2.DataNodeTtMsg:
        """What a heartbeat says of the channel."""
        raise NotImplementedError
