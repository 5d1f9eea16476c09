"""What the store shows: collections, lists and what a flow graph starts from. Plain values, apart from gRPC and from SQL."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from coordinator.core.model import BinlogFacts, ChannelMode, ChannelState, SegmentLevel, SegmentState
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2

T = TypeVar("T")


class TimestampKind(IntEnum):
    """What the timestamps of a source mean; numbers are those of the contract."""

    ORDINAL = 1
    TSO = 2


class DataNodeState(IntEnum):
    """State of a session; numbers are those of the contract. HEALTHY is derived: IDLE and holding channels."""

    INITIALIZING = 1
    IDLE = 2
    HEALTHY = 3
    STOPPING = 4
    ENDED = 5


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list.

    Attributes:
        items: in the order of the list's key.
        next_page_token: empty = this was the last page.
    """

    items: tuple[T, ...]
    next_page_token: str = ""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """Progress of one lane.

    Attributes:
        partition_id: the partition; ALL_PARTITIONS_ID = deletes that name none.
        progress: end of the last registered range.
        dropped: its partition is dropped.
    """

    partition_id: int
    progress: int
    dropped: bool


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment as others see it.

    Attributes:
        segment_id: its number.
        channel_name: its channel.
        partition_id: its partition.
        state: as shown: FLUSHED where it is SEALED and the checkpoint has reached its end.
        level: what it holds.
        rows: rows in insert logs.
        delete_rows: rows in delta logs.
        size_bytes: bytes of its objects.
        binlogs: number of its objects.
        timestamp_from: start (exclusive) of its first range.
        timestamp_to: end of its last range.
        seal_reason: a policy, "requested" or "flush"; empty while growing.
    """

    segment_id: int
    channel_name: str
    partition_id: int
    state: SegmentState
    level: SegmentLevel
    rows: int
    delete_rows: int
    size_bytes: int
    binlogs: int
    timestamp_from: int
    timestamp_to: int
    seal_reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection.

    Attributes:
        collection_id: its number, never reused.
        name: its name.
        arrow_schema: Arrow IPC schema message of its rows.
        primary_key: columns; empty = append-only.
        channel_mode: who may own its channels.
        timestamp_kind: what timestamps mean.
        storage_root: where its objects live.
        properties: free properties.
        channel_count: how many channels it has.
        channel_names: in the order of their index; left out in recovery info.
        partitions: numbers of the partitions that are not dropped, by name.
        create_time_ms: by the database's clock.
    """

    collection_id: int
    name: str
    arrow_schema: bytes
    primary_key: tuple[str, ...]
    channel_mode: ChannelMode
    timestamp_kind: TimestampKind
    storage_root: str
    properties: Mapping[str, str]
    channel_count: int
    channel_names: tuple[str, ...]
    partitions: Mapping[str, int]
    create_time_ms: int


@dataclass(frozen=True, slots=True)
class NewCollection:
    """A collection to create; shape is checked already.

    Attributes:
        name: its name.
        arrow_schema: Arrow IPC schema message of its rows.
        primary_key: columns; empty = append-only.
        channel_count: how many channels.
        channel_mode: who may own them.
        timestamp_kind: what timestamps mean.
        storage_root: where its objects live; empty = `<the store's storage root>/<collection id>`.
        properties: free properties.
    """

    name: str
    arrow_schema: bytes
    primary_key: tuple[str, ...]
    channel_count: int
    channel_mode: ChannelMode
    timestamp_kind: TimestampKind
    storage_root: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecoveryInfo:
    """Everything a flow graph or a sink needs of a channel, of one read.

    Attributes:
        channel_id: its number.
        channel_name: its name.
        channel_index: which of the collection's channels it is.
        collection: its collection, without `channel_names`.
        epoch: what every write must name.
        owner: empty = nobody.
        checkpoint: replay starts after it.
        lanes: every lane that has progress or is dropped.
        growing_segments: the growing segments.
        consumed_timestamp: the largest consumed timestamp any earlier owner has reported.
    """

    channel_id: int
    channel_name: str
    channel_index: int
    collection: Collection
    epoch: int
    owner: str
    checkpoint: Position
    lanes: tuple[LaneProgress, ...]
    growing_segments: tuple[SegmentRow, ...]
    consumed_timestamp: int


