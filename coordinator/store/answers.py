"""What the store takes and answers: plain values, apart from gRPC and from SQL."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from coordinator.core.model import (
    BinlogFacts,
    ChannelFacts,
    ChannelMode,
    ChannelState,
    Outcome,
    SegmentLevel,
    SegmentState,
)
from coordinator.core.segments import SealPolicy
from datacoord.errors import Refusal
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


def _holder() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Settings of the store.

    Attributes:
        storage_root: where collections keep their objects that name no root of their own: `<storage_root>/<collection id>`.
        seal_policy: when growing segments are closed.
        datanode_lease_ms: a session ends when nothing is heard of it for this long.
        claim_lease_ms: a claim may be taken over when nothing is heard of the claimant for this long.
        job_lease_ms: a background job may be taken over when its holder has not run it for this long.
        job_holder: name of this process among those that run background jobs.
        group_items_max: items (positions, lanes) of one transaction; a call is never split.
        group_bytes_max: bytes of the calls of one transaction, about.
        queue_items_max: items that may wait; beyond it calls are refused with OVERLOADED.
        linger_ms: how long a write waits for others while transactions follow each other; 0 = never.
        busy_timeout_ms: how long a transaction waits for another process's lock on the database.
    """

    storage_root: str
    seal_policy: SealPolicy = field(default_factory=SealPolicy)
    datanode_lease_ms: int = 15_000
    claim_lease_ms: int = 60_000
    job_lease_ms: int = 10_000
    job_holder: str = field(default_factory=_holder)
    group_items_max: int = 4096
    group_bytes_max: int = 16 * 1024 * 1024
    queue_items_max: int = 65_536
    linger_ms: float = 0.0
    busy_timeout_ms: int = 5_000


@dataclass(slots=True)
class StoreStatistics:
    """What the store has done since it was opened; read it, do not write it.

    Attributes:
        groups: transactions of the queue that were committed.
        items: items in them.
        fast_items: checkpoint entries that the guarded bulk statement took.
        commit_seconds: time spent in COMMIT.
        group_seconds: time spent in whole transactions.
        queued_items: items waiting now.
        queued_calls: calls waiting now.
        rejected_calls: calls refused with OVERLOADED.
        expired_calls: calls dropped because their deadline was over.
        unknown_outcomes: transactions whose outcome is not known.
        invariant_violations: writes that a guard in SQL stopped although core allowed them; must stay 0.
    """

    groups: int = 0
    items: int = 0
    fast_items: int = 0
    commit_seconds: float = 0.0
    group_seconds: float = 0.0
    queued_items: int = 0
    queued_calls: int = 0
    rejected_calls: int = 0
    expired_calls: int = 0
    unknown_outcomes: int = 0
    invariant_violations: int = 0


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
class ChannelIdentity:
    """What never changes of a channel: what shape checks need.

    Attributes:
        channel_id: its number, as it stands in object paths.
        collection_id: its collection.
        mode: who may own it.
    """

    channel_id: int
    collection_id: int
    mode: ChannelMode


@dataclass(frozen=True, slots=True)
class CheckpointMove:
    """One entry of UpdateChannelCheckpoint.

    Attributes:
        channel_name: the channel.
        epoch: of the writer.
        position: where to.
    """

    channel_name: str
    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class ChannelRelease:
    """One channel to hand back.

    Attributes:
        channel_name: the channel.
        epoch: it is held at.
        position: everything up to here is registered; None = the checkpoint stays.
    """

    channel_name: str
    epoch: int
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class LaneAnswer:
    """What happened to one lane of a save.

    Attributes:
        partition_id: the partition.
        outcome: APPLIED, ALREADY_APPLIED or DISCARDED.
        segment_id: where the range's objects went; where this call registered none: the growing segment; 0 = there is none.
        segment_state: state of that segment after the call; None = there is none.
        progress: of the lane after the call.
    """

    partition_id: int
    outcome: Outcome
    segment_id: int
    segment_state: SegmentState | None
    progress: int


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """What happened to one channel of a write.

    Attributes:
        outcome: APPLIED or ALREADY_APPLIED; None when refused.
        refusal: why not; None when accepted.
        lanes: of a save, in the order of the request; empty when refused.
        facts: what is stored after the call, with the lanes the call named; None where the channel is not known, and for a
            checkpoint that was APPLIED (it is what was sent).
    """

    outcome: Outcome | None
    refusal: Refusal | None = None
    lanes: tuple[LaneAnswer, ...] = ()
    facts: ChannelFacts | None = None


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
class ClaimAnswer:
    """What happened to one claimed channel.

    Attributes:
        channel_name: the channel.
        info: set when the channel is the caller's now.
        refusal: set when it is not.
    """

    channel_name: str
    info: RecoveryInfo | None
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class Session:
    """A session that begins.

    Attributes:
        node_id: the session, never reused.
        lease_ms: it ends when nothing is heard of it for this long.
    """

    node_id: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session after a report.

    Attributes:
        state: its state.
        lease_ms: the lease was renewed for this long.
    """

    state: DataNodeState
    lease_ms: int


@dataclass(frozen=True, slots=True)
class WatchedChannel:
    """One channel of a desired state.

    Attributes:
        channel_name: the channel.
        epoch: to hold it at.
        release: drain it and hand it back.
        flush_timestamp: make everything up to here durable; 0 = no flush wanted.
    """

    channel_name: str
    epoch: int
    release: bool
    flush_timestamp: int


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What a datanode should hold, whole.

    Attributes:
        revision: grows with every change of it.
        channels: by number.
    """

    revision: int
    channels: tuple[WatchedChannel, ...]


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


@dataclass(frozen=True, slots=True)
class LeaseRound:
    """One round of the lease job.

    Attributes:
        ran: False: another process holds the job.
        ended: the sessions that were ended.
        freed_channels: how many channels lost their owner.
    """

    ran: bool
    ended: tuple[int, ...] = ()
    freed_channels: int = 0


@dataclass(frozen=True, slots=True)
class AssignmentRound:
    """One round of the assignment job.

    Attributes:
        ran: False: another process holds the job.
        assigned: channels given to a session.
        asked_to_release: channels whose owner was asked to hand them back.
        unassigned: MANAGED channels that nobody owns afterwards.
    """

    ran: bool
    assigned: int = 0
    asked_to_release: int = 0
    unassigned: int = 0


@dataclass(frozen=True, slots=True)
class SealRound:
    """One round of the sealing job.

    Attributes:
        ran: False: another process holds the job.
        sealed: segments sealed, by reason.
    """

    ran: bool
    sealed: Mapping[str, int] = field(default_factory=dict)
