"""What a session knows of each region, and what the sessions of one client share."""

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from datanode_client.puller.actions import Action
from datanode_client.puller.admission import Lease, ScanPriority
from datanode_client.puller.errors import RegionRecovery
from datanode_client.puller.events import RegionErrorKind
from datanode_client.puller.range_lock import LockedRangeState, RangeClaim
from datanode_client.puller.region_cache import RegionCache, RegionMeta
from datanode_client.puller.region_router import RegionRouter
from datanode_client.puller.resolve_lock import ResolveLockRateLimiter
from datanode_client.puller.span import Span


class RegionSender(Protocol):
    """Who sends the request of a region when it has a token."""

    def send(self, region: "RegionInfo", lease: "Lease[RegionInfo]") -> None:
        """The router hands a region out."""
        ...


class RegionPhase(Enum):
    """Where in its circle a region is."""

    QUEUED = auto()
    """In the router, waiting for a token of its store."""
    REQUESTED = auto()
    """Its request was sent; it holds a token until it is initialized."""
    INITIALIZED = auto()
    FAILED = auto()
    """Out of the circle; its retry begins a new round."""


@dataclass(eq=False, slots=True)
class RegionInfo:
    """One round of one region (TiCDC's singleRegionInfo).

    Attributes:
        session: who sends its request.
        meta: id, epoch and peers.
        span: the subscribed part of it.
        claim: of the range lock.
        priority: of its scan.
        phase: where it is.
        store_id: whom it is asked from.
        request_id: of the request sent.
        lease: its token.
    """

    session: "RegionSender"
    meta: RegionMeta
    span: Span
    claim: RangeClaim
    priority: ScanPriority = ScanPriority.LOW
    phase: RegionPhase = RegionPhase.QUEUED
    store_id: int = 0
    request_id: int = 0
    lease: "Lease[RegionInfo] | None" = None

    @property
    def region_id(self) -> int:
        """The region."""
        return self.meta.ver_id.id

    @property
    def locked(self) -> LockedRangeState:
        """How far its range has come; only a region that holds its range has it."""
        assert self.claim.locked is not None, "only regions that hold their range are in the circle"  # noqa: S101
        return self.claim.locked


@dataclass(slots=True)
class FeedContext:
    """What the sessions of one client share.

    Attributes:
        region_cache: where regions are led.
        router: tokens per store.
        limiter: of lock resolution.
        recovery: failures in a row per range.
        actions: what the network client is to do, oldest first.
        filter_loop: leave out what a change feed wrote itself.
    """

    region_cache: RegionCache = field(default_factory=RegionCache)
    router: RegionRouter[RegionInfo] = field(default_factory=RegionRouter)
    limiter: ResolveLockRateLimiter = field(default_factory=ResolveLockRateLimiter)
    recovery: RegionRecovery = field(default_factory=lambda: RegionRecovery(random.Random()))  # noqa: S311
    actions: deque[Action] = field(default_factory=deque)
    filter_loop: bool = False


@dataclass(frozen=True, slots=True)
class SessionStats:
    """A look at a session.

    Attributes:
        regions: regions by phase.
        waiting_for_lock: regions that wait for an older shape to go.
        range_tasks: questions to PD, under way or waiting.
        errors: failures so far, by kind.
        resolved_ts: the smallest over all keys, as the range lock has it.
        initialized: whether every key has been through its initial scan.
        matcher_bytes: what waiting prewrites weigh.
    """

    regions: Counter[RegionPhase]
    waiting_for_lock: int
    range_tasks: int
    errors: Counter[RegionErrorKind]
    resolved_ts: int
    initialized: bool
    matcher_bytes: int
