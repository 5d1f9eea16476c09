"""What to do about a failed region, and how long to wait: the error classes and the back-off per range."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from datacoord.errors import DatacoordError, SourceInvalidError
from datanode_client.puller.events import RegionError, RegionErrorKind
from datanode_client.puller.span import Span

SERVER_BACKOFF_MS_MAX = 10 * 60 * 1000
"""A store may ask to be left alone, but not for longer: a wrong number must not stop the feed for good."""

RECOVERY_DELAY_MS_MIN = 50
RECOVERY_DELAY_MS_MAX = 2_000
RECOVERY_ATTEMPTS_MAX = 32
RECOVERY_FORGET_MS = 5 * 60 * 1000
"""A range that did not fail for this long begins anew with the shortest delay."""


class FatalFeedError(DatacoordError):
    """The feed cannot go on: what was received so far is good, but nothing more may be taken from it."""


class OrderBrokenError(FatalFeedError):
    """A store sent a change at or before a timestamp that it had declared resolved."""


class DuplicateRequestError(FatalFeedError):
    """A store says that a request is registered twice; the ids of requests are never used again, so this is a bug."""


class UnknownLogTypeError(FatalFeedError):
    """A store sends rows of a kind that this client does not know."""


class SpanMismatchError(FatalFeedError):
    """A resolved timestamp came for keys that are not subscribed: a bug of the client."""


class VersionIncompatibleError(FatalFeedError, SourceInvalidError):
    """The store does not serve clients of this version."""

    reason = SourceInvalidError.reason


class ClusterIDMismatchError(FatalFeedError, SourceInvalidError):
    """The store belongs to another cluster."""

    reason = SourceInvalidError.reason


class RegionErrorAction(StrEnum):
    """What to do about a failed region."""

    RETRY_REGION = "retry_region"
    """Ask for the same region again."""
    RETRY_RANGE = "retry_range"
    """Ask PD which regions the range has now."""
    FATAL = "fatal"
    """Stop the feed."""
    IGNORE = "ignore"


_ACTIONS = {
    RegionErrorKind.NOT_LEADER: RegionErrorAction.RETRY_REGION,
    RegionErrorKind.REGION_NOT_FOUND: RegionErrorAction.RETRY_RANGE,
    RegionErrorKind.EPOCH_NOT_MATCH: RegionErrorAction.RETRY_RANGE,
    RegionErrorKind.DUPLICATE_REQUEST: RegionErrorAction.FATAL,
    RegionErrorKind.COMPATIBILITY: RegionErrorAction.FATAL,
    RegionErrorKind.CLUSTER_ID_MISMATCH: RegionErrorAction.FATAL,
    RegionErrorKind.SERVER_IS_BUSY: RegionErrorAction.RETRY_REGION,
    RegionErrorKind.CONGESTED: RegionErrorAction.RETRY_REGION,
    RegionErrorKind.UNKNOWN: RegionErrorAction.RETRY_REGION,
    RegionErrorKind.RPC_CTX_UNAVAILABLE: RegionErrorAction.RETRY_RANGE,
    RegionErrorKind.GET_STORE_FAILED: RegionErrorAction.RETRY_RANGE,
    RegionErrorKind.STORE_STREAM: RegionErrorAction.RETRY_REGION,
    RegionErrorKind.REQUEST_CANCELLED: RegionErrorAction.IGNORE,
    RegionErrorKind.PREWRITE_NOT_MATCH: RegionErrorAction.RETRY_REGION,
    RegionErrorKind.UNKNOWN_OP: RegionErrorAction.RETRY_REGION,
    RegionErrorKind.UNKNOWN_LOG_TYPE: RegionErrorAction.FATAL,
    RegionErrorKind.REGION_STUCK: RegionErrorAction.RETRY_REGION,
}


def classify(kind: RegionErrorKind, *, leader_known: bool = True) -> RegionErrorAction:
    """What to do about an error.

    Args:
        kind: the error.
        leader_known: NOT_LEADER: whether the store said who leads, and the region is still known with that peer. If not, asking
            again for the same region would ask the same store.
    """
    if kind is RegionErrorKind.NOT_LEADER and not leader_known:
        return RegionErrorAction.RETRY_RANGE
    return _ACTIONS[kind]


_FATAL = {
    RegionErrorKind.DUPLICATE_REQUEST: (DuplicateRequestError, "report it with the log of this process"),
    RegionErrorKind.COMPATIBILITY: (VersionIncompatibleError, "use a version of the store that this client supports"),
    RegionErrorKind.CLUSTER_ID_MISMATCH: (ClusterIDMismatchError, "check the addresses of PD"),
    RegionErrorKind.UNKNOWN_LOG_TYPE: (UnknownLogTypeError, "use a client as new as the store"),
}


def fatal_error(region_id: int, error: RegionError) -> FatalFeedError:
    """The exception for an error whose action is FATAL."""
    kind, advice = _FATAL[error.kind]
    message = f"Region {region_id} failed for good with {error.kind.value} ({error.detail or 'no details'}): {advice}."
    return kind(message, region_id=region_id, kind=error.kind.value, detail=error.detail)


def server_backoff_ms(backoff_ms: int) -> int:
    """How long to leave a busy store alone: what it asks for, within reason."""
    return min(max(backoff_ms, 0), SERVER_BACKOFF_MS_MAX)


@dataclass(slots=True)
class _Recovery:
    attempt: int = 0
    forget_at_ms: int = 0


class RegionRecovery:
    """Counts failures in a row per (subscription, range) and says how long to wait before the next attempt.

    The count belongs to the range and not to the region, since a range in trouble changes its region all the time: its splits
    and merges must not look like fresh starts.

    Args:
        rng: where the jitter comes from.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._uniform: Callable[[float, float], float] = (rng or random.Random()).uniform  # noqa: S311
        self._recoveries: dict[tuple[int, Span], _Recovery] = {}

    def __len__(self) -> int:
        """Number of ranges that failed lately."""
        return len(self._recoveries)

    def fail(self, subscription_id: int, span: Span, now_ms: int) -> int:
        """A range failed once more.

        Returns:
            its failures in a row, 32 at most.
        """
        recovery = self._recoveries.get((subscription_id, span))
        if recovery is None or recovery.forget_at_ms <= now_ms:
            recovery = self._recoveries[subscription_id, span] = _Recovery()
        recovery.attempt = min(recovery.attempt + 1, RECOVERY_ATTEMPTS_MAX)
        recovery.forget_at_ms = now_ms + RECOVERY_FORGET_MS
        return recovery.attempt

    def delay_ms(self, attempt: int) -> int:
        """Exponential delay, its second half at random so that the regions of a lost store do not come back all at once."""
        full = min(RECOVERY_DELAY_MS_MIN << (attempt - 1), RECOVERY_DELAY_MS_MAX)
        return round(self._uniform(full / 2, full))

    def reset(self, subscription_id: int, span: Span) -> None:
        """A range is initialized, or not fed any more: the next failure is the first again."""
        self._recoveries.pop((subscription_id, span), None)

    def forget(self, subscription_id: int) -> None:
        """A subscription has ended, and its number does not come back."""
        self._recoveries = {key: item for key, item in self._recoveries.items() if key[0] != subscription_id}

    def expire(self, now_ms: int) -> None:
        """Forgets ranges that have not failed for long; call it now and then, ranges that split never come back."""
        self._recoveries = {key: item for key, item in self._recoveries.items() if item.forget_at_ms > now_ms}
