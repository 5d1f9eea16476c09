from datacoord.v1 import common_pb2 as _common_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataNodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_NODE_STATE_UNSPECIFIED: _ClassVar[DataNodeState]
    DATA_NODE_STATE_INITIALIZING: _ClassVar[DataNodeState]
    DATA_NODE_STATE_IDLE: _ClassVar[DataNodeState]
    DATA_NODE_STATE_HEALTHY: _ClassVar[DataNodeState]
    DATA_NODE_STATE_STOPPING: _ClassVar[DataNodeState]
    DATA_NODE_STATE_ENDED: _ClassVar[DataNodeState]

class ChannelFault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_FAULT_UNSPECIFIED: _ClassVar[ChannelFault]
    CHANNEL_FAULT_SOURCE: _ClassVar[ChannelFault]
    CHANNEL_FAULT_OBJECTS: _ClassVar[ChannelFault]
    CHANNEL_FAULT_GRAPH: _ClassVar[ChannelFault]
DATA_NODE_STATE_UNSPECIFIED: DataNodeState
DATA_NODE_STATE_INITIALIZING: DataNodeState
DATA_NODE_STATE_IDLE: DataNodeState
DATA_NODE_STATE_HEALTHY: DataNodeState
DATA_NODE_STATE_STOPPING: DataNodeState
DATA_NODE_STATE_ENDED: DataNodeState
CHANNEL_FAULT_UNSPECIFIED: ChannelFault
CHANNEL_FAULT_SOURCE: ChannelFault
CHANNEL_FAULT_OBJECTS: ChannelFault
CHANNEL_FAULT_GRAPH: ChannelFault

