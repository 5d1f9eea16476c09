"""The region cache: newer shapes win, leaders are corrected, dead stores are left."""

from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.region_cache import RegionCache, RegionMeta, RegionVerID
from datanode_client.puller.span import Span

from .strategies import spans


def region(region_id: int, span: Span, *, version: int = 1, leader: int = 1) -> RegionMeta:
    """A region on the stores 1 to 3."""
    return RegionMeta(RegionVerID(region_id, 1, version), span, (1, 2, 3), leader)


@given(metas=st.lists(st.builds(region, st.integers(1, 4), spans(), version=st.integers(1, 5)), max_size=12))
def test_cached_regions_never_overlap_and_newer_shapes_win(metas: list[RegionMeta]) -> None:
    """Two cached regions for one key would send requests to the store that lost it."""
    cache = RegionCache()
    for meta in metas:
        before = [cached.meta for cached in cache._by_id.values()]
        cache.insert([meta])
        kept = [cached.meta for cached in cache._by_id.values()]

        assert all(not a.span.overlaps(b.span) for a in kept for b in kept if a is not b)
        assert sorted(start for start, _ in cache._by_start) == sorted(cached.span.start for cached in kept)
        clash = [old for old in before if old.ver_id.id == meta.ver_id.id or old.span.overlaps(meta.span)]
        newer = any(old.ver_id.version > meta.ver_id.version for old in clash)
        assert (meta in kept) == (not newer or meta in before)
        assert set(before) - set(clash) <= set(kept)


def test_a_region_in_another_shape_has_no_rpc_context() -> None:
    """The request would be refused, and its range was claimed for the other shape."""
    cache = RegionCache()
    cache.insert([region(1, Span(b"a", b"b"), version=2)])

    assert cache.get_rpc_context(RegionVerID(1, 1, 1)) is None
    found = cache.get_rpc_context(RegionVerID(1, 1, 2))
    assert found is not None
    assert found.store_id == 1


def test_a_region_without_leader_has_no_rpc_context() -> None:
    """PD does not know either; it has to be asked again."""
    cache = RegionCache()
    cache.insert([region(1, Span(b"a", b"b"), leader=0)])

    assert cache.get_rpc_context(RegionVerID(1, 1, 1)) is None


def test_a_new_leader_is_used_and_a_stranger_is_not() -> None:
    """A leader that holds no known peer means that the peers have changed: ask PD."""
    cache, ver_id = RegionCache(), RegionVerID(1, 1, 1)
    cache.insert([region(1, Span(b"a", b"b"))])

    assert cache.update_leader(ver_id, 3)
    found = cache.get_rpc_context(ver_id)
    assert found is not None
    assert found.store_id == 3
    assert not cache.update_leader(RegionVerID(1, 1, 9), 2)
    assert not cache.update_leader(ver_id, 7)
    assert len(cache) == 0


def test_a_dead_store_is_left_for_its_peers_and_then_for_pd() -> None:
    """PD goes on naming the dead store as leader for a while; a living peer knows better."""
    cache, ver_id = RegionCache(), RegionVerID(1, 1, 1)
    cache.insert([region(1, Span(b"a", b"b"))])
    tried = []
    while (found := cache.get_rpc_context(ver_id)) is not None:
        tried.append(found.store_id)
        cache.on_send_fail(ver_id, found.store_id)

    assert tried == [1, 2, 3]


def test_a_failure_of_a_store_that_leads_no_more_changes_nothing() -> None:
    """The news is old: the leader was corrected in the meantime."""
    cache, ver_id = RegionCache(), RegionVerID(1, 1, 1)
    cache.insert([region(1, Span(b"a", b"b"))])
    cache.update_leader(ver_id, 3)
    cache.on_send_fail(ver_id, 1)
    cache.invalidate(RegionVerID(1, 1, 9))

    found = cache.get_rpc_context(ver_id)
    assert found is not None
    assert found.store_id == 3
