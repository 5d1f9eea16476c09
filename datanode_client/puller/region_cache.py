"""The region cache: where each region is led, as far as is known.

Regions come from PD (`insert`), corrections from the stores' errors (`update_leader`, `on_send_fail`, `invalidate`). The cache is
asked for one thing only: the RPC context of a region, right before its request is sent. If it is wrong, the store says so.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from datanode_client.puller.span import Span


@dataclass(frozen=True, slots=True)
class RegionVerID:
    """A region in one of its shapes.

    Attributes:
        id: the region.
        conf_ver: raised when its peers change.
        version: raised when it splits or merges.
    """

    id: int
    conf_ver: int
    version: int


@dataclass(frozen=True, slots=True)
class RegionMeta:
    """A region as PD describes it.

    Attributes:
        ver_id: id and epoch.
        span: its keys, memcomparable.
        peer_store_ids: the stores that hold it.
        leader_store_id: the store that leads it; 0 = PD does not know.
    """

    ver_id: RegionVerID
    span: Span
    peer_store_ids: tuple[int, ...]
    leader_store_id: int = 0


@dataclass(frozen=True, slots=True)
class RPCContext:
    """What is needed to send a request for a region.

    Attributes:
        meta: the region.
        store_id: where to.
    """

    meta: RegionMeta
    store_id: int


@dataclass(slots=True)
class _Cached:
    meta: RegionMeta
    leader_store_id: int
    failed_store_ids: set[int] = field(default_factory=set)


class RegionCache:
    """Regions by id, without overlaps.

    The addresses of stores are not kept here: the network client asks PD for them when it connects.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, _Cached] = {}
        self._by_start: list[tuple[bytes, int]] = []

    def __len__(self) -> int:
        """Number of regions known."""
        return len(self._by_id)

    def insert(self, regions: Iterable[RegionMeta]) -> None:
        """Takes over what PD says. A description older than the one known is ignored; what a newer one overlaps is forgotten."""
        for meta in regions:
            known = self._by_id.get(meta.ver_id.id)
            if known is not None and _epoch(known.meta) > _epoch(meta):
                continue
            overlapped = self._overlapped(meta.span)
            if any(self._by_id[region_id].meta.ver_id.version > meta.ver_id.version for region_id in overlapped):
                continue
            for region_id in overlapped:
                self._forget(region_id)
            self._forget(meta.ver_id.id)
            self._by_id[meta.ver_id.id] = _Cached(meta, meta.leader_store_id)
            insort(self._by_start, (meta.span.start, meta.ver_id.id))

    def get_rpc_context(self, ver_id: RegionVerID) -> RPCContext | None:
        """Where a region's request goes; None if the region is unknown, has another epoch by now, or nobody is known to lead it.

        None means that the range has to be looked up in PD again.
        """
        cached = self._by_id.get(ver_id.id)
        if cached is None or cached.meta.ver_id != ver_id or not cached.leader_store_id:
            return None
        return RPCContext(cached.meta, cached.leader_store_id)

    def update_leader(self, ver_id: RegionVerID, leader_store_id: int) -> bool:
        """A store said who leads the region now.

        Returns:
            False if the region is no longer known in this epoch, or the store holds no peer of it: then nothing was changed
            except that a region whose leader is a stranger is forgotten.
        """
        cached = self._by_id.get(ver_id.id)
        if cached is None or cached.meta.ver_id != ver_id:
            return False
        if leader_store_id not in cached.meta.peer_store_ids:
            self._forget(ver_id.id)
            return False
        cached.leader_store_id = leader_store_id
        return True

    def on_send_fail(self, ver_id: RegionVerID, store_id: int) -> None:
        """A store cannot be reached: the next request goes to a peer that was not tried yet, and after all of them to PD.

        PD learns of a dead leader later than we do; a living peer says at once who leads.
        """
        cached = self._by_id.get(ver_id.id)
        if cached is None or cached.meta.ver_id != ver_id or cached.leader_store_id != store_id:
            return
        cached.failed_store_ids.add(store_id)
        untried = [peer for peer in cached.meta.peer_store_ids if peer not in cached.failed_store_ids]
        if untried:
            cached.leader_store_id = untried[0]
        else:
            self._forget(ver_id.id)

    def invalidate(self, ver_id: RegionVerID) -> None:
        """Forgets a region in this epoch, so that PD is asked."""
        cached = self._by_id.get(ver_id.id)
        if cached is not None and cached.meta.ver_id == ver_id:
            self._forget(ver_id.id)

    def _overlapped(self, span: Span) -> list[int]:
        low = bisect_left(self._by_start, (span.start, -1))
        low -= low > 0  # the region that begins before the span may reach into it
        found = []
        for start, region_id in self._by_start[low:]:
            if span.end and start >= span.end:
                break
            if self._by_id[region_id].meta.span.overlaps(span):
                found.append(region_id)
        return found

    def _forget(self, region_id: int) -> None:
        cached = self._by_id.pop(region_id, None)
        if cached is not None:
            del self._by_start[bisect_left(self._by_start, (cached.meta.span.start, region_id))]


def _epoch(meta: RegionMeta) -> tuple[int, int]:
    return meta.ver_id.version, meta.ver_id.conf_ver
