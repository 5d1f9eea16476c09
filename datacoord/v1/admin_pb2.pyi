from datacoord.v1 import common_pb2 as _common_pb2
from datacoord.v1 import data_coord_pb2 as _data_coord_pb2
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
CHANNEL_STATE_UNSPECIFIED: ChannelState
CHANNEL_STATE_ACTIVE: ChannelState
CHANNEL_STATE_DROPPED: ChannelState

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
    __slots__ = ("collection_name", "page_size", "page_token")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    page_size: int
    page_token: str
    def __init__(self, collection_name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

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
