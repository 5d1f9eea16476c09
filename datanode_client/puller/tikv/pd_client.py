"""The client of PD: follows its leader, checks that it stays the same cluster, and answers what the feed has to know."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import grpc
import structlog
from google.protobuf.message import Message

from datacoord.errors import SourceUnavailableError
from datanode_client.puller.errors import ClusterIDMismatchError
from datanode_client.puller.region_cache import RegionMeta
from datanode_client.puller.resolve_lock import TSO_LOGICAL_BITS
from datanode_client.puller.span import Span
from datanode_client.puller.tikv import calls
from datanode_client.puller.tikv.calls import Call
from datanode_client.puller.tikv.codec import decode_region
from datanode_client.puller.wire import metapb_pb2, pdpb_pb2

_log = structlog.get_logger(__name__)

LEADER_ATTEMPTS: Final = 3
"""How often a call is tried before it fails: its first leader may have gone, and the next one, too, while it was looked for."""

ResponseT = TypeVar("ResponseT", bound=Message)


class PDUnavailableError(SourceUnavailableError):
    """PD did not answer: its members are away, or have no leader."""


class PDClient:
    """Calls PD's leader. Used by one event loop; connects at the first call.

    Args:
        addresses: host:port of members; others are learned from them.
        timeout_seconds: deadline of one attempt of a call.
    """

    def __init__(self, addresses: Sequence[str], timeout_seconds: float = 5.0) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._timeout_seconds = timeout_seconds
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._leader: str | None = None
        self._finding_leader = asyncio.Lock()
        self._cluster_id = 0

    async def cluster_id(self) -> int:
        """The cluster's id; PD's first answer settles it.

        Raises:
            PDUnavailableError: PD does not answer.
        """
        if not self._cluster_id:
            await self._find_leader()
        return self._cluster_id

    async def scan_regions(self, span: Span, limit: int) -> list[RegionMeta]:
        """The regions of a memcomparable span, ordered by start; perhaps not all of them, perhaps out of date.

        Raises:
            PDUnavailableError: PD does not answer.
            ClusterIDMismatchError: it is another cluster's.
        """
        request = pdpb_pb2.ScanRegionsRequest(start_key=span.start, end_key=span.end, limit=limit)
        response = await self._call(calls.SCAN_REGIONS, request)
        return [decode_region(found.region, found.leader) for found in response.regions]

    async def region_by_id(self, region_id: int) -> pdpb_pb2.Region | None:
        """A region and its leader; None if there is none, or nobody is known to lead it. Raises as `scan_regions`."""
        return _led(await self._call(calls.GET_REGION_BY_ID, pdpb_pb2.GetRegionByIDRequest(region_id=region_id)))

    async def region_of_key(self, key: bytes) -> pdpb_pb2.Region | None:
        """The region of a memcomparable key and its leader; as `region_by_id`."""
        return _led(await self._call(calls.GET_REGION, pdpb_pb2.GetRegionRequest(region_key=key)))

    async def stores(self) -> list[metapb_pb2.Store]:
        """All stores that are not gone for good. Raises as `scan_regions`."""
        request = pdpb_pb2.GetAllStoresRequest(exclude_tombstone_stores=True)
        return list((await self._call(calls.GET_ALL_STORES, request)).stores)

    async def tso(self) -> int:
        """A timestamp of now. Raises as `scan_regions`."""
        response = await self._call(calls.TSO, pdpb_pb2.TsoRequest(count=1), as_stream=True)
        return (int(response.timestamp.physical) << TSO_LOGICAL_BITS) + int(response.timestamp.logical)

    async def update_service_gc_safe_point(self, service_id: str, ttl_seconds: int, safe_point: int) -> int:
        """Keeps history after a timestamp from being removed, for some time. Raises as `scan_regions`.

        Args:
            service_id: on whose behalf.
            ttl_seconds: for how long.
            safe_point: the timestamp.

        Returns:
            what is kept by all services together: above `safe_point` = history after it is gone already, and nothing was done.
        """
        request = pdpb_pb2.UpdateServiceGCSafePointRequest(
            service_id=service_id.encode(), TTL=ttl_seconds, safe_point=safe_point
        )
        return int((await self._call(calls.UPDATE_SERVICE_GC_SAFE_POINT, request)).min_safe_point)

    async def close(self) -> None:
        """Closes the connections; calls under way are cancelled."""
        channels, self._channels = self._channels, {}
        self._leader = None
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    async def _call(self, call: Call[Any, ResponseT], request: Any, *, as_stream: bool = False) -> ResponseT:
        """Calls the leader; where it does not answer as a leader does, looks for another one and tries again."""
        failure = "no attempt was made"
        for _ in range(LEADER_ATTEMPTS):
            address = await self._find_leader()
            request.header.cluster_id = self._cluster_id
            try:
                response = await self._attempt(call, address, request, as_stream=as_stream)
            except grpc.aio.AioRpcError as error:
                failure = f"{error.code().name}: {error.details()}"
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:  # how PD refuses the id of another cluster
                    raise self._mismatch(address, failure) from error
            except PDUnavailableError as error:  # the stream ended without an answer
                failure = error.message
            else:
                header = response.header  # type: ignore[attr-defined]  # all of PD's responses have one
                if header.error.type == pdpb_pb2.OK:
                    return response
                failure = f"{header.error.type}: {header.error.message}"
            if self._leader == address:
                self._leader = None
        method = call.path.rpartition("/")[2]
        raise PDUnavailableError(f"PD did not answer {method} ({failure}); see that it runs", method=method)

    async def _attempt(self, call: Call[Any, ResponseT], address: str, request: Any, *, as_stream: bool) -> ResponseT:
        channel = self._channel(address)
        if not as_stream:
            return await call.unary(channel)(request, timeout=self._timeout_seconds)
        stream = call.stream(channel)(timeout=self._timeout_seconds)
        try:
            with suppress(asyncio.InvalidStateError):  # the stream has ended; the reading side says why
                await stream.write(request)
            response = await stream.read()
        finally:
            stream.cancel()
        if not isinstance(response, call.response):
            raise PDUnavailableError(f"PD at {address} ended {call.path} without an answer", address=address)
        return response

    async def _find_leader(self) -> str:
        """Address of the leader as last known; asks the members if it is not known."""
        async with self._finding_leader:
            if self._leader is not None:
                return self._leader
            failures = []
            for address in list(self._addresses):
                try:
                    response = await self._attempt(
                        calls.GET_MEMBERS, address, pdpb_pb2.GetMembersRequest(), as_stream=False
                    )
                except grpc.aio.AioRpcError as error:
                    failures.append(f"{address} {error.code().name}: {error.details()}")
                    continue
                self._cluster_id = self._cluster_id or response.header.cluster_id
                members = [host for member in response.members for host in _hosts(member)]
                self._addresses = list(dict.fromkeys([*self._addresses, *members]))
                leaders = _hosts(response.leader)
                if leaders:
                    self._leader = leaders[0]
                    _log.info("pd_leader", address=self._leader, cluster_id=self._cluster_id)
                    return self._leader
                failures.append(f"{address} knows no leader")
            raise PDUnavailableError(
                f"no member of PD could be asked for the leader ({'; '.join(failures)}); see that PD runs and that the "
                "addresses are right",
                addresses=",".join(self._addresses),
            )

    def _mismatch(self, address: str, failure: str) -> ClusterIDMismatchError:
        return ClusterIDMismatchError(
            f"PD at {address} is not of cluster {self._cluster_id} ({failure}); check the addresses of PD",
            address=address,
            cluster_id=self._cluster_id,
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = calls.open_channel(address)
        return self._channels[address]


def _hosts(member: pdpb_pb2.Member) -> list[str]:
    return [host for url in member.client_urls if (host := urlsplit(url).netloc)]


def _led(response: pdpb_pb2.GetRegionResponse) -> pdpb_pb2.Region | None:
    if not response.HasField("region") or not response.leader.store_id:
        return None
    return pdpb_pb2.Region(region=response.region, leader=response.leader)
