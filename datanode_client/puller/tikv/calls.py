"""The calls of TiKV and PD that are made: their paths and types, and the options of the connections they are made on.

There are no generated gRPC stubs, because the path of a call contains the name of a package that is not ours (see `puller.wire`).
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from datanode_client.puller.wire import cdcpb_pb2, kvrpcpb_pb2, pdpb_pb2

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
"""What is accepted, as in TiCDC. Stores split at 6 MB, but a single change can be larger."""

KEEPALIVE_PERIOD_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 3_000
"""As in TiCDC: a machine that vanished without a goodbye is noticed within 13 s. Pings are sent only while a call is under way."""

RECONNECT_BACKOFF_MS_MIN: Final = 1_000
RECONNECT_BACKOFF_MS_MAX: Final = 3_000
"""As in TiCDC."""


@dataclass(frozen=True, slots=True)
class Call(Generic[RequestT, ResponseT]):
    """A call.

    Attributes:
        path: `/package.Service/Method`.
        request: type of what is sent.
        response: type of what comes back.
    """

    path: str
    request: type[RequestT]
    response: type[ResponseT]

    def unary(self, channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]:
        """The call as one of one request and one response."""
        return channel.unary_unary(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )

    def stream(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[RequestT, ResponseT]:
        """The call as a stream in both directions."""
        return channel.stream_stream(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )


EVENT_FEED = Call("/cdcpb.ChangeData/EventFeed", cdcpb_pb2.ChangeDataRequest, cdcpb_pb2.ChangeDataEvent)
EVENT_FEED_V2 = Call("/cdcpb.ChangeData/EventFeedV2", cdcpb_pb2.ChangeDataRequest, cdcpb_pb2.ChangeDataEvent)

GET_MEMBERS = Call("/pdpb.PD/GetMembers", pdpb_pb2.GetMembersRequest, pdpb_pb2.GetMembersResponse)
TSO = Call("/pdpb.PD/Tso", pdpb_pb2.TsoRequest, pdpb_pb2.TsoResponse)
GET_ALL_STORES = Call("/pdpb.PD/GetAllStores", pdpb_pb2.GetAllStoresRequest, pdpb_pb2.GetAllStoresResponse)
SCAN_REGIONS = Call("/pdpb.PD/ScanRegions", pdpb_pb2.ScanRegionsRequest, pdpb_pb2.ScanRegionsResponse)
GET_REGION = Call("/pdpb.PD/GetRegion", pdpb_pb2.GetRegionRequest, pdpb_pb2.GetRegionResponse)
GET_REGION_BY_ID = Call("/pdpb.PD/GetRegionByID", pdpb_pb2.GetRegionByIDRequest, pdpb_pb2.GetRegionResponse)
UPDATE_SERVICE_GC_SAFE_POINT = Call(
    "/pdpb.PD/UpdateServiceGCSafePoint",
    pdpb_pb2.UpdateServiceGCSafePointRequest,
    pdpb_pb2.UpdateServiceGCSafePointResponse,
)

SCAN_LOCK = Call("/tikvpb.Tikv/KvScanLock", kvrpcpb_pb2.ScanLockRequest, kvrpcpb_pb2.ScanLockResponse)
CHECK_TXN_STATUS = Call(
    "/tikvpb.Tikv/KvCheckTxnStatus", kvrpcpb_pb2.CheckTxnStatusRequest, kvrpcpb_pb2.CheckTxnStatusResponse
)
CHECK_SECONDARY_LOCKS = Call(
    "/tikvpb.Tikv/KvCheckSecondaryLocks",
    kvrpcpb_pb2.CheckSecondaryLocksRequest,
    kvrpcpb_pb2.CheckSecondaryLocksResponse,
)
RESOLVE_LOCK = Call("/tikvpb.Tikv/KvResolveLock", kvrpcpb_pb2.ResolveLockRequest, kvrpcpb_pb2.ResolveLockResponse)


def open_channel(address: str) -> grpc.aio.Channel:
    """A connection to PD or a store, not encrypted.

    Args:
        address: host:port.
    """
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.keepalive_time_ms", KEEPALIVE_PERIOD_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_BACKOFF_MS_MIN),
            ("grpc.min_reconnect_backoff_ms", RECONNECT_BACKOFF_MS_MIN),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MS_MAX),
            # Repeating is the core's: it knows what has changed since.
            ("grpc.enable_retries", 0),
        ],
    )
