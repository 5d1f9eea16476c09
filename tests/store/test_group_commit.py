"""The queue of writes: order, isolation of neighbours, bounds, deadlines, its end."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.store import CheckpointMove, Store, admission, group_commit, pace
from coordinator.store.answers import StoreSettings, StoreStatistics
from coordinator.store.calls import AloneCall
from coordinator.store.engine import SortedError
from coordinator.store.group_commit import GroupCommit
from datacoord.errors import (
    CollectionNotFoundError,
    CommitOutcomeUnknownError,
    DatacoordError,
    DeadlineExpiredError,
    InternalError,
    OverloadedError,
    StoreUnavailableError,
)
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2

from .queue_stage import NEVER, Call, Clock, Queue, turns
from .support import CALLER, World, lane, position, reasons, save

# ---- the queue alone, over a runner of our own ------------------------------------------------------------------------------


async def test_calls_that_arrive_during_a_transaction_share_the_next() -> None:
    """COMMIT is paid once for all of them."""
    queue = Queue()
    first = await queue.hold()
    rest = [queue.submit(Call(str(n))) for n in range(5)]
    await asyncio.sleep(0)
    queue.runner.gate.set()

    assert await asyncio.gather(first, *rest) == ["first", "0", "1", "2", "3", "4"]
    assert queue.runner.groups == [["first"], ["0", "1", "2", "3", "4"]]
    await queue.queue.close()


async def test_groups_are_bounded_by_items_and_bytes_and_calls_are_never_split() -> None:
    """One huge transaction would make everybody wait for it."""
    queue = Queue(group_items_max=10, group_bytes_max=100)
    first = await queue.hold()
    calls = [
        Call("a", items=4),
        Call("b", items=6),
        Call("c", items=50),
        Call("d", size_bytes=60),
        Call("e", size_bytes=60),
    ]
    rest = [queue.submit(call) for call in calls]
    await asyncio.sleep(0)
    queue.runner.gate.set()
    await asyncio.gather(first, *rest)

    assert queue.runner.groups == [["first"], ["a", "b"], ["c"], ["d"], ["e"]]
    await queue.queue.close()


@pytest.mark.parametrize(
    ("calls", "sizes"),
    [(2, [2]), (3, [2, 1]), (4, [2, 2]), (6, [3, 2, 1]), (12, [6, 3, 2, 1]), (40, [8, 8, 8, 8, 4, 2, 2])],
)
async def test_where_much_waits_a_transaction_takes_half_of_it_up_to_four_times_as_much(
    calls: int, sizes: list[int]
) -> None:
    """Small transactions cost more per item: a coordinator would do least when there is most to do. One huge one stands still."""
    queue = Queue(group_bytes_max=100)
    first = await queue.hold()
    rest = [queue.submit(Call(str(number), size_bytes=50)) for number in range(calls)]
    await asyncio.sleep(0)
    queue.runner.gate.set()
    await asyncio.gather(first, *rest)

    assert [len(group) for group in queue.runner.groups] == [1, *sizes]
    await queue.queue.close()


async def test_a_call_that_wants_to_be_alone_is_and_keeps_its_place() -> None:
    """A claim's answer is read after its writes: neighbours must not show in it."""
    queue = Queue()
    first = await queue.hold()
    rest = [queue.submit(call) for call in (Call("a"), Call("b", alone=True), Call("c"), Call("d"))]
    await asyncio.sleep(0)
    queue.runner.gate.set()
    await asyncio.gather(first, *rest)

    assert queue.runner.groups == [["first"], ["a"], ["b"], ["c", "d"]]
    await queue.queue.close()


async def test_a_call_that_breaks_the_transaction_costs_its_neighbours_nothing() -> None:
    """One client's bug must not be everybody's outage."""
    queue = Queue()
    queue.runner.broken = {"bad"}
    first = await queue.hold()
    rest = [queue.submit(Call(name)) for name in ("a", "bad", "b")]
    await asyncio.sleep(0)
    queue.runner.gate.set()

    answers = await asyncio.gather(first, *rest, return_exceptions=True)
    assert (answers[0], answers[1], answers[3]) == ("first", "a", "b")
    assert isinstance(answers[2], InternalError)
    assert queue.runner.groups == [["first"], ["a", "bad", "b"], ["a"], ["bad"], ["b"]]
    await queue.queue.close()


