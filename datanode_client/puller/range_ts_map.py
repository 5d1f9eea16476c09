"""Timestamps of key ranges that nobody feeds at the moment: how far each had come when it was given up."""

from datacoord.errors import InvalidFieldError
from datanode_client.puller.range_map import RangeMap
from datanode_client.puller.span import Span


class RangeTsMap:
    """Key range to timestamp, with parts that are not set. Setting twice and reading what is not set are refused.

    Args:
        span: the range that is set at first.
        ts: its timestamp.
    """

    def __init__(self, span: Span, ts: int) -> None:
        self._map: RangeMap[int | None] = RangeMap(None)
        self._map.assign(span, ts)

    def set(self, span: Span, ts: int) -> None:
        """Sets a range of which no part is set.

        Raises:
            InvalidFieldError: a part is set already.
        """
        for piece, known in self._map.pieces(span):
            if known is not None:
                raise InvalidFieldError(f"The range {piece} is set already; unset it first.", span=piece, ts=known)
        self._map.assign(span, ts)

    def unset(self, span: Span) -> None:
        """Unsets a range, whether it is set or not."""
        self._map.assign(span, None)

    def pieces(self, span: Span) -> list[tuple[Span, int]]:
        """The timestamps of a range, in key order.

        Raises:
            InvalidFieldError: a part of it is not set.
        """
        pieces = []
        for piece, ts in self._map.pieces(span):
            if ts is None:
                raise InvalidFieldError(f"The range {piece} is not set; it is locked or was never tracked.", span=piece)
            pieces.append((piece, ts))
        return pieces

    def min(self, span: Span) -> int:
        """The smallest timestamp of a range.

        Raises:
            InvalidFieldError: a part of it is not set.
        """
        return min(ts for _, ts in self.pieces(span))

    def min_of_set(self) -> int | None:
        """The smallest timestamp of all that is set; None if nothing is."""
        return min((ts for _, ts in self._map.boundaries() if ts is not None), default=None)
