"""The puller: one resolved timestamp that never goes back, and nothing after it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.errors import OrderBrokenError, SpanMismatchError
from datanode_client.puller.events import (
    EntryBatch,
    Message,
    OpType,
    PullerOutput,
    RawKVEntry,
    RegionFeedEvent,
    RegionSpan,
    Resolved,
    ResolvedSpans,
)
from datanode_client.puller.puller import (
    OUTPUT_BYTES_MAX,
    EventSink,
    Puller,
    PullerCore,
    sorted_output,
)
from datanode_client.puller.sorter import Sorter
from datanode_client.puller.span import Span

from .strategies import PROBES, spans

LEFT, RIGHT = Span(b"a", b"b"), Span(b"b", b"c")
BOTH = Span(b"a", b"c")


def changes(*commit_ts: int) -> EntryBatch:
    """Changes with these timestamps."""
    return EntryBatch([RawKVEntry(OpType.PUT, b"k", b"v", b"", ts - 1, ts) for ts in commit_ts])


def resolved(ts: int, *regions: Span) -> ResolvedSpans:
    """These ranges have reached a timestamp."""
    return ResolvedSpans(ts, [RegionSpan(number, span) for number, span in enumerate(regions, start=1)])


@given(steps=st.lists(st.tuples(spans(BOTH), st.integers(0, 40)), max_size=40), checkpoint_ts=st.integers(0, 20))
def test_the_announced_timestamp_never_goes_back(steps: list[tuple[Span, int]], checkpoint_ts: int) -> None:
    """TiCDC took a lower minimum over without telling: late changes and a repeated timestamp could pass after that."""
    core, reached, announced = PullerCore([BOTH], checkpoint_ts), dict.fromkeys(PROBES, 0), checkpoint_ts
    for span, ts in steps:
        output = core.handle(resolved(ts, span))
        reached |= {key: ts for key in PROBES if key in span}
        smallest = min(reached[key] for key in PROBES if key in BOTH)

        assert output == (Resolved(smallest) if smallest > announced else None)
        announced = max(announced, smallest)
        assert core.resolved_ts == announced
        assert core.initialized == (smallest > 0)


def test_nothing_late_passes_after_the_minimum_fell_back() -> None:
    """The defect of the original, step by step."""
    core = PullerCore([BOTH], 1)
    core.handle(resolved(10, LEFT, RIGHT))
    assert core.handle(resolved(5, LEFT)) is None  # merged, and read again from 5

    assert core.resolved_ts == 10
    assert core.handle(changes(7)) is None
    assert core.handle(resolved(8, LEFT)) is None
    assert core.handle(resolved(11, LEFT, RIGHT)) == Resolved(11)
    stats = core.stats()
    assert (stats.late_entries, stats.resolved_ts_egress) == (1, 11)


def test_late_changes_are_dropped_and_counted_and_the_others_pass() -> None:
    """Their message has gone out: taking them would put them after later ones. The count must stay 0, and is watched."""
    core = PullerCore([BOTH], 10)

    assert core.handle(changes(9, 10, 11, 12)) == changes(11, 12)
    assert core.stats().late_entries == 2


def test_nothing_is_announced_until_every_range_has_reported() -> None:
    """A range that nobody has heard of may still send anything after the checkpoint."""
    core = PullerCore([LEFT, RIGHT], 1)

    assert core.handle(resolved(10, LEFT)) is None
    assert not core.initialized
    assert core.handle(resolved(8, RIGHT)) == Resolved(8)


def test_a_resolved_timestamp_of_foreign_keys_is_a_bug_and_says_so() -> None:
    """Taken as it is, it would move the frontier of keys that nobody feeds."""
    with pytest.raises(SpanMismatchError):
        PullerCore([LEFT], 1).handle(resolved(10, BOTH))


def test_the_statistics_tell_where_it_hangs() -> None:
    """The first question of whoever is called at night."""
    core = PullerCore([BOTH], 1)
    core.handle(changes(20, 30, 25))
    core.handle(resolved(10, LEFT))
    core.handle(resolved(25, RIGHT))
    stats = core.stats()

    assert (stats.kv_events, stats.resolved_events) == (3, 2)
    assert (stats.slowest_span, stats.frontier_ts) == (LEFT, 10)
    assert (stats.resolved_ts_ingress, stats.checkpoint_ts_ingress) == (25, 30)
    assert (stats.resolved_ts_egress, stats.checkpoint_ts_egress) == (10, 30)
    assert PullerCore([BOTH], 1).stats().checkpoint_ts_ingress == 0
    quiet = PullerCore([BOTH], 1)
    quiet.handle(resolved(10, BOTH))
    assert (quiet.stats().checkpoint_ts_ingress, quiet.stats().checkpoint_ts_egress) == (10, 10)


class ScriptedClient:
    """Feeds what a script says, span by span, then waits or fails."""

    def __init__(self, scripts: dict[Span, list[RegionFeedEvent]], error: Exception | None = None) -> None:
        self.scripts = scripts
        self.error = error
        self.sent = 0

    async def event_feed(self, span: Span, start_ts: int, sink: EventSink) -> None:
        assert start_ts == 1
        for event in self.scripts[span]:
            await sink(event)
            self.sent += 1
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


async def take(outputs: AsyncIterator[PullerOutput], count: int) -> list[PullerOutput]:
    """The next outputs."""
    return [await asyncio.wait_for(anext(outputs), 10) for _ in range(count)]


async def collect(outputs: AsyncIterator[PullerOutput], got: list[PullerOutput]) -> None:
    """Reads to the end."""
    async for output in outputs:
        got.append(output)  # noqa: PERF401 - what came before an error counts


async def stop(task: asyncio.Task[None]) -> None:
    """Cancels and waits."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_run_merges_the_feeds_of_all_spans() -> None:
    """One consumer, one timestamp, whatever the number of spans."""
    scripts: dict[Span, list[RegionFeedEvent]] = {
        LEFT: [changes(5), resolved(7, LEFT)],
        RIGHT: [changes(6), resolved(9, RIGHT)],
    }
    puller = Puller([LEFT, RIGHT], 1, ScriptedClient(scripts))
    running = asyncio.create_task(puller.run())
    *batches, last = await take(puller.output(), 3)

    assert sorted(entry.commit_ts for batch in batches if isinstance(batch, EntryBatch) for entry in batch.entries) == [
        5,
        6,
    ]
    assert last == Resolved(7)
    assert puller.resolved_ts == puller.stats().resolved_ts_egress == 7
    await stop(running)


