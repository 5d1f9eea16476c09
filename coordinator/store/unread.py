"""Calls that wait to be read: a queue in front of the queue of writes.

Reading a call costs several times as much as taking or refusing it, and one that was read early has left the processor's cache
when its transaction comes. So no more than a transaction's worth is read ahead, one call a turn of the event loop: what else waits
for the loop, such as answers, goes in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from coordinator.store.answers import StoreSettings, StoreStatistics
from datacoord.errors import DeadlineExpiredError


class Place:
    """Room that is kept for a call that was taken. In it (`async with`) the call is read and submitted, by the task that entered.

    Entering waits until the call may be read, which is then to be done at once. The room is kept until the task submits, or leaves.

    Attributes:
        items: of the call, about.
        size_bytes: of the call, about.
        turn: done when it may be read; None = it need not wait.
        is_being_read: it may be read, and is not submitted yet.

    Args:
        unread: calls among which it is counted.
        deadline: of the call, in the loop's time.
        items: of the call, about.
        size_bytes: of the call, about.
        expired: what a caller is told whose time was over first.
    """

    __slots__ = ("_deadline", "_expired", "_unread", "is_being_read", "items", "size_bytes", "turn")

    def __init__(
        self,
        unread: "Unread",
        deadline: float,
        items: int,
        size_bytes: int,
        expired: Callable[[], DeadlineExpiredError],
    ) -> None:
        self.items = items
        self.size_bytes = size_bytes
        self.turn: asyncio.Future[None] | None = None
        self.is_being_read = False
        self._unread = unread
        self._deadline = deadline
        self._expired = expired

    async def __aenter__(self) -> None:
        self._unread.enter(self)
        if self.turn is None:
            return
        try:
            async with asyncio.timeout_at(self._deadline):
                await self.turn
        except BaseException as error:
            self._unread.leave()
            if isinstance(error, TimeoutError):
                raise self._expired() from None
            raise

    async def __aexit__(self, *_: object) -> None:
        self._unread.leave()


class Unread:
    """Calls that are taken and not submitted yet. They count among those that wait, about as large as they are.

    True while some of them may not be read yet, in the order in which they came; the others are being read, and some of these look
    something up before they are submitted.

    Attributes:
        held: none of them may be read now.
    """

    def __init__(self, settings: StoreSettings, statistics: StoreStatistics) -> None:
        self.held = False
        self._settings = settings
        self._statistics = statistics
        self._waiting: deque[Place] = deque()
        self._places: dict[asyncio.Task[object] | None, Place] = {}
        self._items = self._bytes = 0
        self._items_being_read = self._bytes_being_read = 0
        self._reading = False
        self._last: Place | None = None
        self._enough = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def calls(self) -> int:
        """How many there are, those included that are being read."""
        return len(self._places)

    @property
    def submitted_items(self) -> int:
        """Items of the other calls that wait, which are submitted."""
        return self._statistics.queued_items - self._items

    @property
    def submitted_bytes(self) -> int:
        """Bytes of them, about."""
        return self._statistics.queued_bytes - self._bytes

    def is_enough_read(self) -> bool:
        """Whether a transaction's worth of calls is read and waits, or is being read."""
        items = self.submitted_items + self._items_being_read
        size_bytes = self.submitted_bytes + self._bytes_being_read
        bytes_max = self._settings.group_bytes(self._statistics.queued_bytes)
        return items >= self._settings.group_items_max or size_bytes >= bytes_max

    def enter(self, place: Place) -> None:
        """Counts a call, which is that of the task that runs, and says whether it must wait to be read."""
        if self._waiting or self.held or self.is_enough_read():
            place.turn = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
        else:
            self._begin_reading(place)
        self._places[asyncio.current_task()] = place
        self._count(1, place)

    def leave(self) -> None:
        """The call of the task that runs is over, if it was not submitted."""
        place = self._end()
        if place is not None and place.is_being_read and self._waiting:
            # Nothing of it comes to the queue of writes, after which others would be read.
            self.read_on()

    def submit(self) -> bool:
        """Ends the place of the task that runs, for the one that its call takes in the queue of writes; False = it has none.

        Whoever has one is not refused any more, however much larger than expected its call is: it waited, and the work of reading
        it is done. So more may wait than is allowed, items and bytes alike, by what is read ahead of a transaction and by how much
        larger it is than it was taken for.
        """
        return self._end() is not None

    def read_on(self) -> None:
        """Has calls be read until it is enough, from the next turn of the loop on."""
        if not self._reading:
            self._let_one_be_read()

    async def read_enough(self) -> None:
        """Waits until a transaction's worth of calls is read, or all that wait now, or somebody cannot wait.

        Not for those that come meanwhile: what is refused when it is read adds nothing to a transaction, and may come without end.
        """
        self._last = self._waiting[-1] if self._waiting else None
        self._enough.clear()
        self.read_on()
        await self._enough.wait()

    def hurry(self) -> None:
        """What is read is enough for now."""
        self._enough.set()

    def release(self) -> None:
        """Nobody has to wait any more."""
        for place in self._waiting:
            if place.turn is not None and not place.turn.done():
                place.turn.set_result(None)

    def forget(self) -> None:
        """None of them is ever read. For tests of crashes."""
        self._waiting.clear()

    def _let_one_be_read(self) -> None:
        self._reading = False
        if self._last is None:
            self._enough.set()
        while self._waiting and not self.held and not self.is_enough_read():
            place = self._waiting.popleft()
            if place is self._last:
                self._last = None
            if place.turn is not None and not place.turn.done():
                self._begin_reading(place)
                place.turn.set_result(None)
                # After the task that waits for it, which has read and submitted it by then if it has nothing to look up.
                asyncio.get_running_loop().call_soon(self._let_one_be_read)
                self._reading = True
                return
        self._enough.set()

    def _begin_reading(self, place: Place) -> None:
        place.is_being_read = True
        self._items_being_read += place.items
        self._bytes_being_read += place.size_bytes

    def _end(self) -> Place | None:
        place = self._places.pop(asyncio.current_task(), None)
        if place is None:
            return None
        self._count(-1, place)
        if place.is_being_read:
            self._items_being_read -= place.items
            self._bytes_being_read -= place.size_bytes
        return place

    def _count(self, sign: int, place: Place) -> None:
        self._items += sign * place.items
        self._bytes += sign * place.size_bytes
        self._statistics.queued_calls += sign
        self._statistics.queued_items += sign * place.items
        self._statistics.queued_bytes += sign * place.size_bytes
