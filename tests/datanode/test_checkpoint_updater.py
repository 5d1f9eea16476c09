"""The channel checkpoint updater: coalesced, batched, bounded, urgent until it has succeeded, honest in its callbacks."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from datacoord import reported_metrics as names
from datacoord.errors import ChannelDroppedError, CoordinatorUnreachableError, FencedError
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.checkpoint_updater import ChannelCheckpointUpdater
from datanode_client.config import DataNodeConfig
from datanode_client.metrics import DataNodeMetrics
from datanode_client.ports import CheckpointAnswer, CheckpointUpdate

from .harness import ManualClock, position, settle

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY = common_pb2.OUTCOME_ALREADY_APPLIED


class Calls:
    """A coordinator whose calls end when told."""

    def __init__(self, auto: bool = False) -> None:
        self.auto = auto
        self.log: list[list[CheckpointUpdate]] = []
        self.timeouts: list[float] = []
        self.pending: list[tuple[Sequence[CheckpointUpdate], asyncio.Future[list[CheckpointAnswer]]]] = []
        self.parallel_max = 0
        self.fail_next: list[Exception] = []
        self.clock = ManualClock()
        self.no_calls_until = 0.0
        self.asked = 0

    def checkpoint_delay_seconds(self) -> float:
        """As a test says; it passes with the clock."""
        self.asked += 1
        return max(0.0, self.no_calls_until - self.clock.now)

    async def update_channel_checkpoints(
        self, updates: Sequence[CheckpointUpdate], timeout_seconds: float
    ) -> list[CheckpointAnswer]:
        """UpdateChannelCheckpoint."""
        self.log.append(list(updates))
        self.timeouts.append(timeout_seconds)
        if self.fail_next:
            raise self.fail_next.pop(0)
        future: asyncio.Future[list[CheckpointAnswer]] = asyncio.get_running_loop().create_future()
        self.pending.append((updates, future))
        self.parallel_max = max(self.parallel_max, len(self.pending))
        if self.auto:
            await asyncio.sleep(0)
            self._answer(0, None)
        return await future

    async def answer(self, index: int = 0, answers: list[CheckpointAnswer] | None = None) -> None:
        """Ends a call with success for all, or as said."""
        self._answer(index, answers)
        await settle()

    async def fail(self, index: int = 0) -> None:
        """A call times out."""
        _, future = self.pending.pop(index)
        future.set_exception(CoordinatorUnreachableError("no answer"))
        await settle()

    def _answer(self, index: int, answers: list[CheckpointAnswer] | None) -> None:
        updates, future = self.pending.pop(index)
        future.set_result(answers or [CheckpointAnswer(APPLIED, one.position, None) for one in updates])

    async def save_binlog_paths(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Nobody calls it here."""
        raise AssertionError(part)

    async def drop_partition(self, collection_name: str, partition_id: int) -> None:
        """Nobody calls it here."""
        raise AssertionError((collection_name, partition_id))

    async def drop_virtual_channel(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Nobody calls it here."""
        raise AssertionError(part)


class Rig:
    """An updater with its neighbours."""

    def __init__(self, *, auto: bool = False, **settings: float) -> None:
        self.calls = Calls(auto)
        self.clock = self.calls.clock
        self.metrics = DataNodeMetrics()
        config = DataNodeConfig(**settings)  # type: ignore[arg-type]
        self.updater = ChannelCheckpointUpdater(self.calls, config, self.clock, self.metrics)
        self.answers: list[tuple[str, CheckpointAnswer]] = []
        self.ticking = asyncio.ensure_future(self.updater.run())

    def add(self, channel: str, ts: int, *, flush: bool = False, epoch: int = 1) -> None:
        """A channel asks for its checkpoint to be moved."""
        self.updater.add_task(
            channel, epoch, position(ts), flush=flush, callback=lambda answer: self.answers.append((channel, answer))
        )

    async def tick(self, seconds: float = 10.0) -> None:
        """Time passes."""
        await settle()
        self.clock.advance(seconds)
        await settle()

    def sent(self) -> list[list[tuple[str, int]]]:
        """Per call the channels and timestamps."""
        return [[(one.channel_name, one.position.timestamp) for one in call] for call in self.calls.log]


@pytest.fixture
async def rig() -> Rig:
    """An updater that nobody answers by himself."""
    return Rig()


async def test_updates_wait_for_the_tick_and_share_a_call(rig: Rig) -> None:
    """256 channels must not make 256 calls a minute."""
    rig.add("a", 1)
    rig.add("b", 2)
    rig.add("a", 5)
    rig.add("b", 1)
    await settle()
    assert rig.calls.log == []
    await rig.tick()
    assert rig.sent() == [[("a", 5), ("b", 2)]]
    assert rig.calls.timeouts == [20.0]
    await rig.calls.answer()

    assert [(name, answer.persisted) for name, answer in rig.answers] == [("a", position(5)), ("b", position(2))]
    await rig.tick()
    assert len(rig.calls.log) == 1


async def test_an_urgent_update_is_sent_at_once_and_alone(rig: Rig) -> None:
    """Somebody waits for a flush; the others' turn comes with the tick."""
    rig.add("a", 1)
    rig.add("b", 2, flush=True)
    rig.add("c", 3, flush=True)
    await settle()

    assert rig.sent() == [[("b", 2), ("c", 3)]]


async def test_an_update_becomes_urgent_when_a_flush_joins_it(rig: Rig) -> None:
    """Also when the position is the same: Milvus's condition `flush && !task.flush`."""
    rig.add("a", 4)
    rig.add("a", 4, flush=True)
    await settle()

    assert rig.sent() == [[("a", 4)]]


async def test_a_failed_urgent_update_is_repeated_after_a_pause_not_with_the_tick() -> None:
    """Milvus clears the mark before the call; after a time-out the flush waits for the ticker."""
    rig = Rig(channel_checkpoint_update_tick_in_seconds=1000.0)
    rig.add("a", 4, flush=True)
    await settle()
    await rig.calls.fail()
    assert len(rig.calls.log) == 1
    await rig.tick(0.2)
    assert rig.sent() == [[("a", 4)], [("a", 4)]]
    await rig.calls.fail()
    await rig.tick(0.3)
    await rig.calls.answer()

    assert [answer.persisted for _, answer in rig.answers] == [position(4)]
    assert rig.metrics.value(names.CHECKPOINT_UPDATE_FAILURES) == 2


async def test_a_coordinator_that_is_down_is_not_called_in_a_loop() -> None:
    """Every event of every channel asks again while a flush waits: the pause is everybody's."""
    rig = Rig()
    rig.calls.fail_next = [CoordinatorUnreachableError("refused")] * 1000
    for step in range(200):
        rig.add("a", step + 1, flush=True)
        rig.add("b", step + 1, flush=True)
        await rig.tick(0.05)

    assert 3 <= len(rig.calls.log) <= 10


async def test_a_failed_ordinary_update_waits_for_the_next_tick(rig: Rig) -> None:
    """Nobody waits for it."""
    rig.add("a", 4)
    await rig.tick()
    await rig.calls.fail()
    await rig.tick(1.0)
    assert len(rig.calls.log) == 1
    await rig.tick(10.0)

    assert rig.sent() == [[("a", 4)], [("a", 4)]]


async def test_what_is_added_while_a_call_is_under_way_is_sent_afterwards(rig: Rig) -> None:
    """One update per channel at a time, and none forgotten."""
    rig.add("a", 4, flush=True)
    await settle()
    rig.add("a", 6, flush=True)
    rig.add("a", 7)
    await settle()
    assert rig.sent() == [[("a", 4)]]
    await rig.calls.answer()

    assert rig.sent() == [[("a", 4)], [("a", 7)]]
    await rig.calls.answer()
    assert [answer.persisted for _, answer in rig.answers] == [position(4), position(7)]
    await rig.tick()
    assert len(rig.calls.log) == 2


async def test_what_is_covered_by_the_call_under_way_is_not_sent_again(rig: Rig) -> None:
    """The same position once more is no news."""
    rig.add("a", 4, flush=True)
    await settle()
    rig.add("a", 4, flush=True)
    await rig.calls.answer()
    await rig.tick()

    assert rig.sent() == [[("a", 4)]]


async def test_callbacks_are_told_what_is_stored(rig: Rig) -> None:
    """In Milvus the newest callback runs for the largest position, which may not be its own."""
    rig.add("a", 4, flush=True)
    await settle()
    await rig.calls.answer(answers=[CheckpointAnswer(ALREADY, position(9), None)])

    assert [(answer.outcome, answer.persisted) for _, answer in rig.answers] == [(ALREADY, position(9))]
    assert rig.metrics.value(names.CHECKPOINT_UPDATES, outcome="already_applied") == 1


@pytest.mark.parametrize("error", [FencedError("fenced"), ChannelDroppedError("dropped")])
async def test_a_refused_channel_is_told_and_not_tried_again_and_the_others_count(
    rig: Rig, error: FencedError | ChannelDroppedError
) -> None:
    """One zombie in a batch must not cost the batch."""
    rig.add("a", 4, flush=True)
    rig.add("b", 5, flush=True)
    await settle()
    refused = CheckpointAnswer(common_pb2.OUTCOME_UNSPECIFIED, None, error)
    await rig.calls.answer(answers=[refused, CheckpointAnswer(APPLIED, position(5), None)])
    await rig.tick()

    assert [(name, answer.error) for name, answer in rig.answers] == [("a", error), ("b", None)]
    assert len(rig.calls.log) == 1


async def test_calls_are_bounded_in_size_and_number_and_no_wave_waits_for_its_slowest() -> None:
    """Milvus waits for the slowest of ten calls before it sends the eleventh."""
    rig = Rig(max_channel_checkpoints_per_rpc=3, update_channel_checkpoint_max_parallel=2)
    for number in range(10):
        rig.add(f"c{number}", 1, flush=True)
    await settle()
    assert [len(call) for call in rig.calls.log] == [3, 3]
    await rig.calls.answer(1)
    assert [len(call) for call in rig.calls.log] == [3, 3, 3]
    await rig.calls.answer(1)
    assert [len(call) for call in rig.calls.log] == [3, 3, 3, 1]
    await rig.calls.answer(1)
    assert len(rig.answers) == 7
    await rig.calls.answer(0)

    assert len(rig.answers) == 10
    assert rig.calls.parallel_max == 2


async def test_an_answer_of_the_wrong_length_is_no_answer(rig: Rig) -> None:
    """Unpinning nothing depends on it, but a callback must not be told of somebody else's channel."""
    rig.add("a", 4, flush=True)
    rig.add("b", 5, flush=True)
    await settle()
    await rig.calls.answer(answers=[CheckpointAnswer(APPLIED, position(4), None)])

    assert rig.answers == []
    await rig.tick(1.0)
    assert rig.sent()[1] == [("a", 4), ("b", 5)]


async def test_a_newer_epoch_replaces_an_older_one_and_not_the_other_way_round(rig: Rig) -> None:
    """B32: a zombie's larger position must not swallow the owner's."""
    rig.add("a", 90, epoch=1)
    rig.add("a", 4, epoch=2)
    rig.add("a", 99, epoch=1)
    await rig.tick()

    assert [(one.epoch, one.position.timestamp) for one in rig.calls.log[0]] == [(2, 4)]


async def test_an_answer_for_an_epoch_that_is_gone_is_nobodys(rig: Rig) -> None:
    """The old graph's FENCED must not end the new graph of the same channel."""
    rig.add("a", 4, flush=True, epoch=1)
    await settle()
    rig.add("a", 5, epoch=2)
    fenced = CheckpointAnswer(common_pb2.OUTCOME_UNSPECIFIED, None, FencedError("fenced"))
    await rig.calls.answer(answers=[fenced])
    assert rig.answers == []
    await rig.tick()

    assert [(one.epoch, one.position.timestamp) for one in rig.calls.log[1]] == [(2, 5)]


async def test_a_removed_channel_is_not_sent_and_hears_nothing(rig: Rig) -> None:
    """Drop mode: no checkpoint is reported any more. Milvus dereferences nil here."""
    rig.add("a", 4)
    rig.add("b", 4, flush=True)
    await settle()
    rig.updater.remove_task("a", 1)
    rig.updater.remove_task("b", 1)
    rig.updater.remove_task("never seen", 1)
    await rig.calls.answer()
    await rig.tick()

    assert rig.sent() == [[("b", 4)]]
    assert rig.answers == []


async def test_removing_an_older_epoch_leaves_the_newer_one(rig: Rig) -> None:
    """The fenced graph tears itself down after its successor in the same process has begun."""
    rig.add("a", 4, epoch=2)
    rig.updater.remove_task("a", 1)
    await rig.tick()

    assert rig.sent() == [[("a", 4)]]


async def test_closing_sends_a_last_time(rig: Rig) -> None:
    """A planned end loses no progress: also what came while a call was under way."""
    rig.add("a", 4)
    rig.add("b", 5, flush=True)
    await settle()
    rig.add("b", 8)
    closing = asyncio.ensure_future(rig.updater.close())
    await settle()
    rig.add("late", 1, flush=True)
    while rig.calls.pending:
        await rig.calls.answer()
    await closing

    assert rig.sent() == [[("b", 5)], [("a", 4)], [("b", 8)]]


async def test_closing_does_not_wait_for_a_coordinator_that_is_gone() -> None:
    """One failed call is enough to know."""
    rig = Rig(max_channel_checkpoints_per_rpc=1, update_channel_checkpoint_max_parallel=1)
    for number in range(50):
        rig.add(f"c{number}", 1)
    closing = asyncio.ensure_future(rig.updater.close())
    await settle()
    await rig.calls.fail()
    await closing

    assert len(rig.calls.log) == 1


async def test_a_callback_with_a_bug_does_not_cost_the_others_their_answers(rig: Rig) -> None:
    """They share a call, nothing else."""

    def bug(answer: CheckpointAnswer) -> None:
        raise RuntimeError(answer)

    rig.updater.add_task("a", 1, position(4), flush=True, callback=bug)
    rig.add("b", 5, flush=True)
    await settle()
    await rig.calls.answer()

    assert [name for name, _ in rig.answers] == ["b"]


@pytest.mark.parametrize("channels", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_every_one_of_many_channels_with_ten_duplicates_gets_one_callback(channels: int) -> None:
    """Milvus's own test of the updater; the larger run has its numbers."""
    rig = Rig(auto=True)
    told: list[str] = []
    callbacks = {f"c{number}": lambda _, name=f"c{number}": told.append(name) for number in range(channels)}
    where = position(7)
    for _ in range(10):
        for name, callback in callbacks.items():
            rig.updater.add_task(name, 1, where, flush=False, callback=callback)
    await settle(2)
    rig.clock.advance(10.0)
    for _ in range(channels):
        if len(told) == channels:
            break
        await asyncio.sleep(0)

    assert len(set(told)) == len(told) == channels
    assert len(rig.calls.log) == -(-channels // 128)
    assert rig.calls.parallel_max == 10


async def test_random_orders_of_adds_answers_and_failures_lose_nothing() -> None:
    """Whatever happened, once calls succeed every channel's largest position has been stored."""
    for seed in range(30):
        rng = random.Random(seed)
        rig = Rig(max_channel_checkpoints_per_rpc=2, update_channel_checkpoint_max_parallel=2)
        largest: dict[str, int] = {}
        for _ in range(60):
            action = rng.choice(["add", "add", "urgent", "answer", "fail", "tick"])
            if action in {"add", "urgent"}:
                channel, ts = rng.choice("abcde"), rng.randint(1, 99)
                largest[channel] = max(ts, largest.get(channel, 0))
                rig.add(channel, ts, flush=action == "urgent")
            elif action == "tick":
                await rig.tick(rng.choice([0.1, 11.0]))
            elif rig.calls.pending:
                index = rng.randrange(len(rig.calls.pending))
                await (rig.calls.answer(index) if action == "answer" else rig.calls.fail(index))
        for _ in range(20):
            while rig.calls.pending:
                await rig.calls.answer()
            await rig.tick()
        stored: dict[str, int] = {}
        for name, answer in rig.answers:
            assert answer.persisted is not None
            stored[name] = max(stored.get(name, 0), answer.persisted.timestamp)
        assert stored == largest, f"seed {seed}"
        rig.ticking.cancel()


async def test_updates_wait_as_the_coordinator_asks_and_share_a_call_then(rig: Rig) -> None:
    """Sent one by one while it has more to do than it can, they are refused one by one; and each carries an old position then."""
    rig.calls.no_calls_until = rig.clock.now + 5.0
    rig.add("a", 1, flush=True)
    await settle()
    rig.add("b", 2, flush=True)
    rig.add("a", 3, flush=True)
    await rig.tick(4.5)
    assert rig.calls.log == []
    assert rig.calls.asked == 1, "it waits, and does not ask again and again"

    await rig.tick(0.5)
    assert rig.sent() == [[("a", 3), ("b", 2)]]


async def test_the_last_updates_wait_for_nothing(rig: Rig) -> None:
    """A datanode that ends keeps its channels from their next owner meanwhile."""
    rig.calls.no_calls_until = rig.clock.now + 5.0
    rig.calls.auto = True
    rig.add("a", 1, flush=True)
    await settle()

    await rig.updater.close()
    assert rig.sent() == [[("a", 1)]]
