"""The tt node: reports the channel's checkpoint, now and then, and at once when a flush waits for it."""

from collections.abc import Callable

from datacoord.errors import DatacoordError
from datanode_client.checkpoint_updater import ChannelCheckpointUpdater
from datanode_client.clock import Clock
from datanode_client.ports import CheckpointAnswer
from datanode_client.writebuffer.write_buffer import WriteBuffer


class TTNode:
    """Last node of the flow graph.

    Saves carry checkpoints too; what is reported here is what no save carried: ticks, filtered rows, the end of a channel.

    Args:
        epoch: of the flow graph.
        write_buffer: of the channel.
        updater: of the process.
        interval_seconds: between reports that nobody waits for.
        clock: elapsed time.
        on_error: told of a refusal.
    """

    def __init__(
        self,
        *,
        epoch: int,
        write_buffer: WriteBuffer,
        updater: ChannelCheckpointUpdater,
        interval_seconds: float,
        clock: Clock,
        on_error: Callable[[DatacoordError], None],
    ) -> None:
        self._epoch = epoch
        self._write_buffer = write_buffer
        self._updater = updater
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._on_error = on_error
        self._last_update = clock.monotonic()
        self._channel_ended = False
        self._drop_mode = False

    def operate(self) -> None:
        """Reports the checkpoint if it is time or somebody waits for it."""
        if self._drop_mode:
            return
        urgent = self._channel_ended or self._write_buffer.flush_is_pending
        now = self._clock.monotonic()
        if not urgent and now - self._last_update < self._interval_seconds:
            return
        checkpoint = self._write_buffer.get_checkpoint()
        # A flush waits for its target, nothing less; what is due by time is not held up by a flush that waits.
        wanted = self._channel_ended or checkpoint.timestamp >= self._write_buffer.flush_timestamp
        urgent = urgent and wanted
        if not urgent and now - self._last_update < self._interval_seconds:
            return
        self._last_update = now
        if checkpoint.timestamp > self._write_buffer.persisted.timestamp:
            name = self._write_buffer.channel_name
            self._updater.add_task(name, self._epoch, checkpoint, flush=urgent, callback=self._answered)

    def end_channel(self) -> None:
        """The source has ended: whoever reads the collection waits for the checkpoint to reach the end."""
        self._channel_ended = True

    def enter_drop_mode(self) -> None:
        """No checkpoint is reported any more: the channel is being dropped."""
        self._drop_mode = True
        self.forget()

    def forget(self) -> None:
        """Withdraws what waits to be reported: the graph is gone, or somebody else reports."""
        self._updater.remove_task(self._write_buffer.channel_name, self._epoch)

    def _answered(self, answer: CheckpointAnswer) -> None:
        if answer.error is not None:
            self._on_error(answer.error)
        elif answer.persisted is not None:
            self._write_buffer.notify_checkpoint_updated(answer.persisted)
