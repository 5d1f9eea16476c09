"""What keeps a channel from going on: told to the coordinator with every heartbeat, so that whoever looks need not find the log."""

from dataclasses import dataclass
from typing import Any

from datacoord.errors import SourceInvalidError, SourceLostError
from datacoord.limits import FAULT_CHARS_MAX
from datacoord.v1 import data_coord_pb2


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that fails again and again. Times are of the process's monotonic clock, in seconds.

    Attributes:
        kind: where it is, a `ChannelFault` of the contract.
        text: the newest failure, in words.
        since: when it failed first.
        met: when it failed last.
    """

    kind: Any
    text: str
    since: float
    met: float

    @classmethod
    def again(cls, kind: Any, error: BaseException, before: "Fault | None", now: float) -> "Fault":
        """It failed; `before` is how it failed the last time, None = not yet."""
        return cls(kind, _text(error), now if before is None else before.since, now)

    def put_into(self, message: data_coord_pb2.DataNodeTtMsg, now: float) -> None:
        """Says it in a heartbeat."""
        message.fault = self.text
        message.fault_kind = self.kind
        message.fault_age_ms = max(0, round(1000 * (now - self.since)))


class LastingFault:
    """The fault of something that is started again when it fails: it lasts until one of them got further, or ran for long.

    Args:
        well_after_seconds: what has run for so long is well, though there was nothing to read.

    Attributes:
        fault: that lasts; None = there is none.
    """

    def __init__(self, well_after_seconds: float) -> None:
        self.fault: Fault | None = None
        self._well_after_seconds = well_after_seconds
        self._failed_at = 0

    def failed(self, kind: Any, error: BaseException, *, read_to: int, now: float) -> None:
        """It failed when it had read up to a timestamp."""
        self.fault = Fault.again(kind, error, self.fault, now)
        self._failed_at = read_to

    def runs(self, *, since: float, read_to: int, now: float) -> None:
        """It has been running since then, and has read up to a timestamp."""
        if read_to > self._failed_at or now - since > self._well_after_seconds:
            self.fault = None


def kind_of_graph_failure(error: BaseException) -> Any:
    """Where the fault of a failed flow graph is: in its source, where that was the cause."""
    if isinstance(error, SourceInvalidError | SourceLostError):
        return data_coord_pb2.CHANNEL_FAULT_SOURCE
    return data_coord_pb2.CHANNEL_FAULT_GRAPH


def _text(error: BaseException) -> str:
    """An error as it may travel: one line, printable, short."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    # A character is a byte: a heartbeat holds one of these for every channel.
    printable = "".join(character if " " <= character <= "~" else "?" for character in words)
    return printable if len(printable) <= FAULT_CHARS_MAX else printable[: FAULT_CHARS_MAX - 3] + "..."
