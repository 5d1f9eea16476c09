"""A coordinator in a few lines: R1 and R2 for the datanode's calls, and a judge that reads the real objects.

It is written from the tables of PROTOCOL, not from `coordinator/core`, so that a common misreading would show. After every accepted
call it checks what must hold at any time: no row registered twice, no checkpoint beyond a row that is not registered, every object
complete on disk before it is named.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.errors import (
    ChannelDroppedError,
    DatacoordError,
    FencedError,
    GapError,
    InternalError,
    OverlapError,
    StoreUnavailableError,
)
from datacoord.limits import DEFAULT_PARTITION_NAME
from datacoord.object_metadata import BinlogMetadata
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.positions import START, Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.ports import CheckpointAnswer, CheckpointUpdate

from .harness import DEFAULT_PARTITION, SCHEMA, Message

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY = common_pb2.OUTCOME_ALREADY_APPLIED
DISCARDED = common_pb2.OUTCOME_DISCARDED

Fact = tuple[int, str, int, str]
"""(partition, kind, timestamp, key): one row that must be registered exactly once."""


def expected_facts(messages: Sequence[Message], keyed: bool = True) -> set[Fact]:
    """The rows that a log means, by the rule "the last operation per key of a message; an upsert is a delete and an insert"."""
    facts: set[Fact] = set()
    for one in messages:
        last = {row.key: row for row in one.rows}
        for row in last.values() if keyed else one.rows:
            partition = DEFAULT_PARTITION if row.partition is None else row.partition
            if row.op != "delete":
                facts.add((partition, "insert", one.ts, row.key))
            if keyed:
                facts.add((partition, "delta", one.ts, row.key))
    return facts


@dataclass
class Registered:
    """One registered object."""

    path: str
    partition: int
    kind: BinlogKind
    range_from: int
    range_to: int


@dataclass
class Channel:
    """The stored facts of a channel."""

    name: str
    epoch: int = 0
    checkpoint: Position = START
    progress: dict[int, int] = field(default_factory=dict)
    dropped_lanes: set[int] = field(default_factory=set)
    dropped: bool = False
    binlogs: list[Registered] = field(default_factory=list)
    facts: Counter[Fact] = field(default_factory=Counter)
    log: list[Message] = field(default_factory=list)
    log_drops: list[tuple[int, int]] = field(default_factory=list)
    """Partitions that messages of the log drop, and where."""
    growing: dict[int, int] = field(default_factory=dict)
    consumed: int = 0
    seal_next: bool = False


@dataclass
class Call:
    """One call that the test holds back: it decides how often it arrives and whether it is answered."""

    kind: str
    parts: list[data_coord_pb2.ChannelBinlogs]
    updates: list[CheckpointUpdate]
    answer: asyncio.Future[object]
    partition_id: int = 0


class ModelCoordinator:
    """A CoordinatorPort over R1 and R2.

    Args:
        root: where objects lie.
        primary_key: key columns; empty = append-only.
        auto: answer calls at once; else they wait in `calls` for `deliver`.
    """

    def __init__(self, root: Path, primary_key: tuple[str, ...] = ("key",), auto: bool = True) -> None:
        self.root = root
        self.primary_key = primary_key
        self.auto = auto
        self.calls: list[Call] = []
        self.channels: dict[str, Channel] = {}
        self.saves: list[data_coord_pb2.ChannelBinlogs] = []
        self.updates: list[CheckpointUpdate] = []
        self.refusals: list[DatacoordError] = []
        self.unavailable = False
        self.max_outstanding = 0
        self._outstanding: Counter[tuple[str, int]] = Counter()
        self._epochs = 0
        self._segments = 0

    # ---- what an operator or a job does -------------------------------------------------------------------------------------

    def channel(self, name: str = "c") -> Channel:
        """A channel; it comes to be when it is first asked for."""
        return self.channels.setdefault(name, Channel(name))

    def assign(self, name: str = "c") -> data_coord_pb2.ChannelRecoveryInfo:
        """A new owner: a new epoch, and recovery info of the same moment."""
        self._epochs += 1
        channel = self.channel(name)
        channel.epoch = self._epochs
        lanes = {**dict.fromkeys(channel.dropped_lanes, 0), **channel.progress}
        return data_coord_pb2.ChannelRecoveryInfo(
            channel_name=name,
            channel_id=7,
            collection_id=3,
            collection_name="collection",
            channel_count=1,
            epoch=channel.epoch,
            storage_root=str(self.root),
            arrow_schema=SCHEMA.serialize().to_pybytes(),
            primary_key=self.primary_key,
            timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
            partitions={DEFAULT_PARTITION_NAME: DEFAULT_PARTITION, "other": 12},
            consumed_timestamp=channel.consumed,
            checkpoint=channel.checkpoint.to_proto(name),
            lanes=[
                data_coord_pb2.LaneProgress(partition_id=lane, timestamp=ts, dropped=lane in channel.dropped_lanes)
                for lane, ts in lanes.items()
            ],
        )

    def release(self, name: str, epoch: int, final: Position) -> None:
        """ReleaseChannels."""
        channel = self.channel(name)
        if epoch == channel.epoch:
            self._move(channel, final)
            self._epochs += 1
            channel.epoch = self._epochs

    # ---- CoordinatorPort ----------------------------------------------------------------------------------------------------

    async def save_binlog_paths(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """SaveBinlogPaths for one channel, answered now or when the test says."""
        key = (part.channel_name, part.epoch)
        self._outstanding[key] += 1
        self.max_outstanding = max(self.max_outstanding, self._outstanding[key])
        self.saves.append(part)
        try:
            if self.auto:
                return self.save(part)
            return await self._hold("save", parts=[part])  # type: ignore[return-value]
        finally:
            self._outstanding[key] -= 1

    async def update_channel_checkpoints(
        self, updates: Sequence[CheckpointUpdate], timeout_seconds: float
    ) -> list[CheckpointAnswer]:
        """UpdateChannelCheckpoint."""
        self.updates.extend(updates)
        if self.unavailable:
            raise StoreUnavailableError("the database is away; repeat")
        if self.auto:
            return [self.update(one) for one in updates]
        return await self._hold("update", updates=list(updates))  # type: ignore[return-value]

    def checkpoint_delay_seconds(self) -> float:
        """Never."""
        return 0.0

    async def drop_virtual_channel(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """DropVirtualChannel."""
        self.saves.append(part)
        if self.auto:
            return self.drop(part)
        return await self._hold("drop", parts=[part])  # type: ignore[return-value]

    async def drop_partition(self, collection_name: str, partition_id: int) -> None:
        """DropPartition."""
        assert collection_name == "collection"
        if self.auto:
            self.drop_lanes(partition_id)
            return
        await self._hold("partition", partition_id=partition_id)

    async def _hold(
        self,
        kind: str,
        parts: list[data_coord_pb2.ChannelBinlogs] | None = None,
        updates: list[CheckpointUpdate] | None = None,
        partition_id: int = 0,
    ) -> object:
        call = Call(kind, parts or [], updates or [], asyncio.get_running_loop().create_future(), partition_id)
        self.calls.append(call)
        try:
            return await call.answer
        finally:
            # The caller may be gone; what it sent can still arrive, as on a network.
            pass

    def deliver(self, call: Call, times: int = 1, answer: bool = True) -> None:
        """Lets a held call arrive so often; the last arrival is answered, unless the answer is lost.

        A broker repeats a save whose answer was lost; so the call stays in `calls` until it is answered.
        """
        outcome: object = None
        for _ in range(times):
            try:
                if call.kind == "update":
                    outcome = [self.update(one) for one in call.updates]
                elif call.kind == "partition":
                    self.drop_lanes(call.partition_id)
                else:
                    rule = self.save if call.kind == "save" else self.drop
                    outcome = rule(call.parts[0])
            except DatacoordError as error:
                outcome = error
        if not answer:
            return
        self.calls.remove(call)
        if call.answer.done():
            return
        if isinstance(outcome, DatacoordError):
            call.answer.set_exception(outcome)
        else:
            call.answer.set_result(outcome)

    # ---- R1, R2 -------------------------------------------------------------------------------------------------------------

    def save(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """R1, row by row."""
        self._check_shape(part)
        channel = self._fenced(part.channel_name, part.epoch)
        live = [lane for lane in part.lanes if lane.partition_id not in channel.dropped_lanes]
        for lane in live:
            if lane.timestamp_from > channel.progress.get(lane.partition_id, 0):
                raise self._refuse(GapError(f"gap in {part}"))
        for lane in live:
            if lane.timestamp_from < channel.progress.get(lane.partition_id, 0) < lane.timestamp_to:
                raise self._refuse(OverlapError(f"overlap in {part}"))
        for lane in live:
            if lane.timestamp_from == channel.progress.get(lane.partition_id, 0):
                for _, binlog in _binlogs(lane):
                    if binlog.timestamp_from <= channel.checkpoint.timestamp:
                        raise self._refuse(InternalError(f"BELOW_CHECKPOINT {part}"))
        changed = False
        results = []
        for lane in part.lanes:
            result = self._save_lane(channel, lane)
            changed = changed or result.outcome == APPLIED
            results.append(result)
        if part.HasField("check_point"):
            changed = self._move(channel, Position.from_proto(part.check_point)) or changed
        self.check(channel)
        outcome = APPLIED if changed else ALREADY
        return data_coord_pb2.ChannelResult(channel_name=part.channel_name, outcome=outcome, lanes=results)

    def update(self, update: CheckpointUpdate) -> CheckpointAnswer:
        """R2, UpdateChannelCheckpoint."""
        try:
            channel = self._fenced(update.channel_name, update.epoch)
        except DatacoordError as error:
            return CheckpointAnswer(common_pb2.OUTCOME_UNSPECIFIED, None, error)
        moved = self._move(channel, update.position)
        self.check(channel)
        return CheckpointAnswer(APPLIED if moved else ALREADY, channel.checkpoint, None)

    def drop(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """R2, DropVirtualChannel."""
        if self.channel(part.channel_name).dropped:
            lanes = [data_coord_pb2.LaneResult(partition_id=one.partition_id, outcome=ALREADY) for one in part.lanes]
            return data_coord_pb2.ChannelResult(channel_name=part.channel_name, outcome=ALREADY, lanes=lanes)
        result = self.save(part)
        self.channel(part.channel_name).dropped = True
        result.outcome = APPLIED
        return result

    def drop_lanes(self, partition_id: int) -> None:
        """DropPartition: of every channel. Nothing fences it: it says what the log says."""
        for channel in self.channels.values():
            channel.dropped_lanes.add(partition_id)

    def _fenced(self, name: str, epoch: int) -> Channel:
        channel = self.channel(name)
        if channel.dropped:
            raise self._refuse(ChannelDroppedError(f"{name} is dropped"))
        if epoch != channel.epoch:
            raise self._refuse(FencedError(f"{name} is owned at epoch {channel.epoch}", epoch=channel.epoch))
        return channel

    def _refuse(self, error: DatacoordError) -> DatacoordError:
        self.refusals.append(error)
        return error

    def _move(self, channel: Channel, to: Position) -> bool:
        if to.timestamp <= channel.checkpoint.timestamp:
            return False
        channel.checkpoint = to
        return True

    def _save_lane(self, channel: Channel, lane: data_coord_pb2.LaneBinlogs) -> data_coord_pb2.LaneResult:
        partition = lane.partition_id
        progress = channel.progress.get(partition, 0)
        outcome = APPLIED
        if partition in channel.dropped_lanes:
            outcome = DISCARDED
        elif lane.timestamp_to <= progress:
            outcome = ALREADY
        else:
            self._register(channel, lane)
            progress = channel.progress[partition] = lane.timestamp_to
        state = common_pb2.SEGMENT_STATE_GROWING
        if partition not in channel.growing:
            self._segments += 1
            channel.growing[partition] = self._segments
        segment = channel.growing[partition]
        if channel.seal_next and outcome == APPLIED:
            state = common_pb2.SEGMENT_STATE_SEALED
            del channel.growing[partition]
            channel.seal_next = False
        return data_coord_pb2.LaneResult(
            partition_id=partition, outcome=outcome, segment_id=segment, segment_state=state, progress=progress
        )

    # ---- the judge ----------------------------------------------------------------------------------------------------------

    def _check_shape(self, part: data_coord_pb2.ChannelBinlogs) -> None:
        seen = [lane.partition_id for lane in part.lanes]
        assert len(seen) == len(set(seen)), "a lane stands twice"
        for lane in part.lanes:
            assert lane.timestamp_from < lane.timestamp_to
            assert list(_binlogs(lane)), "a range of a datanode has objects"
            for kind, binlog in _binlogs(lane):
                assert lane.timestamp_from < binlog.timestamp_from <= binlog.timestamp_to <= lane.timestamp_to
                path = BinlogPath(
                    kind, 7, lane.partition_id, part.epoch, lane.timestamp_from, lane.timestamp_to, 0, binlog.log_id
                )
                assert str(path) == binlog.log_path
                self._check_object(binlog, path)

    def _check_object(self, binlog: common_pb2.Binlog, path: BinlogPath) -> None:
        file = self.root / binlog.log_path
        assert file.exists(), "named before it is there"
        assert file.stat().st_size == binlog.log_size_bytes
        parquet = pq.ParquetFile(file)
        facts = BinlogMetadata.from_key_values(parquet.schema_arrow.metadata)
        assert facts.path == path
        assert parquet.metadata.num_rows == binlog.entries_num
        assert (facts.ts_min, facts.ts_max) == (binlog.timestamp_from, binlog.timestamp_to)

    def _register(self, channel: Channel, lane: data_coord_pb2.LaneBinlogs) -> None:
        for kind, binlog in _binlogs(lane):
            channel.binlogs.append(
                Registered(binlog.log_path, lane.partition_id, kind, lane.timestamp_from, lane.timestamp_to)
            )
            table = pq.read_table(self.root / binlog.log_path)
            timestamps = table.column("_timestamp").to_pylist()
            assert timestamps == sorted(timestamps)
            assert (timestamps[0], timestamps[-1]) == (binlog.timestamp_from, binlog.timestamp_to)
            label = "insert" if kind is BinlogKind.INSERT else "delta"
            for ts, key in zip(timestamps, table.column("key").to_pylist(), strict=True):
                channel.facts[lane.partition_id, label, ts, key] += 1

    def check(self, channel: Channel) -> None:
        """What holds at any time: nothing doubled, nothing foreign, nothing missing below checkpoint and progress."""
        doubled = [fact for fact, count in channel.facts.items() if count != 1]
        assert not doubled, f"registered more than once: {doubled}"
        for ts, partition in channel.log_drops:
            known = partition in channel.dropped_lanes or channel.checkpoint.timestamp < ts
            assert known, f"nobody will ever hear again that {partition} was dropped at {ts}"
        expected = expected_facts(channel.log, bool(self.primary_key))
        foreign = channel.facts.keys() - expected
        assert not foreign, f"never in the log: {foreign}"
        for fact in expected - channel.facts.keys():
            partition, _, ts, _ = fact
            if partition in channel.dropped_lanes:
                continue
            assert ts > channel.checkpoint.timestamp, f"lost: {fact} at checkpoint {channel.checkpoint.timestamp}"
            assert ts > channel.progress.get(partition, 0), f"lost: {fact} at progress {channel.progress}"

    def read(self, name: str = "c") -> dict[str, int | None]:
        """The surviving rows of a channel, as a reader sees them: <= C, and a delete hides strictly older rows."""
        channel = self.channel(name)
        limit = channel.checkpoint.timestamp
        inserts: list[tuple[int, str, int | None]] = []
        deletes: dict[str, int] = {}
        for one in channel.binlogs:
            if one.partition in channel.dropped_lanes:
                continue
            table = pq.read_table(self.root / one.path)
            if one.kind is BinlogKind.INSERT:
                columns = (table.column(name).to_pylist() for name in ("_timestamp", "key", "value"))
                inserts.extend(zip(*columns, strict=True))
            else:
                for ts, key in zip(
                    table.column("_timestamp").to_pylist(), table.column("key").to_pylist(), strict=True
                ):
                    if ts <= limit:
                        deletes[key] = max(ts, deletes.get(key, 0))
        alive = [(key, value) for ts, key, value in inserts if ts <= limit and ts >= deletes.get(key, 0)]
        assert len(alive) == len({key for key, _ in alive}), f"a key lives twice: {alive}"
        return dict(alive)


def _binlogs(lane: data_coord_pb2.LaneBinlogs) -> list[tuple[BinlogKind, common_pb2.Binlog]]:
    logs = ((BinlogKind.INSERT, lane.insert_logs), (BinlogKind.DELTA, lane.delta_logs))
    return [(kind, binlog) for kind, fields in logs for one in fields for binlog in one.binlogs]


def final_state(messages: Sequence[Message]) -> dict[str, int | None]:
    """What the log means once everything has been applied in order."""
    state: dict[str, int | None] = {}
    for one in messages:
        for row in one.rows:
            if row.op == "delete":
                state.pop(row.key, None)
            else:
                state[row.key] = row.value
    return state


def arrow_schema_of(file: Path) -> pa.Schema:
    """The Arrow schema of an object."""
    return pq.ParquetFile(file).schema_arrow
