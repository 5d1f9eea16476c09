"""The kills of the demo, each at the worst moment that can be made to happen on purpose.

A limit that all readers honour stops the job at fixed points of progress; failpoints hold the processes there:

1. a datanode dies with rows in its buffers and objects that are written and not registered;
2. the coordinator dies with a transaction committed and its reply not sent, while datanodes hold rows and wait for answers.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datacoord.demo.failpoint_files import AFTER_COMMIT, OBJECTS_WRITTEN, FailpointFiles
from datacoord.demo.observe import Observer, Seen
from datacoord.demo.services import CoordinatorProcess
from datacoord.errors import SourceInvalidError
from datacoord.v1 import admin_pb2, data_coord_pb2

_STEP_SECONDS_MAX = 180.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Kill:
    """One survived kill.

    Attributes:
        victim: what was killed.
        buffered_rows: rows in the buffers of the datanodes concerned at that moment, as last reported.
        syncs_in_flight: their syncs that were cut and not answered.
        recovery_seconds: from the kill until every channel concerned was owned again and had consumed what it had before.
    """

    victim: str
    buffered_rows: int
    syncs_in_flight: int
    recovery_seconds: float


class HeadLimit:
    """The file that tells all readers how far they may read yet.

    Args:
        path: the file.
        last_timestamp: the end of the input.
    """

    def __init__(self, path: Path, last_timestamp: int) -> None:
        self.path = path
        self.last_timestamp = last_timestamp

    def set_share(self, share: float) -> int:
        """Lets readers go on up to a share of the input; returns the timestamp."""
        limit = max(1, int(self.last_timestamp * share))
        fresh = self.path.with_suffix(".new")
        fresh.write_text(str(limit))
        fresh.replace(self.path)
        return limit

    def lift(self) -> None:
        """Lets readers go on to the end."""
        self.set_share(1.0)


def _load(nodes: list[admin_pb2.DataNodeInfo]) -> tuple[int, int]:
    """Rows buffered and syncs in flight of some datanodes."""
    msgs = [msg for node in nodes for msg in node.msgs]
    return sum(msg.buffered_rows for msg in msgs), sum(msg.syncs_in_flight for msg in msgs)


def _busy(seen: Seen, held_pids: set[int]) -> list[admin_pb2.DataNodeInfo]:
    """Datanodes that hold rows and have objects written that are not registered."""
    nodes = [node for node in seen.alive() if node.pid in held_pids]
    return [node for node in nodes if min(_load([node])) > 0]


def _is_all_cut(seen: Seen, end: int) -> bool:
    """Everything up to the limit is consumed and no row is in a buffer any more: it will not get busier than this."""
    consumed = all(timestamp >= end for timestamp in seen.consumed().values())
    return bool(seen.channels) and consumed and _load(seen.alive())[0] == 0


class Saboteur:
    """Kills processes at fixed points of progress.

    Args:
        observer: sees the job.
        failpoints: of the demo's processes.
        limit: of all readers.
        coordinator: the process to kill and to bring back.
        say: tells people.
    """

    def __init__(
        self,
        observer: Observer,
        failpoints: FailpointFiles,
        limit: HeadLimit,
        coordinator: CoordinatorProcess,
        say: Callable[[str], None],
    ) -> None:
        self._observer = observer
        self._failpoints = failpoints
        self._limit = limit
        self._coordinator = coordinator
        self._say = say

    def kill_all(self) -> list[Kill]:
        """Kills a datanode, then the coordinator; waits each time until the job has recovered."""
        kills = []
        for kill in (self.kill_datanode, self.kill_coordinator):
            kills.append(kill())
            self._say(f"recovered after {kills[-1].recovery_seconds:.2f} s")
        return kills

    def kill_datanode(self) -> Kill:
        """Stops the input at a quarter, lets it go on to the half, and kills a datanode on the way."""
        victim = max(self._catch_busy_datanodes(0.25, 0.5), key=lambda node: _load([node]))
        buffered, in_flight = _load([victim])
        name = f"datanode {victim.slot} (process {victim.pid}, {len(victim.msgs)} channels)"
        self._say(f"killing {name} with {buffered:,} rows buffered and {in_flight} syncs in flight")
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        self._failpoints.forget(OBJECTS_WRITTEN, victim.pid)
        self._failpoints.release(OBJECTS_WRITTEN)
        held = {msg.channel_name: msg for msg in victim.msgs}
        self._observer.wait_until(
            lambda seen: all(_caught_up(seen.channels[name], msg) for name, msg in held.items()),
            "the channels of the killed datanode to catch up under new epochs",
            _STEP_SECONDS_MAX,
        )
        return Kill(name, buffered, in_flight, time.monotonic() - killed_at)

    def kill_coordinator(self) -> Kill:
        """Lets the input go on to three quarters and kills the coordinator between a commit and its reply."""
        busy = self._catch_busy_datanodes(0.5, 0.75)
        buffered, in_flight = _load(busy)
        before = {name: channel.checkpoint.timestamp for name, channel in self._observer.last.channels.items()}
        pid = self._coordinator.endpoints.pid
        self._failpoints.hold(AFTER_COMMIT)
        self._failpoints.release(OBJECTS_WRITTEN)
        self._wait_for_hold(AFTER_COMMIT, pid)
        self._say(f"killing the coordinator (process {pid}) between a commit and its reply")
        killed_at = time.monotonic()
        self._coordinator.kill()
        self._failpoints.forget(AFTER_COMMIT, pid)
        self._failpoints.release(AFTER_COMMIT)
        self._coordinator.start()
        self._observer.wait_until(
            lambda seen: any(channel.checkpoint.timestamp > before[name] for name, channel in seen.channels.items()),
            "the restarted coordinator to take a save",
            _STEP_SECONDS_MAX,
        )
        return Kill(f"coordinator (process {pid})", buffered, in_flight, time.monotonic() - killed_at)

    def _catch_busy_datanodes(self, start_share: float, end_share: float) -> list[admin_pb2.DataNodeInfo]:
        """Lets all channels come to a point, holds every save, and lets them go on until rows are buffered beside a held one."""
        start = self._limit.set_share(start_share)
        self._observer.wait_until(
            lambda seen: bool(seen.channels) and all(timestamp >= start for timestamp in seen.consumed().values()),
            f"all channels to consume {start_share:.0%} of the input",
            _STEP_SECONDS_MAX,
        )
        self._failpoints.hold(OBJECTS_WRITTEN)
        end = self._limit.set_share(end_share)
        seen = self._observer.wait_until(
            lambda seen: bool(self._busy(seen)) or _is_all_cut(seen, end),
            "a datanode with rows buffered and a sync in flight",
            _STEP_SECONDS_MAX,
        )
        busy = self._busy(seen)
        if not busy:
            raise SourceInvalidError(
                f"the input is too small to kill anything in the middle of it: from {start_share:.0%} to {end_share:.0%} there "
                "was no moment with rows in buffers beside a sync in flight; take a larger one, or leave the killing out "
                "(`make demo KILL=0`, `datacoord demo --no-kill`)"
            )
        return busy

    def _busy(self, seen: Seen) -> list[admin_pb2.DataNodeInfo]:
        return _busy(seen, self._failpoints.held(OBJECTS_WRITTEN))

    def _wait_for_hold(self, point: str, pid: int) -> None:
        deadline = time.monotonic() + _STEP_SECONDS_MAX
        while pid not in self._failpoints.held(point):
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} did not come to {point} in {_STEP_SECONDS_MAX:.0f} s")
            time.sleep(_POLL_SECONDS)


def _caught_up(channel: admin_pb2.ChannelInfo, before: data_coord_pb2.DataNodeTtMsg) -> bool:
    """Somebody owns the channel at a later epoch and has consumed what the killed owner had reported."""
    consumed = max(channel.report.timestamp, channel.checkpoint.timestamp)
    return channel.epoch > before.epoch and channel.node_id != 0 and consumed >= before.timestamp
