"""A cluster as one model: stores, PD, time, and everything that can happen to them."""

import random
from collections.abc import Callable, Sequence

from datanode_client.puller.span import encode_bytes
from datanode_client.puller.wire import cdcpb_pb2, errorpb_pb2, pdpb_pb2

from .change_data import StoreFeed, epoch_not_match, not_leader
from .mvcc import TSO_LOGICAL_BITS, Change, LogRow, Mvcc
from .topology import Region, Topology

START_MS = 1_700_000_000_000


class TiKVCluster:
    """The cluster. Whoever drives it calls `step_scans` and `report_resolved`, as a real one does by itself.

    Args:
        rng: for what is left to chance: order, sizes of messages, hints of leaders.
        now_ms: elapsed milliseconds; the cluster began at START_MS.
        store_ids: its stores.
        cluster_id: what PD and stores answer to.
    """

    def __init__(
        self,
        rng: random.Random,
        now_ms: Callable[[], int],
        store_ids: Sequence[int] = (1, 2, 3),
        cluster_id: int = 7_001,
    ) -> None:
        self.rng = rng
        self.cluster_id = cluster_id
        self.mvcc = Mvcc(self._on_row)
        self.topology = Topology(store_ids)
        self.feeds = {
            store_id: StoreFeed(store_id, cluster_id, self.mvcc, self.topology, self._refuse) for store_id in store_ids
        }
        self.down: set[int] = set()
        self.tombstones: set[int] = set()
        self.old_stores: set[int] = set()
        self.pd_leader = 0
        self.pd_down: set[int] = set()
        self.pd_mute: set[int] = set()  # members that end a stream for timestamps without a word
        self.hanging: set[int | str] = set()
        self.refusals: Callable[[], cdcpb_pb2.Error | None] = lambda: None
        self.hide_region: Callable[[], bool] = lambda: False
        self.service_safe_points: dict[bytes, int] = {}
        self.gc_safe_point = 0
        self._now_ms = now_ms
        self._last_ts = 0

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tso(self) -> int:
        """The next timestamp."""
        self._last_ts = max(self._last_ts + 1, (START_MS + self._now_ms()) << TSO_LOGICAL_BITS)
        return self._last_ts

    # ── what stores do by themselves ────────────────────────────────────────────────────────────────────────────────────────

    def step_scans(self, rows_max: int = 3) -> bool:
        """One incremental scan, chosen at random, goes on; False if there is none."""
        scanning = [
            (feed, connection, downstream)
            for feed in self.feeds.values()
            for connection in feed.connections
            for downstream in connection.downstreams.values()
            if not downstream.initialized
        ]
        if scanning:
            feed, connection, downstream = self.rng.choice(scanning)
            feed.scan(connection, downstream, self.rng.randint(0, rows_max))
        return bool(scanning)

    def report_resolved(self) -> None:
        """Every store reports how far its regions are."""
        now_ts = self.tso()
        for feed in self.feeds.values():
            feed.report(now_ts)

    def _on_row(self, row: LogRow) -> None:
        region = self.topology.region_at(encode_bytes(row.key))
        self.feeds[region.leader].on_row(row)

    def _refuse(self, _region: Region) -> cdcpb_pb2.Error | None:
        return self.refusals()

    # ── what happens to regions ─────────────────────────────────────────────────────────────────────────────────────────────

    def split(self, at: bytes, *, new_is_right: bool = True) -> None:
        """Cuts the region of a memcomparable key there."""
        region = self.topology.region_at(at)
        if region.start != at:
            self.topology.split(region, at, new_is_right=new_is_right)
            self._give_up(region, epoch_not_match(region))

    def merge(self, index: int, *, keep_left: bool = True) -> None:
        """Merges a region and its right neighbour. The one that goes is led where the other is, first."""
        left, right = self.topology.regions[index : index + 2]
        kept, gone = (left, right) if keep_left else (right, left)
        self._give_up(gone, cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=gone.id)))
        self.topology.merge(kept, gone)
        self._give_up(kept, epoch_not_match(kept))

    def transfer_leader(self, region: Region, to_store: int, *, say_who: bool = True) -> None:
        """Another store leads a region."""
        if to_store != region.leader:
            old, region.leader = region.leader, to_store
            self.feeds[old].give_up(region, not_leader(region, say_who=say_who))

    def move_peer(self, region: Region, from_store: int, to_store: int) -> None:
        """A region moves from one store to another."""
        region.stores[region.stores.index(from_store)] = to_store
        region.conf_ver += 2
        if region.leader == from_store:
            region.leader = region.stores[0]
            error = cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=region.id))
            self.feeds[from_store].give_up(region, error)

    def _give_up(self, region: Region, error: cdcpb_pb2.Error) -> None:
        for feed in self.feeds.values():
            feed.give_up(region, error)

    # ── what happens to machines ────────────────────────────────────────────────────────────────────────────────────────────

    def break_streams(self, store_id: int) -> None:
        """All streams of a store break; what they had not sent is lost."""
        feed = self.feeds[store_id]
        for connection in list(feed.connections):
            feed.disconnect(connection)

    def take_down(self, store_id: int) -> None:
        """A store dies; others lead its regions at once, whatever PD believes."""
        self.down.add(store_id)
        self.break_streams(store_id)
        for region in self.topology.regions:
            alive = [store for store in region.stores if store not in self.down]
            if region.leader == store_id and alive:
                region.leader = self.rng.choice(alive)

    def bring_up(self) -> None:
        """All machines are back."""
        self.hanging.clear()
        self.down.clear()
        self.pd_down.clear()

    # ── what PD answers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> list[pdpb_pb2.Region]:
        """Regions of a range as PD believes; perhaps with a hole."""
        found = [
            each
            for each in self.topology.believed
            if (not end or each.region.start_key < end) and (not each.region.end_key or start < each.region.end_key)
        ]
        return [each for each in found[: limit if limit > 0 else None] if not self.hide_region()]

    def update_service_safe_point(self, service_id: bytes, ttl_seconds: int, safe_point: int) -> int:
        """Keeps history; returns the smallest timestamp that anybody keeps."""
        others = [ts for service, ts in self.service_safe_points.items() if service != service_id]
        if ttl_seconds <= 0:
            self.service_safe_points.pop(service_id, None)
        elif safe_point >= self.gc_safe_point:
            self.service_safe_points[service_id] = safe_point
            others.append(safe_point)
        else:
            others.append(self.gc_safe_point)
        return min(others, default=self.gc_safe_point)

    def gc(self, safe_point: int) -> None:
        """Removes history before a timestamp, as far as nobody keeps it."""
        self.gc_safe_point = max(self.gc_safe_point, min([safe_point, *self.service_safe_points.values()]))
        self.mvcc.gc(self.gc_safe_point)

    # ── what a feed must deliver ────────────────────────────────────────────────────────────────────────────────────────────

    def changes(self, after_ts: int, up_to_ts: int) -> list[Change]:
        """Every change in a range of timestamps, by timestamp, transaction and key."""
        wanted = [change for change in self.mvcc.history if after_ts < change.commit_ts <= up_to_ts]
        return sorted(wanted, key=lambda change: (change.commit_ts, change.start_ts, change.key))
