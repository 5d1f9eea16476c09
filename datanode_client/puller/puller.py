"""The puller: the feeds of some spans as one stream of changes with one resolved timestamp."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from datanode_client.puller.errors import SpanMismatchError
from datanode_client.puller.events import EntryBatch, Message, PullerOutput, RegionFeedEvent, Resolved
from datanode_client.puller.frontier import Frontier
from datanode_client.puller.outbox import Outbox
from datanode_client.puller.sorter import Sorter
from datanode_client.puller.span import Span

_log = structlog.get_logger(__name__)

OUTPUT_BYTES_MAX = 8 * 1024 * 1024
"""Changes between the feeds and the consumer; above it the feeds wait, and the streams are not read any more. In bytes, for a store
sends up to 6 MB in one event."""

EventSink = Callable[[RegionFeedEvent], Awaitable[None]]
"""Takes an event of a feed; waits while the puller is behind."""


class KVClient(Protocol):
    """The client of the change feed, as the puller sees it."""

    async def event_feed(self, span: Span, start_ts: int, sink: EventSink) -> None:
        """Feeds a span until it is cancelled.

        Args:
            span: memcomparable.
            start_ts: changes after it are wanted.
            sink: takes what comes, in order.

        Raises:
            FatalFeedError: the feed cannot go on.
        """
        ...


class _CancelledRunError(Exception):
    """The run was cancelled: its output ends without an error."""


@dataclass(slots=True)
class PullerStats:
    """Counters of a puller.

    Attributes:
        kv_events: changes received.
        resolved_events: resolved timestamps received, one per region.
        late_entries: changes dropped because they are not after what was announced; must stay 0.
        resolved_ts_ingress: the resolved timestamp received last; not a minimum.
        checkpoint_ts_ingress: the largest commit timestamp received; the resolved timestamp while nothing was written.
        resolved_ts_egress: the resolved timestamp announced last.
        checkpoint_ts_egress: the largest commit or resolved timestamp handed out.
        slowest_span: where the frontier is.
        frontier_ts: its timestamp; below `resolved_ts_egress` after a merge of regions.
    """

    kv_events: int = 0
    resolved_events: int = 0
    late_entries: int = 0
    resolved_ts_ingress: int = 0
    checkpoint_ts_ingress: int = 0
    resolved_ts_egress: int = 0
    checkpoint_ts_egress: int = 0
    slowest_span: Span = field(default_factory=Span)
    frontier_ts: int = 0


class PullerCore:
    """The rules of the puller, without I/O: takes events of the feeds, returns what comes out.

    Args:
        spans: what is fed, memcomparable, without overlaps.
        checkpoint_ts: changes after it are wanted.
    """

    def __init__(self, spans: Sequence[Span], checkpoint_ts: int) -> None:
        self._spans = tuple(spans)
        # The frontier starts at 0, so that it tells a span of which nothing was resolved from one resolved up to the checkpoint.
        self._frontier = Frontier(0, self._spans)
        self._stats = PullerStats(resolved_ts_egress=checkpoint_ts, checkpoint_ts_egress=checkpoint_ts)

    @property
    def resolved_ts(self) -> int:
        """Every change up to it has come out; never goes back."""
        return self._stats.resolved_ts_egress

    @property
    def initialized(self) -> bool:
        """Whether every range has reported at least once."""
        return self._frontier.frontier() > 0

    def handle(self, event: RegionFeedEvent) -> PullerOutput | None:
        """Takes one event.

        Returns:
            its changes; or a resolved timestamp, if it became greater than any announced before; or None.

        Raises:
            SpanMismatchError: a resolved timestamp came for keys that are not fed.
        """
        if isinstance(event, EntryBatch):
            return self._handle_entries(event)
        stats = self._stats
        stats.resolved_events += len(event.regions)
        stats.resolved_ts_ingress = event.ts
        for region in event.regions:
            if not any(span.covers(region.span) for span in self._spans):
                message = (
                    f"Region {region.region_id} resolved {region.span}, which is not fed; this is a bug of the client."
                )
                raise SpanMismatchError(message, region_id=region.region_id, span=region.span)
            self._frontier.forward(region.span, event.ts)
        frontier_ts = self._frontier.frontier()
        if frontier_ts <= self.resolved_ts:
            return None
        stats.resolved_ts_egress = frontier_ts
        stats.checkpoint_ts_egress = max(stats.checkpoint_ts_egress, frontier_ts)
        return Resolved(frontier_ts)

    def stats(self) -> PullerStats:
        """Counters as they are now."""
        stats = self._stats
        slowest_span, frontier_ts = self._frontier.slowest()
        return replace(
            stats,
            slowest_span=slowest_span,
            frontier_ts=frontier_ts,
            checkpoint_ts_ingress=stats.checkpoint_ts_ingress or stats.resolved_ts_ingress,
        )

    def _handle_entries(self, event: EntryBatch) -> EntryBatch | None:
        stats = self._stats
        stats.kv_events += len(event.entries)
        on_time = [entry for entry in event.entries if entry.commit_ts > self.resolved_ts]
        late = len(event.entries) - len(on_time)
        if late:
            stats.late_entries += late
            _log.error("late_changes_dropped", count=late, resolved_ts=self.resolved_ts)
        if not on_time:
            return None
        commit_ts = max(entry.commit_ts for entry in on_time)
        stats.checkpoint_ts_ingress = max(stats.checkpoint_ts_ingress, commit_ts)
        stats.checkpoint_ts_egress = max(stats.checkpoint_ts_egress, commit_ts)
        return EntryBatch(on_time)


class Puller:
    """Runs the feeds of some spans. Used by one event loop: `run` in a task, `output` by one consumer.

    Args:
        spans: what to feed, memcomparable, without overlaps.
        checkpoint_ts: changes after it are wanted.
        client: feeds a span.
    """

    def __init__(self, spans: Sequence[Span], checkpoint_ts: int, client: KVClient) -> None:
        self._spans = tuple(spans)
        self._checkpoint_ts = checkpoint_ts
        self._client = client
        self._core = PullerCore(self._spans, checkpoint_ts)
        self._outputs: Outbox[PullerOutput] = Outbox(OUTPUT_BYTES_MAX)

    @property
    def resolved_ts(self) -> int:
        """Every change up to it is in the output; never goes back."""
        return self._core.resolved_ts

    async def run(self) -> None:
        """Feeds until it is cancelled, or a feed cannot go on.

        Raises:
            ExceptionGroup: with what stopped the feeds (FatalFeedError, …); `output` raises it, too.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for span in self._spans:
                    group.create_task(self._client.event_feed(span, self._checkpoint_ts, self._take))
        except asyncio.CancelledError:
            self._outputs.fail(_CancelledRunError())
            raise
        except BaseException as error:
            self._outputs.fail(error)
            raise

    async def output(self) -> AsyncIterator[PullerOutput]:
        """What comes out, in order. Ends when `run` is cancelled, and raises what else ended it, behind what came before."""
        while True:
            try:
                output = await self._outputs.get()
            except _CancelledRunError:
                return
            yield output

    def stats(self) -> PullerStats:
        """Counters."""
        return self._core.stats()

    async def _take(self, event: RegionFeedEvent) -> None:
        """Takes an event of any feed, and waits only then: a resolved timestamp must not overtake changes, or another one."""
        output = self._core.handle(event)
        if output is not None:
            self._outputs.put(output)
        await self._outputs.wait_for_room()


async def sorted_output(outputs: AsyncIterator[PullerOutput], sorter: Sorter) -> AsyncIterator[Message | Resolved]:
    """Brings the output of a puller into commit order.

    Args:
        outputs: of a puller.
        sorter: keeps what waits; stays the caller's to close.

    Yields:
        the messages up to each resolved timestamp, then the timestamp.
    """
    async for output in outputs:
        if isinstance(output, EntryBatch):
            sorter.add(output.entries)
            continue
        for message in sorter.drain(output.ts):
            yield message
        yield output
