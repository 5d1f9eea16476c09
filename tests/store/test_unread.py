"""Calls that wait to be read: taken or refused at once, and read when their transaction comes."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import DatacoordError, DeadlineExpiredError, OverloadedError, StoreUnavailableError

from .queue_stage import NEVER, Call, Clock, Queue, turns

GROUP_ITEMS_MAX = 100
ITEMS = 30
READ_AHEAD = 4
"""So many calls of `ITEMS` are a transaction's worth, or a little more."""
SIZE_BYTES = 10


class Server:
    """Takes calls as a server does, and notes which of them it reads."""

    def __init__(self, **changes: Any) -> None:
        self.queue = Queue(group_items_max=GROUP_ITEMS_MAX, **changes)
        self.read: list[str] = []

    def call(
        self, name: str, *, items: int = ITEMS, deadline: float = NEVER, valid: bool = True, pause: int = 0
    ) -> asyncio.Task[str]:
        async def answer() -> str:
            self.queue.queue.refuse_unread(deadline)
            async with self.queue.queue.admit_unread(deadline, SIZE_BYTES):
                self.read.append(name)
                await turns(pause)
                if not valid:
                    raise ValueError(name)
                return await self.queue.queue.submit(Call(name, items=items, size_bytes=SIZE_BYTES), None)

        return asyncio.get_running_loop().create_task(answer())

    def waiting(self) -> tuple[int, int, int]:
        statistics = self.queue.statistics
        return statistics.queued_calls, statistics.queued_items, statistics.queued_bytes


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


@pytest.mark.parametrize(("calls", "read"), [(3, 2), (6, 3), (16, 8), (40, 8)])
async def test_what_is_read_ahead_grows_with_what_waits_as_transactions_do(calls: int, read: int) -> None:
    """A transaction would begin with less than it may take, and those behind it would be read in its time."""
    server = Server(group_bytes_max=2 * SIZE_BYTES)
    first = await server.queue.hold()
    answers = [server.call(str(number), items=1) for number in range(calls)]
    await turns()
    server.queue.runner.entered.clear()
    server.queue.runner.gate.set()
    await first
    await server.queue.runner.entered.wait()

    assert len(server.queue.runner.groups[1]) == read
    await asyncio.gather(*answers)
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


@pytest.mark.parametrize("pause", [0, 3])
async def test_a_call_that_was_taken_is_not_refused_once_it_is_read(pause: int) -> None:
    """Under overload most of the work would be to read large calls, only to send them away.

    Neither the others that wait nor those who come while it looks something up have the room that it was promised.
    """
    server = Server(queue_items_max=7 * ITEMS)
    first, answers = await full(server, READ_AHEAD)
    large = [server.call(f"large {number}", items=5 * ITEMS, pause=pause) for number in range(3)]
    await turns()
    assert server.waiting() == (7, 7 * ITEMS, 7 * SIZE_BYTES)

    refused = []
    server.queue.runner.gate.set()
    while not all(answer.done() for answer in large):
        refused.append(server.call("others"))
        refused.append(server.queue.submit(Call("at once", items=ITEMS)))
        await asyncio.sleep(0)
        assert server.queue.statistics.queued_items <= 7 * ITEMS + GROUP_ITEMS_MAX + 3 * 4 * ITEMS
    assert await asyncio.gather(first, *answers, *large)
    outcomes = await asyncio.gather(*refused, return_exceptions=True)
    assert any(isinstance(outcome, OverloadedError) for outcome in outcomes)
    assert server.waiting() == (0, 0, 0)
    await server.queue.queue.close()


