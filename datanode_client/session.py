"""One session of a datanode: heartbeats, desired states, and the channels held under it."""

import asyncio
import contextlib
from enum import StrEnum

import structlog

from datacoord.errors import DatacoordError, SessionNotFoundError
from datacoord.limits import REPORTED_METRICS_MAX
from datacoord.v1 import data_coord_pb2
from datanode_client.broker import Broker
from datanode_client.calls import Backoff, worth_a_line
from datanode_client.channel_hold import ChannelHold, HoldContext, Restarts
from datanode_client.client_config import SessionConfig
from datanode_client.desired_state import plan
from datanode_client.metrics import DataNodeMetrics

_log = structlog.get_logger(__name__)


class SessionEnd(StrEnum):
    """Why a session ended."""

    STOPPED = "stopped"
    """All channels were handed back."""
    LOST = "lost"
    """The coordinator does not know it any more: its lease ran out, or the slot registered again."""


class ChannelMemory:
    """What a process remembers of channels beyond a session: an epoch has one graph, whichever session it came in.

    Args:
        config: waiting before failed graphs come again.
    """

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self.epochs_seen: dict[str, int] = {}
        self._restarts: dict[str, Restarts] = {}

    def restarts(self, channel_name: str) -> Restarts:
        """How often the channel's graphs have failed lately, and why."""
        return self._restarts.setdefault(channel_name, Restarts(self._config))


