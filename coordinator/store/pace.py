"""How fast writes are done, and what follows from it: how long a call will take, and when one that is refused should come back."""

import asyncio
import math

RATE_WEIGHT = 0.2
RATE_START_PER_SECOND = 10_000.0
RETRY_DELAY_SECONDS_MIN, RETRY_DELAY_SECONDS_MAX = 0.02, 10.0
MARGIN_FACTOR, MARGIN_SECONDS_MAX, MARGIN_SHARE = 3, 0.5, 0.5
"""What a call must have left beyond the time that it will take: the least of so many times as much, of that, and of that share of
its time."""
MARGIN_SECONDS_MIN, TOO_LATE_SECONDS = 0.1, 60.0
"""At least so much for so long after somebody's time was over. With less, half of what is done under overload is done for nobody:
where calls wait in front of the server they all come with little time left, and those that are taken are late."""

BUSY_SECONDS = 1.0
"""Who was refused or late so short a while ago is not the last: others are not at the door yet, but in front of the server."""


class Pace:
    """Estimates, moving averages all of them. Belongs to the event loop.

    Attributes:
        items_per_second: that are done while calls wait.
        usual_seconds: of a transaction, or of as much of a larger one.
        usual_cycle_seconds: from the end of one transaction, or the first call that waits, to the end of the next, with all that is
            done in between; likewise.
    """

    def __init__(self) -> None:
        self.items_per_second = RATE_START_PER_SECOND
        self.usual_seconds = 0.0
        self.usual_cycle_seconds = 0.0
        self._promised_until = 0.0
        self._too_late_until = 0.0
        self._trouble_at = -math.inf

    def note_transaction(
        self, items: int, seconds: float, busy_seconds: float, *, times_usual: float, one_of_many: bool
    ) -> None:
        """Notes a transaction of usual writes.

        Args:
            items: in it.
            seconds: that it took.
            busy_seconds: since the one before it ended, or since calls began to wait.
            times_usual: how many times as large as others may be it was, at least 1.
            one_of_many: of many calls, or others wait. What a call alone takes says how long a COMMIT is, not how much can be done.
        """
        self.usual_seconds += RATE_WEIGHT * (seconds / times_usual - self.usual_seconds)
        self.usual_cycle_seconds += RATE_WEIGHT * (busy_seconds / times_usual - self.usual_cycle_seconds)
        if one_of_many:
            self.items_per_second += RATE_WEIGHT * (items / max(busy_seconds, 1e-6) - self.items_per_second)

    def note_too_late(self) -> None:
        """Somebody's time was over before his call was done: calls grow old somewhere, perhaps in front of the server."""
        self._trouble_at = asyncio.get_running_loop().time()
        self._too_late_until = self._trouble_at + TOO_LATE_SECONDS

    def note_refusal(self) -> None:
        """Somebody was told to come back."""
        self._trouble_at = asyncio.get_running_loop().time()

    def is_busy(self, took_seconds: float) -> bool:
        """Whether somebody was refused or late since a transaction that took so long began, or a short while before."""
        return asyncio.get_running_loop().time() < self._trouble_at + took_seconds + BUSY_SECONDS

    def is_late(self) -> bool:
        """Whether somebody's time was over a short while ago."""
        return asyncio.get_running_loop().time() < self._too_late_until

    def margin_seconds(self, needed_seconds: float, left_seconds: float) -> float:
        """What a call must have left beyond the time that it needs.

        Args:
            needed_seconds: about how long it will take.
            left_seconds: until its deadline.
        """
        margin_seconds = min(MARGIN_FACTOR * needed_seconds, MARGIN_SECONDS_MAX)
        if self.is_late():
            return max(margin_seconds, MARGIN_SECONDS_MIN)
        return min(margin_seconds, MARGIN_SHARE * left_seconds)

    def seconds_until_room(self, queued_items: int, items: int) -> float:
        """When there will be room: once the queue is half empty, and after those who were told so before.

        All of them sent back at the same moment would find the queue full again, and cost more than they bring.

        Args:
            queued_items: that wait.
            items: of the call that is refused.
        """
        now = asyncio.get_running_loop().time()
        room_at = max(now + queued_items / 2 / self.items_per_second, self._promised_until)
        self._promised_until = min(room_at + items / self.items_per_second, now + RETRY_DELAY_SECONDS_MAX)
        return room_at - now
