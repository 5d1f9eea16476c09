from datacoord.v1 import common_pb2 as _common_pb2
from datacoord.v1 import data_coord_pb2 as _data_coord_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChannelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_STATE_UNSPECIFIED: _ClassVar[ChannelState]
    CHANNEL_STATE_ACTIVE: _ClassVar[ChannelState]
    CHANNEL_STATE_DROPPED: _ClassVar[ChannelState]

class GcAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GC_ACTION_UNSPECIFIED: _ClassVar[GcAction]
    GC_ACTION_STATUS: _ClassVar[GcAction]
    GC_ACTION_PAUSE: _ClassVar[GcAction]
    GC_ACTION_RESUME: _ClassVar[GcAction]
    GC_ACTION_RUN: _ClassVar[GcAction]
    GC_ACTION_DRY_RUN: _ClassVar[GcAction]

class GcVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GC_VERDICT_UNSPECIFIED: _ClassVar[GcVerdict]
    GC_VERDICT_SEGMENT_DROPPED: _ClassVar[GcVerdict]
    GC_VERDICT_CHANNEL_DROPPED: _ClassVar[GcVerdict]
    GC_VERDICT_PARTITION_DROPPED: _ClassVar[GcVerdict]
    GC_VERDICT_EPOCH_OVER: _ClassVar[GcVerdict]
    GC_VERDICT_RANGE_TAKEN: _ClassVar[GcVerdict]
    GC_VERDICT_UNKNOWN_NAME: _ClassVar[GcVerdict]

class FindingSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINDING_SEVERITY_UNSPECIFIED: _ClassVar[FindingSeverity]
    FINDING_SEVERITY_STUCK: _ClassVar[FindingSeverity]
    FINDING_SEVERITY_LATE: _ClassVar[FindingSeverity]
    FINDING_SEVERITY_WELL: _ClassVar[FindingSeverity]
CHANNEL_STATE_UNSPECIFIED: ChannelState
CHANNEL_STATE_ACTIVE: ChannelState
CHANNEL_STATE_DROPPED: ChannelState
GC_ACTION_UNSPECIFIED: GcAction
GC_ACTION_STATUS: GcAction
GC_ACTION_PAUSE: GcAction
GC_ACTION_RESUME: GcAction
GC_ACTION_RUN: GcAction
GC_ACTION_DRY_RUN: GcAction
GC_VERDICT_UNSPECIFIED: GcVerdict
GC_VERDICT_SEGMENT_DROPPED: GcVerdict
GC_VERDICT_CHANNEL_DROPPED: GcVerdict
GC_VERDICT_PARTITION_DROPPED: GcVerdict
GC_VERDICT_EPOCH_OVER: GcVerdict
GC_VERDICT_RANGE_TAKEN: GcVerdict
GC_VERDICT_UNKNOWN_NAME: GcVerdict
FINDING_SEVERITY_UNSPECIFIED: FindingSeverity
FINDING_SEVERITY_STUCK: FindingSeverity
FINDING_SEVERITY_LATE: FindingSeverity
FINDING_SEVERITY_WELL: FindingSeverity

class ChannelInfo(_message.Message):
    __slots__ = ("channel_name", "collection_name", "state", "mode", "owner", "node_id", "epoch", "checkpoint", "lanes", "report", "last_seen_time_ms", "flush_timestamp")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    collection_name: str
    state: ChannelState
    mode: _common_pb2.ChannelMode
    owner: str
    node_id: int
    epoch: int
    checkpoint: _common_pb2.MsgPosition
    lanes: _containers.RepeatedCompositeFieldContainer[_data_coord_pb2.LaneProgress]
    report: _data_coord_pb2.DataNodeTtMsg
    last_seen_time_ms: int
    flush_timestamp: int
    def __init__(self, channel_name: _Optional[str] = ..., collection_name: _Optional[str] = ..., state: _Optional[_Union[ChannelState, str]] = ..., mode: _Optional[_Union[_common_pb2.ChannelMode, str]] = ..., owner: _Optional[str] = ..., node_id: _Optional[int] = ..., epoch: _Optional[int] = ..., checkpoint: _Optional[_Union[_common_pb2.MsgPosition, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[_data_coord_pb2.LaneProgress, _Mapping]]] = ..., report: _Optional[_Union[_data_coord_pb2.DataNodeTtMsg, _Mapping]] = ..., last_seen_time_ms: _Optional[int] = ..., flush_timestamp: _Optional[int] = ...) -> None: ...

class ListChannelsRequest(_message.Message):
    __slots__ = ("collection_name", "page_size", "page_token", "channel_name")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    page_size: int
    page_token: str
    channel_name: str
    def __init__(self, collection_name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., channel_name: _Optional[str] = ...) -> None: ...

