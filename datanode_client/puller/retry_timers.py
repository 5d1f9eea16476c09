"""What is to be done later about ranges; a range has one thing to be done about it at most."""

import heapq
from collections.abc import Callable, Iterator

from datanode_client.puller.span import Span

Act = Callable[[int], None]
"""Called with the time in milliseconds."""


class RetryTimers:
    """One timer per range: setting it anew replaces what was to be done, since the newest failure knows best."""

    def __init__(self) -> None:
        self._sequences: dict[Span, int] = {}
        self._heap: list[tuple[int, int, Span, Act]] = []
        self._last_sequence = 0

    def __len__(self) -> int:
        """Ranges that wait."""
        return len(self._sequences)

    def __iter__(self) -> Iterator[Span]:
        """Ranges that wait."""
        return iter(self._sequences)

    def set(self, span: Span, due_ms: int, act: Act) -> None:
        """Does something about a range later, instead of what was to be done about exactly this range before."""
        self._last_sequence += 1
        self._sequences[span] = self._last_sequence
        heapq.heappush(self._heap, (due_ms, self._last_sequence, span, act))

    def due(self, now_ms: int) -> list[Act]:
        """Takes out what is due."""
        acts = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, sequence, span, act = heapq.heappop(self._heap)
            if self._sequences.get(span) == sequence:
                del self._sequences[span]
                acts.append(act)
        return acts

    def next_due_ms(self) -> int | None:
        """When something is due next; None if nothing waits."""
        while self._heap and self._sequences.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forgets everything."""
        self._sequences.clear()
        self._heap.clear()
