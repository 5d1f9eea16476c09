"""Locks that dead clients left behind: what became of their transactions is found out, and nothing else is done to them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from datacoord.errors import SourceUnavailableError
from datanode_client.puller.span import Span, encode_bytes
from datanode_client.puller.tikv import lock_resolver
from datanode_client.puller.tikv.client import TiKVClient
from datanode_client.puller.tikv.lock_resolver import LockNotResolvedError, TiKVLockResolver
from datanode_client.puller.tikv.pd_client import PDClient
from datanode_client.puller.tikv.settings import TiKVSettings
from datanode_client.puller.tikv.store_directory import StoreDirectory

from .tikv_server.living import LivingCluster, living_cluster, until
from .tikv_server.mvcc import PUT, Lock, Mvcc

TTL_MS = 600_000
"""Half a minute of ours: nothing is over before a test says so."""


@pytest.fixture
async def living() -> AsyncIterator[LivingCluster]:
    """A cluster of two regions, cut at `m`."""
    async with living_cluster() as made:
        made.cluster.split(encode_bytes(b"m"))
        made.cluster.transfer_leader(made.cluster.topology.regions[1], 2)
        made.cluster.topology.tell_pd()
        yield made


@pytest.fixture
async def resolver(living: LivingCluster) -> AsyncIterator[TiKVLockResolver]:
    """Resolves locks of that cluster."""
    pd = PDClient(living.server.pd_addresses, 20.0)
    stores = StoreDirectory(pd, living.clock)
    yield TiKVLockResolver(pd, stores, 20.0)
    await stores.close()
    await pd.close()


def lock(mvcc: Mvcc, start_ts: int, *keys: bytes, primary: bytes | None = None, **options: Any) -> None:
    """Locks keys for one transaction."""
    for key in keys:
        mvcc.prewrite(key, Lock(start_ts, primary or keys[0], PUT, b"v", **{"ttl_ms": TTL_MS, **options}))


def skip_ttl(living: LivingCluster) -> None:
    """The time of whoever began before this is over."""
    living.clock.skip(TTL_MS / 1000 + 0.1)


async def test_a_transaction_is_committed_as_its_primary_key_is(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """The client died after it had committed the primary key: the transaction has happened, and half of it is not seen yet."""
    mvcc, start_ts = living.cluster.mvcc, living.cluster.tso()
    lock(mvcc, start_ts, b"z", b"a", b"b")
    commit_ts = living.cluster.tso()
    mvcc.commit(b"z", start_ts, commit_ts)

    assert await resolver.resolve(1, living.cluster.tso()) == 1

    assert not mvcc.locks
    assert [change.commit_ts for change in mvcc.history] == [commit_ts] * 3


async def test_a_transaction_whose_time_is_over_is_rolled_back(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """Its client died before it had committed anything."""
    mvcc = living.cluster.mvcc
    lock(mvcc, living.cluster.tso(), b"z", b"a")
    skip_ttl(living)

    assert await resolver.resolve(1, living.cluster.tso()) == 1

    assert not mvcc.locks
    assert not mvcc.history


async def test_a_transaction_of_a_living_client_is_left_alone(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """Rolled back under its hands, it would fail for nothing."""
    mvcc = living.cluster.mvcc
    lock(mvcc, living.cluster.tso(), b"z", b"a", ttl_ms=10**9)

    assert await resolver.resolve(1, living.cluster.tso()) == 0

    assert set(mvcc.locks) == {b"z", b"a"}


async def test_an_async_commit_of_a_living_client_is_left_alone(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """To ask for a key that it has not locked yet would roll it back."""
    mvcc, start_ts = living.cluster.mvcc, living.cluster.tso()
    min_commit_ts = start_ts + 5
    lock(mvcc, start_ts, b"a", use_async_commit=True, min_commit_ts=min_commit_ts, ttl_ms=10**9, secondaries=(b"n",))

    assert await resolver.resolve(1, living.cluster.tso()) == 0

    assert set(mvcc.locks) == {b"a"}
    assert not mvcc.status(b"n", start_ts).known


async def test_a_young_lock_is_left_alone_however_its_transaction_stands(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """Only what began up to the timestamp asked for holds the region back."""
    max_ts = living.cluster.tso()
    lock(living.cluster.mvcc, living.cluster.tso(), b"a")
    skip_ttl(living)

    assert await resolver.resolve(1, max_ts) == 0

    assert set(living.cluster.mvcc.locks) == {b"a"}


@pytest.mark.parametrize("primary_min_offset", [5, 9])
async def test_an_async_commit_with_all_keys_locked_is_committed(
    living: LivingCluster, resolver: TiKVLockResolver, primary_min_offset: int
) -> None:
    """Its client was told that it had succeeded; rolling it back would take that back."""
    mvcc, start_ts = living.cluster.mvcc, living.cluster.tso()
    commit_ts = start_ts + max(primary_min_offset, 7)
    primary_min = start_ts + primary_min_offset
    lock(mvcc, start_ts, b"z", use_async_commit=True, min_commit_ts=primary_min, secondaries=(b"a", b"n"))
    lock(mvcc, start_ts, b"a", b"n", primary=b"z", use_async_commit=True, min_commit_ts=start_ts + 7)
    skip_ttl(living)

    assert await resolver.resolve(1, living.cluster.tso()) == 1
    assert [(change.key, change.commit_ts) for change in mvcc.history] == [(b"a", commit_ts)]
    assert await resolver.resolve(2, living.cluster.tso()) == 1

    assert not mvcc.locks
    assert {change.commit_ts for change in mvcc.history} == {commit_ts}


async def test_an_async_commit_with_a_key_missing_is_rolled_back_for_ever(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """The missing lock may still be on its way: it must not be taken any more."""
    mvcc, start_ts = living.cluster.mvcc, living.cluster.tso()
    lock(mvcc, start_ts, b"z", use_async_commit=True, min_commit_ts=start_ts + 5, secondaries=(b"a", b"n"))
    lock(mvcc, start_ts, b"a", primary=b"z", use_async_commit=True, min_commit_ts=start_ts + 7)
    skip_ttl(living)

    await resolver.resolve(1, living.cluster.tso())
    await resolver.resolve(2, living.cluster.tso())

    assert not mvcc.locks
    assert not mvcc.history
    assert not mvcc.status(b"n", start_ts).commit_ts
    assert mvcc.status(b"n", start_ts).known


async def test_a_transaction_that_fell_back_from_async_commit_is_decided_by_its_primary_key(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """A key that is locked in the old way says that the client had given async commit up."""
    mvcc, start_ts = living.cluster.mvcc, living.cluster.tso()
    lock(mvcc, start_ts, b"z", use_async_commit=True, min_commit_ts=start_ts + 5, secondaries=(b"a",))
    lock(mvcc, start_ts, b"a", primary=b"z")
    skip_ttl(living)

    assert await resolver.resolve(1, living.cluster.tso()) == 1

    assert not mvcc.locks
    assert not mvcc.history


async def test_a_primary_lock_that_has_not_come_yet_is_waited_for(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """Locks are taken side by side: that of the primary key may be the last one."""
    mvcc = living.cluster.mvcc
    lock(mvcc, living.cluster.tso(), b"a", primary=b"z")
    with pytest.raises(LockNotResolvedError, match="txn_not_found"):
        await resolver.resolve(1, living.cluster.tso())
    locked_meanwhile = set(mvcc.locks)
    skip_ttl(living)

    assert await resolver.resolve(1, living.cluster.tso()) == 1

    assert locked_meanwhile == {b"a"}
    assert not mvcc.locks


async def test_locks_that_only_keep_others_away_are_not_touched(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """A pessimistic lock holds no resolved timestamp back."""
    lock(living.cluster.mvcc, living.cluster.tso(), b"a", pessimistic=True)
    skip_ttl(living)

    assert await resolver.resolve(1, living.cluster.tso()) == 0

    assert set(living.cluster.mvcc.locks) == {b"a"}


async def test_more_locks_than_one_answer_holds_are_all_resolved(
    living: LivingCluster, resolver: TiKVLockResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead client may have locked a million keys."""
    monkeypatch.setattr(lock_resolver, "SCAN_LOCK_LIMIT", 1)
    for number in range(10):
        lock(living.cluster.mvcc, living.cluster.tso(), b"a%d" % number, ttl_ms=10**9 if number == 5 else TTL_MS)
    skip_ttl(living)

    assert await resolver.resolve(1, living.cluster.tso()) == 9

    assert set(living.cluster.mvcc.locks) == {b"a5"}


