"""Streams of desired states: whole, at once, after every change, from whichever replica it came, and never too many."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import cast

import pytest

from coordinator.rpc.watch import WatchHub
from coordinator.store import DesiredState, Store
from coordinator.web.metrics import Metrics
from datacoord.errors import OverloadedError, SessionNotFoundError, StoreUnavailableError

SOON = 5.0


class Sessions:
    """Desired states by session, as the store would answer them."""

    def __init__(self) -> None:
        self.revisions: dict[int, int] = {1: 0, 2: 0}
        self.listener: Callable[[frozenset[int]], None] = lambda _: None
        self.reads = 0

    def on_desired_change(self, listener: Callable[[frozenset[int]], None]) -> None:
        self.listener = listener

    async def watch_datanode(self, node_id: int, *, deadline: float | None = None) -> DesiredState:
        return await self.desired_state(node_id)

    async def desired_state(self, node_id: int) -> DesiredState:
        self.reads += 1
        await asyncio.sleep(0)
        if node_id not in self.revisions:
            raise SessionNotFoundError(f"session {node_id} is over")
        return DesiredState(self.revisions[node_id], ())

    async def desired_revisions(self, node_ids: Sequence[int]) -> dict[int, int]:
        return {node_id: self.revisions[node_id] for node_id in node_ids if node_id in self.revisions}

    def change(self, node_id: int, *, here: bool) -> None:
        """Changes a desired state, by this process or by another replica."""
        self.revisions[node_id] += 1
        if here:
            self.listener(frozenset({node_id}))


def make(streams_max: int = 10) -> tuple[Sessions, WatchHub, Metrics]:
    """A hub over sessions 1 and 2."""
    sessions, metrics = Sessions(), Metrics()
    return sessions, WatchHub(cast("Store", sessions), metrics.watch_streams, streams_max), metrics


def open_streams(metrics: Metrics) -> float | None:
    """What the gauge of open streams says."""
    return metrics.registry.get_sample_value("datacoord_watch_streams")


async def test_the_state_comes_at_once_and_after_every_local_change() -> None:
    """Polling for what this very process did would add its interval to every recovery."""
    sessions, hub, metrics = make()
    async with aclosing(hub.watch(1, 0.0)) as states:
        assert (await asyncio.wait_for(anext(states), SOON)).revision == 0
        for revision in (1, 2, 3):
            sessions.change(1, here=True)
            assert (await asyncio.wait_for(anext(states), SOON)).revision == revision
        assert open_streams(metrics) == 1
    assert open_streams(metrics) == 0


async def test_changes_of_other_replicas_come_with_the_next_poll() -> None:
    """Any replica may serve any call: the one that changes a state need not be the one that streams it."""
    sessions, hub, _ = make()
    async with aclosing(hub.watch(1, 0.0)) as mine, aclosing(hub.watch(2, 0.0)) as other:
        await anext(mine), await anext(other)
        sessions.change(1, here=False)
        pending = asyncio.ensure_future(anext(mine))
        unmoved = asyncio.ensure_future(anext(other))
        reads = sessions.reads
        await hub.poll()
        assert (await asyncio.wait_for(pending, SOON)).revision == 1
        assert sessions.reads == reads + 1, "streams whose revision stands still are not read again"
        unmoved.cancel()
        await asyncio.wait([unmoved])


async def test_wakes_are_merged_and_a_state_is_never_sent_twice() -> None:
    """Level-triggered: a datanode that is slow to read gets the newest state, not every state there was."""
    sessions, hub, _ = make()
    async with aclosing(hub.watch(1, 0.0)) as states:
        await anext(states)
        for _ in range(5):
            sessions.change(1, here=True)
        assert (await asyncio.wait_for(anext(states), SOON)).revision == 5
        pending = asyncio.ensure_future(anext(states))
        sessions.listener(frozenset({1}))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not pending.done(), "a wake without a change sends nothing"
        sessions.change(1, here=True)
        assert (await asyncio.wait_for(pending, SOON)).revision == 6


async def test_a_change_between_read_and_wait_is_not_lost() -> None:
    """The wake may come while the stream is reading: it must be seen when it waits again."""
    sessions, hub, _ = make()
    async with aclosing(hub.watch(1, 0.0)) as states:
        await anext(states)
        pending = asyncio.ensure_future(anext(states))
        await asyncio.sleep(0)
        sessions.change(1, here=True)
        await asyncio.sleep(0)  # the stream is inside desired_state now
        sessions.change(1, here=True)
        first = await asyncio.wait_for(pending, SOON)
        last = first if first.revision == 2 else await asyncio.wait_for(anext(states), SOON)
        assert last.revision == 2


@pytest.mark.parametrize("here", [True, False])
async def test_a_stream_ends_with_its_session(here: bool) -> None:
    """A datanode whose session is over must hear it: its channels have other owners."""
    sessions, hub, metrics = make()
    async with aclosing(hub.watch(1, 0.0)) as states:
        await anext(states)
        pending = asyncio.ensure_future(anext(states))
        await asyncio.sleep(0)
        del sessions.revisions[1]
        if here:
            sessions.listener(frozenset({1}))
        else:
            await hub.poll()
        with pytest.raises(SessionNotFoundError):
            await asyncio.wait_for(pending, SOON)
    assert open_streams(metrics) == 0


async def test_a_session_that_never_was_is_refused_at_once() -> None:
    """A datanode that was asleep for an hour asks with an old number."""
    _, hub, metrics = make()
    with pytest.raises(SessionNotFoundError):
        await anext(hub.watch(99, 0.0))
    assert open_streams(metrics) == 0


async def test_streams_are_bounded() -> None:
    """Each stream keeps memory and a place in the loop; one too many gets a time to come back."""
    _, hub, _ = make(streams_max=1)
    async with aclosing(hub.watch(1, 0.0)) as states:
        await anext(states)
        with pytest.raises(OverloadedError) as caught:
            await anext(hub.watch(2, 0.0))
        assert int(caught.value.metadata["retry_delay_ms"]) > 0
    async with aclosing(hub.watch(2, 0.0)) as states:
        await anext(states)


async def test_closing_ends_every_stream() -> None:
    """A stream that outlives SIGTERM holds up the end of the process for its whole grace."""
    _, hub, _ = make()
    async with aclosing(hub.watch(1, 0.0)) as states:
        await anext(states)
        pending = asyncio.ensure_future(anext(states))
        await asyncio.sleep(0)
        hub.close()
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(pending, SOON)
