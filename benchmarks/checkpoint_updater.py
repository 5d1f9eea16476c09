"""Milvus's own measure of the checkpoint updater: 100,000 channels × 10 duplicate tasks, 10 ms per call, one callback per channel.

make bench NAME=checkpoint_updater [ARGS="--rounds 5 --scale 1"]; 2 minutes at most. `--scale` is a share of the channels.
"""

import asyncio
import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Bar, Report
from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.checkpoint_updater import ChannelCheckpointUpdater
from datanode_client.clock import SystemClock
from datanode_client.config import DataNodeConfig
from datanode_client.metrics import DataNodeMetrics
from datanode_client.ports import CheckpointAnswer, CheckpointUpdate

CHANNELS = 100_000
DUPLICATES = 10
CALL_SECONDS = 0.01
SECONDS_MAX = 3.0
TICK_SECONDS = 0.5
"""Milvus's 10 s are shortened in its test, too: waiting is not what is measured."""

METHOD = (
    "Every channel asks ten times for its checkpoint to be moved, in ten passes over all channels, each time a little further; "
    "batches and parallel calls are the defaults (128, 10); a call takes 10 ms and succeeds. From the first task to the last "
    "callback. Other side: the same calls alone, with no updater around them, which is the least that it can take."
)


class Coordinator:
    """Takes its time and says yes."""

    def __init__(self) -> None:
        self.calls = 0

    async def update_channel_checkpoints(
        self,
        updates: Sequence[CheckpointUpdate],
        timeout_seconds: float,  # noqa: ARG002  # the port's
    ) -> list[CheckpointAnswer]:
        """UpdateChannelCheckpoint."""
        self.calls += 1
        await asyncio.sleep(CALL_SECONDS)
        return [CheckpointAnswer(common_pb2.OUTCOME_APPLIED, update.position, None) for update in updates]

    def checkpoint_delay_seconds(self) -> float:
        """Never."""
        return 0.0

    async def save_binlog_paths(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Nobody calls it here."""
        raise AssertionError(part)

    async def drop_partition(self, collection_name: str, partition_id: int) -> None:
        """Nobody calls it here."""
        raise AssertionError((collection_name, partition_id))

    async def drop_virtual_channel(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Nobody calls it here."""
        raise AssertionError(part)


@dataclass(frozen=True)
class Run:
    """One run of a side.

    Attributes:
        seconds: from the first task to the last callback.
        processor_seconds: of this process meanwhile.
        calls: how many it took.
    """

    seconds: float
    processor_seconds: float
    calls: int


class Watch:
    """Takes the time of a run."""

    def __init__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def stop(self, calls: int) -> Run:
        """The run that ends now."""
        seconds, processor_seconds = self._started
        return Run(time.perf_counter() - seconds, time.process_time() - processor_seconds, calls)


async def measure(options: Options) -> Report:
    """Runs both sides, interleaved."""
    channels = options.scaled(CHANNELS, 128)
    config = DataNodeConfig(channel_checkpoint_update_tick_in_seconds=TICK_SECONDS)
    sides: dict[str, Callable[[], Coroutine[None, None, Run]]] = {
        "updater": lambda: updater(channels, config),
        "calls alone": lambda: calls_alone(channels, config),
    }
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            runs[name].append(await side())
    report = Report("checkpoint_updater", METHOD, ("side", "s", "smallest", "largest", "processor s", "calls"))
    for name, of in runs.items():
        took = [run.seconds for run in of]
        processor = statistics.median(run.processor_seconds for run in of)
        shown = (f"{number:.2f}" for number in (statistics.median(took), min(took), max(took), processor))
        report.rows.append((name, *shown, f"{of[0].calls:,}"))
        report.figures[name] = {"runs": [dataclasses.asdict(run) for run in of], "channels": channels}
    seconds = statistics.median(run.seconds for run in runs["updater"])
    name = f"seconds for {channels:,} channels × {DUPLICATES} tasks"
    report.bars = [Bar(name, seconds, SECONDS_MAX, SECONDS_MAX, at_most=True)]
    return report


async def updater(channels: int, config: DataNodeConfig) -> Run:
    """What the datanode does.

    Raises:
        RuntimeError: a channel was called back more or less than once, or was told another position than its last.
    """
    coordinator = Coordinator()
    updating = ChannelCheckpointUpdater(coordinator, config, SystemClock(), DataNodeMetrics())
    names = [f"events_1v{number}" for number in range(channels)]
    last = Position(DUPLICATES, b"%d" % DUPLICATES, "events")
    told: Counter[str] = Counter()
    wrong: list[str] = []
    all_told = asyncio.Event()

    def callback(name: str) -> Callable[[CheckpointAnswer], None]:
        def note(answer: CheckpointAnswer) -> None:
            told[name] += 1
            if answer.persisted != last:
                wrong.append(name)
            if len(told) == channels:
                all_told.set()

        return note

    callbacks = [callback(name) for name in names]
    watch = Watch()
    running = asyncio.create_task(updating.run())
    for timestamp in range(1, DUPLICATES + 1):
        position = Position(timestamp, b"%d" % timestamp, "events")
        for name, note in zip(names, callbacks, strict=True):
            updating.add_task(name, 1, position, flush=False, callback=note)
    async with asyncio.timeout(120):
        await all_told.wait()
    run = watch.stop(coordinator.calls)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await updating.close()
    if wrong or set(told.values()) != {1} or len(told) != channels:
        raise RuntimeError(
            f"{channels} channels were called back {told.total()} times, {len(wrong)} with a wrong position"
        )
    return run


async def calls_alone(channels: int, config: DataNodeConfig) -> Run:
    """As many calls as it takes at least, as many at once."""
    coordinator, watch = Coordinator(), Watch()
    left = iter(range(-(-channels // config.max_channel_checkpoints_per_rpc)))

    async def lane() -> None:
        for _ in left:
            await coordinator.update_channel_checkpoints([], 20.0)

    await asyncio.gather(*(lane() for _ in range(config.update_channel_checkpoint_max_parallel)))
    return watch.stop(coordinator.calls)


if __name__ == "__main__":
    main(measure, __doc__)
