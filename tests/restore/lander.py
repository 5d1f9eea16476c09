"""A source of two channels and a writer of it that may live in a time that a restore undoes."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from store.support import CALLER, position
from verify.stage import Stage

from coordinator.core.model import BinlogFacts, LaneSave, Save
from coordinator.store import CheckpointMove, Store
from datacoord.paths import BinlogKind


def partition_of(stage: Stage, timestamp: int) -> int:
    """Every third row goes to the other partition: its lane lags behind the first one."""
    return stage.world.other if timestamp % 3 == 0 else stage.world.default


@dataclass
class Lander:
    """Lands the MANAGED collection of a stage: a row per timestamp.

    Attributes:
        stage: where.
        sent: every save that was sent, to be sent again by a zombie.
    """

    stage: Stage
    sent: list[Save] = field(default_factory=list)

    async def land(self, store: Store, until: int, *, step: int, send: bool = True) -> None:
        """Reads both channels from their checkpoints, filters what is registered, and saves; objects of `step` rows at most.

        Args:
            store: which coordinator it talks to.
            until: last timestamp.
            step: rows of a range.
            send: False: objects are written, and the writer stands still before it sends.
        """
        for channel in self.stage.world.channels:
            (info,) = (await store.recovery_info(channel_names=[channel])).items
            ends = {lane.partition_id: lane.progress for lane in info.lanes}
            for begin in range(info.checkpoint.timestamp, until, step):
                end = min(begin + step, until)
                lanes = []
                for partition_id in (self.stage.world.default, self.stage.world.other):
                    start = ends.get(partition_id, 0)
                    floor = max(start, info.checkpoint.timestamp)
                    rows = [t for t in range(floor + 1, end + 1) if partition_of(self.stage, t) == partition_id]
                    if not rows or end <= start:
                        continue
                    path = self.stage.path(info.channel_id, partition_id, info.epoch, start, end)
                    size = self.stage.create(self.stage.world.collection, path, timestamps=rows)
                    facts = BinlogFacts(BinlogKind.INSERT, 0, path.log_id, len(rows), rows[0], rows[-1], size, size)
                    lanes.append(LaneSave(partition_id, start, end, (facts,)))
                    ends[partition_id] = end
                save = Save(channel, info.epoch, tuple(lanes), position(end))
                if not send:
                    self.sent.append(save)
                    break
                await self._send(store, save)

    async def _send(self, store: Store, save: Save) -> None:
        self.sent.append(save)
        (answer,) = await store.save_binlog_paths([save], caller=CALLER)
        assert answer.refusal is None, answer.refusal

    async def haunt(self, store: Store) -> set[str]:
        """Sends every save and checkpoint of its life again; how they were refused."""
        refused = set()
        for save in self.sent:
            (answer,) = await store.save_binlog_paths([save], caller=CALLER)
            refused.add(answer.refusal.reason.value if answer.refusal else "accepted")
            move = CheckpointMove(save.channel_name, save.epoch, position(10**6))
            (moved,) = await store.update_channel_checkpoints([move], caller=CALLER)
            refused.add(moved.refusal.reason.value if moved.refusal else "accepted")
        return refused


async def landed(store: Store, stage: Stage) -> dict[str, Counter[int]]:
    """How often each row is registered, by channel."""
    root = Path(stage.world.collection.storage_root)
    found = {}
    for channel in (await store.list_binlogs("managed")).items:
        rows: Counter[int] = Counter()
        for binlog in channel.binlogs:
            rows.update(pq.read_table(root / binlog.path).column("_timestamp").to_pylist())
        found[channel.channel_name] = rows
    return found


async def registered(store: Store) -> set[str]:
    """Paths of the collection's registered objects."""
    return {binlog.path for channel in (await store.list_binlogs("managed")).items for binlog in channel.binlogs}