async def test_a_slow_consumer_stops_the_reading_of_the_streams() -> None:
    """Otherwise everything that the store has ends up in this process: a few hundred of its events are a gigabyte."""
    value = bytes(2**20)
    script: list[RegionFeedEvent] = [
        EntryBatch([RawKVEntry(OpType.PUT, b"k", value, b"", ts - 1, ts)]) for ts in range(2, 100)
    ]
    client = ScriptedClient({BOTH: script})
    puller = Puller([BOTH], 1, client)
    running = asyncio.create_task(puller.run())
    for _ in range(1000):
        await asyncio.sleep(0)

    assert client.sent * len(value) <= OUTPUT_BYTES_MAX
    assert await take(puller.output(), len(script)) == script
    await stop(running)


async def test_a_feed_that_cannot_go_on_ends_both_ends_with_its_error() -> None:
    """A consumer that waits for ever looks like a quiet table."""
    script: list[RegionFeedEvent] = [changes(ts) for ts in range(2, 200)]
    puller = Puller([BOTH], 1, ScriptedClient({BOTH: script}, OrderBrokenError("broken")))
    running = asyncio.create_task(puller.run())
    with pytest.raises(ExceptionGroup) as run_error:
        await asyncio.wait_for(running, 10)
    assert run_error.group_contains(OrderBrokenError)

    got: list[PullerOutput] = []
    with pytest.raises(ExceptionGroup) as output_error:
        await collect(puller.output(), got)
    assert output_error.group_contains(OrderBrokenError)
    assert got == script


async def test_the_output_ends_when_the_run_is_cancelled() -> None:
    """Whoever stops a feed must not have to stop its consumer, too."""
    puller = Puller([BOTH], 1, ScriptedClient({BOTH: [changes(2)]}))
    running = asyncio.create_task(puller.run())
    await take(puller.output(), 1)
    await stop(running)

    assert running.cancelled()
    assert [output async for output in puller.output()] == []


async def test_sorted_output_is_messages_up_to_each_resolved_timestamp() -> None:
    """What a channel reader hands on: whole messages in order, then the promise that nothing comes before."""

    async def outputs() -> AsyncIterator[PullerOutput]:
        for output in (changes(9, 3), changes(5, 3), Resolved(5), changes(7), Resolved(20)):
            yield output

    sorter = Sorter()
    got = [item async for item in sorted_output(outputs(), sorter)]

    assert [item.commit_ts if isinstance(item, Message) else -item.ts for item in got] == [3, 5, -5, 7, 9, -20]
    sorter.close()
