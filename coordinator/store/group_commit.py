"""Group commit: calls that write wait in a queue and share a transaction; each is answered after its COMMIT.

Calls of a group are decided one after the other, in the order that the runner gives them, each seeing the ones before it. While
one transaction commits, the next group gathers; an idle queue makes nobody wait.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog

from coordinator.store.admission import Admission
from coordinator.store.answers import StoreSettings, StoreStatistics
from coordinator.store.calls import WriteCall
from coordinator.store.engine import WriteFailedError
from coordinator.store.pace import Pace
from coordinator.store.unread import Place, Unread
from datacoord.errors import CommitOutcomeUnknownError, DatacoordError, StoreUnavailableError

T = TypeVar("T")
log = structlog.get_logger()

TRANSIENT_RETRIES_MAX = 5
_GATHER_SECONDS_MAX = 0.02
"""Longest time that a transaction waits for calls that follow one another closely."""
_LET_IN_SECONDS, _LET_IN_SECONDS_MAX, _LET_IN_GAP_SECONDS = 0.02, 0.25, 0.002
"""The same while calls are refused or late and transactions hold the loop: at least and at most, and how closely they follow."""
_LET_IN_IDLE_SECONDS, _LET_IN_IDLE_SHARE = 0.005, 0.25
"""So long, or that share of the last transaction, this thread may have nothing to do meanwhile: who finds it idle has not waited in
front of the server, however closely calls follow."""
_CROWDED_GAPS = 4
"""A wait of fewer gaps says nothing of whether calls would have come on: somebody always came a gap before its end."""
_TURNS = 5
"""Of the event loop after a transaction, so that answers leave before the next one has the loop: the task of a call goes on, its
response is written, the socket takes it, and one for each of two tasks between. With one turn alone the answers of a group waited
for the whole transaction after theirs, and a quarter of what was done under overload was done for callers who had gone."""
_PAUSE_SECONDS = 0.005
"""After so long without a transaction, and without answers on their way, nobody is on the way any more."""


class Runner(Protocol):
    """What a group is given to."""

    async def __call__(self, calls: Sequence[WriteCall[Any]]) -> list[Any]:
        """Runs the calls in one transaction and commits it; one answer or error per call.

        Raises:
            WriteFailedError: the transaction failed.
        """
        ...


@dataclass(slots=True)
class _Waiting:
    call: WriteCall[Any]
    answer: asyncio.Future[Any]


def _idle_seconds() -> float:
    """Time in which this thread had nothing to do, or no processor; differences count."""
    return time.perf_counter() - time.thread_time()


class GroupCommit:
    """The queue. Belongs to the event loop it is started on.

    Attributes:
        listeners: told of every transaction that was committed: items, seconds.

    Args:
        run: runs a group.
        settings: of the store.
        statistics: kept up to date.
        holds_loop: transactions have the event loop, but for the COMMIT of all but small ones.
    """

    def __init__(
        self, run: Runner, settings: StoreSettings, statistics: StoreStatistics, *, holds_loop: bool = False
    ) -> None:
        self.listeners: list[Callable[[int, float], None]] = []
        self._run = run
        self._holds_loop = holds_loop
        self._settings = settings
        self._statistics = statistics
        self._queue: deque[_Waiting] = deque()
        self._urgent: deque[_Waiting] = deque()
        self._unread = Unread(settings, statistics)
        self._arrived = asyncio.Event()
        self._knocked = asyncio.Event()
        self._knocks = 0
        self._closing = False
        self._pace = Pace()
        self._admission = Admission(
            self._queue, self._urgent, self._unread, pace=self._pace, settings=settings, statistics=statistics
        )
        self._busy_since = time.perf_counter()
        self._task = asyncio.get_running_loop().create_task(self._work(), name="group-commit")

    async def submit(self, call: WriteCall[T], deadline: float | None) -> T:
        """Queues a call and waits for its answer.

        Args:
            call: the call.
            deadline: in the loop's time; a call that is not in a transaction by then is dropped. None = no limit.

        Raises:
            OverloadedError: the queue is full.
            DeadlineExpiredError: its time was over.
            StoreUnavailableError: the store closes, or the database did not take it.
            CommitOutcomeUnknownError: perhaps done.
            DatacoordError: what the call itself raises.
        """
        if self._closing:
            raise StoreUnavailableError("the coordinator is shutting down; repeat the call")
        if not self._unread.submit():
            self._admission.admit(call)
        call.deadline = deadline
        waiting = _Waiting(call, asyncio.get_running_loop().create_future())
        (self._urgent if call.urgent else self._queue).append(waiting)
        self._admission.count(call, 1)
        self._arrived.set()
        self._knocked.set()
        if call.urgent:
            self._unread.hurry()
        answer: T = await waiting.answer
        return answer

    def refuse_unread(self, deadline: float) -> None:
        """Refuses a call that has not arrived yet, where there is no room for it or its time would be over before it is done.

        Args:
            deadline: of the call, in the loop's time.

        Raises:
            OverloadedError: with the time after which it is worth another try.
            DeadlineExpiredError: its time is over already.
        """
        self._knocks += 1
        self._knocked.set()
        self._admission.admit_by_estimate(deadline, 0)

    def admit_unread(self, deadline: float, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Refuses a call that is here and has not been read yet likewise, or takes it.

        Args:
            deadline: of the call, in the loop's time.
            size_bytes: of the call as it came.

        Returns:
            in what it is to be read and submitted; entering it waits for its turn, and may raise DeadlineExpiredError.

        Raises:
            OverloadedError: with the time after which it is worth another try.
            DeadlineExpiredError: its time is over already.
        """
        self._knocked.set()
        items, size_bytes = self._admission.admit_by_estimate(deadline, size_bytes)
        return Place(self._unread, deadline, items, size_bytes, self._admission.expired)

    async def close(self) -> None:
        """Takes no more calls and answers those that wait."""
        self._closing = True
        self._unread.release()
        self._arrived.set()
        self._knocked.set()
        await self._task

    async def abandon(self) -> None:
        """Ends as a process that dies does: what waits is never answered. For tests of crashes."""
        self._closing = True
        self._queue.clear()
        self._urgent.clear()
        self._unread.forget()
        self._arrived.set()
        self._knocked.set()
        await self._task

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        calls_before, took_seconds, ended = 0, 0.0, 0.0
        knocks_before, crowded = 0, False
        while True:
            if not self._queue and not self._urgent:
                if self._closing:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                self._busy_since = time.perf_counter()
            gathers = (calls_before > 1 or self._knocks > knocks_before + 1) and loop.time() < ended + _PAUSE_SECONDS
            crowded = gathers and await self._gather(took_seconds, crowded)
            if self._unread and not self._urgent:
                await self._unread.read_enough()
            group = self._take_group()
            calls_before, knocks_before = len(group), self._knocks
            self._unread.read_on()
            if group:
                # Not the loop's time, which may have whole milliseconds only.
                started = time.perf_counter()
                self._admission.began = loop.time()
                self._admission.times_usual = self._times_usual(group)
                try:
                    await self._commit_group(group)
                finally:
                    self._admission.began = None
                took_seconds = time.perf_counter() - started
                # The answers leave before the next transaction has the loop.
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                ended = loop.time()

    async def _gather(self, took_seconds: float, crowded: bool) -> bool:
        """Waits while calls follow one another closely: the next one comes in while the one before is taken.

        Without it they fall apart into small groups, with a COMMIT each: gRPC hands over one call at a time, however many wait.
        After a pause nobody waits, nor after a transaction of one call with no other at the door.

        Where transactions hold the loop, calls come in between them only: the wait does not end then where enough of them wait,
        and is longer while others are refused or late, or still came when the last wait ended. Those that are not let in grow old
        in front of the server, where nobody refuses them, and then all is done for callers who are gone.

        Args:
            took_seconds: by the last transaction. The wait is half of it and 20 ms at most: a call waits little longer for it than
                without. Where calls are let in it is 20 ms, and while they are refused, or come without a pause, as long as the
                transaction, up to 250 ms: half of the time at most goes into it, after transactions of 20 ms or more.
            crowded: what the wait before this one returned.

        Returns:
            whether calls still came when its time was over, and this thread had no time for them before.
        """
        loop = asyncio.get_running_loop()
        lets_in, seconds_max = self._let_in(took_seconds, crowded)
        gap_seconds = max(self._settings.gap_ms / 1000, _LET_IN_GAP_SECONDS if lets_in else 0.0)
        began = loop.time()
        until = began + seconds_max
        first = self._queue[0].call if self._queue else None
        if not self._settings.gap_ms or not (first or self._unread):
            return False
        if first and (first.alone or (not lets_in and first.deadline is not None and first.deadline <= until)):
            return False
        if first and first.deadline is not None:
            until = min(until, first.deadline - self._pace.usual_seconds)
        idle_since, idle_seconds_max = _idle_seconds(), max(_LET_IN_IDLE_SECONDS, _LET_IN_IDLE_SHARE * took_seconds)
        self._unread.held = self._holds_loop
        quiet_at, found_idle = began + gap_seconds, False
        try:
            while not (self._urgent or self._closing or (self._unread.is_enough_read() and not self._holds_loop)):
                self._knocked.clear()
                try:
                    async with asyncio.timeout_at(min(until, quiet_at)):
                        await self._knocked.wait()
                except TimeoutError:
                    # A loop that was held up sees that time is over before it looks who came meanwhile, and as many turns of it as
                    # answers take bring a call from its socket here.
                    for _ in range(_TURNS):
                        if self._knocked.is_set():
                            break
                        await asyncio.sleep(0)
                    if not self._knocked.is_set():
                        break
                quiet_at = loop.time() + gap_seconds
                found_idle = _idle_seconds() - idle_since > idle_seconds_max
                if loop.time() >= until or (lets_in and found_idle):
                    break
        finally:
            self._unread.held = False
        return until - began >= _CROWDED_GAPS * gap_seconds and until < quiet_at and not found_idle

    def _let_in(self, took_seconds: float, crowded: bool) -> tuple[bool, float]:
        """Whether calls are let in, and for how long the next transaction waits at most."""
        busy = self._pace.is_busy(took_seconds)
        enough_wait = bool(self._unread) or self._unread.is_enough_read()
        refused_or_late = self._pace.is_late() or (busy and enough_wait)
        if self._holds_loop and (refused_or_late or crowded):
            seconds = min(took_seconds, _LET_IN_SECONDS_MAX) if busy or crowded else 0.0
            return True, max(seconds, _LET_IN_SECONDS if refused_or_late else 0.0)
        return False, min(took_seconds / 2, _GATHER_SECONDS_MAX)

    def _take_group(self) -> list[_Waiting]:
        """The next calls that share a transaction; those whose time is over are answered so, and left out.

        It is no larger than usual where somebody in it has no time for that: he was told how long usual ones take.
        """
        group: list[_Waiting] = []
        items = size_bytes = 0
        until = math.inf
        bytes_max = self._settings.group_bytes(self._statistics.queued_bytes)
        now = asyncio.get_running_loop().time()
        while queue := self._urgent or self._queue:
            waiting = queue[0]
            call = waiting.call
            too_much = items + call.items > self._settings.group_items_max or size_bytes + call.size_bytes > bytes_max
            soonest = until if call.deadline is None else min(until, call.deadline)
            times_usual = self._settings.times_usual(size_bytes + call.size_bytes)
            too_long = times_usual > 1 and now + times_usual * self._pace.usual_seconds > soonest
            if group and (call.alone or too_much or too_long):
                break
            queue.popleft()
            self._admission.count(call, -1)
            if waiting.answer.done():
                self._pace.note_too_late()
                continue  # the caller went away
            if call.deadline is not None and now >= call.deadline:
                waiting.answer.set_exception(self._admission.expired())
                continue
            group.append(waiting)
            items += call.items
            size_bytes += call.size_bytes
            until = soonest
            if call.alone:
                break
        return group

    async def _commit_group(self, group: list[_Waiting]) -> None:
        started = time.perf_counter()
        try:
            answers = await self._attempt(group)
        except WriteFailedError as failed:
            if not failed.outcome.whole and len(group) > 1:
                # One call broke the transaction. Nothing of it was committed: everybody gets one of their own.
                for waiting in group:
                    if not waiting.answer.done():
                        await self._commit_group([waiting])
                return
            if isinstance(failed.outcome.error, CommitOutcomeUnknownError):
                self._statistics.unknown_outcomes += 1
            answers = [failed.outcome.error] * len(group)
        except Exception:
            log.exception("group_commit_failed")
            unknown = "the coordinator failed while it wrote; repeat the call unchanged until it is answered"
            answers = [CommitOutcomeUnknownError(unknown)] * len(group)
        else:
            self._note_pace(group, time.perf_counter() - started)
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.answer.done():
                self._pace.note_too_late()
                continue
            if isinstance(answer, DatacoordError):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    async def _attempt(self, group: list[_Waiting]) -> list[Any]:
        """Runs a group, again where two transactions were in each other's way."""
        calls = [waiting.call for waiting in group]
        for attempt in range(TRANSIENT_RETRIES_MAX + 1):
            try:
                return await self._run(calls)
            except WriteFailedError as failed:
                if not failed.outcome.transient or attempt == TRANSIENT_RETRIES_MAX:
                    raise
                log.info("transaction_retried", reason=failed.outcome.error.message, attempt=attempt + 1)
        raise AssertionError

    def _times_usual(self, group: list[_Waiting]) -> float:
        return self._settings.times_usual(sum(waiting.call.size_bytes for waiting in group))

    def _note_pace(self, group: list[_Waiting], seconds: float) -> None:
        """Notes how fast calls are done; all that is done for them counts there, not only their transaction."""
        items = sum(waiting.call.items for waiting in group)
        now = time.perf_counter()
        busy_seconds, self._busy_since = now - self._busy_since, now
        self._statistics.groups += 1
        if not (group[0].call.alone or group[0].call.urgent):
            one_of_many = bool(len(group) > 1 or self._queue or self._unread)
            times_usual = self._times_usual(group)
            self._pace.note_transaction(items, seconds, busy_seconds, times_usual=times_usual, one_of_many=one_of_many)
        for listener in self.listeners:
            try:
                listener(items, seconds)
            except Exception:
                log.exception("group_commit_listener_failed")
