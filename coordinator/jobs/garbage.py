"""The garbage collector (R5): a round that deletes, and a plan that only says what a round would delete.

Every directory of a storage root is LISTed to its end, then judged by one SQL read, then deleted from; that keeps the rule for the
whole root, because a verdict is about one object alone and its facts were read after it was listed. See docs/garbage.md.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from coordinator.core.garbage import Verdict
from coordinator.jobs.garbage_objects import HaltedError, Objects
from coordinator.jobs.garbage_sweep import STOPPED_BY, GarbageSettings, Stopped, Sweep, Tally
from coordinator.logging import get_logger
from coordinator.store import Store
from coordinator.store.garbage import Begun, GcPlan, Permit
from coordinator.store.garbage_rows import Root
from coordinator.web.metrics import Metrics
from datacoord.errors import DatacoordError
from datacoord.objectstore import ObjectStore

T = TypeVar("T")
Blocking = Callable[..., Awaitable[Any]]
"""Runs a function that blocks, with its arguments, and answers its result."""

PLAN_MARGIN_SECONDS: Final = 0.5
"""A plan ends this much before nobody waits for it any more, and says how far it came."""

_log = get_logger("garbage")


class GarbageJob:
    """Runs rounds when they are due, and plans when somebody asks.

    Args:
        store: the state.
        metrics: where rounds are counted.
        settings: see there.
        blocking: how what blocks is run.
        rest: how it waits.
        open_objects: opens a storage root.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        settings: GarbageSettings,
        *,
        blocking: Blocking = asyncio.to_thread,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        open_objects: Callable[[str], ObjectStore] = ObjectStore.from_uri,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._settings = settings
        self._blocking = blocking
        self._rest = rest
        self._open = open_objects
        self._stopping = False
        self._halt = threading.Event()

    @property
    def enabled(self) -> bool:
        """Whether this process runs rounds at all."""
        return self._settings.enabled

    def stop(self) -> None:
        """Ends a round in progress at its next object; nothing it did has to be undone."""
        self._stopping = True
        self._halt.set()

    async def __call__(self) -> dict[str, object]:
        """Runs a round if one is due and the job is this process's."""
        if not self._settings.enabled or self._stopping:
            return {}
        status = await self._store.garbage.status()
        self._metrics.gc_paused.set(status.paused)
        if not status.is_due(self._settings.interval_ms):
            return {}
        begun = await self._store.garbage.begin(self._settings.interval_ms)
        return await self._run(begun) if begun is not None else {}

    async def _run(self, begun: Begun) -> dict[str, object]:
        started = asyncio.get_running_loop().time()
        tally = Tally()
        self._halt = threading.Event()
        if self._stopping:
            self._halt.set()
        sweep = Sweep(
            self._store,
            tally,
            self._guarded(begun),
            self._settings,
            permit=lambda: self._permit(begun),
            fence=begun.fence,
            rest=self._rest_unless_stopping,
        )
        try:
            await sweep.rows()
            await self._objects(sweep, await self._store.garbage.roots(), self._halt)
        except (Stopped, HaltedError) as stopped:
            tally.fail(str(stopped))
        except DatacoordError as error:
            tally.fail(error.message)
        except Exception as error:  # noqa: BLE001 - the round ends, and its figures are kept
            _log.exception("garbage_round_failed")
            tally.fail(f"{type(error).__name__}; see the log of the coordinator")
        done = tally.to_round(begun.start_ms, round(1000 * (asyncio.get_running_loop().time() - started)))
        self._count(tally)
        await self._store.garbage.finish(begun.fence, done)
        if not (tally.deleted or tally.rows_deleted or tally.error or tally.unknown):
            return {}
        return {
            "objects_listed": tally.listed,
            "objects_deleted": tally.deleted,
            "bytes_deleted": tally.bytes_deleted,
            "binlog_rows_deleted": tally.rows_deleted,
            "unknown_names": tally.unknown,
            "error": tally.error,
        }

    def _count(self, tally: Tally) -> None:
        metrics = self._metrics
        metrics.gc_rounds.labels("failed" if tally.error else "ok").inc()
        metrics.gc_objects_listed.inc(tally.listed)
        for verdict, count in tally.by_verdict.items():
            if verdict is not Verdict.UNKNOWN_NAME:
                metrics.gc_objects_deleted.labels(verdict.name).inc(count)
        metrics.gc_bytes_deleted.inc(tally.bytes_deleted)
        metrics.gc_rows_deleted.inc(tally.rows_deleted)
        metrics.gc_errors.inc(tally.errors)
        metrics.gc_unknown_names.set(tally.unknown)
        if not tally.error:
            metrics.gc_last_success.set_to_current_time()

    async def _permit(self, begun: Begun) -> None:
        """Renews the lease.

        Raises:
            Stopped: the round may not go on.
        """
        self._check_stopping()
        permit = await self._store.garbage.permit(begun.fence)
        if permit is not Permit.GRANTED:
            raise Stopped(STOPPED_BY[permit])

    def _check_stopping(self) -> None:
        if self._stopping:
            raise Stopped("the coordinator was stopped; what is left stays for a later round")

    async def _rest_unless_stopping(self, seconds: float) -> None:
        self._check_stopping()
        await self._rest(seconds)

    def _guarded(self, begun: Begun) -> Callable[..., Awaitable[Any]]:
        """Runs what blocks, and keeps the lease meanwhile."""

        async def run(work: Callable[..., T], *arguments: Any) -> T:
            task = asyncio.ensure_future(self._blocking(work, *arguments))
            while True:
                done, _ = await asyncio.wait({task}, timeout=self._settings.permit_seconds)
                if done:
                    result: T = task.result()
                    return result
                try:
                    await self._permit(begun)
                except Exception:
                    self._halt.set()
                    with suppress(Exception):
                        await task
                    raise

        return run

    async def _objects(self, sweep: Sweep, roots: Sequence[Root], halt: threading.Event) -> None:
        for root in roots:
            try:
                store = await self._blocking(self._open, root.uri)
            except DatacoordError as error:
                # One root that cannot be opened must not keep the others from being swept.
                sweep.tally.fail(error.message)
                continue
            await sweep.root(Objects(store, halt), root)

    # ---- the plan -----------------------------------------------------------------------------------------------------------

    async def plan(self, collection_name: str, deadline: float) -> GcPlan:
        """What a round would do now; deletes nothing and may be asked for while the collector is paused.

        Args:
            collection_name: only of this collection; empty = of all.
            deadline: in the loop's time.

        Raises:
            CollectionNotFoundError: no such collection.
        """
        started = asyncio.get_running_loop().time()
        tally = Tally()
        halt = threading.Event()
        now_ms = (await self._store.garbage.status()).now_ms
        roots = await self._store.garbage.roots(collection_name)
        sweep = Sweep(self._store, tally, self._blocking, self._settings, permit=None)
        try:
            async with asyncio.timeout_at(deadline - PLAN_MARGIN_SECONDS):
                await sweep.rows(roots[0].collection_id if collection_name else 0)
                await self._objects(sweep, roots, halt)
        except DatacoordError as error:
            tally.fail(error.message)
        except TimeoutError:
            tally.fail("the time of the call was over; plan one collection, or give the call more time")
        finally:
            halt.set()
        duration_ms = round(1000 * (asyncio.get_running_loop().time() - started))
        return GcPlan(tally.to_round(now_ms, duration_ms), tuple(tally.candidates))
