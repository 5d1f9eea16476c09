"""What a flow graph needs from the world: the coordinator, as the rules of R3 see it.

`datanode_client.broker.Broker` is the real one, over gRPC. Tests put the coordinator's own rules behind the same calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from datacoord.errors import DatacoordError
from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2


@dataclass(frozen=True, slots=True)
class CheckpointUpdate:
    """One checkpoint to move.

    Attributes:
        channel_name: the channel.
        epoch: of the flow graph.
        position: where to.
    """

    channel_name: str
    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """What became of a CheckpointUpdate.

    Attributes:
        outcome: APPLIED or ALREADY_APPLIED; UNSPECIFIED when refused.
        persisted: the checkpoint that is stored now (for APPLIED: the position sent); None when refused.
        error: the refusal (FencedError, ChannelDroppedError, ChannelNotFoundError); None otherwise.
    """

    outcome: common_pb2.Outcome
    persisted: Position | None
    error: DatacoordError | None


class CoordinatorPort(Protocol):
    """The calls of one datanode to the coordinator."""

    async def save_binlog_paths(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Sends one channel's part, in a batch with other channels', unchanged again and again until it is answered.

        Returns:
            the result; its outcome is APPLIED or ALREADY_APPLIED.

        Raises:
            DatacoordError: the part was refused for good (FENCED, GAP, OVERLAP, CHANNEL_DROPPED, INVALID_FIELD, …).
        """
        ...

    async def update_channel_checkpoints(
        self, updates: Sequence[CheckpointUpdate], timeout_seconds: float
    ) -> list[CheckpointAnswer]:
        """Sends one call with these updates, once.

        Returns:
            one answer per update, in order.

        Raises:
            DatacoordError: the call as a whole failed or timed out: its outcome is not known, or it was refused.
        """
        ...

    def checkpoint_delay_seconds(self) -> float:
        """How long the coordinator wants to be left alone with such calls, as its last refusals said."""
        ...

    async def drop_partition(self, collection_name: str, partition_id: int) -> None:
        """Drops a partition of every channel; repeats until it is answered. One that is dropped already is fine.

        Raises:
            CollectionNotFoundError: the collection is dropped, and the channel with it.
            DatacoordError: refused for good.
        """
        ...

    async def drop_virtual_channel(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Sends the last save of a channel and drops the channel; repeats until it is answered.

        Raises:
            DatacoordError: refused for good.
        """
        ...