async def test_a_transaction_that_met_another_is_tried_again() -> None:
    """A deadlock means certainly not committed: nobody needs to hear of it."""
    queue = Queue()
    queue.runner.failures = [SortedError(StoreUnavailableError("deadlock"), transient=True)] * 2

    assert await queue.submit(Call("a")) == "a"
    assert queue.runner.groups == [["a"]] * 3
    await queue.queue.close()


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), CommitOutcomeUnknownError("lost")])
async def test_an_error_of_the_database_is_everybodys(error: DatacoordError) -> None:
    """Trying each call alone against a database that is away only takes longer."""
    queue = Queue()
    queue.runner.gate.clear()
    calls = [queue.submit(Call(name)) for name in ("a", "b")]
    await asyncio.sleep(0)
    queue.runner.failures = [SortedError(error)]
    queue.runner.gate.set()

    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert answers == [error, error]
    assert len(queue.runner.groups) == 1
    await queue.queue.close()


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    """Without a bound, an overload ends in memory; without a time, in a stampede."""
    queue = Queue(queue_items_max=10)
    first = await queue.hold()
    waiting = [queue.submit(Call(str(n), items=5)) for n in range(2)]
    await asyncio.sleep(0)
    assert queue.statistics.queued_items == 10

    with pytest.raises(OverloadedError) as refused:
        await queue.submit(Call("too much"))
    assert 1 <= int(refused.value.metadata["retry_delay_ms"]) <= 10_000
    assert queue.statistics.rejected_calls == 1

    queue.runner.gate.set()
    await asyncio.gather(first, *waiting)
    assert await queue.submit(Call("later")) == "later"
    await queue.queue.close()


async def test_the_time_to_come_back_grows_with_the_queue_and_shrinks_with_the_pace() -> None:
    """A fixed delay is too short for a slow database and too long for a fast one."""

    async def delay_ms(queued: int) -> int:
        queue = Queue(queue_items_max=queued)
        first = await queue.hold()
        waiting = queue.submit(Call("x", items=queued))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError) as refused:
            await queue.submit(Call("too much"))
        queue.runner.gate.set()
        await asyncio.gather(first, waiting)
        await queue.queue.close()
        return int(refused.value.metadata["retry_delay_ms"])

    assert await delay_ms(1000) < await delay_ms(10_000) < await delay_ms(60_000)


async def test_the_pace_is_that_of_whole_calls_and_not_of_their_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read and answered between two transactions takes its time too: told by their pace, callers come back too early."""
    now = 0.0
    monkeypatch.setattr(group_commit, "time", SimpleNamespace(perf_counter=lambda: now))
    start = pace.RATE_START_PER_SECOND

    async def transaction(calls: Any) -> list[Any]:
        nonlocal now
        now += 1.0
        return [call.name for call in calls]

    def reading_and_answering(_items: int, seconds: float) -> None:
        nonlocal now
        assert seconds == 1.0
        now += 9.0

    queue = GroupCommit(transaction, StoreSettings(storage_root="", group_items_max=int(start)), StoreStatistics())
    queue.listeners.append(reading_and_answering)
    await asyncio.gather(*(queue.submit(Call(name, items=int(start)), None) for name in ("first", "second", "third")))
    await queue.close()

    # The first one went as fast as was believed, the second one at a tenth of it; behind the third nobody waited.
    believed = pace.RATE_WEIGHT
    assert queue._pace.items_per_second == pytest.approx((1 - believed) * start + believed * start / 10)


async def delays_of_refusals(items: int, calls: int) -> list[int]:
    """What a full queue of 1,000 items tells calls that come one after the other, in milliseconds."""
    queue = Queue(queue_items_max=1000)
    first = await queue.hold()
    waiting = queue.submit(Call("fills", items=1000))
    await asyncio.sleep(0)
    delays_ms = []
    for number in range(calls):
        with pytest.raises(OverloadedError) as refused:
            await queue.submit(Call(str(number), items=items))
        delays_ms.append(int(refused.value.metadata["retry_delay_ms"]))
    queue.runner.gate.set()
    await asyncio.gather(first, waiting)
    await queue.queue.close()
    return delays_ms


async def test_those_who_are_refused_come_back_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sent back at one moment would find the queue full again: most of the work would then be refusing."""
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    delays_ms = await delays_of_refusals(items=500, calls=5)

    assert delays_ms == sorted(set(delays_ms))


