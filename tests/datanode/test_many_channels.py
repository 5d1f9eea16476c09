"""Several channels of one process with real threads, a real clock and real files: what the held-still tests cannot show."""

import asyncio
import random
from pathlib import Path

from datanode_client.config import DataNodeConfig
from datanode_client.datasync import DataSyncService, EndReason
from datanode_client.resources import DataNodeResources

from .harness import LogSource, Message, Row, end_of_channel
from .model_coordinator import ModelCoordinator, expected_facts, final_state

CHANNELS = 6
MESSAGES = 150


def random_log(rng: random.Random) -> list[Message]:
    """A log over few keys and two partitions."""
    log, ts = [], 0
    for _ in range(MESSAGES):
        ts += rng.randint(1, 3)
        rows = [
            Row(
                rng.choice(["upsert", "upsert", "delete"]),
                rng.choice("abcdefgh"),
                rng.randint(0, 999),
                rng.choice([None, 12]),
            )
            for _ in range(rng.randint(1, 4))
        ]
        log.append(Message(ts, tuple(rows)))
    return log


async def test_channels_share_a_process_and_every_row_lands_once(tmp_path: Path) -> None:
    """Threads finish in any order, memory is short, buffers are small, one channel is taken over in the middle."""
    seed = 20261121
    rng = random.Random(seed)
    coordinator = ModelCoordinator(tmp_path)
    config = DataNodeConfig(
        insert_buf_size_bytes=600, delete_buf_bytes=600, memory_limit_bytes=8000, sync_policy_tick_seconds=0.01
    )
    resources = DataNodeResources(config, coordinator, rng=random.Random(seed))
    resources.start()
    ends: list[tuple[str, EndReason]] = []
    sources: dict[str, LogSource] = {}

    def assign(name: str) -> DataSyncService:
        service = DataSyncService(
            info=coordinator.assign(name),
            reader_factory=sources[name].reader,
            coordinator=coordinator,
            resources=resources,
            on_end=lambda ended, reason, _: ends.append((ended.channel_name, reason)),
        )
        service.start()
        return service

    services = []
    for number in range(CHANNELS):
        name = f"c{number}"
        log = random_log(rng)
        coordinator.channel(name).log = log
        sources[name] = LogSource(items=[*log, end_of_channel(log[-1].ts)], batch_messages=3, head=MESSAGES + 1)
        services.append(assign(name))
    async with asyncio.timeout(60):
        while coordinator.channel("c0").checkpoint.timestamp == 0:  # noqa: ASYNC110  # threads end when they end
            await asyncio.sleep(0.001)
        zombie, services[0] = services[0], assign("c0")
        while not all(service.report().finished for service in services):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    for number in range(CHANNELS):
        channel = coordinator.channel(f"c{number}")
        assert set(channel.facts) == expected_facts(channel.log), f"seed {seed}"
        assert coordinator.read(channel.name) == final_state(channel.log), f"seed {seed}"
        assert set(channel.facts.values()) == {1}
    assert set(ends) <= {("c0", EndReason.FENCED)}
    assert coordinator.max_outstanding == 1
    for service in (zombie, *services):
        await service.close()
    assert resources.write_buffers.memory.buffered_bytes == 0
    await resources.close()
