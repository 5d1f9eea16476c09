"""Calls are let in between transactions that hold the event loop: who is not let in grows old where nobody refuses him."""

import asyncio

import pytest

from datacoord.errors import OverloadedError

from .queue_stage import NEVER, Call, Clock, Queue, turns

TOOK_SECONDS = 0.02
STEP = 0.0009
"""A little less than calls may be apart."""
LET_IN_SECONDS, LET_IN_SECONDS_MAX = 0.02, 0.25


async def held_by_a_full_queue(took_seconds: float, clock: Clock) -> tuple[Queue, list[asyncio.Task[str]]]:
    """A queue that holds the loop, right after a transaction of one call while which two were refused; four wait."""
    queue = Queue(holds_loop=True, gap_ms=1.0, queue_items_max=4, group_items_max=4)
    held = await queue.hold()
    waiting = [queue.submit(Call(str(number))) for number in range(4)]
    await turns()
    knock(queue)
    knock(queue)
    await clock.go(took_seconds)
    queue.runner.gate.set()
    return queue, [held, *waiting]


def knock(queue: Queue) -> None:
    """A call that is refused when it comes."""
    with pytest.raises(OverloadedError):
        queue.queue.refuse_unread(NEVER)


@pytest.mark.parametrize(
    ("took_seconds", "let_in_seconds"), [(0.001, LET_IN_SECONDS), (0.1, 0.1), (2.0, LET_IN_SECONDS_MAX)]
)
async def test_calls_are_let_in_between_transactions_that_hold_the_loop_while_others_are_refused(
    took_seconds: float, let_in_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those not let in grow old in front of the server where nobody refuses them, and then all is done for callers who are gone.

    No more than half of the time may go into it: whoever knocks without end must not keep others from being written.
    """
    clock = Clock(monkeypatch)
    queue, answers = await held_by_a_full_queue(took_seconds, clock)
    step = 0.0015
    waited = 0.0
    while len(queue.runner.groups) == 1:
        await clock.go(step)
        if len(queue.runner.groups) == 1:
            knock(queue)
        waited += step
        assert waited <= let_in_seconds + 2 * step
    assert waited >= let_in_seconds
    await asyncio.gather(*answers)
    await queue.queue.close()


class Waits:
    """How long a queue waits for company after each of its transactions, while calls come without a pause or nobody comes."""

    def __init__(self, took_seconds: float, clock: Clock) -> None:
        self._took_seconds = took_seconds
        self._clock = clock
        self._queue = Queue(holds_loop=True, gap_ms=1.0)
        self._answers: list[asyncio.Task[str]] = []

    async def begin(self) -> None:
        """A transaction of one call, which nobody waits after, and then one of several."""
        self._answers.append(await self._queue.hold())
        await self.after_a_transaction(come=True)

    async def after_a_transaction(self, *, come: bool, idle_share: float = 0.0) -> float:
        """Ends the one that runs, with two calls behind it.

        Args:
            come: whether calls do.
            idle_share: of the wait, in which the thread has nothing to do.

        Returns:
            seconds until the next one begins.
        """
        await self._clock.go(self._took_seconds)
        self._answers += [self._queue.submit(Call("waits")) for _ in range(2)]
        before, waited = len(self._queue.runner.groups), 0.0
        self._queue.runner.gate.set()
        while len(self._queue.runner.groups) == before:
            self._queue.runner.gate.clear()
            self._clock.idle_seconds += idle_share * STEP
            await self._clock.go(STEP)
            waited += STEP
            if come:
                self._answers.append(self._queue.submit(Call("comes")))
        return waited

    async def end(self) -> None:
        """Everybody is answered."""
        self._queue.runner.gate.set()
        await asyncio.gather(*self._answers)
        await self._queue.queue.close()


@pytest.mark.parametrize(("took_seconds", "wait_seconds", "next_seconds"), [(0.1, 0.02, 0.1), (0.006, 0.003, 0.003)])
async def test_calls_are_let_in_for_longer_where_they_still_came_when_the_last_wait_ended(
    took_seconds: float, wait_seconds: float, next_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many wait in front of the server then: nobody is refused before the first of them have waited there for too long.

    In a wait of few gaps somebody always came at its end: short transactions would wait twice as long for nothing.
    """
    waits = Waits(took_seconds, Clock(monkeypatch))
    await waits.begin()

    assert await waits.after_a_transaction(come=True) == pytest.approx(wait_seconds, abs=2 * STEP)
    assert await waits.after_a_transaction(come=True) == pytest.approx(next_seconds, abs=2 * STEP)
    assert await waits.after_a_transaction(come=False) <= 0.002 + 2 * STEP, "it ends with the calls"
    assert await waits.after_a_transaction(come=True) == pytest.approx(wait_seconds, abs=2 * STEP), "nobody came since"
    await waits.end()


async def test_a_wait_in_which_the_loop_was_idle_says_nothing_of_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who found it idle has not waited in front of the server: everybody else would wait twice as long for nothing."""
    waits = Waits(0.04, Clock(monkeypatch))
    await waits.begin()

    for _ in range(2):
        assert await waits.after_a_transaction(come=True, idle_share=0.8) == pytest.approx(0.02, abs=2 * STEP)
    await waits.end()


@pytest.mark.parametrize(("took_seconds", "idle_seconds_max"), [(0.001, 0.005), (0.1, 0.025)])
async def test_letting_in_ends_where_the_loop_is_idle(
    took_seconds: float, idle_seconds_max: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fast machine they follow closely though nobody has waited: half of its time would go into doing nothing."""
    clock = Clock(monkeypatch)
    queue, answers = await held_by_a_full_queue(took_seconds, clock)
    step = 0.0015
    await turns(10)
    while len(queue.runner.groups) == 1:
        clock.idle_seconds += 0.8 * step
        await clock.go(step)
        if len(queue.runner.groups) == 1:
            knock(queue)
            await turns(10)
        assert clock.idle_seconds <= idle_seconds_max + 2 * step
    assert clock.idle_seconds >= idle_seconds_max
    await asyncio.gather(*answers)
    await queue.queue.close()


async def test_a_loop_that_was_held_up_looks_who_came_before_it_ends_letting_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sees that its time is over first, who is at the door afterwards: letting in ended with the first call that took long."""
    clock = Clock(monkeypatch)
    queue, answers = await held_by_a_full_queue(TOOK_SECONDS, clock)
    await turns(10)
    for _ in range(3):
        clock.now += 0.005
        for _ in range(3):
            await asyncio.sleep(0)
        knock(queue)
        await turns(10)
        assert len(queue.runner.groups) == 1
    await clock.go(0.005)
    assert len(queue.runner.groups) > 1
    await asyncio.gather(*answers)
    await queue.queue.close()


@pytest.mark.parametrize(("quiet_seconds", "let_in_seconds"), [(0.0, 0.1), (10.0, LET_IN_SECONDS)])
async def test_calls_are_let_in_after_somebody_was_late_though_nobody_is_refused(
    quiet_seconds: float, let_in_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all wait in front of the server the queue is never full: few would be taken at a time, and the others grow old.

    One who gave up a while ago is no reason to make all others wait long.
    """
    clock = Clock(monkeypatch)
    queue = Queue(holds_loop=True, gap_ms=1.0)
    gone = await queue.hold()
    gone.cancel()
    queue.runner.gate.set()
    await clock.go(quiet_seconds)

    first = await queue.hold()
    waiting = queue.submit(Call("waiting"))
    await clock.go(0.1)
    assert await _let_in_seconds(queue, clock) == pytest.approx(let_in_seconds, abs=0.003)
    assert await first == "first"

    # They still came when that wait ended: a crowd, which is let in for as long as the transaction takes.
    last = queue.submit(Call("last"))
    await clock.go(0.1)
    assert await _let_in_seconds(queue, clock) == pytest.approx(0.1, abs=0.003)
    queue.runner.gate.set()
    assert [await waiting, await last] == ["waiting", "last"]
    await queue.queue.close()


async def _let_in_seconds(queue: Queue, clock: Clock) -> float:
    """Ends the transaction under way, and knocks until the next one begins."""
    groups, waited, step = len(queue.runner.groups), 0.0, 0.0015
    for _ in range(2):
        queue.queue.refuse_unread(NEVER)
    queue.runner.gate.set()
    while len(queue.runner.groups) == groups:
        await clock.go(step)
        queue.runner.gate.clear()
        queue.queue.refuse_unread(NEVER)
        waited += step
        assert waited < 1.0
    return waited


async def test_letting_others_in_makes_no_call_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for some milliseconds; one that has no more than these must not."""
    clock = Clock(monkeypatch)
    queue = Queue(holds_loop=True, gap_ms=1.0, queue_items_max=4, group_items_max=4)
    held = await queue.hold()
    waiting = [queue.submit(Call(str(number)), clock.now + TOOK_SECONDS + 0.012) for number in range(4)]
    await turns()

    knock(queue)
    knock(queue)
    await clock.go(TOOK_SECONDS)
    queue.runner.gate.set()
    while len(queue.runner.groups) == 1:
        await clock.go(0.0015)
        if len(queue.runner.groups) == 1:
            knock(queue)
    assert await asyncio.gather(held, *waiting) == ["first", "0", "1", "2", "3"]
    await queue.queue.close()
