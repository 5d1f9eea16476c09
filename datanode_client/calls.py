"""One attempt of a call and what its failure means: the client's half of the contract's retry rules (`datacoord.failures`)."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import structlog

from datacoord.access import connection_hint
from datacoord.errors import (
    BatchTooLargeError,
    CoordinatorUnreachableError,
    DatacoordError,
    InternalError,
    from_status,
)
from datacoord.failures import is_too_large, may_be_repeated, retry_delay_seconds, status_of
from datanode_client.client_config import RetryConfig

_log = structlog.get_logger(__name__)
R = TypeVar("R")


class CallFailedError(Exception):
    """One attempt of a call failed.

    Attributes:
        error: what it means for the caller.
        again: repeating the call unchanged can help.
        delay_seconds: how long the server asks to wait before that; None = it does not say.
        code: the gRPC code.
    """

    def __init__(self, error: DatacoordError, code: grpc.StatusCode, again: bool, delay_seconds: float | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.code = code
        self.again = again
        self.delay_seconds = delay_seconds

    @classmethod
    def of(cls, failure: grpc.aio.AioRpcError, method: str, target: str) -> "CallFailedError":
        """Reads what gRPC raised: the typed error in `grpc-status-details-bin`, or what the bare code says."""
        code = failure.code()
        status = status_of(failure)
        again = may_be_repeated(failure)
        if status is not None:
            return cls(from_status(status), code, again, retry_delay_seconds(status))
        text = failure.details() or "no details"
        facts = {"method": method, "target": target, "grpc_code": code.name}
        if is_too_large(failure):
            return cls(BatchTooLargeError(f"{method} is too large: {text}; split it", **facts), code, again, None)
        if again:
            hint = connection_hint(text) or "check that it runs there"
            sentence = f"the coordinator at {target} did not answer {method} ({code.name}: {text}); {hint}"
            return cls(CoordinatorUnreachableError(sentence, **facts), code, again, None)
        return cls(InternalError(f"{method} was refused with {code.name}: {text}", **facts), code, again, None)


def spread_seconds(asked_seconds: float, rng: random.Random) -> float:
    """A time that the coordinator asked for and a little more, so that those who were asked together do not come as one."""
    return asked_seconds * rng.uniform(1.0, 1.25)


class Backoff:
    """Delays between repetitions.

    Args:
        config: initial delay, cap, multiplier.
        rng: source of the jitter; injected by tests.
    """

    def __init__(self, config: RetryConfig, rng: random.Random | None = None) -> None:
        self._config = config
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self.failures = 0

    def next_delay_seconds(self, asked_seconds: float | None = None) -> float:
        """Counts a failure and returns how long to wait.

        Args:
            asked_seconds: what the server asked for; the answer is never less.
        """
        # The exponent is bounded so that a coordinator that is away for days does not overflow a float.
        grown = self._config.delay_seconds_initial * self._config.multiplier ** min(self.failures, 64)
        self.failures += 1
        own = min(grown, self._config.delay_seconds_max) * self._rng.uniform(0.5, 1.0)
        return own if asked_seconds is None else max(own, spread_seconds(asked_seconds, self._rng))

    def reset(self) -> None:
        """Forgets the failures: something was answered."""
        self.failures = 0


def worth_a_line(failures: int) -> bool:
    """Whether the n-th failure in a row is logged: the 1st, 2nd, 4th, 8th …, for an outage of hours must not fill a disk."""
    return failures & (failures - 1) == 0


def log_failure(failure: CallFailedError, method: str, failures: int, delay_seconds: float) -> None:
    """Tells of a failure, if it is worth a line."""
    if worth_a_line(failures):
        _log.warning(
            "call_failed",
            method=method,
            code=failure.code.name,
            reason=failure.error.reason.value,
            message=failure.error.message,
            failures=failures,
            delay_seconds=round(delay_seconds, 3),
        )


async def until_known(
    attempt: Callable[[], Awaitable[R]], backoff: Backoff, method: str, give_up_seconds: float | None = None
) -> R:
    """Repeats a call unchanged until its answer is known.

    Args:
        attempt: makes one attempt; raises CallFailedError.
        backoff: the waiting between attempts.
        method: name of the call, for the log.
        give_up_seconds: None = never; otherwise the last failure is raised once so much time is over.

    Raises:
        DatacoordError: the call was refused for good, or the time is over (its outcome is not known then).
    """
    loop = asyncio.get_running_loop()
    give_up_at = None if give_up_seconds is None else loop.time() + give_up_seconds
    while True:
        try:
            return await attempt()
        except CallFailedError as failure:
            if not failure.again:
                raise failure.error from failure
            delay_seconds = backoff.next_delay_seconds(failure.delay_seconds)
            if give_up_at is not None and loop.time() + delay_seconds > give_up_at:
                raise failure.error from failure
            log_failure(failure, method, backoff.failures, delay_seconds)
        await asyncio.sleep(delay_seconds)
