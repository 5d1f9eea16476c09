"""Random logs, cuts, upload orders, failures, lost and doubled calls, kills and zombies: nothing lost, nothing doubled.

Every accepted call is judged by the model coordinator, which reads the objects on disk. Only its faults stop at the end: then one
fresh owner must land everything, from whatever the kills have left.
"""

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from datacoord.errors import FencedError
from datanode_client.config import DataNodeConfig
from datanode_client.datasync import DataSyncService, EndReason

from .harness import Message, drop_partition, end_of_channel, settle, tick
from .model_coordinator import expected_facts, final_state
from .strategies import logs
from .world import World

ACTIONS = [
    "reveal",
    "reveal",
    "reveal",
    "upload",
    "upload",
    "deliver",
    "deliver",
    "deliver twice",
    "lose answer",
    "flush",
    "time",
    "disk full",
    "source fault",
    "kill",
    "zombie",
    "hand over",
    "drop partition",
]


class Scenario:
    """Interprets random actions; everything else stands still in between."""

    def __init__(
        self,
        root: Path,
        log: list[Message],
        config: DataNodeConfig,
        batch_messages: int,
        resend: int,
        *,
        with_drop: bool,
    ) -> None:
        self.world = World(root, config, auto=False)
        self.world.executor.auto = False
        self.world.channel.log.extend(log)
        self.world.source.items = [one if one.rows else tick(one.ts) for one in log]
        empty = [index for index, one in enumerate(log) if not one.rows]
        if with_drop and empty:
            at = empty[len(empty) // 2]
            self.world.source.items[at] = drop_partition(log[at].ts, 12)
            self.world.channel.log_drops.append((log[at].ts, 12))
        self.world.source.batch_messages = batch_messages
        self.world.source.resend = resend
        self.log = log
        self.current: DataSyncService | None = None
        self.services: list[DataSyncService] = []
        self.draining: list[asyncio.Task[object]] = []
        self.full_for = 0

    async def run(self, actions: list[tuple[str, int]]) -> None:
        """All actions, then the end without faults."""
        await self.assign()
        for action, number in actions:
            getattr(self, action.replace(" ", "_"))(number)
            await settle(30)
            if self.current is None or (self.world.ends and self.world.ends[-1][0] == self.current.epoch):
                await self.assign()
        await self.finish()

    async def assign(self) -> None:
        """The channel gets a new owner."""
        self.current = self.world.service()
        self.services.append(self.current)
        self.current.start()
        await settle(30)

    def reveal(self, number: int) -> None:
        """More of the log exists."""
        source = self.world.source
        source.reveal(min(len(source.items), source.head + 1 + number % 3))

    def upload(self, number: int) -> None:
        """Some waiting upload is done, in any order."""
        waiting = self.world.executor.waiting
        if waiting:
            self.world.executor.run_one(number % len(waiting))

    def deliver(self, number: int) -> None:
        """Some call arrives and is answered, in any order."""
        self._deliver(number)

    def deliver_twice(self, number: int) -> None:
        """Some call arrives twice before it is answered."""
        self._deliver(number, times=2)

    def lose_answer(self, number: int) -> None:
        """Some call arrives, its answer is lost; the broker will repeat it."""
        self._deliver(number, answer=False)

    def _deliver(self, number: int, times: int = 1, answer: bool = True) -> None:
        calls = self.world.coordinator.calls
        if calls:
            self.world.coordinator.deliver(calls[number % len(calls)], times, answer)

    def flush(self, number: int) -> None:
        """A flush to what is consumed, or a little beyond."""
        if self.current is not None:
            self.current.set_flush_timestamp(self.current.report().timestamp + number % 3)

    def time(self, number: int) -> None:
        """Time passes: policies, retries, ticks of the updater."""
        self.world.clock.advance([0.5, 11.0, 61.0, 700.0][number % 4])

    def disk_full(self, number: int) -> None:
        """The next objects cannot be written."""
        self.full_for += 1 + number % 3

    def source_fault(self, number: int) -> None:
        """A reader breaks: while it waits, or while it is opened."""
        faults = self.world.source.faults if number % 2 else self.world.source.open_faults
        faults.append(ConnectionError("the source is away"))
        self.world.source.wake()

    def drop_partition(self, number: int) -> None:
        """Somebody drops a partition by command; rare, or nothing of it would ever be seen."""
        if number == 0:
            self.world.channel.dropped_lanes.add(12)

    def kill(self, number: int) -> None:
        """The process dies: what its threads were doing never ends. Its calls are on the network already."""
        if self.current is not None:
            self.draining.append(asyncio.get_running_loop().create_task(self.current.close()))
            self.world.executor.waiting.clear()
            self.current = None
            self.world.new_process()

    def zombie(self, number: int) -> None:
        """The channel moves to another process; the old one lives on and knows nothing of it."""
        self.current = None
        self.world.new_process()

    def hand_over(self, number: int) -> None:
        """The channel is asked back; it is released once it is drained, at some later time or never."""
        service = self.current
        if service is not None and not self.draining_now(service):
            task = asyncio.get_running_loop().create_task(self.world.hand_over(service))
            self.draining.append(task)

    def draining_now(self, service: DataSyncService) -> bool:
        """Whether the service was asked to drain before."""
        if getattr(service, "_test_draining", False):
            return True
        service._test_draining = True  # type: ignore[attr-defined]
        return False

    @contextlib.contextmanager
    def faulty_disk(self) -> Iterator[None]:
        """Disk full where an action said so; syncing is switched off, because no power is lost here and it takes long."""
        real_write = os.write

        def write(descriptor: int, data: memoryview) -> int:
            if self.full_for > 0 and len(data) > 50:
                self.full_for -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return real_write(descriptor, data)

        with mock.patch("os.fsync", return_value=None), mock.patch("os.write", write):
            yield

    async def finish(self) -> None:
        """No more faults: a fresh owner lands what is left, whatever the others have left behind."""
        world, source = self.world, self.world.source
        self.full_for = 0
        source.faults.clear()
        source.open_faults.clear()
        last = self.log[-1].ts + 1
        source.items.append(end_of_channel(last))
        source.reveal(len(source.items))
        world.new_process()
        await self.assign()
        assert self.current is not None
        for _ in range(200):
            if self.current.report().finished:
                break
            world.executor.run_all()
            for call in list(world.coordinator.calls):
                world.coordinator.deliver(call)
            await settle(30)
            world.clock.advance(11.0)
            await settle(30)
        self.judge(last)
        for service in self.services:
            await service.close()
        for task in self.draining:
            task.cancel()
        await asyncio.gather(*self.draining, return_exceptions=True)

    def judge(self, last: int) -> None:
        """Everything landed once; nobody but zombies was refused; every graph had one save outstanding."""
        world, channel = self.world, self.world.channel
        assert self.current is not None
        assert self.current.report().finished
        assert channel.checkpoint.timestamp == last
        world.coordinator.check(channel)
        missing = expected_facts(self.log) - channel.facts.keys()
        assert {partition for partition, *_ in missing} <= channel.dropped_lanes
        if not missing and not channel.dropped_lanes:
            assert world.coordinator.read() == final_state(self.log)
        assert all(isinstance(error, FencedError) for error in world.coordinator.refusals)
        assert all(reason in {EndReason.FENCED, EndReason.RELEASED} for _, reason, _ in world.ends)
        assert world.coordinator.max_outstanding <= 1
        assert {partition for _, partition in channel.log_drops} <= channel.dropped_lanes
        event(f"dropped by the log: {bool(channel.log_drops)}")
        event(f"refusals: {min(3, len(world.coordinator.refusals))}")
        event(f"ranges: {min(8, len(channel.binlogs) // 2)}")


configs = st.builds(
    lambda buffer_bytes, memory_bytes, joined_bytes: DataNodeConfig(
        insert_buf_size_bytes=buffer_bytes,
        delete_buf_bytes=buffer_bytes,
        memory_limit_bytes=memory_bytes,
        joined_sync_max_bytes=joined_bytes,
    ),
    buffer_bytes=st.sampled_from([1, 40, 200, 1 << 20]),
    memory_bytes=st.sampled_from([300, 1 << 30]),
    joined_bytes=st.sampled_from([1, 1 << 20]),
)
scripts = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), max_size=60)
readers = st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 3]), st.booleans())


def play(
    log: list[Message], actions: list[tuple[str, int]], config: DataNodeConfig, reader: tuple[int, int, bool]
) -> None:
    """Plays one script in a fresh directory and a fresh loop."""

    async def run(root: Path) -> None:
        scenario = Scenario(root, log, config, batch_messages=reader[0], resend=reader[1], with_drop=reader[2])
        with scenario.faulty_disk():
            await scenario.run(actions)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(log=logs(), actions=scripts, config=configs, reader=readers)
def test_whatever_happens_every_row_is_registered_exactly_once(
    log: list[Message], actions: list[tuple[str, int]], config: DataNodeConfig, reader: tuple[int, int, bool]
) -> None:
    """The promise of the project, against everything that may happen to one channel."""
    play(log, actions, config, reader)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(log=logs(), actions=scripts, config=configs, reader=readers)
def test_whatever_happens_for_long_every_row_is_registered_exactly_once(
    log: list[Message], actions: list[tuple[str, int]], config: DataNodeConfig, reader: tuple[int, int, bool]
) -> None:
    """The same for longer: some interleavings need many steps to come together."""
    play(log, actions, config, reader)
