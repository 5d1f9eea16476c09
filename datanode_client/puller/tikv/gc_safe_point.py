"""Keeps the cluster from removing history that a feed would need if it began again at its checkpoint.

An incremental scan after a timestamp that garbage collection has passed would miss deletes, and nobody would notice. So a feed
registers with PD what it still needs, as TiCDC does, and does not begin where history is gone.

A reader is not told which checkpoint was stored. It keeps everything since what it had handed out some time ago, which must be
longer than rows wait in a datanode.
"""

import math
from typing import Final

import structlog

from datacoord.errors import SourceLostError, SourceUnavailableError
from datanode_client.clock import Clock
from datanode_client.puller.tikv.pd_client import PDClient

_log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 30.0
"""After a renewal that PD did not answer."""


class GCSafePointKeeper:
    """Holds the history of one feed.

    Args:
        pd: where it is registered.
        service_id: name of the feed, the same whoever reads it.
        start_ts: where the feed begins; 0 = with whatever there is.
        hold_back_seconds: history since what was handed out so long ago is kept.
        ttl_seconds: how long it is kept when nobody renews it.
        clock: elapsed time.
    """

    def __init__(
        self,
        pd: PDClient,
        service_id: str,
        start_ts: int,
        *,
        hold_back_seconds: float,
        ttl_seconds: float,
        clock: Clock,
    ) -> None:
        self._pd = pd
        self._service_id = service_id
        self._hold_back_seconds = hold_back_seconds
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._start_ts = start_ts
        self.handed_out_ts = start_ts

    async def begin(self) -> None:
        """Registers where the feed begins.

        Raises:
            SourceLostError: history after that is gone.
            PDUnavailableError: PD does not answer.
        """
        if not self._start_ts:
            return
        kept_ts = await self._register(self._start_ts)
        if kept_ts > self._start_ts:
            raise SourceLostError(
                f"the cluster has removed history up to {kept_ts}, and the channel would begin at {self._start_ts}: deletes in "
                "between would be missed. Land the keys into a new collection, and let garbage collection wait longer "
                "(tidb_gc_life_time)",
                timestamp=self._start_ts,
                gc_safe_point=kept_ts,
            )

    async def run(self) -> None:
        """Renews and moves the registration until it is cancelled."""
        previous_ts, newest_ts = self._start_ts, self.handed_out_ts
        while True:
            await self._clock.sleep(min(self._hold_back_seconds, self._ttl_seconds / 4))
            # What is registered now was handed out one round ago at least.
            previous_ts, newest_ts = newest_ts, self.handed_out_ts
            if previous_ts:
                await self._renew(previous_ts)

    async def _renew(self, safe_point: int) -> None:
        while True:
            try:
                kept_ts = await self._register(safe_point)
            except SourceUnavailableError as error:
                _log.warning("gc_safe_point_not_renewed", service_id=self._service_id, error=error.message)
                await self._clock.sleep(RETRY_SECONDS)
            else:
                if kept_ts > safe_point:
                    _log.warning("gc_safe_point_passed", service_id=self._service_id, ts=safe_point, kept_ts=kept_ts)
                return

    async def _register(self, safe_point: int) -> int:
        return await self._pd.update_service_gc_safe_point(self._service_id, math.ceil(self._ttl_seconds), safe_point)
