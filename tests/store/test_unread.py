"""Calls that wait to be read: taken or refused at once, and read when their transaction comes."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import DatacoordError, DeadlineExpiredError, OverloadedError, StoreUnavailableError

from .queue_stage import NEVER, Call, Clock, Queue

GROUP_ITEMS_MAX = 100
ITEMS = 30
READ_AHEAD = 4
"""So many calls of `ITEMS` are a transaction's worth, or a little more."""
SIZE_BYTES = 10
TOOK_SECONDS = 0.02
STEP = 0.0009
"""A little less than calls may be apart."""
LET_IN_SECONDS, LET_IN_SECONDS_MAX = 0.02, 0.25


class Server:
    """Takes calls as a server does, and notes which of them it reads."""

    def __init__(self, **changes: Any) -> None:
        self.queue = Queue(group_items_max=GROUP_ITEMS_MAX, **changes)
        self.read: list[str] = []

    def call(self, name: str, *, items: int = ITEMS, deadline: float = NEVER, valid: bool = True) -> asyncio.Task[str]:
        async def answer() -> str:
            self.queue.queue.refuse_unread(deadline)
            turn = self.queue.queue.admit_unread(deadline, SIZE_BYTES)
            if turn is not None:
                await turn
            self.read.append(name)
            if not valid:
                raise ValueError(name)
            return await self.queue.queue.submit(Call(name, items=items, size_bytes=SIZE_BYTES), None)

        return asyncio.get_running_loop().create_task(answer())

    def waiting(self) -> tuple[int, int, int]:
        statistics = self.queue.statistics
        return statistics.queued_calls, statistics.queued_items, statistics.queued_bytes


async def turns(count: int = 50) -> None:
    """Lets everybody do what they can without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)


async def full(server: Server, calls: int) -> tuple[asyncio.Task[str], list[asyncio.Task[str]]]:
    """A transaction that does not end, and calls that wait for it."""
    first = await server.queue.hold()
    answers = [server.call(str(number)) for number in range(calls)]
    await turns()
    return first, answers


@pytest.mark.parametrize("holds_loop", [False, True])
async def test_no_more_than_a_transactions_worth_is_read_ahead(holds_loop: bool) -> None:
    """Under overload a coordinator that reads whatever comes has no time left to refuse the others, nor to write."""
    server = Server(holds_loop=holds_loop)
    first, answers = await full(server, 10)
    names = [str(number) for number in range(10)]
    assert server.read == names[:READ_AHEAD]
    assert server.waiting() == (10, 10 * ITEMS, 10 * SIZE_BYTES)

    server.queue.runner.gate.set()
    assert await asyncio.gather(first, *answers) == ["first", *names]
    assert server.read == names, "in the order in which they came"
    assert [name for group in server.queue.runner.groups for name in group] == ["first", *names]
    assert server.waiting() == (0, 0, 0)
    await server.queue.queue.close()


async def test_what_waits_unread_takes_room() -> None:
    """It would not be bounded otherwise: those whose reading is put off are the most."""
    server = Server(queue_items_max=7 * ITEMS)
    first, answers = await full(server, 10)
    refused = [answer.exception() for answer in answers if answer.done()]
    assert [type(error) for error in refused] == [OverloadedError] * 3
    assert server.waiting()[0] == 7
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers, return_exceptions=True)
    await server.queue.queue.close()


async def test_bytes_that_wait_unread_take_room_as_they_came() -> None:
    """Memory is what a large call costs while it waits, whatever is in it."""
    server = Server(queue_bytes_max=7 * SIZE_BYTES)
    first, answers = await full(server, 10)
    assert [type(answer.exception()) for answer in answers if answer.done()] == [OverloadedError] * 3
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers, return_exceptions=True)
    await server.queue.queue.close()


async def test_a_call_that_is_given_up_unread_is_not_read_and_nobody_waits_behind_it() -> None:
    """Its caller is gone; its place is not."""
    server = Server()
    first, answers = await full(server, 10)
    for gone in answers[5:8]:
        gone.cancel()
    await turns()
    assert server.waiting() == (7, 7 * ITEMS, 7 * SIZE_BYTES)
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers, return_exceptions=True)
    assert server.read == [str(number) for number in (0, 1, 2, 3, 4, 8, 9)]
    assert server.waiting() == (0, 0, 0)
    await server.queue.queue.close()


async def test_a_call_whose_time_is_over_unread_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a database stands still nothing is read; whoever waits must learn that nothing was done."""
    clock = Clock(monkeypatch)
    server = Server()
    first, answers = await full(server, READ_AHEAD)
    late = server.call("late", deadline=clock.now + 5.0)
    await turns()
    assert "late" not in server.read
    await clock.go(6.0)
    with pytest.raises(DeadlineExpiredError):
        await late
    assert server.queue.statistics.expired_calls == 1
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers)
    assert server.waiting() == (0, 0, 0)
    await server.queue.queue.close()


async def test_an_end_waits_for_no_reading() -> None:
    """Those that wait unread are told that the coordinator shuts down; nothing of them was done."""
    server = Server()
    first, answers = await full(server, 10)
    closing = asyncio.get_running_loop().create_task(server.queue.queue.close())
    await turns()
    server.queue.runner.gate.set()
    await closing
    outcomes = await asyncio.gather(first, *answers, return_exceptions=True)
    assert outcomes[: 1 + READ_AHEAD] == ["first", "0", "1", "2", "3"]
    assert {type(outcome) for outcome in outcomes[1 + READ_AHEAD :]} == {StoreUnavailableError}


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


