"""What the core of the change feed asks the network client to do."""

from dataclasses import dataclass

from datanode_client.puller.admission import ScanPriority
from datanode_client.puller.region_cache import RegionMeta
from datanode_client.puller.span import Span

REGIONS_PER_LOAD_MAX = 1024
"""Regions asked from PD in one call."""


@dataclass(frozen=True, slots=True)
class LoadRegions:
    """Ask PD for the regions of a span (ScanRegions), then call `regions_loaded`, or `load_regions_failed`.

    Attributes:
        subscription_id: of the span.
        task_id: to be given back with the answer.
        span: memcomparable.
        limit: regions to ask for at most; what they leave uncovered is asked for again.
    """

    subscription_id: int
    task_id: int
    span: Span
    limit: int = REGIONS_PER_LOAD_MAX


@dataclass(frozen=True, slots=True)
class RegionRequest:
    """The request of one region (cdcpb's ChangeDataRequest with `register`).

    Attributes:
        region: id, epoch and peers.
        request_id: never used before for this region.
        checkpoint_ts: exclusive: changes after it are wanted.
        span: the subscribed part of the region, memcomparable.
        filter_loop: leave out what a change feed wrote itself.
        scan_priority: for stores that know it.
    """

    region: RegionMeta
    request_id: int
    checkpoint_ts: int
    span: Span
    filter_loop: bool
    scan_priority: ScanPriority


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request on the stream of a store; connect first where there is none.

    If the store cannot be reached, or the stream breaks at any later time, call `store_failed`. Nothing that an older stream
    of the store delivered may be fed after that.

    Attributes:
        store_id: the store.
        request: what to send.
    """

    store_id: int
    request: RegionRequest


@dataclass(frozen=True, slots=True)
class Deregister:
    """Tell a store that a request is over (cdcpb's `deregister`).

    Servers before stream multiplexing do not know it: there, break the stream and call `store_failed`.

    Attributes:
        store_id: the store.
        region_id: the region.
        request_id: the request.
    """

    store_id: int
    region_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class ResolveLocks:
    """Resolve the locks of a region (ScanLock, ResolveLock), then call `locks_resolved`, whether it worked or not.

    Attributes:
        region_id: the region.
        max_ts: locks of transactions that began up to this timestamp.
    """

    region_id: int
    max_ts: int


Action = LoadRegions | SendRequest | Deregister | ResolveLocks
