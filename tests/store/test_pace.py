"""When callers should come again: a coordinator with more to do than it can, and callers, simulated with a clock of their own."""

import asyncio
import heapq
import random
from collections import deque

import pytest

from coordinator.store.pace import Pace

PER_SECOND, ROOM, GROUP = 100, 70, 5
CALLERS = 550
SECONDS = 60.0
REFUSAL_COST = 0.2
"""Of a call that is done."""


class Simulated:
    """Callers who always have another call, at a coordinator that does a group of calls after the other.

    Args:
        pace: of the coordinator.
        callers: how many.
        heed: who was served waits for as long as he is told; else he comes back at once.
        stay: who was served has another call.
    """

    def __init__(self, pace: Pace, callers: int, *, heed: bool = True, stay: bool = True) -> None:
        self.now = self.idle_seconds = 0.0
        self.done = self.refused = self.paced = 0
        self.served = [0] * callers
        self._pace, self._heed, self._stay = pace, heed, stay
        self._random = random.Random(7)
        self._queue: deque[int] = deque()
        self._coming = [(0.0, caller) for caller in range(callers)]

    def step(self) -> None:
        """Whoever is at the door comes in, or is refused; then a group is done, or nobody comes for a while."""
        while self._coming and self._coming[0][0] <= self.now:
            _, caller = heapq.heappop(self._coming)
            if len(self._queue) < ROOM:
                self._queue.append(caller)
            else:
                self.refused += 1
                self._come(caller, self._pace.seconds_until_room(len(self._queue), 1))
                self.now += REFUSAL_COST / PER_SECOND
        if not self._queue:
            gap_seconds = self._coming[0][0] - self.now
            self.idle_seconds += gap_seconds
            self.now += gap_seconds
            self._pace.note_idle(gap_seconds)
            return
        group = [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]
        self.now += len(group) / PER_SECOND
        for caller in group:
            self.done += 1
            self.served[caller] += 1
            told_seconds = self._pace.seconds_until_next(len(self._queue), 1)
            self.paced += bool(told_seconds)
            if self._stay:
                self._come(caller, told_seconds if self._heed else 0.0)

    def _come(self, caller: int, after_seconds: float) -> None:
        heapq.heappush(self._coming, (self.now + after_seconds * self._random.uniform(1.0, 1.25), caller))


def simulated(
    monkeypatch: pytest.MonkeyPatch,
    callers: int,
    *,
    per_second: float = PER_SECOND,
    heed: bool = True,
    stay: bool = True,
) -> Simulated:
    """One whose time is the loop's; `per_second` is what the coordinator believes of itself."""
    pace = Pace()
    pace.items_per_second = per_second
    made = Simulated(pace, callers, heed=heed, stay=stay)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: made.now)
    return made


async def test_while_there_is_room_for_all_nobody_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause without need is throughput lost."""
    callers = simulated(monkeypatch, ROOM)
    while callers.now < SECONDS:
        callers.step()

    assert callers.refused == callers.paced == 0
    assert callers.done == pytest.approx(SECONDS * PER_SECOND, rel=0.01)


async def test_who_is_served_gives_way_to_those_who_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """He would take the room that is promised to another: a refusal for each call that is done, and some are never served."""
    callers = simulated(monkeypatch, CALLERS)
    while callers.now < SECONDS:
        callers.step()

    assert callers.done >= 0.93 * SECONDS * PER_SECOND
    assert callers.refused - CALLERS <= 0.1 * callers.done, "but for the burst in the beginning hardly anybody"
    assert max(callers.served) <= 2 * min(callers.served)


async def test_who_does_not_heed_costs_refusals_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of others know nothing of it: they must not bring down what they do not obey."""
    callers = simulated(monkeypatch, CALLERS, heed=False)
    while callers.now < SECONDS:
        callers.step()

    assert callers.done >= 0.7 * SECONDS * PER_SECOND
    assert callers.idle_seconds <= 0.01 * SECONDS


async def test_a_coordinator_that_is_faster_than_it_believes_is_hardly_ever_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callers who wait as they are told while nobody is at the door: the promise was wrong, and nobody else can correct it."""
    callers = simulated(monkeypatch, CALLERS, per_second=0.7 * PER_SECOND)
    while callers.now < SECONDS:
        callers.step()

    assert callers.idle_seconds <= 0.1 * SECONDS


async def test_a_burst_is_served_soon_after_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes but they: room that is kept for the next call of those who have none is time in which nothing is done."""
    callers = simulated(monkeypatch, CALLERS, stay=False)
    while callers.done < CALLERS:
        callers.step()

    needed_seconds = (callers.done + REFUSAL_COST * callers.refused) / PER_SECOND
    assert callers.now <= 1.3 * needed_seconds
    assert set(callers.served) == {1}


async def test_what_is_promised_is_forgotten_when_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a load has ended, the first callers of the next one would be told to wait for those of the last."""
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    pace = Pace()
    pace.items_per_second = PER_SECOND
    for _ in range(CALLERS):
        pace.seconds_until_room(ROOM, 1)
    assert pace.seconds_until_next(0, 1) > 1.0

    now += 1.0
    pace.note_idle(1.0)
    assert pace.seconds_until_next(0, 1) == 0.0
