"""Flush, from any state: it completes without waiting for anything but uploads and answers, and never too early.

The protocol argues this and does not model it (PROTOCOL, preface): so it is attacked here.
"""

import asyncio
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datanode_client.config import DataNodeConfig
from datanode_client.datasync import DataSyncService

from .harness import Message, settle, tick
from .strategies import logs
from .world import World

STEPS = ["reveal", "upload", "deliver", "deliver"]


class FlushScenario:
    """A channel in any state, then a flush, then only uploads and answers."""

    def __init__(self, root: Path, log: list[Message], batch_messages: int) -> None:
        self.world = World(root, DataNodeConfig(insert_buf_size_bytes=120), auto=False)
        self.world.executor.auto = False
        self.world.channel.log.extend(log)
        self.world.source.items = [one if one.rows else tick(one.ts) for one in log]
        self.world.source.batch_messages = batch_messages

    async def run(self, steps: list[tuple[str, int]], beyond: int, takeover: bool) -> None:
        """Reaches some state, asks for a flush, and lets it complete."""
        world = self.world
        service = await world.start()
        for step, number in steps:
            self.step(step, number)
            await settle(30)
        target = service.report().timestamp + beyond
        if takeover:
            # The new owner has consumed less than what the flush was asked for, and must not report it done too early.
            await service.close()
            world.new_process()
            service = await world.start()
        service.set_flush_timestamp(target)
        service.set_flush_timestamp(target)
        world.source.reveal(len(world.source.items))
        world.source.publish(tick(world.channel.log[-1].ts + beyond + 1))
        await self.complete(service, target)
        for _ in range(3):
            service.set_flush_timestamp(target)
            await settle(30)
        assert (world.executor.waiting, world.coordinator.calls) == ([], []), "a flush that is done costs nothing"
        await service.close()

    def step(self, step: str, number: int) -> None:
        """One step of the world before the flush."""
        world = self.world
        if step == "reveal":
            world.source.reveal(min(len(world.source.items), world.source.head + 1 + number % 3))
        elif step == "upload" and world.executor.waiting:
            world.executor.run_one(number % len(world.executor.waiting))
        elif step == "deliver" and world.coordinator.calls:
            world.coordinator.deliver(world.coordinator.calls[number % len(world.coordinator.calls)])

    async def complete(self, service: DataSyncService, target: int) -> None:
        """Uploads and answers until nothing moves any more; the clock stands still."""
        world = self.world
        for _ in range(100):
            await settle(30)
            if not world.executor.waiting and not world.coordinator.calls:
                break
            world.executor.run_all()
            for call in list(world.coordinator.calls):
                world.coordinator.deliver(call)
        # That it is not too early is the model's: it checks every row below a checkpoint whenever one moves.
        assert world.channel.checkpoint.timestamp >= target
        assert service.write_buffer.flush_timestamp in {0, target}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    log=logs(),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=25),
    beyond=st.integers(0, 3),
    takeover=st.booleans(),
    batch_messages=st.integers(1, 3),
)
def test_a_flush_completes_from_any_state_and_costs_nothing_afterwards(
    log: list[Message], steps: list[tuple[str, int]], beyond: int, takeover: bool, batch_messages: int
) -> None:
    """Somebody waits for it: no interval, no stale period and no full buffer may be needed."""

    async def play(root: Path) -> None:
        await FlushScenario(root, log, batch_messages).run(steps, beyond, takeover)

    with tempfile.TemporaryDirectory() as directory, mock.patch("os.fsync", return_value=None):
        asyncio.run(play(Path(directory)))
