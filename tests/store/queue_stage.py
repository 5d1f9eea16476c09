"""The queue of writes alone, over a runner of our own, and a clock that only a test moves on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.store import group_commit
from coordinator.store.answers import StoreSettings, StoreStatistics
from coordinator.store.calls import WriteCall
from coordinator.store.channels import Channels
from coordinator.store.engine import SortedError, WriteFailedError
from coordinator.store.group_commit import GroupCommit
from coordinator.store.transaction import Transaction
from datacoord.errors import InternalError

from .support import CALLER

NEVER = float("inf")


class Call(WriteCall[str]):
    """A call that answers its name."""

    def __init__(
        self, name: str, *, items: int = 1, size_bytes: int = 0, alone: bool = False, rpc: str = "Test"
    ) -> None:
        super().__init__(rpc, CALLER, items=items, size_bytes=size_bytes)
        self.name = name
        self.alone = alone

    def run(self, transaction: Transaction, channels: Channels) -> str:
        return self.name


class Runner:
    """Holds transactions until a test lets them go, then does what takes their time, and fails those it is told to."""

    def __init__(self) -> None:
        self.work: Callable[[Sequence[Call]], Awaitable[None]] | None = None
        self.groups: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.broken: set[str] = set()
        self.bug = False
        self.failures: list[SortedError] = []

    async def __call__(self, calls: Any) -> list[Any]:
        names = [call.name for call in calls]
        self.groups.append(names)
        self.entered.set()
        await self.gate.wait()
        if self.work is not None:
            await self.work(calls)
        if self.bug:
            self.bug = False
            raise RuntimeError
        if self.failures:
            raise WriteFailedError(self.failures.pop(0))
        if self.broken & set(names):
            raise WriteFailedError(SortedError(InternalError("broken"), whole=False))
        return names


class Queue:
    """A queue over a Runner."""

    def __init__(self, *, holds_loop: bool = False, **changes: Any) -> None:
        self.runner = Runner()
        self.statistics = StoreStatistics()
        settings = StoreSettings(storage_root="", **changes)
        self.queue = GroupCommit(self.runner, settings, self.statistics, holds_loop=holds_loop)

    def submit(self, call: Call, deadline: float | None = None) -> asyncio.Task[str]:
        return asyncio.get_running_loop().create_task(self.queue.submit(call, deadline))

    async def hold(self, call: Call | None = None) -> asyncio.Task[str]:
        """Puts a first call into a transaction that does not end, so that what follows gathers."""
        self.runner.gate.clear()
        self.runner.entered.clear()
        first = self.submit(call or Call("first"))
        await self.runner.entered.wait()
        return first


class Clock:
    """The loop's time, which only a test moves on.

    Attributes:
        now: seconds.
        idle_seconds: of it, in which the thread had nothing to do; what a test adds to it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.idle_seconds = 0.0
        self.now = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        monkeypatch.setattr(
            group_commit,
            "time",
            SimpleNamespace(perf_counter=lambda: self.now, thread_time=lambda: self.now - self.idle_seconds),
        )

    async def go(self, seconds: float) -> None:
        """Moves it on, between two moments in which everybody sees what has happened so far."""
        for passed in (0.0, seconds):
            self.now += passed
            for _ in range(10):
                await asyncio.sleep(0)


async def turns(count: int = 50) -> None:
    """Lets everybody do what they can without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)
