"""Resolves locks: finds out what became of the transactions that hold a region back, and ends those whose client is dead.

This is the part of TiKV's transaction protocol (Percolator, with async commit) that any reader may carry out. A transaction is
committed or rolled back as its primary key is; with async commit it is committed once all of its keys are locked. A client that
lives keeps the time to live of its primary lock ahead of the clock, and is left alone.
"""

import asyncio
from typing import Any, Final, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from datacoord.errors import SourceUnavailableError
from datanode_client.puller.resolve_lock import physical_ms
from datanode_client.puller.span import MalformedKeyError, decode_bytes, encode_bytes
from datanode_client.puller.tikv import calls
from datanode_client.puller.tikv.calls import Call
from datanode_client.puller.tikv.pd_client import PDClient
from datanode_client.puller.tikv.store_directory import StoreDirectory
from datanode_client.puller.wire import kvrpcpb_pb2, pdpb_pb2

_log = structlog.get_logger(__name__)

SCAN_LOCK_LIMIT: Final = 1024
"""Locks of one KvScanLock."""

_HOLD_NOTHING_BACK: Final = frozenset(
    {kvrpcpb_pb2.PessimisticLock, kvrpcpb_pb2.SharedLock, kvrpcpb_pb2.SharedPessimisticLock}
)
"""Kinds of locks that write nothing yet: resolved timestamps pass them."""

ResponseT = TypeVar("ResponseT", bound=Message)


class LockNotResolvedError(SourceUnavailableError):
    """A region or store did not answer as hoped; the region stays a candidate for the next attempt."""


class _NotAsyncCommitError(Exception):
    """A key is locked without async commit: its transaction fell back, and its primary key decides."""


