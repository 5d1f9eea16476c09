"""What keeps a channel from going on: told to the coordinator with every heartbeat, so that whoever looks need not find the log."""

from dataclasses import dataclass
from typing import Any

from datacoord.errors import SourceInvalidError, SourceLostError
from datacoord.limits import FAULT_CHARS_MAX
from datacoord.v1 import data_coord_pb2
from datanode_client.clock import Clock

_SOURCE_ERRORS = (SourceInvalidError, SourceLostError)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that fails again and again.

    Attributes:
        kind: where it is, a `ChannelFault` of the contract.
        text: the newest failure, in words.
        since: when it began, on the process's monotonic clock, in seconds.
        until: when it was met last, likewise.
    """

    kind: Any
    text: str
    since: float
    until: float

    def put_into(self, message: data_coord_pb2.DataNodeTtMsg, clock: Clock) -> None:
        """Says it in a heartbeat."""
        message.fault = self.text
        message.fault_kind = self.kind
        message.fault_age_ms = max(0, round(1000 * (clock.monotonic() - self.since)))


def source_fault(error: BaseException, before: Fault | None, clock: Clock) -> Fault:
    """A reader failed; `before` is how it failed the last time, if nothing came since."""
    return _fault(data_coord_pb2.CHANNEL_FAULT_SOURCE, error, before, clock)


def objects_fault(error: BaseException, before: Fault | None, clock: Clock) -> Fault:
    """Objects were not written."""
    return _fault(data_coord_pb2.CHANNEL_FAULT_OBJECTS, error, before, clock)


def graph_fault(error: BaseException, before: Fault | None, clock: Clock) -> Fault:
    """A flow graph failed; where its source was the cause, that is what is said."""
    of_source = isinstance(error, _SOURCE_ERRORS)
    kind = data_coord_pb2.CHANNEL_FAULT_SOURCE if of_source else data_coord_pb2.CHANNEL_FAULT_GRAPH
    return _fault(kind, error, before, clock)


def _fault(kind: Any, error: BaseException, before: Fault | None, clock: Clock) -> Fault:
    now = clock.monotonic()
    return Fault(kind, _text(error), now if before is None else before.since, now)


def _text(error: BaseException) -> str:
    """An error as it may travel: one line, printable, short."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    # A character is a byte: a heartbeat holds one of these for every channel.
    printable = "".join(character if " " <= character <= "~" else "?" for character in words)
    return printable if len(printable) <= FAULT_CHARS_MAX else printable[: FAULT_CHARS_MAX - 3] + "..."