async def test_no_more_than_a_transactions_worth_looks_something_up() -> None:
    """Whoever does is not submitted yet: all would be read at once, and then wait far beyond the limit if they are large."""
    server = Server(queue_items_max=20 * ITEMS)
    first, answers = await full(server, 1)
    slow = [server.call(f"slow {number}", items=50 * ITEMS, pause=200) for number in range(15)]
    await turns(20)
    assert len(server.read) == READ_AHEAD
    # Nobody is in the queue of writes any more.
    server.queue.runner.gate.set()
    await turns(50)
    assert answers[0].done()
    assert len(server.read) == READ_AHEAD + 1
    assert await asyncio.gather(first, *answers, *slow)
    assert server.waiting() == (0, 0, 0)
    await server.queue.queue.close()


@pytest.mark.parametrize("fate", ["malformed", "given up"])
async def test_nobody_waits_behind_calls_that_look_something_up_and_come_to_nothing(fate: str) -> None:
    """Others are read when something is written; nothing of these is, and everybody behind them would wait for ever."""
    server = Server(holds_loop=True)
    first, usual = await full(server, 1)
    bad = [server.call(f"bad {number}", pause=100, valid=fate != "malformed") for number in range(READ_AHEAD)]
    answers = [server.call(str(number)) for number in range(3)]
    await turns(5)
    server.queue.runner.gate.set()
    await asyncio.gather(first, *usual)
    await turns(20)
    assert server.read == ["0", *(f"bad {number}" for number in range(READ_AHEAD))]
    if fate == "given up":
        for call in bad:
            call.cancel()
    async with asyncio.timeout(30):
        assert await asyncio.gather(*answers) == ["0", "1", "2"]
    await asyncio.gather(*bad, return_exceptions=True)
    assert server.waiting() == (0, 0, 0)
    await server.queue.queue.close()


@pytest.mark.parametrize("left", [0, 1])
async def test_a_call_that_looks_something_up_keeps_its_room(left: int) -> None:
    """Others would be given it meanwhile, and the queue would grow beyond its limit by as many as look something up.

    Also where nobody else waits: a queue that is empty takes anything.
    """
    server = Server(queue_items_max=7 * ITEMS)
    first, answers = await full(server, 3 + left)
    slow = [server.call(f"slow {number}", pause=60) for number in range(3)]
    server.queue.runner.gate.set()
    await first
    server.queue.runner.gate.clear()
    await turns(15)
    assert len(server.read) == 3 + left + 3
    assert server.waiting()[0] == left + 3

    others = [server.queue.submit(Call("other", items=ITEMS)) for _ in range(7)]
    await turns(1)
    assert [type(other.exception()) for other in others if other.done()] == [OverloadedError] * (3 + left)
    assert server.waiting()[1] == 7 * ITEMS
    with pytest.raises(OverloadedError):
        server.queue.queue.refuse_unread(NEVER)
    await turns(80)
    assert server.waiting()[1] == 7 * ITEMS
    server.queue.runner.gate.set()
    await asyncio.gather(*answers, *slow)
    await asyncio.gather(*others, return_exceptions=True)
    assert server.waiting() == (0, 0, 0)
    await server.queue.queue.close()


async def test_looking_up_keeps_room_in_a_queue_where_nobody_waits() -> None:
    """An empty queue takes anything, so that no call is too large for ever; one whose calls look something up is not empty."""
    server = Server(queue_items_max=2)
    slow = [server.call(f"slow {number}", items=1, pause=20) for number in range(2)]
    await turns(2)
    assert server.waiting()[0] == 2
    with pytest.raises(OverloadedError):
        server.queue.queue.refuse_unread(NEVER)
    await asyncio.gather(*slow)
    large = server.call("large", items=500)
    assert await large == "large"
    await server.queue.queue.close()


async def test_a_call_that_need_not_wait_is_not_refused_once_it_is_read_either() -> None:
    """Where a queue has room for less than a transaction nobody waits to be read, and all large calls would be read in vain."""
    server = Server(queue_items_max=2 * ITEMS)
    first, answers = await full(server, 1)
    large = server.call("large", items=2 * ITEMS)
    await turns()
    assert server.waiting() == (2, 3 * ITEMS, 2 * SIZE_BYTES)
    server.queue.runner.gate.set()
    assert await asyncio.gather(first, *answers, large) == ["first", "0", "large"]
    await server.queue.queue.close()


