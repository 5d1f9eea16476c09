"""The change feed of one store: connections, the requests on them, and what is sent."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from datanode_client.puller.span import encode_bytes
from datanode_client.puller.wire import cdcpb_pb2, errorpb_pb2

from .mvcc import LogRow, Mvcc
from .topology import Region, Topology

INITIALIZED_ROW = LogRow(type=cdcpb_pb2.Event.INITIALIZED)
CLOGGED_MESSAGES = 20
"""A store does not report to a connection that takes nothing."""


@dataclass(eq=False)
class Downstream:
    """A request that a store has accepted.

    Attributes:
        scan: rows of the incremental scan that are still to be sent; None = its snapshot was not taken yet. Live rows are sent from
            the beginning, so that what happens before the snapshot comes twice.
        initialized: whether the scan is over.
        lost: transactions and keys whose prewrites are kept from it.
    """

    region: Region
    request_id: int
    checkpoint_ts: int
    scan: deque[LogRow] | None = None
    initialized: bool = False
    lost: set[tuple[int, bytes]] = field(default_factory=set)


@dataclass(eq=False)
class Connection:
    """One stream of a client.

    Attributes:
        multiplexed: whether it is EventFeedV2.
        batches_resolved: whether the client understands resolved timestamps of many regions.
        downstreams: accepted requests by region and, if multiplexed, request.
        outgoing: what is to be sent.
        released: how many messages of it may be sent now; None = all.
        broken: set to end the stream with an error.
    """

    multiplexed: bool
    batches_resolved: bool = True
    downstreams: dict[tuple[int, int], Downstream] = field(default_factory=dict)
    outgoing: deque[cdcpb_pb2.ChangeDataEvent] = field(default_factory=deque)
    released: int | None = None
    broken: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def key(self, region_id: int, request_id: int) -> tuple[int, int]:
        return region_id, request_id if self.multiplexed else 0

    def send(self, *events: cdcpb_pb2.Event) -> None:
        self.outgoing.append(cdcpb_pb2.ChangeDataEvent(events=events))
        self.wake.set()

    def send_rows(self, downstream: Downstream, *rows: LogRow) -> None:
        entries = cdcpb_pb2.Event.Entries(entries=rows)
        self.send(cdcpb_pb2.Event(region_id=downstream.region.id, request_id=downstream.request_id, entries=entries))

    def send_error(self, region_id: int, request_id: int, error: cdcpb_pb2.Error) -> None:
        self.send(cdcpb_pb2.Event(region_id=region_id, request_id=request_id, error=error))

    def release(self, count: int) -> None:
        """Lets so many more messages out, of a connection that is held back."""
        if self.released is not None:
            self.released += count
        self.wake.set()

    async def next(self) -> cdcpb_pb2.ChangeDataEvent | None:
        """The next message to send; None = the stream breaks."""
        while not self.broken:
            if self.outgoing and self.released != 0:
                if self.released is not None:
                    self.released -= 1
                return self.outgoing.popleft()
            self.wake.clear()
            await self.wake.wait()
        return None


@dataclass(eq=False)
class StoreFeed:
    """The change feed of one store.

    Attributes:
        refuse: asked about every request that is right otherwise; an error = it is refused with that.
        loses: asked about every live prewrite for a request whose scan is over; True = it is never sent.
        holds_back: whether messages of connections wait to be released.
        seen_requests: every request ever received; a client never uses an id twice for a region.
    """

    store_id: int
    cluster_id: int
    mvcc: Mvcc
    topology: Topology
    refuse: Callable[[Region], cdcpb_pb2.Error | None]
    loses: Callable[[LogRow], bool] = lambda _row: False
    holds_back: bool = False
    connections: list[Connection] = field(default_factory=list)
    seen_requests: list[cdcpb_pb2.ChangeDataRequest] = field(default_factory=list)

    def connect(self, *, multiplexed: bool) -> Connection:
        connection = Connection(multiplexed, released=0 if self.holds_back else None)
        self.connections.append(connection)
        return connection

    def disconnect(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        connection.broken = True
        connection.wake.set()

    def handle(self, connection: Connection, request: cdcpb_pb2.ChangeDataRequest) -> None:
        """Takes a request."""
        region_id, request_id = request.region_id, request.request_id
        connection.batches_resolved = connection.multiplexed or bool(request.header.ticdc_version)
        if request.HasField("deregister"):
            for key, downstream in list(connection.downstreams.items()):
                if downstream.request_id == request_id and region_id in {0, downstream.region.id}:
                    del connection.downstreams[key]
            return
        self.seen_requests.append(request)
        error = self._error_of(connection, request)
        if error is not None:
            connection.send_error(region_id, request_id, error)
            return
        region = self.topology.region(region_id)
        assert region is not None
        connection.downstreams[connection.key(region_id, request_id)] = Downstream(
            region, request_id, request.checkpoint_ts
        )

    def _error_of(self, connection: Connection, request: cdcpb_pb2.ChangeDataRequest) -> cdcpb_pb2.Error | None:
        region_id = request.region_id
        region = self.topology.region(region_id)
        if request.header.cluster_id != self.cluster_id:
            mismatch = cdcpb_pb2.ClusterIDMismatch(current=self.cluster_id, request=request.header.cluster_id)
            return cdcpb_pb2.Error(cluster_id_mismatch=mismatch)
        if connection.key(region_id, request.request_id) in connection.downstreams:
            return cdcpb_pb2.Error(duplicate_request=cdcpb_pb2.DuplicateRequest(region_id=region_id))
        if region is None or self.store_id not in region.stores:
            return cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=region_id))
        if region.leader != self.store_id:
            return not_leader(region)
        if request.region_epoch.version != region.version:
            return epoch_not_match(region)
        return self.refuse(region)

    def on_row(self, row: LogRow) -> None:
        """Something happened to a key of a region that this store leads."""
        encoded_key = encode_bytes(row.key)
        for connection in self.connections:
            for downstream in connection.downstreams.values():
                if encoded_key in downstream.region and not self._is_lost(downstream, row):
                    connection.send_rows(downstream, row)

    def _is_lost(self, downstream: Downstream, row: LogRow) -> bool:
        if row.type != cdcpb_pb2.Event.PREWRITE or not downstream.initialized:
            return False
        if self.loses(row):
            downstream.lost.add((row.start_ts, row.key))
        return (row.start_ts, row.key) in downstream.lost

    def give_up(self, region: Region, error: cdcpb_pb2.Error) -> None:
        """A region changed: its requests end with an error."""
        for connection in self.connections:
            for key, downstream in list(connection.downstreams.items()):
                if downstream.region is region:
                    del connection.downstreams[key]
                    connection.send_error(region.id, downstream.request_id, error)

    def scan(self, connection: Connection, downstream: Downstream, rows_max: int) -> None:
        """The incremental scan of a request goes on: takes its snapshot, or sends some rows of it."""
        if downstream.initialized:
            return
        if downstream.scan is None:
            keys = iter(
                sorted(key for key in {*self.mvcc.versions, *self.mvcc.locks} if encode_bytes(key) in downstream.region)
            )
            downstream.scan = deque(self.mvcc.rows_after(keys, downstream.checkpoint_ts))
            return
        rows = [downstream.scan.popleft() for _ in range(min(rows_max, len(downstream.scan)))]
        if not downstream.scan:
            downstream.initialized = True
            rows.append(INITIALIZED_ROW)
        connection.send_rows(downstream, *rows)

    def report(self, now_ts: int) -> None:
        """Sends the resolved timestamps, those of one request and timestamp together."""
        for connection in self.connections:
            if len(connection.outgoing) >= CLOGGED_MESSAGES:
                continue
            batches: dict[tuple[int, int], list[int]] = {}
            for downstream in connection.downstreams.values():
                if downstream.initialized:
                    ts = min(now_ts, self._oldest_lock_ts(downstream.region, now_ts))
                    request_id = downstream.request_id if connection.multiplexed else 0
                    batches.setdefault((request_id, ts), []).append(downstream.region.id)
            for (request_id, ts), region_ids in batches.items():
                self._send_resolved(connection, request_id, ts, region_ids)

    @staticmethod
    def _send_resolved(connection: Connection, request_id: int, ts: int, region_ids: list[int]) -> None:
        if connection.batches_resolved:
            resolved = cdcpb_pb2.ResolvedTs(regions=region_ids, ts=ts, request_id=request_id)
            connection.outgoing.append(cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved))
            connection.wake.set()
        else:
            connection.send(*(cdcpb_pb2.Event(region_id=region_id, resolved_ts=ts) for region_id in region_ids))

    def _oldest_lock_ts(self, region: Region, now_ts: int) -> int:
        return min(
            (
                lock.start_ts - 1
                for key, lock in self.mvcc.locks.items()
                if not lock.pessimistic and encode_bytes(key) in region
            ),
            default=now_ts,
        )


def not_leader(region: Region, *, say_who: bool = True) -> cdcpb_pb2.Error:
    """The error of a store that does not lead a region."""
    leader = region.peer(region.leader) if say_who else None
    return cdcpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(region_id=region.id, leader=leader))


def epoch_not_match(region: Region) -> cdcpb_pb2.Error:
    """The error of a region that was split or merged."""
    return cdcpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch(current_regions=[region.meta()]))