async def test_nobody_is_sent_away_for_longer_than_ten_seconds() -> None:
    """After thousands of refusals a caller would be told to come back in an hour, and the coordinator would stand idle by then."""
    delays_ms = await delays_of_refusals(items=1000, calls=200)

    assert 9_900 < max(delays_ms) <= 10_000


async def test_what_waits_is_bounded_in_bytes_too() -> None:
    """Sixty thousand saves of one lane each may be sixty thousand times a megabyte."""
    queue = Queue(queue_bytes_max=100)
    first = await queue.hold()
    waiting = [queue.submit(Call(str(n), size_bytes=50)) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await queue.submit(Call("too much", size_bytes=1))
    queue.runner.gate.set()
    await asyncio.gather(first, *waiting)
    assert queue.statistics.queued_bytes == 0
    assert await queue.submit(Call("large", size_bytes=1000)) == "large"
    await queue.queue.close()


async def test_heartbeats_neither_wait_behind_other_calls_nor_are_refused_because_of_them() -> None:
    """Under lasting overload a datanode that writes nothing would lose its lease, and its channels, to those that write."""
    queue = Queue(queue_items_max=10, group_items_max=4)
    first = await queue.hold()
    saves = [queue.submit(Call(f"save {n}", items=2)) for n in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        queue.queue.admit_unread(NEVER, 0)
    heartbeat = queue.submit(Call("heartbeat", rpc="ReportDataNodeTtMsgs"))
    lease_job = queue.submit(Call("leases", rpc="LeaseJob", alone=True))
    await asyncio.sleep(0)
    queue.runner.gate.set()
    await asyncio.gather(first, heartbeat, lease_job, *saves)

    assert queue.runner.groups[:3] == [["first"], ["heartbeat"], ["leases"]]
    assert queue.statistics.queued_items == 0
    await queue.queue.close()


async def test_urgent_calls_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way around the limit would be no limit."""
    monkeypatch.setattr(admission, "URGENT_CALLS_MAX", 2)
    queue = Queue(queue_bytes_max=100)
    first = await queue.hold()
    waiting = [queue.submit(Call(str(n), rpc="ReportDataNodeTtMsgs", size_bytes=40)) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await queue.submit(Call("third", rpc="ReportDataNodeTtMsgs"))
    monkeypatch.setattr(admission, "URGENT_CALLS_MAX", 100)
    with pytest.raises(OverloadedError):
        await queue.submit(Call("large", rpc="ReportDataNodeTtMsgs", size_bytes=40))
    queue.runner.gate.set()
    await asyncio.gather(first, *waiting)
    await queue.queue.close()


async def test_a_call_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    """It would be refused for ever."""
    queue = Queue(queue_items_max=10)
    assert await queue.submit(Call("large", items=1000)) == "large"
    await queue.queue.close()


async def test_a_call_whose_time_is_over_is_dropped_before_its_transaction() -> None:
    """Its caller has given up and sends it again: writing it now only makes the queue longer."""
    queue = Queue()
    first = await queue.hold()
    now = asyncio.get_running_loop().time()
    late = queue.submit(Call("late"), now - 1)
    soon = queue.submit(Call("soon"), now + 60)
    await asyncio.sleep(0)
    queue.runner.gate.set()
    await asyncio.gather(first, soon)

    with pytest.raises(DeadlineExpiredError):
        await late
    assert queue.runner.groups == [["first"], ["soon"]]
    assert queue.statistics.expired_calls == 1
    await queue.queue.close()


async def test_a_caller_that_went_away_is_not_written() -> None:
    """Same reason."""
    queue = Queue()
    first = await queue.hold()
    gone = queue.submit(Call("gone"))
    stays = queue.submit(Call("stays"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    queue.runner.gate.set()
    await asyncio.gather(first, stays)

    assert queue.runner.groups == [["first"], ["stays"]]
    assert queue.statistics.queued_items == 0
    await queue.queue.close()


async def test_closing_answers_what_waits_and_takes_nothing_new() -> None:
    """SIGTERM drains."""
    queue = Queue()
    first = await queue.hold()
    waiting = queue.submit(Call("a"))
    await asyncio.sleep(0)
    closing = asyncio.get_running_loop().create_task(queue.queue.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError):
        await queue.submit(Call("late"))
    queue.runner.gate.set()

    await closing
    assert list(await asyncio.gather(first, waiting)) == ["first", "a"]


async def test_the_queue_outlives_a_listener_that_fails() -> None:
    """What is committed is committed; a statistic that fails must neither hide that nor stop all writes for ever."""

    def fails(_items: int, _seconds: float) -> None:
        raise RuntimeError

    queue = Queue()
    queue.queue.listeners.append(fails)
    assert await queue.submit(Call("a")) == "a"
    assert await queue.submit(Call("b")) == "b"
    await queue.queue.close()


async def test_the_queue_outlives_a_bug_in_what_runs_it() -> None:
    """Otherwise one exception would stop all writes for ever, with every caller waiting."""
    queue = Queue()

    queue.runner.bug = True
    with pytest.raises(CommitOutcomeUnknownError):
        await queue.submit(Call("a"))
    assert await queue.submit(Call("b")) == "b"
    await queue.queue.close()


# ---- over a real database ---------------------------------------------------------------------------------------------------


async def test_a_write_the_database_refuses_does_not_fail_its_neighbours(world: World) -> None:
    """Shape that slipped through: a constraint stops it, and only it."""
    first, second = world.channels
    good = save(first, await world.epoch(first), lane(world.default, 0, 5), checkpoint=5)
    bad = CheckpointMove(second, await world.epoch(second), Position(3, b"x" * 5000))

    saved, moved = await asyncio.gather(
        world.store.save_binlog_paths([good], caller=CALLER),
        world.store.update_channel_checkpoints([bad], caller=CALLER),
        return_exceptions=True,
    )

    assert isinstance(moved, InternalError)
    assert not isinstance(saved, BaseException)
    assert reasons(saved) == ["APPLIED"]
    assert (await world.info(first)).checkpoint == position(5)
    assert (await world.info(second)).checkpoint.timestamp == 0


async def test_the_error_of_one_call_is_not_its_neighbours(world: World) -> None:
    """A heartbeat of a session that is over shares a transaction with a save."""
    channel = world.channels[0]
    part = save(channel, await world.epoch(channel), lane(world.default, 0, 5))
    groups = world.store.statistics.groups
    lost = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=10**9)

    answers = await asyncio.gather(
        world.store.report_datanode(lost, caller=CALLER),
        world.store.save_binlog_paths([part], caller=CALLER),
        return_exceptions=True,
    )

    assert isinstance(answers[0], DatacoordError)
    assert not isinstance(answers[1], BaseException)
    assert world.store.statistics.groups == groups + 1


async def test_a_rare_call_that_fails_leaves_nothing_behind(world: World) -> None:
    """It may have written half of what it wanted."""
    with pytest.raises(CollectionNotFoundError):
        await world.store.register_datanode("job", 0, ["typo"], host="h", pid=1, caller=CALLER)
    assert (await world.store.list_datanodes()).items == ()


async def test_calls_of_all_kinds_at_once_are_all_answered(world: World) -> None:
    """A deadlock in the queue would show here and nowhere else."""
    channel = world.channels[0]
    node_id = await world.start_datanode()
    epoch = await world.epoch(channel)
    store: Store = world.store
    calls = [
        *(
            store.update_channel_checkpoints([CheckpointMove(channel, epoch, position(n))], caller=CALLER)
            for n in range(1, 20)
        ),
        *(
            store.save_binlog_paths([save(channel, epoch, lane(world.other, n, n + 1))], caller=CALLER)
            for n in range(9)
        ),
        *(world.report(node_id, **{channel: n}) for n in range(9)),
        store.flush(world.collection.name, caller=CALLER),
        store.run_assignment_job(),
        store.run_seal_job(),
        store.list_binlogs(world.collection.name),
    ]
    await asyncio.gather(*calls)

    info = await world.info(channel)
    assert info.checkpoint == position(19)
    assert store.statistics.queued_items == 0
    assert store.statistics.invariant_violations == 0


async def test_alone_calls_answer_what_they_return(world: World) -> None:
    """The plumbing of rare calls."""
    call = AloneCall("Test", CALLER, lambda transaction, _channels: transaction.now_ms)
    assert await world.store._queue.submit(call, None) == world.clock.now_ms


USUAL_BYTES, USUAL_SECONDS = 1024, 0.1
"""What a usual transaction may hold, and what it takes."""


async def learn(queue: Queue, clock: Clock, times_usual: int) -> None:
    """Transactions so many times as large as usual, which take as many times as long."""

    async def take_time(calls: Sequence[Call]) -> None:
        await clock.go(USUAL_SECONDS * sum(call.size_bytes for call in calls) / USUAL_BYTES)

    queue.runner.work = take_time
    for _ in range(40):
        await asyncio.gather(*(queue.submit(Call(f"{n}", size_bytes=USUAL_BYTES)) for n in range(2 * times_usual)))
    assert len(queue.runner.groups[-2 if times_usual == 1 else -4]) == times_usual


def needs_longer_than(queue: Queue, clock: Clock, seconds: float) -> bool:
    """Whether a call that comes now is told that so much time is too little for it."""
    try:
        queue.queue.refuse_unread(clock.now + seconds)
    except OverloadedError:
        return True
    return False


@pytest.mark.parametrize("learnt", [1, 4])
async def test_how_long_a_call_takes_is_known_however_large_transactions_were(
    monkeypatch: pytest.MonkeyPatch, learnt: int
) -> None:
    """Learnt on small ones, calls of a burst are taken that will be late; on large ones, others are refused for nothing."""
    clock = Clock(monkeypatch)
    queue = Queue(group_bytes_max=USUAL_BYTES)
    await learn(queue, clock, learnt)
    running = await queue.hold(Call("running", size_bytes=USUAL_BYTES))
    waiting = [queue.submit(Call(f"{n}", size_bytes=USUAL_BYTES)) for n in range(8)]
    await turns()
    # That which runs, eight that wait, its own, and what a call must have left beyond that.
    assert needs_longer_than(queue, clock, 10 * USUAL_SECONDS + 0.4)
    assert not needs_longer_than(queue, clock, 10 * USUAL_SECONDS + 0.6)
    queue.runner.gate.set()
    await asyncio.gather(running, *waiting)
    await queue.queue.close()


async def test_a_transaction_grows_only_as_far_as_those_in_it_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is the first was told how long a usual transaction takes: what comes behind it must not make it late."""
    clock = Clock(monkeypatch)
    queue = Queue(group_bytes_max=USUAL_BYTES)
    await learn(queue, clock, 1)
    running = await queue.hold(Call("running", size_bytes=USUAL_BYTES))
    hurried = queue.submit(
        Call("hurried", size_bytes=USUAL_BYTES), clock.now + 3.5 * USUAL_SECONDS
    )  # 2.5 once the first is done
    waiting = [queue.submit(Call(f"{n}", size_bytes=USUAL_BYTES)) for n in range(15)]
    await turns()
    before = len(queue.runner.groups)
    queue.runner.gate.set()
    await asyncio.gather(running, hurried, *waiting)
    assert [len(group) for group in queue.runner.groups[before : before + 2]] == [2, 4]
    await queue.queue.close()