class TiKVLockResolver:
    """Resolves the locks of one region at a time; many may be under way.

    Args:
        pd: finds regions, and knows the time.
        stores: connections.
        timeout_seconds: deadline of every call.
    """

    def __init__(self, pd: PDClient, stores: StoreDirectory, timeout_seconds: float = 5.0) -> None:
        self._pd = pd
        self._stores = stores
        self._timeout_seconds = timeout_seconds

    async def resolve(self, region_id: int, max_ts: int) -> int:
        """Ends what may be ended.

        Args:
            region_id: the region.
            max_ts: only transactions that began up to this timestamp.

        Returns:
            how many transactions were ended in the region.

        Raises:
            LockNotResolvedError: the region moved, or a store does not answer.
            PDUnavailableError: PD does not answer.
        """
        region = await self._pd.region_by_id(region_id)
        if region is None:
            raise LockNotResolvedError(f"region {region_id} has no leader that PD knows", region_id=region_id)
        current_ts = await self._pd.tso()
        statuses: dict[int, int | None] = {}
        start_key = _raw_bound(region.region.start_key)
        while True:
            locks = await self._scan(region, start_key, max_ts)
            for lock in locks:
                if lock.lock_version not in statuses and lock.lock_type not in _HOLD_NOTHING_BACK:
                    commit_ts = statuses[lock.lock_version] = await self._commit_ts(lock, current_ts)
                    if commit_ts is not None:
                        await self._end(region, lock.lock_version, commit_ts)
            if len(locks) < SCAN_LOCK_LIMIT:
                return sum(commit_ts is not None for commit_ts in statuses.values())
            start_key = locks[-1].key + b"\x00"

    async def _scan(self, region: pdpb_pb2.Region, start_key: bytes, max_ts: int) -> list[kvrpcpb_pb2.LockInfo]:
        request = kvrpcpb_pb2.ScanLockRequest(max_version=max_ts, start_key=start_key, limit=SCAN_LOCK_LIMIT)
        return list((await self._call(calls.SCAN_LOCK, region, request)).locks)

    async def _end(self, region: pdpb_pb2.Region, start_ts: int, commit_ts: int) -> None:
        _log.info("locks_resolved", region_id=region.region.id, start_ts=start_ts, commit_ts=commit_ts)
        request = kvrpcpb_pb2.ResolveLockRequest(start_version=start_ts, commit_version=commit_ts)
        await self._call(calls.RESOLVE_LOCK, region, request)

    async def _commit_ts(self, lock: kvrpcpb_pb2.LockInfo, current_ts: int) -> int | None:
        """What became of a transaction: its commit timestamp; 0 = rolled back; None = it is under way."""
        status = await self._check_status(lock, current_ts, force_sync_commit=False)
        primary = status.lock_info
        if status.lock_ttl and primary.use_async_commit and _is_over(primary, current_ts):
            try:
                return await self._async_commit_ts(primary)
            except _NotAsyncCommitError:
                status = await self._check_status(lock, current_ts, force_sync_commit=True)
        return None if status.lock_ttl else int(status.commit_version)

    async def _check_status(
        self, lock: kvrpcpb_pb2.LockInfo, current_ts: int, *, force_sync_commit: bool
    ) -> kvrpcpb_pb2.CheckTxnStatusResponse:
        region = await self._region_of(lock.primary_lock)
        request = kvrpcpb_pb2.CheckTxnStatusRequest(
            primary_key=lock.primary_lock,
            lock_ts=lock.lock_version,
            current_ts=current_ts,
            # The primary lock may come after the others. To roll back in its absence is right only for a client that is dead.
            rollback_if_not_exist=_is_over(lock, current_ts),
            force_sync_commit=force_sync_commit,
            verify_is_primary=True,
        )
        return await self._call(calls.CHECK_TXN_STATUS, region, request)

    async def _async_commit_ts(self, primary: kvrpcpb_pb2.LockInfo) -> int:
        """Decides a transaction by all of its keys.

        Asking for a key that is not locked rolls the transaction back there, so the answer stays what it is.

        Raises:
            _NotAsyncCommitError: see there.
        """
        min_commit_ts = int(primary.min_commit_ts)
        by_region: dict[int, tuple[pdpb_pb2.Region, list[bytes]]] = {}
        for key in primary.secondaries:
            region = await self._region_of(key)
            by_region.setdefault(region.region.id, (region, []))[1].append(key)
        for region, keys in by_region.values():
            request = kvrpcpb_pb2.CheckSecondaryLocksRequest(keys=keys, start_version=primary.lock_version)
            response = await self._call(calls.CHECK_SECONDARY_LOCKS, region, request)
            if len(response.locks) < len(keys):
                return int(response.commit_ts)
            if not all(lock.use_async_commit for lock in response.locks):
                raise _NotAsyncCommitError
            min_commit_ts = max(min_commit_ts, *(int(lock.min_commit_ts) for lock in response.locks))
        return min_commit_ts

    async def _region_of(self, key: bytes) -> pdpb_pb2.Region:
        region = await self._pd.region_of_key(encode_bytes(key))
        if region is None:
            raise LockNotResolvedError(f"the region of key {key.hex()} has no leader that PD knows", key=key.hex())
        return region

    async def _call(self, call: Call[Any, ResponseT], region: pdpb_pb2.Region, request: Any) -> ResponseT:
        """Calls the leader of a region, once."""
        method = call.path.rpartition("/")[2]
        request.context.CopyFrom(
            kvrpcpb_pb2.Context(region_id=region.region.id, region_epoch=region.region.region_epoch, peer=region.leader)
        )
        channel = await self._stores.channel(region.leader.store_id)
        try:
            response: Any = await call.unary(channel)(request, timeout=self._timeout_seconds)
        except grpc.aio.AioRpcError as error:
            self._stores.suspect(region.leader.store_id)
            raise _failed(method, region, f"{error.code().name}: {error.details()}") from error
        for field in ("region_error", "error"):
            if response.HasField(field):
                raise _failed(method, region, str(getattr(response, field)).replace("\n", " ").strip())
        return response  # type: ignore[no-any-return]


def _failed(method: str, region: pdpb_pb2.Region, why: str) -> LockNotResolvedError:
    return LockNotResolvedError(
        f"{method} failed in region {region.region.id} at store {region.leader.store_id}: {why}",
        method=method,
        region_id=region.region.id,
        store_id=region.leader.store_id,
    )


def _is_over(lock: kvrpcpb_pb2.LockInfo, current_ts: int) -> bool:
    """Whether the time to live of a lock has passed."""
    return physical_ms(int(lock.lock_version)) + int(lock.lock_ttl) < physical_ms(current_ts)


def _raw_bound(key: bytes) -> bytes:
    """A region's bound as a raw key; where it was cut inside of a key, the store's own bound has to do."""
    if not key:
        return b""
    try:
        return decode_bytes(key)
    except MalformedKeyError:
        return b""


async def resolve_quietly(resolver: TiKVLockResolver, region_id: int, max_ts: int, limit: asyncio.Semaphore) -> None:
    """Makes one attempt whose failure is said in the log only: the region stays a candidate."""
    try:
        async with limit:
            await resolver.resolve(region_id, max_ts)
    except SourceUnavailableError as error:
        _log.warning("locks_not_resolved", region_id=region_id, error=error.message)
