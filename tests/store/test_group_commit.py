"""The queue of writes: order, isolation of neighbours, bounds, deadlines, its end."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.store import CheckpointMove, Store, group_commit
from coordinator.store.answers import StoreSettings, StoreStatistics
from coordinator.store.calls import AloneCall, WriteCall
from coordinator.store.channels import Channels
from coordinator.store.engine import SortedError, WriteFailedError
from coordinator.store.group_commit import GroupCommit
from coordinator.store.transaction import Transaction
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

from .support import CALLER, World, lane, position, reasons, save

NEVER = float("inf")
AWAY = SortedError(StoreUnavailableError("the database is away"))

# ---- the queue alone, over a runner of our own ------------------------------------------------------------------------------


class Call(WriteCall[str]):
    """A call that answers its name."""

    def __init__(
        self, name: str, *, items: int = 1, size_bytes: int = 0, alone: bool = False, rpc: str = "Test"
    ) -> None:
        super().__init__(rpc, CALLER, items=items, size_bytes=size_bytes)
        self.name = name
        self.alone = alone

    def run(self, transaction: Transaction, channels: Channels) -> str:
        return self.name


class Runner:
    """Holds transactions until a test lets them go, and fails those it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.broken: set[str] = set()
        self.bug = False
        self.failures: list[SortedError] = []

    async def __call__(self, calls: Any) -> list[Any]:
        names = [call.name for call in calls]
        self.groups.append(names)
        self.entered.set()
        await self.gate.wait()
        if self.bug:
            self.bug = False
            raise RuntimeError
        if self.failures:
            raise WriteFailedError(self.failures.pop(0))
        if self.broken & set(names):
            raise WriteFailedError(SortedError(InternalError("broken"), whole=False))
        return names


class Queue:
    """A queue over a Runner."""

    def __init__(self, **changes: Any) -> None:
        self.runner = Runner()
        self.statistics = StoreStatistics()
        self.queue = GroupCommit(self.runner, StoreSettings(storage_root="", **changes), self.statistics)

    def submit(self, call: Call, deadline: float | None = None) -> asyncio.Task[str]:
        return asyncio.get_running_loop().create_task(self.queue.submit(call, deadline))

    async def hold(self, call: Call | None = None) -> asyncio.Task[str]:
        """Puts a first call into a transaction that does not end, so that what follows gathers."""
        self.runner.gate.clear()
        self.runner.entered.clear()
        first = self.submit(call or Call("first"))
        await self.runner.entered.wait()
        return first


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


class Clock:
    """The loop's time, which only a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        monkeypatch.setattr(group_commit, "time", SimpleNamespace(perf_counter=lambda: self.now))

    async def go(self, seconds: float) -> None:
        """Moves it on, between two moments in which everybody sees what has happened so far."""
        for passed in (0.0, seconds):
            self.now += passed
            for _ in range(10):
                await asyncio.sleep(0)


TOOK_SECONDS = 0.02
GAP_MS = 1.0
GATHER_SECONDS_MAX = TOOK_SECONDS / 2


async def after_a_group_of_two(clock: Clock) -> Queue:
    """A queue right after a transaction of two calls that took TOOK_SECONDS."""
    queue = Queue(gap_ms=GAP_MS, group_items_max=200)
    queue.runner.gate.clear()
    two = [queue.submit(Call(str(n))) for n in range(2)]
    await queue.runner.entered.wait()
    await clock.go(TOOK_SECONDS)
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


async def test_a_group_waits_no_longer_than_half_of_what_the_one_before_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small calls may trickle in for ever; the first of them would never be written."""
    clock = Clock(monkeypatch)
    queue = await after_a_group_of_two(clock)

    step = 0.5 * GAP_MS / 1000
    calls = []
    while len(queue.runner.groups) == 1:
        calls.append(queue.submit(Call("more")))
        await clock.go(step)
        assert len(calls) * step <= GATHER_SECONDS_MAX + step
    assert len(queue.runner.groups[1]) >= GATHER_SECONDS_MAX / step - 1
    await asyncio.gather(*calls)
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
    queue.queue.admit_unread(NEVER)
    waiting.append(queue.submit(Call("third", items=30)))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        queue.queue.admit_unread(NEVER)
    queue.runner.gate.set()
    await asyncio.gather(first, *waiting)
    await queue.queue.close()


