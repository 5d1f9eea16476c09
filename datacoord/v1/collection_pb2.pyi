from datacoord.v1 import common_pb2 as _common_pb2
from datacoord.v1 import data_coord_pb2 as _data_coord_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CollectionInfo(_message.Message):
    __slots__ = ("collection_id", "collection_name", "arrow_schema", "primary_key", "channel_count", "channel_mode", "timestamp_kind", "storage_root", "properties", "channel_names", "partitions", "create_time_ms")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PartitionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_MODE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_KIND_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ROOT_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    collection_id: int
    collection_name: str
    arrow_schema: bytes
    primary_key: _containers.RepeatedScalarFieldContainer[str]
    channel_count: int
    channel_mode: _common_pb2.ChannelMode
    timestamp_kind: _common_pb2.TimestampKind
    storage_root: str
    properties: _containers.ScalarMap[str, str]
    channel_names: _containers.RepeatedScalarFieldContainer[str]
    partitions: _containers.ScalarMap[str, int]
    create_time_ms: int
    def __init__(self, collection_id: _Optional[int] = ..., collection_name: _Optional[str] = ..., arrow_schema: _Optional[bytes] = ..., primary_key: _Optional[_Iterable[str]] = ..., channel_count: _Optional[int] = ..., channel_mode: _Optional[_Union[_common_pb2.ChannelMode, str]] = ..., timestamp_kind: _Optional[_Union[_common_pb2.TimestampKind, str]] = ..., storage_root: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., channel_names: _Optional[_Iterable[str]] = ..., partitions: _Optional[_Mapping[str, int]] = ..., create_time_ms: _Optional[int] = ...) -> None: ...

