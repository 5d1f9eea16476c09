"""What the queue of writes does with time: calls that follow one another gather, and those that would come too late are refused."""

import asyncio

import pytest

from coordinator.store import pace
from coordinator.store.engine import SortedError
from datacoord.errors import DeadlineExpiredError, OverloadedError, StoreUnavailableError

from .queue_stage import NEVER, Call, Clock, Queue

AWAY = SortedError(StoreUnavailableError("the database is away"))
TOOK_SECONDS = 0.02
GAP_MS = 1.0
GATHER_SECONDS_MAX = TOOK_SECONDS / 2


async def after_a_group_of_two(clock: Clock, *, gap_ms: float = GAP_MS, took_seconds: float = TOOK_SECONDS) -> Queue:
    """A queue right after a transaction of two calls."""
    queue = Queue(gap_ms=gap_ms, group_items_max=200)
    queue.runner.gate.clear()
    two = [queue.submit(Call(str(n))) for n in range(2)]
    await queue.runner.entered.wait()
    await clock.go(took_seconds)
    queue.runner.gate.set()
    await asyncio.gather(*two)
    assert queue.runner.groups == [["0", "1"]]
    return queue


async def test_a_group_waits_while_calls_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hands over one call at a time: without it they fall apart into ever smaller groups, with a COMMIT each."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock)

    calls = []
    for number in range(3):
        calls.append(queue.submit(Call(f"again {number}")))
        await clock.go(0.9 * GAP_MS / 1000)
        assert len(queue.runner.groups) == 1
    await clock.go(0.2 * GAP_MS / 1000)
    assert await asyncio.gather(*calls) == queue.runner.groups[1] == ["again 0", "again 1", "again 2"]
    await queue.queue.close()


