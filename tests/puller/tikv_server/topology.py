"""Regions and who leads them, as they are and as PD believes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from datanode_client.puller.wire import metapb_pb2, pdpb_pb2


@dataclass(eq=False)
class Region:
    """A region as its stores know it. Bounds are memcomparable; empty = unbounded."""

    id: int
    start: bytes
    end: bytes
    stores: list[int]
    leader: int
    conf_ver: int = 1
    version: int = 1

    def __contains__(self, encoded_key: bytes) -> bool:
        return self.start <= encoded_key and (not self.end or encoded_key < self.end)

    def peer(self, store_id: int) -> metapb_pb2.Peer:
        return metapb_pb2.Peer(id=self.id * 1000 + store_id, store_id=store_id)

    def meta(self) -> metapb_pb2.Region:
        epoch = metapb_pb2.RegionEpoch(conf_ver=self.conf_ver, version=self.version)
        learner = metapb_pb2.Peer(id=self.id * 1000 + 999, store_id=999, role=metapb_pb2.Learner)
        peers = [*map(self.peer, self.stores), learner]
        return metapb_pb2.Region(id=self.id, start_key=self.start, end_key=self.end, region_epoch=epoch, peers=peers)


@dataclass
class Topology:
    """All regions, in key order.

    Attributes:
        store_ids: all stores.
        regions: as they are.
        believed: as PD believes since it was last told.
    """

    store_ids: Sequence[int]
    regions: list[Region] = field(default_factory=list)
    believed: list[pdpb_pb2.Region] = field(default_factory=list)
    _last_id: int = 1

    def __post_init__(self) -> None:
        self.regions = [Region(1, b"", b"", list(self.store_ids), self.store_ids[0])]
        self.tell_pd()

    def region(self, region_id: int) -> Region | None:
        return next((region for region in self.regions if region.id == region_id), None)

    def region_at(self, encoded_key: bytes) -> Region:
        return next(region for region in self.regions if encoded_key in region)

    def tell_pd(self) -> None:
        """PD hears of everything."""
        self.believed = [pdpb_pb2.Region(region=each.meta(), leader=each.peer(each.leader)) for each in self.regions]

    def split(self, region: Region, at: bytes, *, new_is_right: bool) -> Region:
        """Cuts a region; the new one gets one half, and the other keeps its id."""
        self._last_id += 1
        index = self.regions.index(region)
        region.version += 1
        new = Region(self._last_id, b"", b"", list(region.stores), region.leader, region.conf_ver, region.version)
        if new_is_right:
            new.start, new.end, region.end = at, region.end, at
            self.regions.insert(index + 1, new)
        else:
            new.start, new.end, region.start = region.start, at, at
            self.regions.insert(index, new)
        return new

    def merge(self, kept: Region, gone: Region) -> None:
        """One of two neighbours takes the other's keys."""
        kept.version = max(kept.version, gone.version) + 1
        if gone.start < kept.start:
            kept.start = gone.start
        else:
            kept.end = gone.end
        self.regions.remove(gone)
