"""The channel checkpoint updater: moves the checkpoints of all channels of a process, many in one call.

Milvus's, with its settings, and without what hurts there: no wave waits for its slowest call, an urgent update stays urgent until
it has succeeded, and callbacks are told what is stored, not what was asked for.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from datacoord import reported_metrics as names
from datacoord.positions import Position
from datanode_client.clock import Clock
from datanode_client.config import DataNodeConfig
from datanode_client.metrics import DataNodeMetrics, outcome_label
from datanode_client.ports import CheckpointAnswer, CheckpointUpdate, CoordinatorPort

_log = structlog.get_logger(__name__)
_RETRY_DELAY_SECONDS_INITIAL = 0.1

UpdateCallback = Callable[[CheckpointAnswer], None]


@dataclass(slots=True)
class _Task:
    """The one update of a channel that waits or is under way.

    Attributes:
        epoch: of the flow graph.
        position: the furthest one asked for.
        callback: the newest one.
        flush: somebody waits for it; set again when a call that carried it fails.
        sending: the position under way; None = it is not.
        sending_flush: whether that one was urgent.
    """

    epoch: int
    position: Position
    callback: UpdateCallback
    flush: bool
    sending: Position | None = None
    sending_flush: bool = False


class ChannelCheckpointUpdater:
    """Coalesces updates per channel and sends them: urgent ones at once, the others with every tick.

    Used on the event loop's thread only.

    Args:
        coordinator: where updates go.
        config: tick, batch size, parallel calls, deadline.
        clock: elapsed time.
        metrics: of the process.
    """

    def __init__(
        self, coordinator: CoordinatorPort, config: DataNodeConfig, clock: Clock, metrics: DataNodeMetrics
    ) -> None:
        self._coordinator = coordinator
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._tasks: dict[str, _Task] = {}
        # Taken from the front: a plain dict walks over everything that was taken before, each time.
        self._due: OrderedDict[str, None] = OrderedDict()
        self._calls: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._later: asyncio.Task[None] | None = None
        self._dispatch_scheduled = False
        self._closing = False

    def add_task(
        self, channel_name: str, epoch: int, position: Position, *, flush: bool, callback: UpdateCallback
    ) -> None:
        """Asks for a checkpoint to be moved.

        Args:
            channel_name: the channel; it has one task, which keeps the furthest position and the newest callback.
            epoch: of the flow graph; the task of an older one is replaced, an older one's task is ignored.
            position: where to.
            flush: somebody waits for it: send it at once, and again until it has succeeded.
            callback: told what is stored now, or the refusal. Not called for a position that a later one replaced.
        """
        if self._closing:
            return
        task = self._tasks.get(channel_name)
        if task is not None and task.epoch > epoch:
            return
        if task is None or task.epoch < epoch:
            self._tasks[channel_name] = _Task(epoch, position, callback, flush)
        else:
            task.callback = callback
            task.flush = task.flush or flush
            if position.timestamp > task.position.timestamp:
                task.position = position
        if flush:
            self._due[channel_name] = None
            self._schedule_dispatch()

    def remove_task(self, channel_name: str, epoch: int) -> None:
        """Forgets what waits for a channel at an epoch. A call that carries it already may still arrive, which is harmless."""
        task = self._tasks.get(channel_name)
        if task is not None and task.epoch == epoch:
            del self._tasks[channel_name]
            self._due.pop(channel_name, None)

    async def run(self) -> None:
        """Sends everything that waits, with every tick, for ever."""
        while True:
            await self._clock.sleep(self._config.channel_checkpoint_update_tick_in_seconds)
            self._due.update(dict.fromkeys(self._tasks))
            self._dispatch()

    async def close(self) -> None:
        """Sends everything that waits a last time; gives up at the first call that fails."""
        self._closing = True
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._failures = 0
        self._due.update(dict.fromkeys(self._tasks))
        self._dispatch()
        while self._calls:
            await asyncio.wait(self._calls)

    def _schedule_dispatch(self) -> None:
        # Not at once: channels that become urgent in one turn of the loop share a call.
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        if self._later is not None or (self._closing and self._failures):
            return
        delay_seconds = self._coordinator.checkpoint_delay_seconds()
        if self._due and delay_seconds and not self._closing:
            self._dispatch_after(delay_seconds)
            return
        while self._due and len(self._calls) < self._config.update_channel_checkpoint_max_parallel:
            batch = self._take_due()
            if not batch:
                return
            call = asyncio.get_running_loop().create_task(self._send(batch))
            self._calls.add(call)
            call.add_done_callback(self._sent)

    def _take_due(self) -> list[tuple[str, _Task]]:
        """The next channels to send, each marked as under way; one that is under way already comes again afterwards."""
        batch: list[tuple[str, _Task]] = []
        while self._due and len(batch) < self._config.max_channel_checkpoints_per_rpc:
            channel_name, _ = self._due.popitem(last=False)
            task = self._tasks.get(channel_name)
            if task is not None and task.sending is None:
                task.sending, task.sending_flush = task.position, task.flush
                task.flush = False
                batch.append((channel_name, task))
        return batch

    async def _send(self, batch: Sequence[tuple[str, _Task]]) -> None:
        updates = [CheckpointUpdate(name, task.epoch, task.sending) for name, task in batch if task.sending is not None]
        try:
            answers = await self._coordinator.update_channel_checkpoints(
                updates, self._config.update_channel_checkpoint_rpc_timeout_seconds
            )
            pairs = list(zip(batch, answers, strict=True))
        except Exception as error:  # noqa: BLE001  # whatever it is, the updates stay and are sent again
            self._failed(batch, error)
            return
        self._failures = 0
        for (channel_name, task), answer in pairs:
            self._answered(channel_name, task, answer)

    def _sent(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            self._dispatch()

    def _answered(self, channel_name: str, task: _Task, answer: CheckpointAnswer) -> None:
        sent, task.sending = task.sending, None
        if self._tasks.get(channel_name) is not task:
            return  # removed, or replaced by a newer epoch
        label = outcome_label(answer.outcome) if answer.error is None else "refused"
        self._metrics.add(names.CHECKPOINT_UPDATES, outcome=label)
        if answer.error is not None or sent is None or task.position.timestamp <= sent.timestamp:
            del self._tasks[channel_name]
            self._due.pop(channel_name, None)
        elif task.flush or self._closing:
            self._due[channel_name] = None
        try:
            task.callback(answer)
        except Exception:  # noqa: BLE001  # one channel's bug must not cost the others their answers
            _log.exception("checkpoint_callback_failed", channel_name=channel_name)

    def _failed(self, batch: Sequence[tuple[str, _Task]], error: Exception) -> None:
        if self._later is None:
            self._failures += 1  # calls that fail side by side are one failure
        self._metrics.add(names.CHECKPOINT_UPDATE_FAILURES)
        _log.warning("checkpoint_update_failed", channels=len(batch), failures=self._failures, error=str(error))
        for channel_name, task in batch:
            task.sending = None
            task.flush = task.flush or task.sending_flush
            if task.flush and self._tasks.get(channel_name) is task:
                self._due[channel_name] = None
        if self._later is None and not self._closing:
            # The urgent ones are sent again: a coordinator that is down is not called in a loop.
            longest = self._config.channel_checkpoint_update_tick_in_seconds
            self._dispatch_after(min(longest, _RETRY_DELAY_SECONDS_INITIAL * 2.0 ** min(self._failures - 1, 32)))

    def _dispatch_after(self, seconds: float) -> None:
        """Sends what is due then, and nothing before."""

        async def dispatch_later() -> None:
            await self._clock.sleep(seconds)
            self._later = None
            self._dispatch()

        self._later = asyncio.get_running_loop().create_task(dispatch_later())