async def test_a_region_that_moved_or_a_store_that_hangs_ends_the_attempt(
    living: LivingCluster, resolver: TiKVLockResolver
) -> None:
    """There will be another attempt; one that never ends would keep it away."""
    lock(living.cluster.mvcc, living.cluster.tso(), b"a")
    living.cluster.hanging.add(1)
    resolver._timeout_seconds = 0.2
    async with asyncio.timeout(20):
        with pytest.raises(LockNotResolvedError, match="DEADLINE_EXCEEDED"):
            await resolver.resolve(1, living.cluster.tso())
    living.cluster.hanging.clear()
    with pytest.raises(SourceUnavailableError, match="no leader that PD knows"):
        await resolver.resolve(77, living.cluster.tso())


async def test_a_feed_is_not_held_back_by_a_dead_client(living: LivingCluster) -> None:
    """Nobody else meets the lock on a quiet table: the feed would stand still until somebody looks."""
    client = TiKVClient(TiKVSettings(tuple(living.server.pd_addresses)), clock=living.clock)
    resolved: list[int] = []

    async def sink(event: Any) -> None:
        resolved.append(getattr(event, "ts", 0))

    feeding = asyncio.create_task(client.event_feed(Span(encode_bytes(b"a"), encode_bytes(b"b")), 1, sink))
    await until(lambda: resolved)
    lock(living.cluster.mvcc, living.cluster.tso(), b"a", ttl_ms=3000)
    target = living.cluster.tso()
    await until(lambda: resolved[-1] > target)
    feeding.cancel()
    await client.close()

    assert not living.cluster.mvcc.locks