class DataNodeSession:
    """Runs one session.

    Args:
        registration: what RegisterDataNode answered.
        context: what the holds share.
        memory: epochs seen and failures of the process.
        metrics: what heartbeats report.
    """

    def __init__(
        self,
        registration: data_coord_pb2.RegisterDataNodeResponse,
        context: HoldContext,
        memory: ChannelMemory,
        metrics: DataNodeMetrics,
    ) -> None:
        self.node_id = registration.node_id
        self._interval_seconds = registration.heartbeat_interval_ms / 1000
        self._context = context
        self._broker: Broker = context.broker
        self._memory = memory
        self._metrics = metrics
        self._holds: dict[str, ChannelHold] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._revision = -1
        self._dropped_partitions: frozenset[int] = frozenset()
        self._stop_asked = asyncio.Event()
        self._heartbeat_wanted = asyncio.Event()
        self._nothing_held = asyncio.Event()
        self._nothing_held.set()

    def stop(self) -> None:
        """Asks for all channels to be handed back and the session to end."""
        if not self._stop_asked.is_set():
            _log.info("session_stopping", node_id=self.node_id, channels=len(self._holds))
            self._stop_asked.set()
            self._heartbeat_wanted.set()

    async def run(self) -> SessionEnd:
        """Runs until the session is over. STOPPED: everything is handed back, and `farewell` is still to be said."""
        lost = [asyncio.create_task(self._report_for_ever()), asyncio.create_task(self._watch_for_ever())]
        stopped = asyncio.create_task(self._hand_everything_back())
        try:
            await asyncio.wait([*lost, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in lost:
                if task.done():
                    task.result()
                    return SessionEnd.LOST
            stopped.result()
            return SessionEnd.STOPPED
        finally:
            for task in (*lost, stopped):
                task.cancel()
            await asyncio.gather(*lost, stopped, return_exceptions=True)
            await asyncio.gather(*(hold.close() for hold in list(self._holds.values())), *self._closing)

    async def farewell(self) -> None:
        """Says the last report and closes the session. Nothing is lost if it is not heard: the lease runs out then."""
        report = self._report()
        report.ended = True
        try:
            await self._broker.heartbeat(report, give_up_seconds=self._context.config.farewell_seconds)
        except SessionNotFoundError:
            return
        except DatacoordError as error:
            _log.warning("farewell_not_heard", node_id=self.node_id, reason=error.reason.value)

    async def _report_for_ever(self) -> None:
        failures = 0
        while True:
            self._heartbeat_wanted.clear()
            try:
                answer = await self._broker.heartbeat(self._report())
            except SessionNotFoundError:
                return
            except DatacoordError as error:
                # The coordinator may be away for long: graphs go on, their saves wait, and fences keep it safe.
                failures += 1
                if worth_a_line(failures):
                    reason = error.reason.value
                    _log.warning("heartbeat_failed", node_id=self.node_id, reason=reason, failures=failures)
            else:
                failures = 0
                if answer.state == data_coord_pb2.DATA_NODE_STATE_ENDED:
                    return
                if answer.state == data_coord_pb2.DATA_NODE_STATE_STOPPING:
                    self.stop()  # somebody asked for it through the coordinator: a job that stops, an operator
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds):
                    await self._heartbeat_wanted.wait()

    def _report(self) -> data_coord_pb2.ReportDataNodeTtMsgsRequest:
        reports = (hold.report() for hold in self._holds.values())
        metrics = self._metrics.export()
        return data_coord_pb2.ReportDataNodeTtMsgsRequest(
            node_id=self.node_id,
            msgs=[report for report in reports if report is not None],
            metrics=dict(sorted(metrics.items())[:REPORTED_METRICS_MAX]),
            stopping=self._stop_asked.is_set(),
        )

    async def _watch_for_ever(self) -> None:
        backoff = Backoff(self._context.config.restart)
        while True:
            try:
                async with contextlib.aclosing(self._broker.watch(self.node_id)) as states:
                    async for state in states:
                        backoff.reset()
                        self._apply(state)
            except SessionNotFoundError:
                return
            except DatacoordError as error:
                _log.error("watch_refused", node_id=self.node_id, reason=error.reason.value, message=error.message)
                await asyncio.sleep(backoff.next_delay_seconds())

    def _apply(self, state: data_coord_pb2.WatchDmChannelsResponse) -> None:
        if state.revision <= self._revision:
            return
        self._revision = state.revision
        held = {name: hold.epoch for name, hold in self._holds.items()}
        actions = plan(state.channels, held, self._memory.epochs_seen)
        for name in actions.close:
            self._drop(self._holds[name])
        for watch in actions.order:
            self._holds[watch.channel_name].order(watch)
        if (dropped := frozenset(state.dropped_partition_ids)) != self._dropped_partitions:
            self._dropped_partitions = dropped
            for hold in self._holds.values():
                hold.drop_partitions(dropped)
        for watch in actions.start:
            self._hold(watch)
        for watch in actions.hand_back:
            self._hold(watch).release()
        _log.debug("desired_state_applied", node_id=self.node_id, revision=state.revision, channels=len(self._holds))

    def _hold(self, watch: data_coord_pb2.VchannelWatch) -> ChannelHold:
        name = watch.channel_name
        self._memory.epochs_seen[name] = watch.epoch
        hold = ChannelHold(name, watch.epoch, self._context, self._memory.restarts(name), self._on_over)
        self._holds[name] = hold
        self._nothing_held.clear()
        hold.order(watch)
        if self._stop_asked.is_set():
            hold.release()
        hold.start()
        return hold

    def _drop(self, hold: ChannelHold) -> None:
        """Forgets a hold at once and closes it beside: its successor under another epoch need not wait for it."""
        self._on_over(hold)
        closing = asyncio.create_task(hold.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _on_over(self, hold: ChannelHold) -> None:
        if self._holds.get(hold.channel_name) is hold:
            del self._holds[hold.channel_name]
        if not self._holds:
            self._nothing_held.set()

    async def _hand_everything_back(self) -> None:
        await self._stop_asked.wait()
        for hold in self._holds.values():
            hold.release()
        try:
            async with asyncio.timeout(self._context.config.stop_timeout_seconds):
                await self._nothing_held.wait()
        except TimeoutError:
            _log.warning("stop_timed_out", node_id=self.node_id, channels=sorted(self._holds))
