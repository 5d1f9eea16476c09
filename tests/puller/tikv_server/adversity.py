"""Faults by seed: what happens to regions, stores, PD, streams and messages."""

import random
from collections.abc import Sequence

from datanode_client.puller.span import encode_bytes
from datanode_client.puller.wire import cdcpb_pb2, errorpb_pb2

from .change_data import INITIALIZED_ROW
from .cluster import TiKVCluster
from .mvcc import LogRow


class Adversity:
    """Makes things go wrong in a cluster.

    Args:
        cluster: the cluster.
        rng: where decisions come from.
        keys: regions are cut at and inside of these keys.
    """

    def __init__(self, cluster: TiKVCluster, rng: random.Random, keys: Sequence[bytes]) -> None:
        self._cluster = cluster
        self._rng = rng
        self._keys = list(keys)
        self.happened: dict[str, int] = {}
        self._faults = (
            *(self.split, self.split, self.merge, self.transfer_leader, self.transfer_leader, self.move_peer),
            *(self.break_streams, self.store_down, self.machines_up, self.machines_up),
            *(self.pd_leader_moves, self.pd_member_down, self.tell_pd, self.tell_pd, self.send_again, self.fall_back),
        )

    def begin(self) -> None:
        """From now on requests are refused, rows are lost and PD's answers have holes, now and then."""
        self._cluster.refusals = self._refusal
        for feed in self._cluster.feeds.values():
            feed.loses = self._loses
        self._cluster.hide_region = lambda: self._rng.random() < 0.04

    def end(self) -> None:
        """Nothing goes wrong any more."""
        cluster = self._cluster
        cluster.refusals = lambda: None
        cluster.hide_region = lambda: False
        cluster.bring_up()
        cluster.topology.tell_pd()
        for feed in cluster.feeds.values():
            feed.holds_back = False
            feed.loses = lambda _row: False
            for connection in feed.connections:
                connection.released = None
                connection.wake.set()

    def strike(self) -> None:
        """One fault."""
        fault = self._rng.choice(self._faults)
        self._count(fault.__name__)
        fault()

    def _count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    # ── regions ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def split(self) -> None:
        key = self._rng.choice(self._keys)
        at = encode_bytes(key) if self._rng.random() < 0.8 else key + b"\x01"  # stores also cut inside of keys
        if len(self._cluster.topology.regions) < 8:
            self._cluster.split(at, new_is_right=self._rng.random() < 0.5)

    def merge(self) -> None:
        count = len(self._cluster.topology.regions)
        if count > 1:
            self._cluster.merge(self._rng.randrange(count - 1), keep_left=self._rng.random() < 0.5)

    def transfer_leader(self) -> None:
        region = self._rng.choice(self._cluster.topology.regions)
        alive = [store for store in region.stores if store not in self._cluster.down]
        if alive:
            self._cluster.transfer_leader(region, self._rng.choice(alive), say_who=self._rng.random() < 0.7)

    def move_peer(self) -> None:
        cluster = self._cluster
        region = self._rng.choice(cluster.topology.regions)
        others = [store for store in cluster.feeds if store not in region.stores and store not in cluster.down]
        if others:
            cluster.move_peer(region, self._rng.choice(region.stores), self._rng.choice(others))
            region.leader = region.leader if region.leader not in cluster.down else others[0]

    # ── machines ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def break_streams(self) -> None:
        self._cluster.break_streams(self._rng.choice(list(self._cluster.feeds)))

    def store_down(self) -> None:
        if not self._cluster.down:
            self._cluster.take_down(self._rng.choice(list(self._cluster.feeds)))

    def machines_up(self) -> None:
        self._cluster.bring_up()

    def pd_leader_moves(self) -> None:
        self._cluster.pd_leader = 1 - self._cluster.pd_leader

    def pd_member_down(self) -> None:
        self._cluster.pd_down.add(self._rng.randrange(2))

    def tell_pd(self) -> None:
        self._cluster.topology.tell_pd()

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def send_again(self) -> None:
        """A message that waits on a stream is sent twice."""
        for feed in self._cluster.feeds.values():
            for connection in feed.connections:
                if connection.outgoing and not _initializes(connection.outgoing[-1]):
                    connection.outgoing.append(connection.outgoing[-1])

    def fall_back(self) -> None:
        """Stores report resolved timestamps of long ago."""
        long_ago = self._cluster.tso() - (self._rng.randint(1, 5000) << 18)
        for feed in self._cluster.feeds.values():
            feed.report(long_ago)

    def _refusal(self) -> cdcpb_pb2.Error | None:
        luck = self._rng.random()
        if luck < 0.08:
            self._count("busy")
            busy = errorpb_pb2.ServerIsBusy(reason="test", backoff_ms=self._rng.randint(0, 300))
            return cdcpb_pb2.Error(server_is_busy=busy)
        if luck < 0.12:
            self._count("congested")
            return cdcpb_pb2.Error(congested=cdcpb_pb2.Congested())
        if luck < 0.16:
            self._count("unknown_error")
            return cdcpb_pb2.Error()
        return None

    def _loses(self, _row: LogRow) -> bool:
        lost = self._rng.random() < 0.01
        if lost:
            self._count("lost_prewrite")
        return lost


def _initializes(message: cdcpb_pb2.ChangeDataEvent) -> bool:
    return any(row == INITIALIZED_ROW for event in message.events for row in event.entries.entries)