async def test_a_transactions_worth_is_read_however_long_the_answers_of_the_last_one_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine they take longer than a pause: groups fell to a few calls while hundreds waited, a COMMIT for each few."""
    clock = Clock(monkeypatch)
    server = Server(holds_loop=True, gap_ms=1.0)
    first = await server.queue.hold()
    answers = [server.call(str(number), items=1) for number in range(2 * GROUP_ITEMS_MAX)]
    await turns(4 * GROUP_ITEMS_MAX)

    def take_long(_: object) -> None:
        clock.now += 0.05

    for answer in (first, *answers):
        answer.add_done_callback(take_long)
    server.queue.runner.gate.set()
    await turns(8 * GROUP_ITEMS_MAX)
    await clock.go(1.0)
    await asyncio.gather(first, *answers)
    assert [len(group) for group in server.queue.runner.groups] == [1, GROUP_ITEMS_MAX, GROUP_ITEMS_MAX]
    await server.queue.queue.close()


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


async def test_calls_that_add_nothing_to_a_transaction_do_not_keep_it_from_beginning() -> None:
    """Malformed ones may come without end, as fast as they are read; sessions and saves would wait behind them."""
    server = Server(holds_loop=True, gap_ms=1.0)
    first, answers = await full(server, 10)
    bad = [server.call(f"bad {number}", valid=False) for number in range(20)]
    await turns()
    session = server.queue.submit(Call("session", rpc="ReportDataNodeTtMsgs"))
    server.queue.runner.gate.set()
    for number in range(2000):
        bad.append(server.call(f"bad {number}", valid=False))
        await asyncio.sleep(0)
        if session.done() and all(answer.done() for answer in answers):
            break
    assert number < 1000, "everybody but those who waited when they came had to go first"
    assert await asyncio.gather(first, session, *answers)
    assert {type(outcome) for outcome in await asyncio.gather(*bad, return_exceptions=True)} <= {ValueError}
    await server.queue.queue.close()


async def test_a_burst_after_a_quiet_time_is_not_taken_for_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """What calls alone took says how long a COMMIT is, not how much can be done: a burst would be sent away for seconds."""
    clock = Clock(monkeypatch)
    server = Server(gap_ms=1.0)
    for rpc in ("SaveBinlogPaths", "ReportDataNodeTtMsgs") * 20:
        held = await server.queue.hold(Call("alone", rpc=rpc))
        await clock.go(0.005)
        server.queue.runner.gate.set()
        await held
        await clock.go(1.0)
    first, answers = await full(server, 10)
    burst = [server.call(f"burst {number}", deadline=clock.now + 5.0) for number in range(200)]
    await turns()
    server.queue.runner.gate.set()
    outcomes = await asyncio.gather(first, *answers, *burst, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {str}
    await server.queue.queue.close()


async def test_calls_that_have_grown_old_are_refused_while_others_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where calls wait in front of the server all come with little time left, and half of what is done is done for nobody.

    One that has little time for another reason is served as long as nobody is late.
    """
    clock = Clock(monkeypatch)
    server = Server()
    usual = await server.queue.hold(Call("usual"))
    await clock.go(0.005)
    server.queue.runner.gate.set()
    await usual
    first, answers = await full(server, 2)
    assert server.queue.queue.admit_unread(clock.now + 0.05, SIZE_BYTES) is None
    answers[0].cancel()
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers, return_exceptions=True)

    first, answers = await full(server, 1)
    with pytest.raises(OverloadedError):
        server.queue.queue.admit_unread(clock.now + 0.05, SIZE_BYTES)
    assert server.queue.queue.admit_unread(clock.now + 0.5, SIZE_BYTES) is None
    await clock.go(61.0)
    assert server.queue.queue.admit_unread(clock.now + 0.05, SIZE_BYTES) is None
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers)
    await server.queue.queue.close()


@given(
    calls=st.lists(
        st.tuples(
            st.integers(1, 70),
            st.sampled_from(["whole", "whole", "whole", "malformed", "given up", "urgent"]),
            st.integers(0, 3),
        ),
        max_size=40,
    ),
    holds_loop=st.booleans(),
    gap_ms=st.sampled_from([0.0, 1.0]),
)
def test_whoever_comes_is_answered(calls: list[tuple[int, str, int]], holds_loop: bool, gap_ms: float) -> None:
    """Calls wait for others to be read, transactions for calls to be read: in a circle everybody would wait for ever."""

    async def run() -> None:
        server = Server(holds_loop=holds_loop, gap_ms=gap_ms, queue_items_max=400)
        answers = []
        for number, (items, fate, pause) in enumerate(calls):
            if fate == "urgent":
                answers.append(server.queue.submit(Call(str(number), rpc="ReportDataNodeTtMsgs")))
            else:
                answers.append(server.call(str(number), items=items, valid=fate != "malformed"))
            await turns(pause)
            if fate == "given up":
                answers[-1].cancel()
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
        for number, ((_, fate, _), outcome) in enumerate(zip(calls, outcomes, strict=True)):
            if fate in {"whole", "urgent"}:
                assert outcome == str(number) or isinstance(outcome, DatacoordError)
        async with asyncio.timeout(30):
            await server.queue.queue.close()
        assert server.waiting() == (0, 0, 0)

    asyncio.run(run())
