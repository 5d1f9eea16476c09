"""Who may wait for a write transaction, and when those who may not should come back."""

import asyncio
from collections.abc import Sized
from typing import Any

from coordinator.store.answers import StoreSettings, StoreStatistics
from coordinator.store.calls import WriteCall
from coordinator.store.pace import RETRY_DELAY_SECONDS_MAX, RETRY_DELAY_SECONDS_MIN, Pace
from coordinator.store.unread import Unread
from datacoord.errors import DeadlineExpiredError, OverloadedError
from datacoord.limits import URGENT_CALLS_MAX


class Admission:
    """Decides by what waits, how fast it goes and how much time a caller has. Belongs to the event loop.

    Attributes:
        began: when the transaction that runs began, in the loop's time; None = none runs.
        times_usual: how many times as large as usual it is, at least 1.

    Args:
        queue: calls that wait; only how many matters here.
        urgent: those that wait in front of them.
        unread: calls that are taken and not submitted yet.
        pace: how fast it goes.
        settings: of the store.
        statistics: kept up to date.
    """

    def __init__(
        self,
        queue: Sized,
        urgent: Sized,
        unread: Unread,
        *,
        pace: Pace,
        settings: StoreSettings,
        statistics: StoreStatistics,
    ) -> None:
        self.began: float | None = None
        self.times_usual = 1.0
        self._queue = queue
        self._urgent = urgent
        self._unread = unread
        self._pace = pace
        self._settings = settings
        self._statistics = statistics
        self._urgent_bytes = 0
        self._items_per_call, self._bytes_per_call = 1, 0

    def admit(self, call: WriteCall[Any]) -> None:
        """Refuses a call for which there is no room.

        Raises:
            OverloadedError: with the time after which there will be room.
        """
        if call.urgent:
            self._admit_urgent(call)
        else:
            self._admit_usual(call.items, call.size_bytes)

    def admit_by_estimate(self, deadline: float, size_bytes: int) -> tuple[int, int]:
        """Refuses a call that has not been read yet, or that is not here yet: taken for as large as those that wait.

        Taken for smaller, it would be read in vain, and the callers sent away would be promised the same room.

        Args:
            deadline: of the call, in the loop's time.
            size_bytes: of the call as it came; 0 = not known.

        Returns:
            items of the call and its size, about.

        Raises:
            OverloadedError: with the time after which it is worth another try.
            DeadlineExpiredError: its time is over already.
        """
        statistics, now = self._statistics, asyncio.get_running_loop().time()
        if self._queue:
            self._items_per_call = max(1, self._unread.submitted_items // len(self._queue))
            self._bytes_per_call = self._unread.submitted_bytes // len(self._queue)
        items, size_bytes = self._items_per_call, max(size_bytes, self._bytes_per_call)
        self._admit_usual(items, size_bytes)
        left_seconds = deadline - now
        if left_seconds <= 0:
            raise self.expired()
        needed_seconds = self._seconds_until_done()
        if needed_seconds and needed_seconds + self._pace.margin_seconds(needed_seconds, left_seconds) > left_seconds:
            delay_seconds = needed_seconds
            if self._pace.is_late():
                # Those behind it have grown old in front of the server as well: they come back one after the other.
                delay_seconds = max(needed_seconds, self._pace.seconds_until_room(statistics.queued_items, items))
            self._refuse(
                statistics.queued_items, delay_seconds, "and the time of this call would be over before it is done"
            )
        return items, size_bytes

    def expired(self) -> DeadlineExpiredError:
        """Notes a call whose time was over before it was in a transaction; what its caller is told."""
        self._pace.note_too_late()
        self._statistics.expired_calls += 1
        return DeadlineExpiredError("the call's time was over before it could be written; nothing was done, repeat it")

    def count(self, call: WriteCall[Any], sign: int) -> None:
        """Notes that a call begins to wait (1) or does so no more (-1)."""
        self._statistics.queued_calls += sign
        if call.urgent:
            self._urgent_bytes += sign * call.size_bytes
        else:
            self._statistics.queued_items += sign * call.items
            self._statistics.queued_bytes += sign * call.size_bytes

    def _seconds_until_done(self) -> float:
        """About how long a call will take that comes now; 0 while nobody writes."""
        if self.began is None and not (self._queue or self._urgent or self._unread.calls):
            return 0.0
        now, settings, statistics = asyncio.get_running_loop().time(), self._settings, self._statistics
        usual_seconds, rest_seconds = self._pace.usual_seconds, 0.0
        if self.began is not None:
            rest_seconds = max(0.0, self.began + self.times_usual * usual_seconds - now)
        # In usual transactions, however large they will be.
        before = max(
            statistics.queued_items // settings.group_items_max, statistics.queued_bytes // settings.group_bytes_max
        )
        return rest_seconds + before * self._pace.usual_cycle_seconds + usual_seconds

    def _admit_usual(self, items: int, size_bytes: int) -> None:
        """Refuses a call for which there is no room. An empty queue takes anything.

        Raises:
            OverloadedError: with the time after which there will be room.
        """
        queued, settings = self._statistics.queued_items, self._settings
        too_many = queued + items > settings.queue_items_max
        too_large = self._statistics.queued_bytes + size_bytes > settings.queue_bytes_max
        if (self._queue or self._unread.calls) and (too_many or too_large):
            self._refuse_full(queued, items)

    def _admit_urgent(self, call: WriteCall[Any]) -> None:
        size_bytes = self._urgent_bytes + call.size_bytes
        if self._urgent and (len(self._urgent) >= URGENT_CALLS_MAX or size_bytes > self._settings.queue_bytes_max):
            self._refuse_full(len(self._urgent), 1)

    def _refuse_full(self, queued: int, items: int) -> None:
        self._refuse(queued, self._pace.seconds_until_room(queued, items), "as many as are allowed")

    def _refuse(self, queued: int, delay_seconds: float, why: str) -> None:
        self._statistics.rejected_calls += 1
        self._pace.note_refusal()
        delay_ms = int(1000 * min(max(delay_seconds, RETRY_DELAY_SECONDS_MIN), RETRY_DELAY_SECONDS_MAX))
        message = f"{queued} items wait to be written, {why}; repeat the call in {delay_ms} ms"
        raise OverloadedError(message, retry_delay_ms=delay_ms, queued_items=queued)
