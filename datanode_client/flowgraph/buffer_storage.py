"""Where a gate keeps what it may not hand out yet, and the rule of what comes next.

Events of one input leave in the order in which they came, always. Between inputs, `BufferStorage` keeps the order of arrival;
`TimestampMerge` makes one timeline of them.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Generic, TypeAlias

from datacoord.errors import InternalError
from datanode_client.flowgraph.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    Data,
    EndOfPartition,
    InputEndedError,
    InputOutOfOrderError,
    PayloadT,
    Tick,
)

GateEvent: TypeAlias = Data[PayloadT] | Tick[PayloadT] | CheckpointBarrier | CancelCheckpointMarker | EndOfPartition
"""What comes in on an input."""

Splitter: TypeAlias = Callable[[Data[PayloadT], int], tuple[Data[PayloadT], Data[PayloadT]]]
"""Cuts several messages in two: up to and including a timestamp, and behind it. Neither part is empty."""

NEVER = 2**64
"""Later than every timestamp: the earliest that an ended input may still say."""


class BufferStorage(Generic[PayloadT]):
    """Events in order of arrival, also across inputs.

    What becomes ready is thereby always older than what waits behind it on the same input, and what was held back for several
    inputs comes out as it came in, without sequences to roll over (Flink's storage pushes an unread rest back, a stack).

    Args:
        channel_count: inputs, numbered from 0.
    """

    def __init__(self, channel_count: int) -> None:
        self._queues: list[deque[tuple[int, GateEvent[PayloadT]]]] = [deque() for _ in range(channel_count)]
        self._bytes = [0] * channel_count
        self._ended = [False] * channel_count
        self._arrivals = 0

    def accept(self, channel_index: int, event: GateEvent[PayloadT]) -> bool:
        """Checks an event against what its input said before. It is not kept yet.

        Returns:
            Whether the event says anything new: a second end does not, nor a tick on an input that has ended. Nor does a tick of
            one of several inputs here: it promises nothing about the others.

        Raises:
            InputEndedError: data after the end of the input.
        """
        says_something = self._accept(channel_index, event)
        return says_something and (type(event) is not Tick or len(self._queues) == 1)

    def _accept(self, channel_index: int, event: GateEvent[PayloadT]) -> bool:
        if not self._ended[channel_index]:
            self._ended[channel_index] = type(event) is EndOfPartition
            return True
        if type(event) is Data:
            raise InputEndedError(
                f"input {channel_index} sent data with timestamp {event.timestamp} after its end; fix its reader and"
                " rebuild the flow graph from the checkpoint",
                input=channel_index,
                timestamp=event.timestamp,
            )
        return type(event) is not EndOfPartition and type(event) is not Tick

    def passes_through(self, channel_index: int, blocked: AbstractSet[int]) -> bool:
        """Whether an accepted event need not be kept: it is next. All that was ready before must have been taken out."""
        return channel_index not in blocked

    def add(self, channel_index: int, event: GateEvent[PayloadT]) -> None:
        """Keeps an accepted event."""
        self._arrivals += 1
        self._queues[channel_index].append((self._arrivals, event))
        if type(event) is Data:
            self._bytes[channel_index] += event.size_bytes

    def is_empty(self, channel_index: int) -> bool:
        """Whether nothing of this input is kept."""
        return not self._queues[channel_index]

    def has_ended(self) -> bool:
        """Whether every input has ended and nothing is kept."""
        return all(self._ended) and not any(self._queues)

    def pending_bytes(self, channels: AbstractSet[int]) -> int:
        """Bytes of data kept for these inputs."""
        return sum(self._bytes[channel] for channel in channels)

    def total_bytes(self) -> int:
        """Bytes of data kept."""
        return sum(self._bytes)

    def pop_ready(self, blocked: AbstractSet[int]) -> list[tuple[int, GateEvent[PayloadT]]]:
        """Takes out what comes next: events, each with its input, that belong together; nothing if nothing may come now."""
        channel = self._earliest_arrival(blocked)
        return [] if channel is None else [self._pop(channel)]

    def crosses(self, blocked: AbstractSet[int]) -> bool:  # noqa: ARG002 - without a timeline nothing can cross it
        """Whether data of open inputs waits because a blocked one keeps back what comes before it; asked when nothing is ready."""
        return False

    def wants_more(self, channel_index: int, limit_bytes: int) -> bool:
        """Whether the input should be read on, if at most about `limit_bytes` are to be kept."""
        return self.is_empty(channel_index) or self.total_bytes() < limit_bytes

    def watermark(self) -> int | None:
        """Everything up to this timestamp has been handed out; None = not known here."""
        return None

    def _earliest_arrival(self, blocked: AbstractSet[int], *, data: bool = True) -> int | None:
        arrivals = (
            (queue[0][0], channel)
            for channel, queue in enumerate(self._queues)
            if queue and channel not in blocked and (data or type(queue[0][1]) is not Data)
        )
        return min(arrivals, default=(0, None))[1]

    def _pop(self, channel_index: int) -> tuple[int, GateEvent[PayloadT]]:
        _, event = self._queues[channel_index].popleft()
        if type(event) is Data:
            self._bytes[channel_index] -= event.size_bytes
        return channel_index, event


class TimestampMerge(BufferStorage[PayloadT]):
    """Events of inputs on one timeline, in the order of their timestamps; the rules are those of `CheckpointedInputGate`.

    Looks at every input once per message that comes out, so it is meant for tens of inputs, not thousands.

    Args:
        channel_count: inputs, numbered from 0.
        split: cuts data that holds several messages; needed only if there is such data.
    """

    def __init__(self, channel_count: int, split: Splitter[PayloadT] | None = None) -> None:
        super().__init__(channel_count)
        self._split = split
        self._watermarks = [-1] * channel_count
        self._firsts: list[deque[int]] = [deque() for _ in range(channel_count)]
        self._controls = 0
        # The input that all data waits for; until it speaks again, looking for data is in vain.
        self._awaited: int | None = None
        self._earliest = 0

    def accept(self, channel_index: int, event: GateEvent[PayloadT]) -> bool:
        """As `BufferStorage.accept`, and follows how far the input has spoken.

        A tick counts from here on, also behind a barrier: it is a fact about the input, not a part of the cut.

        Raises:
            InputEndedError: data after the end of the input.
            InputOutOfOrderError: data that is not later than everything its input has said.
        """
        if type(event) is Data and not self._ended[channel_index]:
            first = _first_timestamp(event)
            if not self._watermarks[channel_index] < first <= event.timestamp:
                raise InputOutOfOrderError(
                    f"input {channel_index} sent data from timestamp {first} to {event.timestamp} after it had spoken up to"
                    f" {self._watermarks[channel_index]}; timestamps must rise: fix its reader and rebuild the flow graph"
                    " from the checkpoint",
                    input=channel_index,
                    first_timestamp=first,
                    timestamp=event.timestamp,
                    watermark=self._watermarks[channel_index],
                )
            if first < event.timestamp and self._split is None and len(self._queues) > 1:
                raise InputOutOfOrderError(
                    f"input {channel_index} sent messages from {first} to {event.timestamp} in one piece, and messages of"
                    " other inputs may have to come between them; send one message at a time or give the gate a `split`",
                    input=channel_index,
                    first_timestamp=first,
                    timestamp=event.timestamp,
                )
        if not self._accept(channel_index, event):
            return False
        if type(event) is Data or type(event) is Tick:
            if event.timestamp <= self._watermarks[channel_index]:
                return False
            self._watermarks[channel_index] = event.timestamp
        elif type(event) is EndOfPartition:
            self._watermarks[channel_index] = NEVER - 1
        return True

    def passes_through(self, channel_index: int, blocked: AbstractSet[int]) -> bool:
        """As `BufferStorage.passes_through`; with one input there is nothing to merge."""
        return len(self._queues) == 1 and super().passes_through(channel_index, blocked)

    def add(self, channel_index: int, event: GateEvent[PayloadT]) -> None:
        """Keeps an accepted event; a tick has had its effect and needs no place."""
        if channel_index == self._awaited:
            self._awaited = None
        if type(event) is Tick:
            return
        super().add(channel_index, event)
        if type(event) is Data:
            self._firsts[channel_index].append(_first_timestamp(event))
        else:
            self._controls += 1

    def pop_ready(self, blocked: AbstractSet[int]) -> list[tuple[int, GateEvent[PayloadT]]]:
        """Takes out a marker that has come to the front of its input; else the earliest message, of all inputs that have a part."""
        if self._controls:
            channel = self._earliest_arrival(blocked, data=False)
            if channel is not None:
                self._controls -= 1
                return [self._pop(channel)]
        if self._awaited is not None:
            return []
        lowest, holders, next_lowest = self._lowest()
        self._earliest = lowest
        if lowest == NEVER:
            return []
        self._awaited = next((channel for channel in holders if not self._firsts[channel]), None)
        if self._awaited is not None or not blocked.isdisjoint(holders):
            return []
        up_to = lowest if len(holders) > 1 else next_lowest - 1
        return [self._take(channel, up_to) for channel in holders]

    def crosses(self, blocked: AbstractSet[int]) -> bool:
        """Whether a blocked input holds the earliest message although messages of open inputs, before the cut, are waiting."""
        # Nothing is ready and no input is awaited: then the earliest message is one that is held back.
        return self._awaited is None and any(
            firsts for channel, firsts in enumerate(self._firsts) if channel not in blocked
        )

    def watermark(self) -> int | None:
        """Everything up to this timestamp has been handed out; None once all inputs have ended."""
        return None if self._earliest == NEVER else self._earliest - 1

    def wants_more(self, channel_index: int, limit_bytes: int) -> bool:
        """As `BufferStorage.wants_more`; an input that keeps the others waiting is always wanted."""
        return not self._firsts[channel_index] or self.total_bytes() < limit_bytes

    def _lowest(self) -> tuple[int, list[int], int]:
        """The earliest timestamp that any input has or may still say, the inputs it is, and the next higher one of another."""
        lowest, next_lowest = NEVER, NEVER
        holders: list[int] = []
        for channel, firsts in enumerate(self._firsts):
            low = firsts[0] if firsts else self._watermarks[channel] + 1
            if low < lowest:
                lowest, next_lowest, holders = low, lowest, [channel]
            elif low == lowest:
                holders.append(channel)
            elif low < next_lowest:
                next_lowest = low
        return lowest, holders, next_lowest

    def _take(self, channel_index: int, up_to: int) -> tuple[int, GateEvent[PayloadT]]:
        """Takes the front of an input, up to a timestamp; what is later stays at the front."""
        arrival, event = self._queues[channel_index][0]
        if type(event) is not Data or event.timestamp <= up_to or self._split is None:
            self._firsts[channel_index].popleft()
            return self._pop(channel_index)
        head, tail = self._split(event, up_to)
        if head.timestamp > up_to or _first_timestamp(tail) <= up_to or tail.timestamp != event.timestamp:
            raise InternalError(f"the gate's `split` did not cut at {up_to}; fix it", timestamp=up_to)
        self._bytes[channel_index] += head.size_bytes + tail.size_bytes - event.size_bytes
        self._queues[channel_index][0] = (arrival, tail)
        self._firsts[channel_index][0] = _first_timestamp(tail)
        self._bytes[channel_index] -= head.size_bytes
        return channel_index, head


def _first_timestamp(event: Data[PayloadT]) -> int:
    return event.timestamp if event.first_timestamp is None else event.first_timestamp