class ListChannelsResponse(_message.Message):
    __slots__ = ("channels", "next_page_token")
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelInfo]
    next_page_token: str
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListSegmentsRequest(_message.Message):
    __slots__ = ("collection_name", "states", "page_size", "page_token")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    states: _containers.RepeatedScalarFieldContainer[_common_pb2.SegmentState]
    page_size: int
    page_token: str
    def __init__(self, collection_name: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_common_pb2.SegmentState, str]]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSegmentsResponse(_message.Message):
    __slots__ = ("segments", "next_page_token")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[_data_coord_pb2.SegmentInfo]
    next_page_token: str
    def __init__(self, segments: _Optional[_Iterable[_Union[_data_coord_pb2.SegmentInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DataNodeInfo(_message.Message):
    __slots__ = ("node_id", "job", "slot", "state", "host", "pid", "channels", "lease_until_time_ms", "register_time_ms", "msgs", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    MSGS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    job: str
    slot: int
    state: _data_coord_pb2.DataNodeState
    host: str
    pid: int
    channels: int
    lease_until_time_ms: int
    register_time_ms: int
    msgs: _containers.RepeatedCompositeFieldContainer[_data_coord_pb2.DataNodeTtMsg]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, node_id: _Optional[int] = ..., job: _Optional[str] = ..., slot: _Optional[int] = ..., state: _Optional[_Union[_data_coord_pb2.DataNodeState, str]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., channels: _Optional[int] = ..., lease_until_time_ms: _Optional[int] = ..., register_time_ms: _Optional[int] = ..., msgs: _Optional[_Iterable[_Union[_data_coord_pb2.DataNodeTtMsg, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ListDataNodesRequest(_message.Message):
    __slots__ = ("job", "include_ended", "page_size", "page_token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    include_ended: bool
    page_size: int
    page_token: str
    def __init__(self, job: _Optional[str] = ..., include_ended: _Optional[bool] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDataNodesResponse(_message.Message):
    __slots__ = ("data_nodes", "next_page_token")
    DATA_NODES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    data_nodes: _containers.RepeatedCompositeFieldContainer[DataNodeInfo]
    next_page_token: str
    def __init__(self, data_nodes: _Optional[_Iterable[_Union[DataNodeInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("collection_name", "timestamp")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    timestamp: int
    def __init__(self, collection_name: _Optional[str] = ..., timestamp: _Optional[int] = ...) -> None: ...

class FlushTarget(_message.Message):
    __slots__ = ("channel_name", "timestamp", "checkpoint_timestamp")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    timestamp: int
    checkpoint_timestamp: int
    def __init__(self, channel_name: _Optional[str] = ..., timestamp: _Optional[int] = ..., checkpoint_timestamp: _Optional[int] = ...) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("flush_id", "targets")
    FLUSH_ID_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    flush_id: int
    targets: _containers.RepeatedCompositeFieldContainer[FlushTarget]
    def __init__(self, flush_id: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[FlushTarget, _Mapping]]] = ...) -> None: ...

class GetFlushStateRequest(_message.Message):
    __slots__ = ("flush_id",)
    FLUSH_ID_FIELD_NUMBER: _ClassVar[int]
    flush_id: int
    def __init__(self, flush_id: _Optional[int] = ...) -> None: ...

class GetFlushStateResponse(_message.Message):
    __slots__ = ("flushed", "pending")
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    flushed: bool
    pending: _containers.RepeatedCompositeFieldContainer[FlushTarget]
    def __init__(self, flushed: _Optional[bool] = ..., pending: _Optional[_Iterable[_Union[FlushTarget, _Mapping]]] = ...) -> None: ...

class FlushAllRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushAllResponse(_message.Message):
    __slots__ = ("flush_all_id", "channels")
    FLUSH_ALL_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    flush_all_id: int
    channels: int
    def __init__(self, flush_all_id: _Optional[int] = ..., channels: _Optional[int] = ...) -> None: ...

class GetFlushAllStateRequest(_message.Message):
    __slots__ = ("flush_all_id",)
    FLUSH_ALL_ID_FIELD_NUMBER: _ClassVar[int]
    flush_all_id: int
    def __init__(self, flush_all_id: _Optional[int] = ...) -> None: ...

class LateChannel(_message.Message):
    __slots__ = ("target", "collection_name", "owner", "epoch", "last_seen_time_ms")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    target: FlushTarget
    collection_name: str
    owner: str
    epoch: int
    last_seen_time_ms: int
    def __init__(self, target: _Optional[_Union[FlushTarget, _Mapping]] = ..., collection_name: _Optional[str] = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., last_seen_time_ms: _Optional[int] = ...) -> None: ...

class GetFlushAllStateResponse(_message.Message):
    __slots__ = ("flushed", "pending_channels", "pending")
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    PENDING_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    flushed: bool
    pending_channels: int
    pending: _containers.RepeatedCompositeFieldContainer[LateChannel]
    def __init__(self, flushed: _Optional[bool] = ..., pending_channels: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[LateChannel, _Mapping]]] = ...) -> None: ...

class SetSegmentStateRequest(_message.Message):
    __slots__ = ("segment_id", "state")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    state: _common_pb2.SegmentState
    def __init__(self, segment_id: _Optional[int] = ..., state: _Optional[_Union[_common_pb2.SegmentState, str]] = ...) -> None: ...

class SetSegmentStateResponse(_message.Message):
    __slots__ = ("outcome", "state")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    outcome: _common_pb2.Outcome
    state: _common_pb2.SegmentState
    def __init__(self, outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., state: _Optional[_Union[_common_pb2.SegmentState, str]] = ...) -> None: ...

class MarkSegmentsDroppedRequest(_message.Message):
    __slots__ = ("segment_ids",)
    SEGMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    segment_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, segment_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SegmentResult(_message.Message):
    __slots__ = ("segment_id", "outcome", "error")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    outcome: _common_pb2.Outcome
    error: _status_pb2.Status
    def __init__(self, segment_id: _Optional[int] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class MarkSegmentsDroppedResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SegmentResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SegmentResult, _Mapping]]] = ...) -> None: ...

class GcControlRequest(_message.Message):
    __slots__ = ("action", "pause_ms", "reason", "collection_name")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    action: GcAction
    pause_ms: int
    reason: str
    collection_name: str
    def __init__(self, action: _Optional[_Union[GcAction, str]] = ..., pause_ms: _Optional[int] = ..., reason: _Optional[str] = ..., collection_name: _Optional[str] = ...) -> None: ...

class GcCandidate(_message.Message):
    __slots__ = ("path", "size_bytes", "verdict")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    verdict: GcVerdict
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., verdict: _Optional[_Union[GcVerdict, str]] = ...) -> None: ...

class GcRound(_message.Message):
    __slots__ = ("start_time_ms", "duration_ms", "objects_listed", "objects_deleted", "bytes_deleted", "binlog_rows_deleted", "unknown_names", "error")
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_LISTED_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_DELETED_FIELD_NUMBER: _ClassVar[int]
    BYTES_DELETED_FIELD_NUMBER: _ClassVar[int]
    BINLOG_ROWS_DELETED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_NAMES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    start_time_ms: int
    duration_ms: int
    objects_listed: int
    objects_deleted: int
    bytes_deleted: int
    binlog_rows_deleted: int
    unknown_names: int
    error: str
    def __init__(self, start_time_ms: _Optional[int] = ..., duration_ms: _Optional[int] = ..., objects_listed: _Optional[int] = ..., objects_deleted: _Optional[int] = ..., bytes_deleted: _Optional[int] = ..., binlog_rows_deleted: _Optional[int] = ..., unknown_names: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class GcControlResponse(_message.Message):
    __slots__ = ("paused", "paused_until_time_ms", "reason", "run_requested", "round", "candidates")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_UNTIL_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUN_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    paused_until_time_ms: int
    reason: str
    run_requested: bool
    round: GcRound
    candidates: _containers.RepeatedCompositeFieldContainer[GcCandidate]
    def __init__(self, paused: _Optional[bool] = ..., paused_until_time_ms: _Optional[int] = ..., reason: _Optional[str] = ..., run_requested: _Optional[bool] = ..., round: _Optional[_Union[GcRound, _Mapping]] = ..., candidates: _Optional[_Iterable[_Union[GcCandidate, _Mapping]]] = ...) -> None: ...

class MoveChannelRequest(_message.Message):
    __slots__ = ("channel_name", "node_id")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    node_id: int
    def __init__(self, channel_name: _Optional[str] = ..., node_id: _Optional[int] = ...) -> None: ...

class MoveChannelResponse(_message.Message):
    __slots__ = ("outcome", "node_id", "epoch")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    outcome: _common_pb2.Outcome
    node_id: int
    epoch: int
    def __init__(self, outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., node_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("channel_name", "collection_name", "page_size")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    collection_name: str
    page_size: int
    def __init__(self, channel_name: _Optional[str] = ..., collection_name: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("channel_name", "collection_name", "severity", "problem", "explanation", "advice", "since_time_ms")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    collection_name: str
    severity: FindingSeverity
    problem: str
    explanation: str
    advice: str
    since_time_ms: int
    def __init__(self, channel_name: _Optional[str] = ..., collection_name: _Optional[str] = ..., severity: _Optional[_Union[FindingSeverity, str]] = ..., problem: _Optional[str] = ..., explanation: _Optional[str] = ..., advice: _Optional[str] = ..., since_time_ms: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("findings", "total")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    total: int
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("channel_name", "page_size", "page_token")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    page_size: int
    page_token: str
    def __init__(self, channel_name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("event_id", "time_ms", "rpc", "caller", "channels", "items", "changes_json")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    RPC_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_JSON_FIELD_NUMBER: _ClassVar[int]
    event_id: int
    time_ms: int
    rpc: str
    caller: str
    channels: int
    items: int
    changes_json: str
    def __init__(self, event_id: _Optional[int] = ..., time_ms: _Optional[int] = ..., rpc: _Optional[str] = ..., caller: _Optional[str] = ..., channels: _Optional[int] = ..., items: _Optional[int] = ..., changes_json: _Optional[str] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