async def test_answers_that_take_long_are_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine they take longer than one: nothing gathered there, where gathering is needed most."""
    clock = Clock(monkeypatch)
    queue = Queue(gap_ms=GAP_MS, group_items_max=200)
    queue.runner.gate.clear()
    two = [queue.submit(Call(str(n))) for n in range(2)]
    again: list[asyncio.Task[str]] = []

    def answer(_: object) -> None:
        clock.now += 1.0
        again.append(queue.submit(Call(f"again {len(again)}")))

    for call in two:
        call.add_done_callback(answer)
    await queue.runner.entered.wait()
    await clock.go(TOOK_SECONDS)
    queue.runner.gate.set()
    await asyncio.gather(*two)
    await clock.go(0.9 * GAP_MS / 1000)
    assert queue.runner.groups == [["0", "1"]]
    await clock.go(0.2 * GAP_MS / 1000)
    assert await asyncio.gather(*again) == ["again 0", "again 1"]
    await queue.queue.close()


@pytest.mark.parametrize(
    "held_up_seconds", [2 * GAP_MS / 1000, 2 * GATHER_SECONDS_MAX], ids=["a gap", "the whole wait"]
)
async def test_a_loop_that_was_held_up_looks_who_came_meanwhile(
    held_up_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine taking a call takes longer than calls may be apart: groups stayed small, and calls grew old at the door."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock)
    first = queue.submit(Call("again 0"))
    await clock.go(0.0)

    async def in_its_socket() -> str:
        for _ in range(3):
            await asyncio.sleep(0)
        return await queue.submit(Call("again 1"))

    clock.now += held_up_seconds
    second = asyncio.get_running_loop().create_task(in_its_socket())
    await clock.go(0.9 * GAP_MS / 1000)
    await clock.go(0.2 * GAP_MS / 1000)
    await asyncio.gather(first, second)
    assert queue.runner.groups[1:] == [["again 0", "again 1"]]
    await queue.queue.close()


@pytest.mark.parametrize(("took_seconds", "longest_seconds"), [(0.02, 0.01), (60.0, 0.02)], ids=["half", "20 ms"])
async def test_a_group_waits_for_half_of_what_the_one_before_it_took_and_20_ms_at_most(
    took_seconds: float, longest_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small calls may trickle in for ever; the first of them would never be written."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock, took_seconds=took_seconds)

    step = 0.5 * GAP_MS / 1000
    calls = []
    while len(queue.runner.groups) == 1:
        calls.append(queue.submit(Call("more")))
        await clock.go(step)
        assert len(calls) * step <= longest_seconds + step
    assert len(queue.runner.groups[1]) >= longest_seconds / step - 1
    await asyncio.gather(*calls)
    await queue.queue.close()


async def test_a_gap_of_nothing_makes_nobody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who switches gathering off wants every call written at once."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock, gap_ms=0.0)
    answer = queue.submit(Call("at once"))
    await clock.go(0)
    assert answer.done()
    await queue.queue.close()


@pytest.mark.parametrize("ends", ["urgent", "closing", "full"])
async def test_a_group_does_not_wait_for_others_where_somebody_cannot(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions wait for no gathering, the end for nobody, and a whole transaction's worth has nothing to wait for."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock)
    late = queue.submit(Call("late"))
    await clock.go(0)
    assert len(queue.runner.groups) == 1

    if ends == "urgent":
        assert await queue.submit(Call("session", rpc="ReportDataNodeTtMsgs")) == "session"
    elif ends == "full":
        assert await queue.submit(Call("large", items=200)) == "large"
    await queue.queue.close()
    assert await late == "late"


async def test_nobody_waits_after_a_pause_or_a_transaction_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle coordinator answers at once, and a caller alone at every call: its latency is that of its own COMMIT."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock)
    await clock.go(1.0)

    for number in range(3):
        queue.runner.gate.clear()
        call = queue.submit(Call(str(number)))
        await clock.go(0)
        assert len(queue.runner.groups) == number + 2
        await clock.go(TOOK_SECONDS)
        queue.runner.gate.set()
        assert await call == str(number)
    await queue.queue.close()


@pytest.mark.parametrize("call", [Call("alone", alone=True), Call("late")], ids=["alone", "late"])
async def test_what_gains_nothing_by_gathering_does_not_wait(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of its own transaction has no company, and one whose time is nearly over would be late for nothing."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock)
    answer = queue.submit(call, clock.now + GATHER_SECONDS_MAX / 2 if call.name == "late" else None)
    await clock.go(0)
    assert answer.done()
    await queue.queue.close()


async def test_a_call_that_has_not_been_read_is_taken_for_as_large_as_those_that_wait() -> None:
    """Taken for one item it would be read, and refused then; and all who are refused would be promised the same room."""
    queue = Queue(queue_items_max=100)
    first = await queue.hold()
    waiting = [queue.submit(Call(str(n), items=30)) for n in range(2)]
    await asyncio.sleep(0)
    queue.queue.admit_unread(NEVER, 0)
    waiting.append(queue.submit(Call("third", items=30)))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        queue.queue.admit_unread(NEVER, 0)
    queue.runner.gate.set()
    await asyncio.gather(first, *waiting)
    await queue.queue.close()


async def test_a_call_is_refused_unread_where_its_time_would_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where calls grow old in front of the server, it would do the work of all of them for callers that are gone."""
    clock = Clock(monkeypatch)
    queue = Queue()
    usual_seconds = 10.0 * pace.RATE_WEIGHT
    heartbeat, create = Call("heartbeat", rpc="ReportDataNodeTtMsgs"), Call("create", alone=True)
    for call, failures in ((Call("save"), []), (heartbeat, []), (create, []), (Call("failing"), [AWAY])):
        # Only what saves usually take is a measure: other calls, and a database that is away, say nothing of it.
        queue.runner.failures = list(failures)
        held = await queue.hold(call)
        await clock.go(10.0)
        queue.runner.gate.set()
        await asyncio.gather(held, return_exceptions=True)

    queue.queue.admit_unread(clock.now + 0.001, 0)  # nothing is being written: there is nothing to wait for
    second = await queue.hold()
    with pytest.raises(OverloadedError) as refused:
        queue.queue.admit_unread(clock.now + 2 * usual_seconds, 0)  # the rest of this one, and its own
    assert "time of this call" in refused.value.message
    assert int(refused.value.metadata["retry_delay_ms"]) == 2000 * usual_seconds
    queue.queue.admit_unread(clock.now + 2 * usual_seconds + 1.0, 0)
    await clock.go(usual_seconds)  # now this one could end at any moment
    queue.queue.admit_unread(clock.now + usual_seconds + 1.0, 0)
    queue.runner.gate.set()
    await second
    await queue.queue.close()


async def test_a_call_is_refused_unread_while_others_gather_and_where_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two transactions nobody writes, and yet somebody waits; and what is over already is no overload."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock)
    waiting = queue.submit(Call("gathering"))
    await clock.go(0)
    assert len(queue.runner.groups) == 1
    usual_seconds = TOOK_SECONDS * pace.RATE_WEIGHT

    with pytest.raises(OverloadedError):
        queue.queue.admit_unread(clock.now + usual_seconds, 0)
    queue.queue.admit_unread(clock.now + 3 * usual_seconds, 0)
    await clock.go(2 * GAP_MS / 1000)
    assert await waiting == "gathering"
    with pytest.raises(DeadlineExpiredError):
        queue.queue.admit_unread(clock.now, 0)
    assert queue.statistics.expired_calls == 1
    await queue.queue.close()


async def test_answers_leave_before_the_next_group_has_the_loop() -> None:
    """SQLite's statements run on the loop: an answer that waits behind the next transaction is late, and its caller gone."""
    queue = Queue(group_items_max=1)
    loop = asyncio.get_running_loop()
    left: list[int] = []

    async def call(name: str) -> None:
        await queue.submit(Call(name))
        # As a link does: what is sent in a turn leaves in the next one.
        loop.call_soon(lambda: left.append(len(queue.runner.groups)))

    await asyncio.gather(*(call(str(number)) for number in range(4)))
    await asyncio.sleep(0)
    assert left == [1, 2, 3, 4]
    await queue.queue.close()
