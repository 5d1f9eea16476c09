"""Keeps the cluster from removing history that a feed would need if it began again at its checkpoint.

Garbage collection removes versions that were overwritten, and deletes, up to its safe point. A feed that begins again at a
checkpoint P would miss deletes between P and the safe point, if it had delivered what they delete. It has not if the safe point is
where it was when the feed first began: then its first scan did not see these keys either. So what a feed needs is history since P,
or since the safe point of its beginning, whichever is later. It registers that with PD, as TiCDC does, and does not begin where it
is gone.

A reader is not told which checkpoint was stored. It keeps what it had handed out some time ago, which must be longer than rows
wait in a datanode.
"""

import math
from collections import deque
from typing import Final

import structlog

from datacoord.errors import SourceLostError, SourceUnavailableError
from datanode_client.clock import Clock
from datanode_client.puller.tikv.pd_client import PDClient

_log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 30.0
"""After a renewal that PD did not answer."""

BEGIN_ATTEMPTS: Final = 10
"""Garbage collection may move on between the question where it is and the registration; not so often in a row."""


class GCSafePointKeeper:
    """Holds the history of one feed.

    Args:
        pd: where it is registered.
        service_id: name of the feed, the same whoever reads it.
        hold_back_seconds: what was needed so long ago is still kept.
        ttl_seconds: how long it is kept when nobody renews it; 0 = nothing is registered, only checked.
        clock: elapsed time.
    """

    def __init__(
        self, pd: PDClient, service_id: str, *, hold_back_seconds: float, ttl_seconds: float, clock: Clock
    ) -> None:
        self._pd = pd
        self._service_id = service_id
        self._hold_back_seconds = hold_back_seconds
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self.needed_ts = 0

    async def begin(self, needed_ts: int | None) -> None:
        """Registers what the feed needs; `needed_ts` says it from now on.

        Args:
            needed_ts: history since then; None = the feed has delivered nothing yet, and takes what there is.

        Raises:
            SourceLostError: that history is gone.
            PDUnavailableError: PD does not answer.
        """
        for _ in range(BEGIN_ATTEMPTS):
            # A time to live of 0 registers nothing: it only asks.
            self.needed_ts = await self._register(0, 0) if needed_ts is None else needed_ts
            kept_ts = await self._register(self.needed_ts, self._ttl_seconds)
            if kept_ts <= self.needed_ts:
                return
            if needed_ts is not None:
                break
        raise SourceLostError(
            f"the cluster has removed history up to {kept_ts}, and the channel needs it since {self.needed_ts}: deletes in between "
            "would be missed. Land the keys into a new collection, and let garbage collection wait longer (tidb_gc_life_time)",
            needed_ts=self.needed_ts,
            gc_safe_point=kept_ts,
        )

    def handed_out(self, ts: int) -> int:
        """Everything up to a timestamp was handed out.

        Returns:
            since when history is needed, if the feed begins again there.
        """
        self.needed_ts = max(self.needed_ts, ts)
        return self.needed_ts

    async def run(self) -> None:
        """Renews and moves the registration until it is cancelled."""
        needed = deque([(self._clock.monotonic(), self.needed_ts)])
        while True:
            await self._clock.sleep(min(self._hold_back_seconds, self._ttl_seconds / 4))
            now = self._clock.monotonic()
            needed.append((now, self.needed_ts))
            while needed[1][0] <= now - self._hold_back_seconds:
                needed.popleft()
            await self._renew(needed[0][1])

    async def _renew(self, safe_point: int) -> None:
        while True:
            try:
                kept_ts = await self._register(safe_point, self._ttl_seconds)
            except SourceUnavailableError as error:
                _log.warning("gc_safe_point_not_renewed", service_id=self._service_id, error=error.message)
                await self._clock.sleep(RETRY_SECONDS)
            else:
                if kept_ts > safe_point:
                    _log.warning("gc_safe_point_passed", service_id=self._service_id, ts=safe_point, kept_ts=kept_ts)
                return

    async def _register(self, safe_point: int, ttl_seconds: float) -> int:
        return await self._pd.update_service_gc_safe_point(self._service_id, math.ceil(ttl_seconds), safe_point)
