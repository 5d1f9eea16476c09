"""A group of calls as one transaction of the database, and what follows from its COMMIT."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from sqlalchemy.engine import Connection

from coordinator.store import checkpoints, plain_saves
from coordinator.store.answers import StoreSettings, StoreStatistics
from coordinator.store.calls import WriteCall, run_calls
from coordinator.store.checkpoints import CheckpointCall
from coordinator.store.engine import AgainError, Database
from coordinator.store.saves import SaveCall
from coordinator.store.transaction import GuardFailedError, Memory, Transaction

log = structlog.get_logger()

_SMALL_ITEMS, _SMALL_BYTES = 256, 64 * 1024
"""What a caller alone may write for its COMMIT to be small."""


class GroupRunner:
    """Runs groups.

    Attributes:
        listeners: told after COMMIT which sessions' desired states changed.
    """

    def __init__(
        self,
        database: Database,
        settings: StoreSettings,
        memory: Memory,
        statistics: StoreStatistics,
        clock_ms: Callable[[], int] | None,
    ) -> None:
        self.listeners: list[Callable[[frozenset[int]], None]] = []
        self._database = database
        self._settings = settings
        self._memory = memory
        self._statistics = statistics
        self._clock_ms = clock_ms
        # The database's clock less this process's, when a transaction began: what was read later is a little too much, so that a
        # lease counts as due too early rather than too late.
        self._clock_lead_ms = math.inf

    async def run(self, calls: Sequence[WriteCall[Any]]) -> list[Any]:
        """Runs calls in one transaction and commits it.

        Returns:
            one answer, or error of the call, per call.

        Raises:
            WriteFailedError: the transaction failed.
        """
        seconds = _seconds_left(calls)
        began_ms = _monotonic_ms()
        try:
            if (moved := await self._move_at_once(calls, seconds)) is not None:
                return moved
            transaction, answers, fast_items = await self._database.write(
                lambda connection, now_ms: self._work(connection, now_ms, calls, fast=True),
                seconds,
                quick=_is_small(calls),
            )
        except AgainError:
            transaction, answers, fast_items = await self._database.write(
                lambda connection, now_ms: self._work(connection, now_ms, calls, fast=False), seconds
            )
        self._clock_lead_ms = transaction.now_ms - began_ms
        self._committed(transaction, fast_items)
        return answers

    async def _move_at_once(self, calls: Sequence[WriteCall[Any]], seconds: float | None) -> list[Any] | None:
        """Checkpoints by one statement that is a transaction of its own, where only their history is to be written with them.

        When a lease is due is a matter of the database's clock, which the statement checks. Here that is only estimated.

        Returns:
            the answers; None: it was not tried.

        Raises:
            AgainError: not all of them were plain; nothing was kept.
            WriteFailedError: it failed.
        """
        moving = [call for call in calls if isinstance(call, CheckpointCall)]
        if self._database.kind.at_once is None or len(moving) < len(calls):
            return None
        began_ms = _monotonic_ms()
        now_ms = None if self._clock_ms is None else self._clock_ms()
        before_ms = checkpoints.renewal_due_ms(moving, self._memory, self._settings)
        if before_ms <= (began_ms + self._clock_lead_ms if now_ms is None else now_ms):
            return None
        done = await self._database.write_at_once(
            lambda: checkpoints.at_once(self._database.kind, moving, before_ms=before_ms, now_ms=now_ms), seconds
        )
        if done is None:
            return None
        self._clock_lead_ms = done.now_ms - began_ms
        self._statistics.fast_items += sum(call.items for call in moving)
        return checkpoints.applied(moving)

    def _work(
        self, connection: Connection, now_ms: int, calls: Sequence[WriteCall[Any]], *, fast: bool
    ) -> tuple[Transaction, list[Any], int]:
        """Checkpoints by one guarded statement, where all of them are plain; then saves, plain ones first; the rest by core.

        All calls of a group wait at once, so that any order of them is a legal one.

        Returns:
            the transaction, the answers of the calls, and how many items the guarded statement took.

        Raises:
            AgainError: not all of them were plain; nothing may be kept.
        """
        if self._clock_ms is not None:
            now_ms = self._clock_ms()
        transaction = Transaction(connection, self._database.kind, self._settings, self._memory, now_ms)
        moving = [call for call in calls if isinstance(call, CheckpointCall)]
        quick = checkpoints.try_fast(transaction, moving) if fast and moving else None
        answers: dict[int, Any] = {}
        fast_items = 0
        if quick is not None:
            answers = dict(zip(map(id, moving), quick, strict=True))
            fast_items = sum(call.items for call in moving)
        saving = [call for call in calls if isinstance(call, SaveCall)]
        others = [call for call in calls if id(call) not in answers and not isinstance(call, SaveCall)]
        # In the order in which they change channels, which is that of the history.
        rest: list[WriteCall[Any]] = [*saving, *others]
        try:
            if saving:
                _take_plain(transaction, saving, others)
            if rest:
                answers.update(zip(map(id, rest), run_calls(transaction, rest), strict=True))
            transaction.finish()
        except GuardFailedError:
            self._statistics.invariant_violations += 1
            raise
        return transaction, [answers[id(call)] for call in calls], fast_items

    def _committed(self, transaction: Transaction, fast_items: int) -> None:
        transaction.publish()
        self._statistics.fast_items += fast_items
        if not transaction.changed_nodes:
            return
        for listener in self.listeners:
            try:
                listener(frozenset(transaction.changed_nodes))
            except Exception:
                # What is committed is committed; whoever listens looks again by itself.
                log.exception("desired_change_listener_failed")


def _take_plain(transaction: Transaction, saving: Sequence[SaveCall], others: Sequence[WriteCall[Any]]) -> None:
    """Registers what goes the usual way; each call knows then what is left of it."""
    beside = [name for call in others for name in call.needs()]
    taken = plain_saves.take(transaction, [call.saves for call in saving], beside)
    for call, parts in zip(saving, taken, strict=True):
        call.taken = parts


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


def _is_small(calls: Sequence[WriteCall[Any]]) -> bool:
    """Whether little is written for a caller alone. What gets a transaction of its own may change any number of rows."""
    (call, *others) = calls
    return not (others or call.alone) and call.items <= _SMALL_ITEMS and call.size_bytes <= _SMALL_BYTES


def _seconds_left(calls: Sequence[WriteCall[Any]]) -> float | None:
    """Time until nobody waits for these calls any more; None = somebody waits for ever."""
    deadlines = [call.deadline for call in calls]
    if any(deadline is None for deadline in deadlines):
        return None
    return max(0.0, max(deadline for deadline in deadlines if deadline is not None) - asyncio.get_running_loop().time())