class RegisterDataNodeRequest(_message.Message):
    __slots__ = ("job", "slot", "collection_names", "host", "pid")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAMES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    job: str
    slot: int
    collection_names: _containers.RepeatedScalarFieldContainer[str]
    host: str
    pid: int
    def __init__(self, job: _Optional[str] = ..., slot: _Optional[int] = ..., collection_names: _Optional[_Iterable[str]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class RegisterDataNodeResponse(_message.Message):
    __slots__ = ("node_id", "lease_ms", "heartbeat_interval_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    lease_ms: int
    heartbeat_interval_ms: int
    def __init__(self, node_id: _Optional[int] = ..., lease_ms: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class DataNodeTtMsg(_message.Message):
    __slots__ = ("channel_name", "epoch", "timestamp", "event_time_ms", "lag", "buffered_rows", "buffered_bytes", "syncs_in_flight", "finished", "fault", "fault_kind", "fault_age_ms", "oldest_sync_age_ms")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_ROWS_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SYNCS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    FAULT_KIND_FIELD_NUMBER: _ClassVar[int]
    FAULT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SYNC_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    epoch: int
    timestamp: int
    event_time_ms: int
    lag: int
    buffered_rows: int
    buffered_bytes: int
    syncs_in_flight: int
    finished: bool
    fault: str
    fault_kind: ChannelFault
    fault_age_ms: int
    oldest_sync_age_ms: int
    def __init__(self, channel_name: _Optional[str] = ..., epoch: _Optional[int] = ..., timestamp: _Optional[int] = ..., event_time_ms: _Optional[int] = ..., lag: _Optional[int] = ..., buffered_rows: _Optional[int] = ..., buffered_bytes: _Optional[int] = ..., syncs_in_flight: _Optional[int] = ..., finished: _Optional[bool] = ..., fault: _Optional[str] = ..., fault_kind: _Optional[_Union[ChannelFault, str]] = ..., fault_age_ms: _Optional[int] = ..., oldest_sync_age_ms: _Optional[int] = ...) -> None: ...

class ReportDataNodeTtMsgsRequest(_message.Message):
    __slots__ = ("node_id", "msgs", "metrics", "stopping", "ended")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    MSGS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    msgs: _containers.RepeatedCompositeFieldContainer[DataNodeTtMsg]
    metrics: _containers.ScalarMap[str, float]
    stopping: bool
    ended: bool
    def __init__(self, node_id: _Optional[int] = ..., msgs: _Optional[_Iterable[_Union[DataNodeTtMsg, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., stopping: _Optional[bool] = ..., ended: _Optional[bool] = ...) -> None: ...

class ReportDataNodeTtMsgsResponse(_message.Message):
    __slots__ = ("state", "lease_ms")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    state: DataNodeState
    lease_ms: int
    def __init__(self, state: _Optional[_Union[DataNodeState, str]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class WatchDmChannelsRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class VchannelWatch(_message.Message):
    __slots__ = ("channel_name", "epoch", "release", "flush_timestamp")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FLUSH_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    epoch: int
    release: bool
    flush_timestamp: int
    def __init__(self, channel_name: _Optional[str] = ..., epoch: _Optional[int] = ..., release: _Optional[bool] = ..., flush_timestamp: _Optional[int] = ...) -> None: ...

class WatchDmChannelsResponse(_message.Message):
    __slots__ = ("revision", "channels", "dropped_partition_ids")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_PARTITION_IDS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    channels: _containers.RepeatedCompositeFieldContainer[VchannelWatch]
    dropped_partition_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, revision: _Optional[int] = ..., channels: _Optional[_Iterable[_Union[VchannelWatch, _Mapping]]] = ..., dropped_partition_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ClaimChannelsRequest(_message.Message):
    __slots__ = ("owner_name", "channel_names", "force")
    OWNER_NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    owner_name: str
    channel_names: _containers.RepeatedScalarFieldContainer[str]
    force: bool
    def __init__(self, owner_name: _Optional[str] = ..., channel_names: _Optional[_Iterable[str]] = ..., force: _Optional[bool] = ...) -> None: ...

class ClaimChannelsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ClaimChannelResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ClaimChannelResult, _Mapping]]] = ...) -> None: ...

class ClaimChannelResult(_message.Message):
    __slots__ = ("channel_name", "info", "error")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    info: ChannelRecoveryInfo
    error: _status_pb2.Status
    def __init__(self, channel_name: _Optional[str] = ..., info: _Optional[_Union[ChannelRecoveryInfo, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ReleaseChannelsRequest(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelRelease]
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelRelease, _Mapping]]] = ...) -> None: ...

class ChannelRelease(_message.Message):
    __slots__ = ("channel_name", "epoch", "position")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    epoch: int
    position: _common_pb2.MsgPosition
    def __init__(self, channel_name: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[_Union[_common_pb2.MsgPosition, _Mapping]] = ...) -> None: ...

class ReleaseChannelsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ChannelResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ChannelResult, _Mapping]]] = ...) -> None: ...