@dataclass(frozen=True, slots=True)
class RegisteredBinlog:
    """A registered object.

    Attributes:
        path: relative to the collection's storage root.
        facts: what a save said of it.
        segment_id: its segment.
        partition_id: its partition.
        epoch: of the writer.
        range_from: start of its range, exclusive.
        range_to: end of its range, inclusive.
    """

    path: str
    facts: BinlogFacts
    segment_id: int
    partition_id: int
    epoch: int
    range_from: int
    range_to: int


@dataclass(frozen=True, slots=True)
class ChannelBinlogList:
    """The objects of one channel that readers see, with the checkpoint of the same read.

    Attributes:
        channel_name: the channel.
        checkpoint: readers see rows with timestamp <= this.
        lanes: progress in the same read.
        binlogs: by range.
    """

    channel_name: str
    checkpoint: Position
    lanes: tuple[LaneProgress, ...]
    binlogs: tuple[RegisteredBinlog, ...]


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A channel as operators see it.

    Attributes:
        channel_name: its name.
        collection_name: its collection.
        state: its state.
        mode: who may own it.
        owner: empty = nobody.
        node_id: the owning session of a MANAGED channel; 0 = nobody.
        epoch: now.
        checkpoint: now.
        lanes: progress.
        report: what the owner said last of it; None = nothing yet.
        last_seen_time_ms: when the owner was heard last, by the database's clock; 0 = never.
        flush_timestamp: a flush target that is not reached; 0 = none.
    """

    channel_name: str
    collection_name: str
    state: ChannelState
    mode: ChannelMode
    owner: str
    node_id: int
    epoch: int
    checkpoint: Position
    lanes: tuple[LaneProgress, ...]
    report: data_coord_pb2.DataNodeTtMsg | None
    last_seen_time_ms: int
    flush_timestamp: int


@dataclass(frozen=True, slots=True)
class DataNodeRow:
    """A session as operators see it.

    Attributes:
        node_id: the session.
        job: its job.
        slot: its slot.
        state: as shown.
        host: where it runs.
        pid: its process.
        channels: how many it owns.
        lease_until_time_ms: when its lease ends or ended.
        register_time_ms: when it registered.
        report: what it said last; empty = nothing yet.
    """

    node_id: int
    job: str
    slot: int
    state: DataNodeState
    host: str
    pid: int
    channels: int
    lease_until_time_ms: int
    register_time_ms: int
    report: data_coord_pb2.ReportDataNodeTtMsgsRequest


@dataclass(frozen=True, slots=True)
class FlushTarget:
    """A flush target of one channel.

    Attributes:
        channel_name: the channel.
        timestamp: done here once the checkpoint has reached it.
        checkpoint_timestamp: the checkpoint now.
    """

    channel_name: str
    timestamp: int
    checkpoint_timestamp: int


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush.

    Attributes:
        flush_id: its number.
        targets: one per channel.
    """

    flush_id: int
    targets: tuple[FlushTarget, ...]


@dataclass(frozen=True, slots=True)
class FlushState:
    """How far a flush is.

    Attributes:
        flushed: True: done in every channel.
        pending: channels that have not reached their target, at most 1000.
    """

    flushed: bool
    pending: tuple[FlushTarget, ...]


@dataclass(frozen=True, slots=True)
class LateChannel:
    """A channel that holds a flush back.

    Attributes:
        target: its target, and the checkpoint now.
        collection_name: its collection.
        owner: empty = nobody.
        epoch: its epoch.
        last_seen_time_ms: when the owner was heard last, by the database's clock; 0 = never.
    """

    target: FlushTarget
    collection_name: str
    owner: str
    epoch: int
    last_seen_time_ms: int


@dataclass(frozen=True, slots=True)
class FlushAllState:
    """How far a flush is, with whom it waits for.

    Attributes:
        flushed: True: done in every channel.
        pending_channels: how many have not reached their target.
        pending: those, at most 1000, the one whose owner was heard longest ago first.
    """

    flushed: bool
    pending_channels: int
    pending: tuple[LateChannel, ...]


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """Accepted calls of one RPC by one kind of caller, since the history begins.

    Attributes:
        rpc: the RPC.
        caller: who called.
        calls: how many calls.
        channels: channels in them.
        items: items (positions, lanes, …) in them.
    """

    rpc: str
    caller: str
    calls: int
    channels: int
    items: int
