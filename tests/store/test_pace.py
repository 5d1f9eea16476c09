"""When callers should come again: a coordinator with more to do than it can, and callers, simulated with a clock of their own."""

import asyncio
import heapq
import random
from collections import deque

import pytest

from coordinator.store.pace import Pace

COMMIT_SECONDS, CALL_SECONDS, REFUSAL_SECONDS = 0.02, 0.002, 0.0005
"""Of a transaction, of each call of it, and of each that is refused."""
ROOM, GROUP = 200, 50
PER_SECOND = GROUP / (COMMIT_SECONDS + GROUP * CALL_SECONDS)
CALLERS = 1000
SECONDS = 60.0


class Simulated:
    """Callers who always have another call, at a coordinator that does a group of calls after the other, and learns how fast it is.

    Args:
        callers: how many.
        heed: who was served waits for as long as he is told; else he comes back at once.
        stay: who was served has another call.
        slow_from: when everything begins to take five times as long, for a second.
    """

    def __init__(
        self, callers: int = CALLERS, *, heed: bool = True, stay: bool = True, slow_from: float = float("inf")
    ) -> None:
        self.pace = Pace(wanted_items=GROUP)
        self.now = self.idle_seconds = 0.0
        self.done = self.refused = self.paced = 0
        self.served = [0] * callers
        self._heed, self._stay, self._slow_from = heed, stay, slow_from
        self._random = random.Random(7)
        self._queue: deque[int] = deque()
        self._coming = [(self._random.random(), caller) for caller in range(callers)]
        heapq.heapify(self._coming)
        self._busy_since = 0.0

    def run(self, until: float) -> int:
        """Goes on.

        Returns:
            calls that were done meanwhile.
        """
        before = self.done
        while self.now < until and (self._queue or self._coming):
            self._let_in()
            if self._queue:
                self._do_a_group()
            elif self._coming:
                self._wait()
        return self.done - before

    def _let_in(self) -> None:
        at_the_door = self.now
        while self._coming and self._coming[0][0] <= at_the_door:
            _, caller = heapq.heappop(self._coming)
            if len(self._queue) < ROOM:
                self._queue.append(caller)
            else:
                self.refused += 1
                self.now += REFUSAL_SECONDS
                self._come(caller, self.pace.seconds_until_room(len(self._queue), 1))

    def _wait(self) -> None:
        gap_seconds = self._coming[0][0] - self.now
        self.idle_seconds += gap_seconds
        self.now = self._busy_since = self._coming[0][0]
        self.pace.note_idle(gap_seconds)

    def _do_a_group(self) -> None:
        group = [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]
        seconds = COMMIT_SECONDS + len(group) * CALL_SECONDS
        self.now += 5 * seconds if self._slow_from <= self.now < self._slow_from + 1 else seconds
        busy_seconds, self._busy_since = self.now - self._busy_since, self.now
        self.pace.note_transaction(len(group), seconds, busy_seconds, one_of_many=len(group) > 1)
        for caller in group:
            self.done += 1
            self.served[caller] += 1
            told_seconds = self.pace.seconds_until_next(len(self._queue), 1)
            self.paced += bool(told_seconds)
            if self._stay:
                self._come(caller, told_seconds if self._heed else 0.0)

    def _come(self, caller: int, after_seconds: float) -> None:
        heapq.heappush(self._coming, (self.now + after_seconds * self._random.uniform(1.0, 1.25), caller))


def on_the_loop(callers: Simulated, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """Its time is the loop's."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: callers.now)
    return callers


async def test_while_there_is_room_for_all_nobody_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause without need is throughput lost."""
    callers = on_the_loop(Simulated(ROOM), monkeypatch)

    assert callers.run(SECONDS) >= 0.97 * SECONDS * PER_SECOND
    assert callers.refused == callers.paced == 0


async def test_who_is_served_gives_way_to_those_who_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """He would take the room that is promised to another: a refusal for each call that is done, and some are never served."""
    callers = on_the_loop(Simulated(), monkeypatch)

    callers.run(SECONDS)
    refused = callers.refused
    done = callers.run(2 * SECONDS)

    assert done >= 0.95 * SECONDS * PER_SECOND
    assert callers.refused - refused <= 0.01 * done, (
        "but for the burst in the beginning, and until it knows how fast it is"
    )
    assert max(callers.served) <= 2 * min(callers.served)


async def test_who_does_not_heed_costs_refusals_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of others know nothing of it: they must not bring down what they do not obey."""
    callers = on_the_loop(Simulated(heed=False), monkeypatch)

    assert callers.run(SECONDS) >= 0.7 * SECONDS * PER_SECOND
    assert callers.idle_seconds <= 0.01 * SECONDS


@pytest.mark.parametrize("callers", [600, CALLERS, 2000])
async def test_a_coordinator_that_was_slow_for_a_second_finds_back(
    callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers come as fast as it believes to be then, and meet in small transactions, which are slow for what they do.

    It would believe that, promise still less, and settle for half of what it can for as long as the load lasts.
    """
    simulated = on_the_loop(Simulated(callers, slow_from=20.0), monkeypatch)
    simulated.run(SECONDS)

    assert simulated.run(2 * SECONDS) >= 0.95 * SECONDS * PER_SECOND


@pytest.mark.parametrize("believed", [0.3, 3.0])
async def test_a_wrong_belief_is_mended(believed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a coordinator that has just started, or whose database has become faster or slower."""
    callers = on_the_loop(Simulated(), monkeypatch)
    callers.run(SECONDS)
    callers.pace.items_per_second = believed * PER_SECOND
    callers.run(2 * SECONDS)

    assert callers.run(3 * SECONDS) >= 0.95 * SECONDS * PER_SECOND


async def test_a_burst_is_served_soon_after_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes but they: room that is kept for the next call of those who have none is time in which nothing is done."""
    callers = on_the_loop(Simulated(stay=False), monkeypatch)
    callers.run(SECONDS)

    assert set(callers.served) == {1}
    assert callers.now <= 1.5 * (callers.done / PER_SECOND + REFUSAL_SECONDS * callers.refused) + 1.0


async def test_what_is_promised_is_forgotten_when_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a load has ended, the first callers of the next one would be told to wait for those of the last."""
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    pace = Pace(wanted_items=GROUP)
    pace.items_per_second = PER_SECOND
    for _ in range(CALLERS):
        pace.seconds_until_room(ROOM, 1)
    assert pace.seconds_until_next(0, 1) > 1.0

    now += 1.0
    pace.note_idle(1.0)
    assert pace.seconds_until_next(0, 1) == 0.0
