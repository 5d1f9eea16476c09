"""Many callers, few calls: items of different channels share a call, each gets its own answer, and none waits for ever.

An item is repeated unchanged until it is answered, while the calls that carry it are mixed anew each time (PROTOCOL S2). A call
that is refused as a whole says nothing of its innocent items: it is cut in halves until the guilty one stands alone.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from datacoord.errors import BatchTooLargeError, CoordinatorUnreachableError, DatacoordError, InternalError
from datanode_client.calls import Backoff, CallFailedError, log_failure
from datanode_client.client_config import RetryConfig

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one batcher.

    Attributes:
        weight_max: the largest sum of weights in one call, per kind of weight (items, binlogs, bytes, …).
        linger_seconds: how long items gather before a call.
        calls_in_flight_max: calls at once.
        another_call_after_seconds: a call is unanswered for so long before the next one begins beside it, unless the last one
            could not take all that waited.
    """

    weight_max: tuple[int, ...]
    linger_seconds: float
    calls_in_flight_max: int
    another_call_after_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Pending(Generic[T, R]):
    item: T
    channel_name: str
    weight: tuple[int, ...]
    answer: asyncio.Future[R]


class CallBatcher(Generic[T, R]):
    """Batches one kind of call. Belongs to one event loop.

    Args:
        method: name of the call, for logs and errors.
        send: makes one call with these items and returns one result each, in order; raises CallFailedError.
        channel_of: the channel of an item. A channel is at most once in a call.
        weigh: the weights of an item, in the order of `limits.weight_max`.
        limits: bounds.
        retry: waiting between repetitions.
        rng: source of the jitter; injected by tests.
    """

    def __init__(
        self,
        *,
        method: str,
        send: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        channel_of: Callable[[T], str],
        weigh: Callable[[T], tuple[int, ...]],
        limits: BatchLimits,
        retry: RetryConfig,
        rng: random.Random | None = None,
    ) -> None:
        self._method = method
        self._send = send
        self._channel_of = channel_of
        self._weigh = weigh
        self._limits = limits
        self._retry = retry
        self._rng = rng
        self._queue: deque[_Pending[T, R]] = deque()
        self._wake = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._under_way: list[float] = []
        self._ended = asyncio.Event()
        self._not_before = 0.0
        self._more_waits = False
        self._closed = False

    async def submit(self, item: T) -> R:
        """Sends an item and waits for its answer, however long it takes. Cancelling gives up waiting, not what is under way.

        Raises:
            BatchTooLargeError: the item alone exceeds a limit.
            DatacoordError: the call was refused for good because of this item.
        """
        weight = self._weigh(item)
        if any(has > most for has, most in zip(weight, self._limits.weight_max, strict=True)):
            raise BatchTooLargeError(
                f"one item of {self._method} weighs {weight}, the limits of a call are {self._limits.weight_max}: "
                "cut smaller ranges",
                method=self._method,
                weight=weight,
                weight_max=self._limits.weight_max,
            )
        if self._closed:
            raise self._closed_error()
        pending = _Pending(item, self._channel_of(item), weight, asyncio.get_running_loop().create_future())
        self._queue.append(pending)
        self._wake.set()
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(self._limits.calls_in_flight_max)]
        answer: R = await pending.answer
        return answer

    async def close(self) -> None:
        """Stops sending. Whoever still waits gets CoordinatorUnreachableError: what was sent may have been applied."""
        self._closed = True
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for pending in self._queue:
            _refuse(pending, self._closed_error())
        self._queue.clear()

    def _closed_error(self) -> CoordinatorUnreachableError:
        return CoordinatorUnreachableError(
            f"{self._method} was given up because this process closes its broker; it may have been applied",
            method=self._method,
        )

    async def _work(self) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(self._retry, self._rng)
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._limits.linger_seconds)
            await self._until_a_call_may_begin()
            batch = self._take()
            if not batch:
                continue
            began = loop.time()
            self._under_way.append(began)
            try:
                await self._answer(batch)
                backoff.reset()
            except CallFailedError as failure:
                delay_seconds = backoff.next_delay_seconds(failure.delay_seconds)
                log_failure(failure, self._method, backoff.failures, delay_seconds)
                self._not_before = max(self._not_before, loop.time() + delay_seconds)
            except Exception as error:  # noqa: BLE001  # a bug here must reach those who wait, not leave them waiting
                _refuse_all(batch, InternalError(f"{self._method} could not be sent: {error!r}", method=self._method))
            finally:
                self._under_way.remove(began)
                self._ended.set()
                # Whatever has no answer, for a failure or because this task is cancelled, is not lost from sight.
                self._queue.extendleft(pending for pending in reversed(batch) if not pending.answer.done())
                if self._queue:
                    self._wake.set()

    async def _until_a_call_may_begin(self) -> None:
        """Nobody calls before the time that a refusal asked for, and while a call is unanswered the others gather.

        Few large calls cost a coordinator less, the more so where it has too much to do: what waits here needs no place in its
        queue, and is not refused there.
        """
        loop = asyncio.get_running_loop()
        while True:
            until = self._not_before
            if self._under_way and not self._more_waits:
                until = max(until, max(self._under_way) + self._limits.another_call_after_seconds)
            if (left_seconds := until - loop.time()) <= 0:
                return
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_seconds):
                    await self._ended.wait()

    def _take(self) -> list[_Pending[T, R]]:
        """Takes as many items as fit into one call, oldest first."""
        batch: list[_Pending[T, R]] = []
        rest: list[_Pending[T, R]] = []
        channels: set[str] = set()
        left = self._limits.weight_max
        self._more_waits = False
        while self._queue:
            pending = self._queue.popleft()
            if pending.answer.done():
                continue  # nobody waits for it any more
            remaining = tuple(has - needs for has, needs in zip(left, pending.weight, strict=True))
            if min(remaining) < 0:
                rest.append(pending)
                self._more_waits = True
                break
            if pending.channel_name in channels:
                rest.append(pending)
                continue
            channels.add(pending.channel_name)
            batch.append(pending)
            left = remaining
        self._queue.extendleft(reversed(rest))
        if not self._queue:
            self._wake.clear()
        return batch

    async def _answer(self, batch: Sequence[_Pending[T, R]]) -> None:
        """Sends a batch and answers its items; in halves when it is refused as a whole.

        Raises:
            CallFailedError: repeating what is not answered can help.
        """
        try:
            results = await self._send([pending.item for pending in batch])
        except CallFailedError as failure:
            if failure.again:
                raise
            if len(batch) == 1:
                _refuse(batch[0], failure.error)
                return
            middle = len(batch) // 2
            await self._answer(batch[:middle])
            await self._answer(batch[middle:])
            return
        if len(results) != len(batch):
            error = InternalError(
                f"{self._method} answered {len(results)} results for {len(batch)} items; "
                "client and coordinator do not fit together: upgrade both",
                method=self._method,
                results=len(results),
                items=len(batch),
            )
            _refuse_all(batch, error)
            return
        for pending, result in zip(batch, results, strict=True):
            if not pending.answer.done():
                pending.answer.set_result(result)


def _refuse_all(batch: Sequence[_Pending[T, R]], error: DatacoordError) -> None:
    for pending in batch:
        _refuse(pending, error)


def _refuse(pending: _Pending[T, R], error: DatacoordError) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)
