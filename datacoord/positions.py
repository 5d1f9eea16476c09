"""Positions in a channel: Milvus's MsgPosition as a value, and its translation to the contract."""

from typing import NamedTuple, Self

from datacoord.v1 import common_pb2


class Position(NamedTuple):
    """A position of one channel. Everything with timestamp <= `timestamp` lies before it; compare `timestamp` alone.

    Attributes:
        timestamp: 1 to 2^63-1; 0 = the start of the channel.
        msg_id: what the source needs to seek right after this position; opaque.
        msg_group: label of the log that `msg_id` belongs to.
        event_time_ms: wall clock at the source, milliseconds since the epoch; 0 = not known.
    """

    timestamp: int
    msg_id: bytes = b""
    msg_group: str = ""
    event_time_ms: int = 0

    def to_proto(self, channel_name: str) -> common_pb2.MsgPosition:
        """The position as the contract has it."""
        return common_pb2.MsgPosition(
            channel_name=channel_name,
            msg_id=self.msg_id,
            msg_group=self.msg_group,
            timestamp=self.timestamp,
            event_time_ms=self.event_time_ms,
        )

    @classmethod
    def from_proto(cls, message: common_pb2.MsgPosition) -> Self:
        """Reads a position of the contract; shape is the caller's to check."""
        return cls(message.timestamp, message.msg_id, message.msg_group, message.event_time_ms)


START = Position(0)
"""The start of a channel, before its first message."""
