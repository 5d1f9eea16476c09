"""The model behind gRPC: what stores and PD answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from datanode_client.puller.span import encode_bytes
from datanode_client.puller.tikv import calls
from datanode_client.puller.tikv.calls import Call
from datanode_client.puller.wire import cdcpb_pb2, errorpb_pb2, kvrpcpb_pb2, metapb_pb2, pdpb_pb2

from .cluster import TiKVCluster
from .mvcc import TSO_LOGICAL_BITS
from .topology import Region

Context = grpc.aio.ServicerContext[Any, Any]
RequestT = TypeVar("RequestT", bound=Message)
GetCluster = Callable[[], TiKVCluster]


def handlers(*methods: tuple[Call[Any, Any], Any, bool]) -> list[grpc.GenericRpcHandler]:
    """Handlers from triples of call, function, and whether it is a stream in both directions."""
    services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for call, function, streams in methods:
        _, service, name = call.path.split("/")
        make = grpc.stream_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        services.setdefault(service, {})[name] = make(
            function,
            request_deserializer=call.request.FromString,
            response_serializer=call.response.SerializeToString,
        )
    return [grpc.method_handlers_generic_handler(service, methods_) for service, methods_ in services.items()]


async def hang(cluster: TiKVCluster, who: int | str) -> None:
    """Never answers, if this store or member of PD is to hang."""
    if who in cluster.hanging:
        await asyncio.Event().wait()


class StoreService:
    """One store.

    Args:
        get_cluster: the cluster of now; tests put another one behind the same sockets.
        store_id: which store.
    """

    def __init__(self, get_cluster: GetCluster, store_id: int) -> None:
        self._get_cluster = get_cluster
        self._store_id = store_id

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return handlers(
            (calls.EVENT_FEED, self.event_feed, True),
            (calls.EVENT_FEED_V2, self.event_feed_v2, True),
            (calls.SCAN_LOCK, self.scan_lock, False),
            (calls.CHECK_TXN_STATUS, self.check_txn_status, False),
            (calls.CHECK_SECONDARY_LOCKS, self.check_secondary_locks, False),
            (calls.RESOLVE_LOCK, self.resolve_lock, False),
        )

    # ── change feed ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def event_feed(self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: Context) -> None:
        await self._serve(requests, context, multiplexed=False)

    async def event_feed_v2(self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: Context) -> None:
        features = dict(context.invocation_metadata() or ()).get("features")
        if self._store_id in self._get_cluster().old_stores or features != "stream-multiplexing":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"features {features!r}")
        await self._serve(requests, context, multiplexed=True)

    async def _serve(
        self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: Context, *, multiplexed: bool
    ) -> None:
        await self._refuse_if_down(context)
        feed = self._get_cluster().feeds[self._store_id]
        connection = feed.connect(multiplexed=multiplexed)

        async def read() -> None:
            async for request in requests:
                if not connection.broken:
                    feed.handle(connection, request)

        reading = asyncio.create_task(read())
        try:
            while (message := await connection.next()) is not None:
                await context.write(message)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            feed.disconnect(connection)

    async def _refuse_if_down(self, context: Context) -> None:
        if self._store_id in self._get_cluster().down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the store is down")

    # ── transactions ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def scan_lock(self, request: kvrpcpb_pb2.ScanLockRequest, context: Context) -> kvrpcpb_pb2.ScanLockResponse:
        region, error = await self._region(request.context, context)
        if region is None:
            return kvrpcpb_pb2.ScanLockResponse(region_error=error)
        found = [
            lock.info(key)
            for key, lock in sorted(self._get_cluster().mvcc.locks.items())
            if lock.start_ts <= request.max_version and key >= request.start_key and encode_bytes(key) in region
        ]
        return kvrpcpb_pb2.ScanLockResponse(locks=found[: request.limit])

    async def check_txn_status(
        self, request: kvrpcpb_pb2.CheckTxnStatusRequest, context: Context
    ) -> kvrpcpb_pb2.CheckTxnStatusResponse:
        region, error = await self._region(request.context, context, request.primary_key)
        if region is None:
            return kvrpcpb_pb2.CheckTxnStatusResponse(region_error=error)
        status = self._get_cluster().mvcc.check_txn_status(
            request.primary_key,
            request.lock_ts,
            request.current_ts,
            roll_back_unknown=request.rollback_if_not_exist,
            force_sync_commit=request.force_sync_commit,
        )
        if not status.known:
            not_found = kvrpcpb_pb2.TxnNotFound(start_ts=request.lock_ts, primary_key=request.primary_key)
            return kvrpcpb_pb2.CheckTxnStatusResponse(error=kvrpcpb_pb2.KeyError(txn_not_found=not_found))
        if status.lock is not None:
            info = status.lock.info(request.primary_key)
            return kvrpcpb_pb2.CheckTxnStatusResponse(lock_ttl=status.lock.ttl_ms, lock_info=info)
        return kvrpcpb_pb2.CheckTxnStatusResponse(commit_version=status.commit_ts)

    async def check_secondary_locks(
        self, request: kvrpcpb_pb2.CheckSecondaryLocksRequest, context: Context
    ) -> kvrpcpb_pb2.CheckSecondaryLocksResponse:
        region, error = await self._region(request.context, context, *request.keys)
        if region is None:
            return kvrpcpb_pb2.CheckSecondaryLocksResponse(region_error=error)
        mvcc = self._get_cluster().mvcc
        locked, commit_ts = mvcc.check_secondary_locks(list(request.keys), request.start_version)
        infos = [mvcc.locks[key].info(key) for key in locked]
        return kvrpcpb_pb2.CheckSecondaryLocksResponse(locks=infos, commit_ts=commit_ts)

    async def resolve_lock(
        self, request: kvrpcpb_pb2.ResolveLockRequest, context: Context
    ) -> kvrpcpb_pb2.ResolveLockResponse:
        region, error = await self._region(request.context, context)
        if region is None:
            return kvrpcpb_pb2.ResolveLockResponse(region_error=error)
        mvcc = self._get_cluster().mvcc
        for key, lock in list(mvcc.locks.items()):
            if lock.start_ts == request.start_version and encode_bytes(key) in region:
                if request.commit_version:
                    mvcc.commit(key, lock.start_ts, request.commit_version)
                else:
                    mvcc.roll_back(key, lock.start_ts)
        return kvrpcpb_pb2.ResolveLockResponse()

    async def _region(
        self, wanted: kvrpcpb_pb2.Context, context: Context, *keys: bytes
    ) -> tuple[Region | None, errorpb_pb2.Error | None]:
        """The region that a request is for, or why it is not served here."""
        await hang(self._get_cluster(), self._store_id)
        await self._refuse_if_down(context)
        region = self._get_cluster().topology.region(wanted.region_id)
        if region is None:
            return None, errorpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=wanted.region_id))
        if region.leader != self._store_id or wanted.peer.store_id != self._store_id:
            return None, errorpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(region_id=region.id))
        if region.version != wanted.region_epoch.version:
            return None, errorpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch())
        if not all(encode_bytes(key) in region for key in keys):
            return None, errorpb_pb2.Error(message="key not in region")
        return region, None


class PDService:
    """One member of PD.

    Args:
        get_cluster: see `StoreService`.
        member: which member.
        get_addresses: of all members, and of all stores.
    """

    def __init__(
        self, get_cluster: GetCluster, member: int, get_addresses: Callable[[], tuple[list[str], dict[int, str]]]
    ) -> None:
        self._get_cluster = get_cluster
        self._member = member
        self._get_addresses = get_addresses

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return handlers(
            (calls.GET_MEMBERS, self.get_members, False),
            (calls.TSO, self.tso, True),
            (calls.GET_ALL_STORES, self.get_all_stores, False),
            (calls.SCAN_REGIONS, self.scan_regions, False),
            (calls.GET_REGION, self.get_region, False),
            (calls.GET_REGION_BY_ID, self.get_region_by_id, False),
            (calls.UPDATE_SERVICE_GC_SAFE_POINT, self.update_service_gc_safe_point, False),
        )

    async def get_members(self, _request: pdpb_pb2.GetMembersRequest, context: Context) -> pdpb_pb2.GetMembersResponse:
        cluster = self._get_cluster()
        await hang(cluster, f"pd-{self._member}")
        if self._member in cluster.pd_down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the member is down")
        addresses, _ = self._get_addresses()
        members = [
            pdpb_pb2.Member(name=f"pd-{index}", member_id=index + 1, client_urls=[f"http://{address}"])
            for index, address in enumerate(addresses)
        ]
        leader = None if cluster.pd_leader in cluster.pd_down else members[cluster.pd_leader]
        return pdpb_pb2.GetMembersResponse(header=self._header(), members=members, leader=leader)

    async def tso(self, requests: AsyncIterator[pdpb_pb2.TsoRequest], context: Context) -> None:
        async for request in requests:
            if self._member in self._get_cluster().pd_mute:
                return
            cluster = await self._leader(request.header, context)
            ts = cluster.tso()
            stamp = pdpb_pb2.Timestamp(physical=ts >> TSO_LOGICAL_BITS, logical=ts & ((1 << TSO_LOGICAL_BITS) - 1))
            await context.write(pdpb_pb2.TsoResponse(header=self._header(), count=1, timestamp=stamp))

    async def get_all_stores(
        self, request: pdpb_pb2.GetAllStoresRequest, context: Context
    ) -> pdpb_pb2.GetAllStoresResponse:
        cluster = await self._leader(request.header, context)
        _, addresses = self._get_addresses()
        stores = [
            metapb_pb2.Store(
                id=store_id,
                address=address,
                state=metapb_pb2.Tombstone if store_id in cluster.tombstones else metapb_pb2.Up,
                version="7.5.0",
            )
            for store_id, address in addresses.items()
        ]
        return pdpb_pb2.GetAllStoresResponse(header=self._header(), stores=stores)

    async def scan_regions(
        self, request: pdpb_pb2.ScanRegionsRequest, context: Context
    ) -> pdpb_pb2.ScanRegionsResponse:
        cluster = await self._leader(request.header, context)
        found = cluster.scan_regions(request.start_key, request.end_key, request.limit)
        return pdpb_pb2.ScanRegionsResponse(header=self._header(), regions=found)

    async def get_region(self, request: pdpb_pb2.GetRegionRequest, context: Context) -> pdpb_pb2.GetRegionResponse:
        cluster = await self._leader(request.header, context)
        return self._found(cluster.scan_regions(request.region_key, b"", 1))

    async def get_region_by_id(
        self, request: pdpb_pb2.GetRegionByIDRequest, context: Context
    ) -> pdpb_pb2.GetRegionResponse:
        cluster = await self._leader(request.header, context)
        return self._found([each for each in cluster.topology.believed if each.region.id == request.region_id])

    async def update_service_gc_safe_point(
        self, request: pdpb_pb2.UpdateServiceGCSafePointRequest, context: Context
    ) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
        cluster = await self._leader(request.header, context)
        least = cluster.update_service_safe_point(request.service_id, request.TTL, request.safe_point)
        return pdpb_pb2.UpdateServiceGCSafePointResponse(
            header=self._header(), service_id=request.service_id, TTL=request.TTL, min_safe_point=least
        )

    def _found(self, regions: list[pdpb_pb2.Region]) -> pdpb_pb2.GetRegionResponse:
        if not regions:
            return pdpb_pb2.GetRegionResponse(header=self._header())
        return pdpb_pb2.GetRegionResponse(header=self._header(), region=regions[0].region, leader=regions[0].leader)

    def _header(self) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._get_cluster().cluster_id)

    async def _leader(self, header: pdpb_pb2.RequestHeader, context: Context) -> TiKVCluster:
        """The cluster, if this member leads and the caller means it."""
        cluster = self._get_cluster()
        await hang(cluster, f"pd-{self._member}")
        if self._member in cluster.pd_down or self._member != cluster.pd_leader:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")
        if header.cluster_id != cluster.cluster_id:
            message = f"mismatch cluster id, need {cluster.cluster_id} but got {header.cluster_id}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        return cluster
