"""Whether every key of a span has been through an initial scan."""

from bisect import bisect_right

from datanode_client.puller.span import Span


class SpanInitialization:
    """The union of the ranges of initialized regions; it only grows.

    Args:
        span: the whole.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []
        self.completed = False

    def add(self, span: Span) -> bool:
        """A region was initialized; ranges may come twice, overlap and split.

        Returns:
            whether this completed the whole span.
        """
        if self.completed:
            return False
        start, end = span.start, span.end
        low = bisect_right(self._starts, start)
        if low and (not self._ends[low - 1] or start <= self._ends[low - 1]):
            low -= 1
            start = self._starts[low]
        high = bisect_right(self._starts, end) if end else len(self._starts)
        if high > low and end:
            last_end = self._ends[high - 1]
            end = max(end, last_end) if last_end else b""
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        covering = bisect_right(self._starts, self._span.start) - 1
        self.completed = covering >= 0 and Span(self._starts[covering], self._ends[covering]).covers(self._span)
        return self.completed
