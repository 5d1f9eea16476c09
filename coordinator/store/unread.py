"""Calls that wait to be read: a queue in front of the queue of writes.

Reading a call costs several times as much as taking or refusing it, and one that was read early has left the processor's cache
when its transaction comes. So no more than a transaction's worth is read ahead, one call a turn of the event loop: what else waits
for the loop, such as answers, goes in between.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from coordinator.store.answers import StoreSettings, StoreStatistics


@dataclass(slots=True)
class _Place:
    """Room that is kept for a call.

    Attributes:
        among: the calls among which it is counted; None = no more.
        items: of the call, about.
        size_bytes: of the call, about.
    """

    among: "Unread | None"
    items: int
    size_bytes: int


_PLACE: ContextVar[_Place | None] = ContextVar("place", default=None)
"""Of the call that runs in this context: between its turn and its submission only the code of its method runs."""


class Unread:
    """Calls that are taken and not read yet, in the order in which they came. They count among those that wait.

    Attributes:
        held: none of them may be read now.
    """

    def __init__(self, settings: StoreSettings, statistics: StoreStatistics) -> None:
        self.held = False
        self._settings = settings
        self._statistics = statistics
        self._turns: deque[asyncio.Future[None]] = deque()
        self._items = self._bytes = 0
        self._reading = False
        self._last: asyncio.Future[None] | None = None
        self._enough = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._turns)

    @property
    def read_items(self) -> int:
        """Items of the calls that wait and are read."""
        return self._statistics.queued_items - self._items

    @property
    def read_bytes(self) -> int:
        """Bytes of them, about."""
        return self._statistics.queued_bytes - self._bytes

    def may_be_read(self) -> bool:
        """Whether a call that comes now may be read at once."""
        return not (self._turns or self.held or self.is_enough_read())

    def is_enough_read(self) -> bool:
        """Whether a transaction's worth of calls is read and waits."""
        return self.read_items >= self._settings.group_items_max or self.read_bytes >= self._settings.group_bytes_max

    @contextmanager
    def place(self, items: int, size_bytes: int) -> Iterator[Awaitable[None]]:
        """A place for the call that runs in this context; it ends when the call is submitted, or with what is done inside.

        Args:
            items: in it, about.
            size_bytes: of it, about.

        Returns:
            what to wait for before the call is read, which is then to be done at once.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = _Place(self, items, size_bytes)
        self._turns.append(turn)
        self._count(1, place)
        _PLACE.set(place)
        try:
            yield turn
        finally:
            self._end(place)

    def take_place(self) -> bool:
        """Ends the place of the call that runs in this context, for the one that it takes in the queue; False = it has none.

        Whoever has one is not refused any more, however much larger than expected it is: it waited, and the work of reading it is
        done. So more items may wait than are allowed, by those of one transaction and of the calls that are being read; not more
        bytes, which were known.
        """
        place = _PLACE.get()
        return place is not None and self._end(place)

    def read_on(self) -> None:
        """Has calls be read until it is enough, from the next turn of the loop on."""
        if not self._reading:
            self._let_one_be_read()

    async def read_enough(self) -> None:
        """Waits until a transaction's worth of calls is read, or all that wait now, or somebody cannot wait.

        Not for those that come meanwhile: what is refused when it is read adds nothing to a transaction, and may come without end.
        """
        self._last = self._turns[-1] if self._turns else None
        self._enough.clear()
        self.read_on()
        await self._enough.wait()

    def hurry(self) -> None:
        """What is read is enough for now."""
        self._enough.set()

    def release(self) -> None:
        """Nobody has to wait any more."""
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)

    def forget(self) -> None:
        """None of them is ever read. For tests of crashes."""
        self._turns.clear()

    def _let_one_be_read(self) -> None:
        self._reading = False
        if self._last is None:
            self._enough.set()
        while self._turns and not self.held and not self.is_enough_read():
            turn = self._turns.popleft()
            if turn is self._last:
                self._last = None
            if not turn.done():
                turn.set_result(None)
                # After the task that waits for it, which has read and submitted it by then.
                asyncio.get_running_loop().call_soon(self._let_one_be_read)
                self._reading = True
                return
        self._enough.set()

    def _end(self, place: _Place) -> bool:
        if place.among is not self:
            return False
        place.among = None
        self._count(-1, place)
        return True

    def _count(self, sign: int, place: _Place) -> None:
        self._items += sign * place.items
        self._bytes += sign * place.size_bytes
        self._statistics.queued_calls += sign
        self._statistics.queued_items += sign * place.items
        self._statistics.queued_bytes += sign * place.size_bytes