class CreateCollectionRequest(_message.Message):
    __slots__ = ("collection_name", "arrow_schema", "primary_key", "channel_count", "channel_mode", "timestamp_kind", "storage_root", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_MODE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_KIND_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ROOT_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    arrow_schema: bytes
    primary_key: _containers.RepeatedScalarFieldContainer[str]
    channel_count: int
    channel_mode: _common_pb2.ChannelMode
    timestamp_kind: _common_pb2.TimestampKind
    storage_root: str
    properties: _containers.ScalarMap[str, str]
    def __init__(self, collection_name: _Optional[str] = ..., arrow_schema: _Optional[bytes] = ..., primary_key: _Optional[_Iterable[str]] = ..., channel_count: _Optional[int] = ..., channel_mode: _Optional[_Union[_common_pb2.ChannelMode, str]] = ..., timestamp_kind: _Optional[_Union[_common_pb2.TimestampKind, str]] = ..., storage_root: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateCollectionResponse(_message.Message):
    __slots__ = ("collection", "created")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    collection: CollectionInfo
    created: bool
    def __init__(self, collection: _Optional[_Union[CollectionInfo, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class DescribeCollectionRequest(_message.Message):
    __slots__ = ("collection_name",)
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    def __init__(self, collection_name: _Optional[str] = ...) -> None: ...

class DescribeCollectionResponse(_message.Message):
    __slots__ = ("collection",)
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    collection: CollectionInfo
    def __init__(self, collection: _Optional[_Union[CollectionInfo, _Mapping]] = ...) -> None: ...

class ListCollectionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListCollectionsResponse(_message.Message):
    __slots__ = ("collections", "next_page_token")
    COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    collections: _containers.RepeatedCompositeFieldContainer[CollectionInfo]
    next_page_token: str
    def __init__(self, collections: _Optional[_Iterable[_Union[CollectionInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CreatePartitionRequest(_message.Message):
    __slots__ = ("collection_name", "partition_name")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    partition_name: str
    def __init__(self, collection_name: _Optional[str] = ..., partition_name: _Optional[str] = ...) -> None: ...

class CreatePartitionResponse(_message.Message):
    __slots__ = ("partition_id",)
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    def __init__(self, partition_id: _Optional[int] = ...) -> None: ...

class ListBinlogsRequest(_message.Message):
    __slots__ = ("collection_name", "channel_names", "page_size", "page_token")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    channel_names: _containers.RepeatedScalarFieldContainer[str]
    page_size: int
    page_token: str
    def __init__(self, collection_name: _Optional[str] = ..., channel_names: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class RegisteredBinlog(_message.Message):
    __slots__ = ("binlog", "kind", "field_id", "segment_id", "partition_id", "range_from", "range_to", "epoch")
    BINLOG_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_FROM_FIELD_NUMBER: _ClassVar[int]
    RANGE_TO_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    binlog: _common_pb2.Binlog
    kind: _common_pb2.BinlogKind
    field_id: int
    segment_id: int
    partition_id: int
    range_from: int
    range_to: int
    epoch: int
    def __init__(self, binlog: _Optional[_Union[_common_pb2.Binlog, _Mapping]] = ..., kind: _Optional[_Union[_common_pb2.BinlogKind, str]] = ..., field_id: _Optional[int] = ..., segment_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., range_from: _Optional[int] = ..., range_to: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ChannelBinlogList(_message.Message):
    __slots__ = ("channel_name", "checkpoint", "binlogs", "lanes")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    BINLOGS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    checkpoint: _common_pb2.MsgPosition
    binlogs: _containers.RepeatedCompositeFieldContainer[RegisteredBinlog]
    lanes: _containers.RepeatedCompositeFieldContainer[_data_coord_pb2.LaneProgress]
    def __init__(self, channel_name: _Optional[str] = ..., checkpoint: _Optional[_Union[_common_pb2.MsgPosition, _Mapping]] = ..., binlogs: _Optional[_Iterable[_Union[RegisteredBinlog, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[_data_coord_pb2.LaneProgress, _Mapping]]] = ...) -> None: ...

class ListBinlogsResponse(_message.Message):
    __slots__ = ("channels", "next_page_token")
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelBinlogList]
    next_page_token: str
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelBinlogList, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class AlterCollectionRequest(_message.Message):
    __slots__ = ("collection_name", "add_columns", "set_properties", "remove_properties")
    class SetPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    ADD_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SET_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    REMOVE_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    add_columns: bytes
    set_properties: _containers.ScalarMap[str, str]
    remove_properties: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, collection_name: _Optional[str] = ..., add_columns: _Optional[bytes] = ..., set_properties: _Optional[_Mapping[str, str]] = ..., remove_properties: _Optional[_Iterable[str]] = ...) -> None: ...

class AlterCollectionResponse(_message.Message):
    __slots__ = ("collection", "outcome")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    collection: CollectionInfo
    outcome: _common_pb2.Outcome
    def __init__(self, collection: _Optional[_Union[CollectionInfo, _Mapping]] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ...) -> None: ...

class DropCollectionRequest(_message.Message):
    __slots__ = ("collection_name", "collection_id")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    collection_id: int
    def __init__(self, collection_name: _Optional[str] = ..., collection_id: _Optional[int] = ...) -> None: ...

class DropCollectionResponse(_message.Message):
    __slots__ = ("collection_id", "outcome")
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    collection_id: int
    outcome: _common_pb2.Outcome
    def __init__(self, collection_id: _Optional[int] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ...) -> None: ...

class DropPartitionRequest(_message.Message):
    __slots__ = ("collection_name", "partition_name", "partition_id")
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    collection_name: str
    partition_name: str
    partition_id: int
    def __init__(self, collection_name: _Optional[str] = ..., partition_name: _Optional[str] = ..., partition_id: _Optional[int] = ...) -> None: ...

class DropPartitionResponse(_message.Message):
    __slots__ = ("partition_id", "outcome")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    outcome: _common_pb2.Outcome
    def __init__(self, partition_id: _Optional[int] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ...) -> None: ...