async def test_a_place_is_good_for_one_call() -> None:
    """With one for all that its task does, and what that starts, the limit would not hold."""
    server = Server(queue_items_max=2 * ITEMS)
    first, answers = await full(server, 1)

    async def three() -> list[object]:
        call = [Call(str(number), items=ITEMS) for number in range(3)]
        async with server.queue.queue.admit_unread(NEVER, SIZE_BYTES):
            started = server.queue.submit(call[0])
            await turns(2)
            mine = server.queue.queue.submit(call[1], None)
            answer, _ = await asyncio.gather(asyncio.wait_for(started, 30), turns(1), return_exceptions=True)
            outcomes: list[object] = [answer, await mine]
            outcomes += await asyncio.gather(server.queue.queue.submit(call[2], None), return_exceptions=True)
            return outcomes

    answer = asyncio.get_running_loop().create_task(three())
    await turns()
    assert server.queue.statistics.queued_items == 2 * ITEMS
    server.queue.runner.gate.set()
    outcomes = await answer
    assert isinstance(outcomes[0], OverloadedError), "another task has no part in it"
    assert outcomes[1:] == ["1", "2"]
    await asyncio.gather(first, *answers)
    assert server.waiting() == (0, 0, 0)
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
    assert server.waiting() == (0, 0, 0)
    assert outcomes[: 1 + READ_AHEAD] == ["first", "0", "1", "2", "3"]
    assert {type(outcome) for outcome in outcomes[1 + READ_AHEAD :]} == {StoreUnavailableError}


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
    server.queue.queue.admit_unread(clock.now + 0.05, SIZE_BYTES)
    answers[0].cancel()
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers, return_exceptions=True)

    first, answers = await full(server, 1)
    with pytest.raises(OverloadedError):
        server.queue.queue.admit_unread(clock.now + 0.05, SIZE_BYTES)
    server.queue.queue.admit_unread(clock.now + 0.5, SIZE_BYTES)
    await clock.go(61.0)
    server.queue.queue.admit_unread(clock.now + 0.05, SIZE_BYTES)
    server.queue.runner.gate.set()
    await asyncio.gather(first, *answers)
    await server.queue.queue.close()


@given(
    calls=st.lists(
        st.tuples(
            st.integers(1, 70),
            st.sampled_from(["whole", "whole", "whole", "malformed", "given up", "urgent"]),
            st.integers(0, 3),
            st.sampled_from([0, 0, 1, 12]),
        ),
        max_size=40,
    ),
    holds_loop=st.booleans(),
    gap_ms=st.sampled_from([0.0, 1.0]),
)
def test_whoever_comes_is_answered(calls: list[tuple[int, str, int, int]], holds_loop: bool, gap_ms: float) -> None:
    """Calls wait for others to be read, transactions for calls to be read: in a circle everybody would wait for ever."""

    async def run() -> None:
        server = Server(holds_loop=holds_loop, gap_ms=gap_ms, queue_items_max=400)
        answers = []
        for number, (items, fate, pause, looks_up) in enumerate(calls):
            if fate == "urgent":
                answers.append(server.queue.submit(Call(str(number), rpc="ReportDataNodeTtMsgs")))
            else:
                answers.append(server.call(str(number), items=items, valid=fate != "malformed", pause=looks_up))
            await turns(pause)
            if fate == "given up":
                answers[-1].cancel()
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
        for number, ((_, fate, _, _), outcome) in enumerate(zip(calls, outcomes, strict=True)):
            if fate in {"whole", "urgent"}:
                assert outcome == str(number) or isinstance(outcome, DatacoordError)
        async with asyncio.timeout(30):
            await server.queue.queue.close()
        assert server.waiting() == (0, 0, 0)

    asyncio.run(run())