async def test_a_call_is_refused_unread_where_its_time_would_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where calls grow old in front of the server, it would do the work of all of them for callers that are gone."""
    clock = Clock(monkeypatch)
    queue = Queue()
    usual_seconds = 10.0 * group_commit._RATE_WEIGHT
    heartbeat, create = Call("heartbeat", rpc="ReportDataNodeTtMsgs"), Call("create", alone=True)
    for call, failures in ((Call("save"), []), (heartbeat, []), (create, []), (Call("failing"), [AWAY])):
        # Only what saves usually take is a measure: other calls, and a database that is away, say nothing of it.
        queue.runner.failures = list(failures)
        held = await queue.hold(call)
        await clock.go(10.0)
        queue.runner.gate.set()
        await asyncio.gather(held, return_exceptions=True)

    queue.queue.admit_unread(clock.now + 0.001)  # nothing is being written: there is nothing to wait for
    second = await queue.hold()
    with pytest.raises(OverloadedError) as refused:
        queue.queue.admit_unread(clock.now + 2 * usual_seconds)  # the rest of this one, and its own
    assert "time of this call" in refused.value.message
    assert int(refused.value.metadata["retry_delay_ms"]) == 2000 * usual_seconds
    queue.queue.admit_unread(clock.now + 2 * usual_seconds + 1.0)
    await clock.go(usual_seconds)  # now this one could end at any moment
    queue.queue.admit_unread(clock.now + usual_seconds + 1.0)
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
    usual_seconds = TOOK_SECONDS * group_commit._RATE_WEIGHT

    with pytest.raises(OverloadedError):
        queue.queue.admit_unread(clock.now + usual_seconds)
    queue.queue.admit_unread(clock.now + 3 * usual_seconds)
    await clock.go(2 * GAP_MS / 1000)
    assert await waiting == "gathering"
    with pytest.raises(DeadlineExpiredError):
        queue.queue.admit_unread(clock.now)
    assert queue.statistics.expired_calls == 1
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
    pace = group_commit._RATE_START_PER_SECOND

    async def transaction(calls: Any) -> list[Any]:
        nonlocal now
        now += 1.0
        return [call.name for call in calls]

    def reading_and_answering(_items: int, seconds: float) -> None:
        nonlocal now
        assert seconds == 1.0
        now += 9.0

    queue = GroupCommit(transaction, StoreSettings(storage_root="", group_items_max=int(pace)), StoreStatistics())
    queue.listeners.append(reading_and_answering)
    await asyncio.gather(*(queue.submit(Call(name, items=int(pace)), None) for name in ("first", "second")))
    await queue.close()

    # The first one went as fast as was believed, the second one at a tenth of it.
    believed = group_commit._RATE_WEIGHT
    assert queue._items_per_second == pytest.approx((1 - believed) * pace + believed * pace / 10)


async def test_those_who_are_refused_come_back_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sent back at one moment would find the queue full again: most of the work would then be refusing."""
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    queue = Queue(queue_items_max=1000)
    first = await queue.hold()
    waiting = queue.submit(Call("x", items=1000))
    await asyncio.sleep(0)
    delays_ms = []
    for number in range(5):
        with pytest.raises(OverloadedError) as refused:
            await queue.submit(Call(str(number), items=500))
        delays_ms.append(int(refused.value.metadata["retry_delay_ms"]))
    queue.runner.gate.set()
    await asyncio.gather(first, waiting)
    await queue.queue.close()

    assert delays_ms == sorted(set(delays_ms))
    for number in range(200):
        with pytest.raises(OverloadedError) as refused:
            queue.queue._refuse_full(1000, number + 500)
    assert int(refused.value.metadata["retry_delay_ms"]) <= 10_000


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
        queue.queue.admit_unread(NEVER)
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
    monkeypatch.setattr(group_commit, "URGENT_CALLS_MAX", 2)
    queue = Queue(queue_bytes_max=100)
    first = await queue.hold()
    waiting = [queue.submit(Call(str(n), rpc="ReportDataNodeTtMsgs", size_bytes=40)) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await queue.submit(Call("third", rpc="ReportDataNodeTtMsgs"))
    monkeypatch.setattr(group_commit, "URGENT_CALLS_MAX", 100)
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
