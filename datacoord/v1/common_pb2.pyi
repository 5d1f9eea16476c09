from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_STATE_UNSPECIFIED: _ClassVar[SegmentState]
    SEGMENT_STATE_GROWING: _ClassVar[SegmentState]
    SEGMENT_STATE_SEALED: _ClassVar[SegmentState]
    SEGMENT_STATE_FLUSHED: _ClassVar[SegmentState]
    SEGMENT_STATE_DROPPED: _ClassVar[SegmentState]

class SegmentLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_LEVEL_UNSPECIFIED: _ClassVar[SegmentLevel]
    SEGMENT_LEVEL_L0: _ClassVar[SegmentLevel]
    SEGMENT_LEVEL_L1: _ClassVar[SegmentLevel]
    SEGMENT_LEVEL_L2: _ClassVar[SegmentLevel]

class ChannelMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_MODE_UNSPECIFIED: _ClassVar[ChannelMode]
    CHANNEL_MODE_MANAGED: _ClassVar[ChannelMode]
    CHANNEL_MODE_CLAIMED: _ClassVar[ChannelMode]

class TimestampKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIMESTAMP_KIND_UNSPECIFIED: _ClassVar[TimestampKind]
    TIMESTAMP_KIND_ORDINAL: _ClassVar[TimestampKind]
    TIMESTAMP_KIND_TSO: _ClassVar[TimestampKind]

class BinlogKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BINLOG_KIND_UNSPECIFIED: _ClassVar[BinlogKind]
    BINLOG_KIND_INSERT: _ClassVar[BinlogKind]
    BINLOG_KIND_DELTA: _ClassVar[BinlogKind]
    BINLOG_KIND_STATS: _ClassVar[BinlogKind]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_APPLIED: _ClassVar[Outcome]
    OUTCOME_ALREADY_APPLIED: _ClassVar[Outcome]
    OUTCOME_DISCARDED: _ClassVar[Outcome]
SEGMENT_STATE_UNSPECIFIED: SegmentState
SEGMENT_STATE_GROWING: SegmentState
SEGMENT_STATE_SEALED: SegmentState
SEGMENT_STATE_FLUSHED: SegmentState
SEGMENT_STATE_DROPPED: SegmentState
SEGMENT_LEVEL_UNSPECIFIED: SegmentLevel
SEGMENT_LEVEL_L0: SegmentLevel
SEGMENT_LEVEL_L1: SegmentLevel
SEGMENT_LEVEL_L2: SegmentLevel
CHANNEL_MODE_UNSPECIFIED: ChannelMode
CHANNEL_MODE_MANAGED: ChannelMode
CHANNEL_MODE_CLAIMED: ChannelMode
TIMESTAMP_KIND_UNSPECIFIED: TimestampKind
TIMESTAMP_KIND_ORDINAL: TimestampKind
TIMESTAMP_KIND_TSO: TimestampKind
BINLOG_KIND_UNSPECIFIED: BinlogKind
BINLOG_KIND_INSERT: BinlogKind
BINLOG_KIND_DELTA: BinlogKind
BINLOG_KIND_STATS: BinlogKind
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_APPLIED: Outcome
OUTCOME_ALREADY_APPLIED: Outcome
OUTCOME_DISCARDED: Outcome

class MsgPosition(_message.Message):
    __slots__ = ("channel_name", "msg_id", "msg_group", "timestamp", "event_time_ms")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MSG_ID_FIELD_NUMBER: _ClassVar[int]
    MSG_GROUP_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    msg_id: bytes
    msg_group: str
    timestamp: int
    event_time_ms: int
    def __init__(self, channel_name: _Optional[str] = ..., msg_id: _Optional[bytes] = ..., msg_group: _Optional[str] = ..., timestamp: _Optional[int] = ..., event_time_ms: _Optional[int] = ...) -> None: ...

class Binlog(_message.Message):
    __slots__ = ("log_id", "log_path", "entries_num", "timestamp_from", "timestamp_to", "log_size_bytes", "memory_size_bytes")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_PATH_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_NUM_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FROM_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TO_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    log_id: int
    log_path: str
    entries_num: int
    timestamp_from: int
    timestamp_to: int
    log_size_bytes: int
    memory_size_bytes: int
    def __init__(self, log_id: _Optional[int] = ..., log_path: _Optional[str] = ..., entries_num: _Optional[int] = ..., timestamp_from: _Optional[int] = ..., timestamp_to: _Optional[int] = ..., log_size_bytes: _Optional[int] = ..., memory_size_bytes: _Optional[int] = ...) -> None: ...

class FieldBinlog(_message.Message):
    __slots__ = ("field_id", "binlogs")
    FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    BINLOGS_FIELD_NUMBER: _ClassVar[int]
    field_id: int
    binlogs: _containers.RepeatedCompositeFieldContainer[Binlog]
    def __init__(self, field_id: _Optional[int] = ..., binlogs: _Optional[_Iterable[_Union[Binlog, _Mapping]]] = ...) -> None: ...