class GetRecoveryInfoRequest(_message.Message):
    __slots__ = ("channel_names", "collection_name", "page_size", "page_token")
    CHANNEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    channel_names: _containers.RepeatedScalarFieldContainer[str]
    collection_name: str
    page_size: int
    page_token: str
    def __init__(self, channel_names: _Optional[_Iterable[str]] = ..., collection_name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetRecoveryInfoResponse(_message.Message):
    __slots__ = ("channels", "next_page_token")
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelRecoveryInfo]
    next_page_token: str
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelRecoveryInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ChannelRecoveryInfo(_message.Message):
    __slots__ = ("channel_name", "channel_id", "collection_id", "collection_name", "channel_index", "channel_count", "epoch", "owner", "checkpoint", "lanes", "growing_segments", "storage_root", "arrow_schema", "primary_key", "timestamp_kind", "partitions", "consumed_timestamp", "properties")
    class PartitionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_COUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    GROWING_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ROOT_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_KIND_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    channel_id: int
    collection_id: int
    collection_name: str
    channel_index: int
    channel_count: int
    epoch: int
    owner: str
    checkpoint: _common_pb2.MsgPosition
    lanes: _containers.RepeatedCompositeFieldContainer[LaneProgress]
    growing_segments: _containers.RepeatedCompositeFieldContainer[SegmentInfo]
    storage_root: str
    arrow_schema: bytes
    primary_key: _containers.RepeatedScalarFieldContainer[str]
    timestamp_kind: _common_pb2.TimestampKind
    partitions: _containers.ScalarMap[str, int]
    consumed_timestamp: int
    properties: _containers.ScalarMap[str, str]
    def __init__(self, channel_name: _Optional[str] = ..., channel_id: _Optional[int] = ..., collection_id: _Optional[int] = ..., collection_name: _Optional[str] = ..., channel_index: _Optional[int] = ..., channel_count: _Optional[int] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., checkpoint: _Optional[_Union[_common_pb2.MsgPosition, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[LaneProgress, _Mapping]]] = ..., growing_segments: _Optional[_Iterable[_Union[SegmentInfo, _Mapping]]] = ..., storage_root: _Optional[str] = ..., arrow_schema: _Optional[bytes] = ..., primary_key: _Optional[_Iterable[str]] = ..., timestamp_kind: _Optional[_Union[_common_pb2.TimestampKind, str]] = ..., partitions: _Optional[_Mapping[str, int]] = ..., consumed_timestamp: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LaneProgress(_message.Message):
    __slots__ = ("partition_id", "timestamp", "dropped")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    timestamp: int
    dropped: bool
    def __init__(self, partition_id: _Optional[int] = ..., timestamp: _Optional[int] = ..., dropped: _Optional[bool] = ...) -> None: ...

class SegmentInfo(_message.Message):
    __slots__ = ("segment_id", "channel_name", "partition_id", "state", "level", "rows", "delete_rows", "size_bytes", "binlogs", "timestamp_from", "timestamp_to", "seal_reason")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DELETE_ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BINLOGS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FROM_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TO_FIELD_NUMBER: _ClassVar[int]
    SEAL_REASON_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    channel_name: str
    partition_id: int
    state: _common_pb2.SegmentState
    level: _common_pb2.SegmentLevel
    rows: int
    delete_rows: int
    size_bytes: int
    binlogs: int
    timestamp_from: int
    timestamp_to: int
    seal_reason: str
    def __init__(self, segment_id: _Optional[int] = ..., channel_name: _Optional[str] = ..., partition_id: _Optional[int] = ..., state: _Optional[_Union[_common_pb2.SegmentState, str]] = ..., level: _Optional[_Union[_common_pb2.SegmentLevel, str]] = ..., rows: _Optional[int] = ..., delete_rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., binlogs: _Optional[int] = ..., timestamp_from: _Optional[int] = ..., timestamp_to: _Optional[int] = ..., seal_reason: _Optional[str] = ...) -> None: ...

class SaveBinlogPathsRequest(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelBinlogs]
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelBinlogs, _Mapping]]] = ...) -> None: ...

class ChannelBinlogs(_message.Message):
    __slots__ = ("channel_name", "epoch", "lanes", "check_point")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    CHECK_POINT_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    epoch: int
    lanes: _containers.RepeatedCompositeFieldContainer[LaneBinlogs]
    check_point: _common_pb2.MsgPosition
    def __init__(self, channel_name: _Optional[str] = ..., epoch: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[LaneBinlogs, _Mapping]]] = ..., check_point: _Optional[_Union[_common_pb2.MsgPosition, _Mapping]] = ...) -> None: ...

class LaneBinlogs(_message.Message):
    __slots__ = ("partition_id", "timestamp_from", "timestamp_to", "insert_logs", "delta_logs", "stats_logs", "seal")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FROM_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TO_FIELD_NUMBER: _ClassVar[int]
    INSERT_LOGS_FIELD_NUMBER: _ClassVar[int]
    DELTA_LOGS_FIELD_NUMBER: _ClassVar[int]
    STATS_LOGS_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    timestamp_from: int
    timestamp_to: int
    insert_logs: _containers.RepeatedCompositeFieldContainer[_common_pb2.FieldBinlog]
    delta_logs: _containers.RepeatedCompositeFieldContainer[_common_pb2.FieldBinlog]
    stats_logs: _containers.RepeatedCompositeFieldContainer[_common_pb2.FieldBinlog]
    seal: bool
    def __init__(self, partition_id: _Optional[int] = ..., timestamp_from: _Optional[int] = ..., timestamp_to: _Optional[int] = ..., insert_logs: _Optional[_Iterable[_Union[_common_pb2.FieldBinlog, _Mapping]]] = ..., delta_logs: _Optional[_Iterable[_Union[_common_pb2.FieldBinlog, _Mapping]]] = ..., stats_logs: _Optional[_Iterable[_Union[_common_pb2.FieldBinlog, _Mapping]]] = ..., seal: _Optional[bool] = ...) -> None: ...

class SaveBinlogPathsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ChannelResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ChannelResult, _Mapping]]] = ...) -> None: ...

class ChannelResult(_message.Message):
    __slots__ = ("channel_name", "outcome", "lanes", "error", "current")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    outcome: _common_pb2.Outcome
    lanes: _containers.RepeatedCompositeFieldContainer[LaneResult]
    error: _status_pb2.Status
    current: ChannelFacts
    def __init__(self, channel_name: _Optional[str] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., lanes: _Optional[_Iterable[_Union[LaneResult, _Mapping]]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., current: _Optional[_Union[ChannelFacts, _Mapping]] = ...) -> None: ...

class LaneResult(_message.Message):
    __slots__ = ("partition_id", "outcome", "segment_id", "segment_state", "progress")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    outcome: _common_pb2.Outcome
    segment_id: int
    segment_state: _common_pb2.SegmentState
    progress: int
    def __init__(self, partition_id: _Optional[int] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., segment_id: _Optional[int] = ..., segment_state: _Optional[_Union[_common_pb2.SegmentState, str]] = ..., progress: _Optional[int] = ...) -> None: ...

class ChannelFacts(_message.Message):
    __slots__ = ("owner", "epoch", "checkpoint", "lanes")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    owner: str
    epoch: int
    checkpoint: _common_pb2.MsgPosition
    lanes: _containers.RepeatedCompositeFieldContainer[LaneProgress]
    def __init__(self, owner: _Optional[str] = ..., epoch: _Optional[int] = ..., checkpoint: _Optional[_Union[_common_pb2.MsgPosition, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[LaneProgress, _Mapping]]] = ...) -> None: ...

class UpdateChannelCheckpointRequest(_message.Message):
    __slots__ = ("channel_checkpoints",)
    CHANNEL_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    channel_checkpoints: _containers.RepeatedCompositeFieldContainer[ChannelCheckpoint]
    def __init__(self, channel_checkpoints: _Optional[_Iterable[_Union[ChannelCheckpoint, _Mapping]]] = ...) -> None: ...

class ChannelCheckpoint(_message.Message):
    __slots__ = ("epoch", "position")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    position: _common_pb2.MsgPosition
    def __init__(self, epoch: _Optional[int] = ..., position: _Optional[_Union[_common_pb2.MsgPosition, _Mapping]] = ...) -> None: ...

class UpdateChannelCheckpointResponse(_message.Message):
    __slots__ = ("outcomes", "details")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[_common_pb2.Outcome]
    details: _containers.RepeatedCompositeFieldContainer[CheckpointDetail]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[_common_pb2.Outcome, str]]] = ..., details: _Optional[_Iterable[_Union[CheckpointDetail, _Mapping]]] = ...) -> None: ...

class CheckpointDetail(_message.Message):
    __slots__ = ("index", "error", "current")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: _status_pb2.Status
    current: ChannelFacts
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., current: _Optional[_Union[ChannelFacts, _Mapping]] = ...) -> None: ...

class DropVirtualChannelRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: ChannelBinlogs
    def __init__(self, channel: _Optional[_Union[ChannelBinlogs, _Mapping]] = ...) -> None: ...

class DropVirtualChannelResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: ChannelResult
    def __init__(self, result: _Optional[_Union[ChannelResult, _Mapping]] = ...) -> None: ...
