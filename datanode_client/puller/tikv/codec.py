"""Messages of the wire to and from the values that the core works with."""

from collections.abc import Iterable
from typing import Final

from datanode_client.puller.actions import Deregister, RegionRequest
from datanode_client.puller.admission import ScanPriority
from datanode_client.puller.events import (
    EntriesEvent,
    ErrorEvent,
    FeedEvent,
    LogType,
    OpType,
    RegionError,
    RegionErrorKind,
    ResolvedTsEvent,
    Row,
)
from datanode_client.puller.region_cache import RegionMeta, RegionVerID
from datanode_client.puller.span import Span
from datanode_client.puller.wire import cdcpb_pb2, metapb_pb2

TICDC_VERSION: Final = "7.5.0"
"""What we say we are: the first version of TiCDC that knows all of the protocol that is used here. From 5.3.0 on stores check the
cluster's id, from 4.0.8 on they send resolved timestamps of many regions in one message."""

MULTIPLEXING_METADATA: Final = (("features", "stream-multiplexing"),)
"""The feature that EventFeedV2 is used for."""

_LOG_TYPES: Final = {int(kind): kind for kind in LogType}
_OP_TYPES: Final = {int(kind): kind for kind in OpType}
_SCAN_PRIORITIES: Final = {
    ScanPriority.HIGH: cdcpb_pb2.SCAN_PRIORITY_HIGH,
    ScanPriority.LOW: cdcpb_pb2.SCAN_PRIORITY_LOW,
}


def encode_register(cluster_id: int, request: RegionRequest) -> cdcpb_pb2.ChangeDataRequest:
    """The message that asks for a region."""
    ver_id = request.region.ver_id
    return cdcpb_pb2.ChangeDataRequest(
        header=cdcpb_pb2.Header(cluster_id=cluster_id, ticdc_version=TICDC_VERSION),
        region_id=ver_id.id,
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=ver_id.conf_ver, version=ver_id.version),
        checkpoint_ts=request.checkpoint_ts,
        start_key=request.span.start,
        end_key=request.span.end,
        request_id=request.request_id,
        extra_op=cdcpb_pb2.READ_OLD_VALUE,
        register=cdcpb_pb2.ChangeDataRequest.Register(),
        filter_loop=request.filter_loop,
        scan_priority=_SCAN_PRIORITIES[request.scan_priority],
    )


def encode_deregister(cluster_id: int, action: Deregister) -> cdcpb_pb2.ChangeDataRequest:
    """The message that ends a request."""
    return cdcpb_pb2.ChangeDataRequest(
        header=cdcpb_pb2.Header(cluster_id=cluster_id, ticdc_version=TICDC_VERSION),
        region_id=action.region_id,
        request_id=action.request_id,
        deregister=cdcpb_pb2.ChangeDataRequest.Deregister(),
    )


def decode(message: cdcpb_pb2.ChangeDataEvent) -> list[FeedEvent]:
    """The events of a message, in order. What only newer servers send is left out."""
    events = [decoded for event in message.events if (decoded := _decode_event(event)) is not None]
    if message.HasField("resolved_ts"):
        resolved = message.resolved_ts
        events.append(ResolvedTsEvent(resolved.ts, tuple(resolved.regions), resolved.request_id or None))
    return events


def _decode_event(event: cdcpb_pb2.Event) -> FeedEvent | None:
    kind = event.WhichOneof("event")
    if kind == "entries":
        return EntriesEvent(event.region_id, event.request_id, _decode_rows(event.entries.entries))
    if kind == "error":
        return ErrorEvent(event.region_id, event.request_id, decode_error(event.error))
    if kind == "resolved_ts":
        return ResolvedTsEvent(event.resolved_ts, (event.region_id,), event.request_id or None)
    return None


def _decode_rows(rows: Iterable[cdcpb_pb2.Event.Row]) -> list[Row]:
    # A kind that this client does not know becomes UNKNOWN, which the core refuses: data must not be skipped in silence.
    return [
        Row(
            _LOG_TYPES.get(row.type, LogType.UNKNOWN),
            row.start_ts,
            row.commit_ts,
            row.key,
            row.value,
            row.old_value,
            _OP_TYPES.get(row.op_type, OpType.UNKNOWN),
            row.generation,
        )
        for row in rows
    ]


def decode_error(error: cdcpb_pb2.Error) -> RegionError:
    """Why a store gives a region up."""
    for kind in _ERROR_FIELDS:
        if error.HasField(kind.value):
            detail = str(getattr(error, kind.value)).replace("\n", " ").strip()
            return RegionError(
                kind,
                detail,
                leader_store_id=error.not_leader.leader.store_id,
                backoff_ms=error.server_is_busy.backoff_ms,
            )
    return RegionError(RegionErrorKind.UNKNOWN, "the store did not say why")


_ERROR_FIELDS: Final = (
    RegionErrorKind.NOT_LEADER,
    RegionErrorKind.REGION_NOT_FOUND,
    RegionErrorKind.EPOCH_NOT_MATCH,
    RegionErrorKind.DUPLICATE_REQUEST,
    RegionErrorKind.COMPATIBILITY,
    RegionErrorKind.CLUSTER_ID_MISMATCH,
    RegionErrorKind.SERVER_IS_BUSY,
    RegionErrorKind.CONGESTED,
)
"""Kinds that are named as the wire's fields are."""

_NEVER_LEADERS: Final = frozenset({metapb_pb2.Learner})


def decode_region(region: metapb_pb2.Region, leader: metapb_pb2.Peer) -> RegionMeta:
    """A region as PD describes it. Peers that can never lead (learners, TiFlash's among them, and witnesses) are left out."""
    epoch = region.region_epoch
    return RegionMeta(
        ver_id=RegionVerID(region.id, epoch.conf_ver, epoch.version),
        span=Span(region.start_key, region.end_key),
        peer_store_ids=tuple(
            peer.store_id for peer in region.peers if peer.role not in _NEVER_LEADERS and not peer.is_witness
        ),
        leader_store_id=leader.store_id,
    )
