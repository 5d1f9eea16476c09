"""Settings of the store, and what its writes take and answer. Plain values, apart from gRPC and from SQL."""

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.core.model import ChannelFacts, ChannelMode, Outcome, SegmentState
from coordinator.core.segments import SealPolicy
from coordinator.store.listings import DataNodeState, RecoveryInfo
from datacoord.errors import Refusal
from datacoord.positions import Position

_LARGEST_GROUPS = 4


def _holder() -> str:
    # Containers of one host name may well have one number of process, too: without the rest each would take the other's lease for
    # its own.
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


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
        alone: no other process serves this database, for certain: leases of jobs that others held are over.
        group_items_max: items (positions, lanes) of one transaction; a call is never split.
        group_bytes_max: bytes of the calls of one transaction, about; up to four times as many while much waits.
        queue_items_max: items that may wait; beyond it calls are refused with OVERLOADED.
        queue_bytes_max: bytes, about, of the calls that may wait; likewise.
        gap_ms: after a transaction of several calls the next one waits while calls follow one another within this time, for 20 ms
            at most and not longer than half of what that one took; longer where transactions hold the loop and calls are
            refused, or still came when the last wait ended. 0 = never.
        busy_timeout_ms: how long a transaction waits for another process's lock on the database.
    """

    storage_root: str
    seal_policy: SealPolicy = field(default_factory=SealPolicy)
    datanode_lease_ms: int = 15_000
    claim_lease_ms: int = 60_000
    job_lease_ms: int = 5_000
    job_holder: str = field(default_factory=_holder)
    alone: bool = False
    group_items_max: int = 4096
    group_bytes_max: int = 512 * 1024
    queue_items_max: int = 65_536
    queue_bytes_max: int = 256 * 1024 * 1024
    gap_ms: float = 0.0
    busy_timeout_ms: int = 5_000

    def group_bytes(self, queued_bytes: int) -> int:
        """Bytes of the next transaction: half of what waits, where that is more than usual, and at most four times as many.

        A lane of a large transaction costs less than one of a small one, and whoever waits so long anyway waits little longer.

        Args:
            queued_bytes: that wait.
        """
        return max(self.group_bytes_max, min(queued_bytes // 2, _LARGEST_GROUPS * self.group_bytes_max))

    def times_usual(self, size_bytes: int) -> float:
        """How many times as large as usual transactions may be one of so many bytes is, at least 1."""
        return max(1.0, size_bytes / self.group_bytes_max)


@dataclass(slots=True)
class StoreStatistics:
    """What the store has done since it was opened; read it, do not write it.

    Attributes:
        groups: transactions of the queue that were committed.
        fast_items: checkpoint entries that the guarded bulk statement took.
        commit_seconds: time spent in COMMIT.
        queued_items: items waiting now.
        queued_calls: calls waiting now.
        queued_bytes: bytes of them, about.
        rejected_calls: calls refused with OVERLOADED.
        expired_calls: calls dropped because their deadline was over.
        unknown_outcomes: transactions whose outcome is not known.
        invariant_violations: writes that a guard in SQL stopped although core allowed them; must stay 0.
    """

    groups: int = 0
    fast_items: int = 0
    commit_seconds: float = 0.0
    queued_items: int = 0
    queued_calls: int = 0
    queued_bytes: int = 0
    rejected_calls: int = 0
    expired_calls: int = 0
    unknown_outcomes: int = 0
    invariant_violations: int = 0


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


CheckpointEntry = tuple[str, int, int, int, bytes, str]
"""One entry of UpdateChannelCheckpoint on the hot path: channel name, epoch, and the timestamp, event time, msg_id and msg_group of
the position."""


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

    def entry(self) -> CheckpointEntry:
        """The same, flat."""
        p = self.position
        return (self.channel_name, self.epoch, p.timestamp, p.event_time_ms, p.msg_id, p.msg_group)


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


class LaneAnswer(NamedTuple):
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


class WriteAnswer(NamedTuple):
    """What happened to one channel of a write.

    Attributes:
        outcome: APPLIED or ALREADY_APPLIED; None when refused.
        refusal: why not; None when accepted.
        lanes: of a save, in the order of the request; empty when refused.
        facts: what is stored after the call, with the lanes the call named; None where the channel is not known, and where all
            of a checkpoint or of a save was APPLIED (it is what was sent).
    """

    outcome: Outcome | None
    refusal: Refusal | None = None
    lanes: tuple[LaneAnswer, ...] = ()
    facts: ChannelFacts | None = None


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
        dropped_partitions: of the collections of these channels.
    """

    revision: int
    channels: tuple[WatchedChannel, ...]
    dropped_partitions: tuple[int, ...] = ()


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
