"""A function over keys that is constant on pieces: what the frontier and the range lock keep their timestamps in."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

from datacoord.errors import InvalidFieldError
from datanode_client.puller.span import Span

V = TypeVar("V")


class RangeMap(Generic[V]):
    """Maps every key to a value, as a sorted list of boundaries; a value holds from its boundary up to the next one.

    Neighbouring pieces of equal value stay apart, so that a piece keeps the bounds it was assigned with. A list with bisection is
    enough: inserting moves 8 bytes per boundary behind it.

    Args:
        outside: the value before the first boundary, that is, everywhere at first.
    """

    def __init__(self, outside: V) -> None:
        self._outside = outside
        self._starts: list[bytes] = []
        self._values: list[V] = []

    def __len__(self) -> int:
        """Number of boundaries."""
        return len(self._starts)

    def assign(self, span: Span, value: V) -> list[tuple[bytes, V]]:
        """Gives all keys of a span one value; every boundary inside the span goes, its start and end become boundaries.

        Returns:
            the boundaries that are new or have a new value: the span's start, and its end if that was no boundary before.

        Raises:
            InvalidFieldError: the span is empty.
        """
        if span.is_empty():
            raise InvalidFieldError(f"The span {span} holds no key; its end must be above its start.", span=span)
        low = bisect_left(self._starts, span.start)
        high = bisect_left(self._starts, span.end, low) if span.end else len(self._starts)
        changed = [(span.start, value)]
        if span.end and (high == len(self._starts) or self._starts[high] != span.end):
            changed.append((span.end, self._values[high - 1] if high else self._outside))
        self._starts[low:high] = [start for start, _ in changed]
        self._values[low:high] = [piece_value for _, piece_value in changed]
        return changed

    def pieces(self, span: Span) -> Iterator[tuple[Span, V]]:
        """The pieces of a span in key order, clipped to it."""
        start = span.start
        index = bisect_right(self._starts, start) - 1
        while True:
            value = self._values[index] if index >= 0 else self._outside
            index += 1
            if index == len(self._starts) or (span.end and self._starts[index] >= span.end):
                yield Span(start, span.end), value
                return
            yield Span(start, self._starts[index]), value
            start = self._starts[index]

    def boundaries(self) -> list[tuple[bytes, V]]:
        """All boundaries in key order, each with the value that holds from there on."""
        return list(zip(self._starts, self._values, strict=True))

    def holds(self, start: bytes, value: V) -> bool:
        """Whether there is a boundary at this key with this value."""
        index = bisect_left(self._starts, start)
        return index < len(self._starts) and self._starts[index] == start and self._values[index] == value

    def piece_at(self, start: bytes) -> Span:
        """The piece that begins at a boundary."""
        index = bisect_right(self._starts, start)
        return Span(start, self._starts[index] if index < len(self._starts) else b"")
