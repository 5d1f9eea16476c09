"""What travels through the puller, decoded: rows and messages of the change feed, changes, and resolved timestamps.

Rows are plain dataclasses without `frozen`, for they are made by the million; nobody changes one after it was made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from datanode_client.puller.span import Span


class LogType(IntEnum):
    """Kind of a row of the change feed, numbered as in cdcpb."""

    UNKNOWN = 0
    PREWRITE = 1
    """A lock with the value to come: cached until its commit or rollback."""
    COMMIT = 2
    """A commit seen live; it has no value, its prewrite has."""
    ROLLBACK = 3
    COMMITTED = 4
    """Prewrite and commit in one, from the incremental scan (or one-phase commit)."""
    INITIALIZED = 5
    """The incremental scan of the region is over; has no key."""


class OpType(IntEnum):
    """What a change does, numbered as in cdcpb."""

    UNKNOWN = 0
    PUT = 1
    DELETE = 2


@dataclass(slots=True)
class Row:
    """A row of the change feed (cdcpb's Event.Row).

    Attributes:
        type: kind of the row.
        start_ts: when its transaction began.
        commit_ts: when it committed; 0 for prewrites and rollbacks.
        key: not memcomparable.
        value: the new value; empty for deletes and live commits.
        old_value: the value before; empty if there was none.
        op_type: PUT or DELETE; UNKNOWN where the type has none.
        generation: of a pipelined transaction, which writes one key several times; the highest counts.
    """

    type: LogType
    start_ts: int = 0
    commit_ts: int = 0
    key: bytes = b""
    value: bytes = b""
    old_value: bytes = b""
    op_type: OpType = OpType.UNKNOWN
    generation: int = 0


@dataclass(slots=True)
class RawKVEntry:
    """One committed change.

    Attributes:
        op_type: PUT or DELETE.
        key: not memcomparable.
        value: the new value.
        old_value: the value before; empty if there was none.
        start_ts: when its transaction began.
        commit_ts: when it committed.
        region_id: the region it came from.
    """

    op_type: OpType
    key: bytes
    value: bytes
    old_value: bytes
    start_ts: int
    commit_ts: int
    region_id: int = 0


class RegionErrorKind(StrEnum):
    """Every way in which a region can fail: cdcpb's errors first, then what the client finds itself."""

    NOT_LEADER = "not_leader"
    REGION_NOT_FOUND = "region_not_found"
    EPOCH_NOT_MATCH = "epoch_not_match"
    DUPLICATE_REQUEST = "duplicate_request"
    COMPATIBILITY = "compatibility"
    CLUSTER_ID_MISMATCH = "cluster_id_mismatch"
    SERVER_IS_BUSY = "server_is_busy"
    CONGESTED = "congested"
    UNKNOWN = "unknown"
    """An error without any known field, from a newer server."""

    RPC_CTX_UNAVAILABLE = "rpc_ctx_unavailable"
    """Nobody knows which store leads the region."""
    GET_STORE_FAILED = "get_store_failed"
    """PD does not say where the store is."""
    STORE_STREAM = "store_stream"
    """The stream to the store could not be opened, or broke, or did not take the request."""
    REQUEST_CANCELLED = "request_cancelled"
    """The subscription is over."""
    PREWRITE_NOT_MATCH = "prewrite_not_match"
    """A commit came after INITIALIZED without its prewrite."""
    UNKNOWN_OP = "unknown_op"
    """A change is neither put nor delete."""
    UNKNOWN_LOG_TYPE = "unknown_log_type"
    """A row of a kind that this client does not know: data it would lose."""
    REGION_STUCK = "region_stuck"
    """An initialized region has stood still for so long that its store has probably forgotten it."""


@dataclass(frozen=True, slots=True)
class RegionError:
    """Why a region failed.

    Attributes:
        kind: the error.
        detail: what the server said, for people.
        leader_store_id: NOT_LEADER: the store that leads now; 0 = not known.
        backoff_ms: SERVER_IS_BUSY: how long the server wants to be left alone.
    """

    kind: RegionErrorKind
    detail: str = ""
    leader_store_id: int = 0
    backoff_ms: int = 0


@dataclass(slots=True)
class EntriesEvent:
    """Rows of one region (cdcpb's Event with `entries`).

    Attributes:
        region_id: the region.
        request_id: the request they answer.
        rows: in the order of the message.
    """

    region_id: int
    request_id: int
    rows: Sequence[Row]


@dataclass(slots=True)
class ErrorEvent:
    """The server gives a region up (cdcpb's Event with `error`); it has forgotten the request.

    Attributes:
        region_id: the region.
        request_id: the request.
        error: why.
    """

    region_id: int
    request_id: int
    error: RegionError


@dataclass(slots=True)
class ResolvedTsEvent:
    """Resolved timestamp of many regions (cdcpb's ResolvedTs, or Event with the deprecated `resolved_ts`).

    Attributes:
        ts: every change of these regions with commit_ts <= ts has been sent.
        region_ids: the regions.
        request_id: the request they belong to; None where the server does not say (a stream without multiplexing sends 0): then
            the stream is known to carry these regions, and the order of the stream does.
    """

    ts: int
    region_ids: Sequence[int]
    request_id: int | None


FeedEvent = EntriesEvent | ErrorEvent | ResolvedTsEvent
"""What a stream of a store delivers."""


@dataclass(frozen=True, slots=True)
class RegionSpan:
    """The part of a region that is subscribed.

    Attributes:
        region_id: the region.
        span: memcomparable.
    """

    region_id: int
    span: Span


@dataclass(slots=True)
class ResolvedSpans:
    """Regions have reached a resolved timestamp.

    Attributes:
        ts: the timestamp.
        regions: them.
    """

    ts: int
    regions: list[RegionSpan]


@dataclass(slots=True)
class EntryBatch:
    """Changes, in the order in which their regions sent them.

    Attributes:
        entries: at least one.
    """

    entries: list[RawKVEntry]


RegionFeedEvent = EntryBatch | ResolvedSpans
"""What the client of the change feed hands to the puller."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Every change of the puller's spans with commit_ts <= ts has come out.

    Attributes:
        ts: strictly greater than any announced before.
    """

    ts: int


PullerOutput = EntryBatch | Resolved
"""What comes out of the puller."""


@dataclass(slots=True)
class Message:
    """All changes of one commit timestamp: one message of the channel, never split.

    Attributes:
        commit_ts: its timestamp.
        entries: each key of each transaction once; by start_ts, then by key.
    """

    commit_ts: int
    entries: list[RawKVEntry] = field(default_factory=list)
