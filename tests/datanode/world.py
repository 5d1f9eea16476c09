"""A datanode process in a test: resources, one channel's service, a log, a model coordinator, all held still until told."""

from dataclasses import dataclass, field
from pathlib import Path

from datacoord.positions import Position
from datanode_client.config import DataNodeConfig
from datanode_client.datasync import DataSyncService, EndReason
from datanode_client.resources import DataNodeResources

from .harness import LogSource, ManualClock, ManualExecutor, Message, seeded, settle
from .model_coordinator import Channel, ModelCoordinator


@dataclass
class World:
    """Everything a test of one channel moves.

    Attributes:
        coordinator: the model.
        source: the log.
        clock: of the datanode.
        executor: its worker threads.
        resources: of the process.
        ends: what `on_end` was told, in order.
    """

    root: Path
    config: DataNodeConfig = field(default_factory=DataNodeConfig)
    primary_key: tuple[str, ...] = ("key",)
    auto: bool = True
    coordinator: ModelCoordinator = field(init=False)
    source: LogSource = field(default_factory=LogSource)
    clock: ManualClock = field(default_factory=ManualClock)
    executor: ManualExecutor = field(default_factory=ManualExecutor)
    resources: DataNodeResources = field(init=False)
    ends: list[tuple[int, EndReason, BaseException | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinator = ModelCoordinator(self.root, self.primary_key, self.auto)
        self.new_process()

    @property
    def channel(self) -> Channel:
        """The stored facts of the channel."""
        return self.coordinator.channel()

    def new_process(self) -> None:
        """A datanode process starts: nothing of an earlier one is left but what is stored."""
        self.resources = DataNodeResources(
            self.config, self.coordinator, clock=self.clock, rng=seeded(), executor=self.executor
        )
        self.resources.start()

    def service(self) -> DataSyncService:
        """The channel is assigned: a new epoch, a new service that is not started."""
        return DataSyncService(
            info=self.coordinator.assign(),
            reader_factory=self.source.reader,
            coordinator=self.coordinator,
            resources=self.resources,
            on_end=lambda service, reason, error: self.ends.append((service.epoch, reason, error)),
        )

    async def start(self) -> DataSyncService:
        """The channel is assigned and read as far as there is something to read."""
        service = self.service()
        service.start()
        await settle()
        return service

    async def publish(self, *messages: Message) -> None:
        """Messages come into the log and are read."""
        self.publish_quietly(*messages)
        await settle()

    def publish_quietly(self, *messages: Message) -> None:
        """Messages come into the log."""
        self.channel.log.extend(messages)
        self.source.publish(*messages)

    async def advance(self, seconds: float) -> None:
        """Time passes, in steps of the policies' tick, so that nothing due in between is missed."""
        step = self.config.sync_policy_tick_seconds
        while seconds > 0:
            self.clock.advance(min(step, seconds))
            seconds -= step
            await settle()

    async def hand_over(self, service: DataSyncService) -> Position:
        """Drains a channel and releases it."""
        final = await service.drain()
        self.coordinator.release(service.channel_name, service.epoch, final)
        return final
