"""One seeded run of the client against the cluster over real sockets, and what must hold in it.

Decisions come from the seed and time is moved by hand; only the sockets work in real time, so a run is repeated in what happens and
not in the last detail of when.
"""

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from datanode_client.puller.events import EntryBatch, Message, OpType, PullerOutput, RawKVEntry, Resolved
from datanode_client.puller.puller import Puller, sorted_output
from datanode_client.puller.sorter import Sorter
from datanode_client.puller.span import Span, encode_bytes
from datanode_client.puller.tikv.client import TiKVClient
from datanode_client.puller.tikv.settings import TiKVSettings

from .tikv_server.adversity import Adversity
from .tikv_server.cluster import TiKVCluster
from .tikv_server.mvcc import DELETE, PUT, Change
from .tikv_server.server import TiKVServer
from .tikv_server.workload import Workload

KEYS = [bytes([letter]) + tail for letter in b"bcdefgh" for tail in (b"", b"-a-long-key")]
SPANS = (Span(encode_bytes(b"c"), encode_bytes(b"e")), Span(encode_bytes(b"f"), encode_bytes(b"gzz")))
STEPS = 400


class SteppedClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.now + seconds, self._count, future))
        await future

    def advance(self, seconds: float) -> None:
        """Moves it, and wakes whoever slept until then."""
        self.now += seconds
        while self._sleepers and self._sleepers[0][0] <= self.now:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)


class Feed(Protocol):
    """What is tested: ours, or a naive one."""

    async def prepare(self) -> None:
        """Connects, while nothing goes wrong yet."""
        ...

    async def run(self) -> None:
        """Feeds until it is cancelled."""
        ...

    def output(self) -> AsyncIterator[PullerOutput]:
        """What comes out."""
        ...

    async def close(self) -> None:
        """Ends it."""
        ...

    def errors(self) -> Counter[str]:
        """Failures of regions so far, by kind."""
        ...

    def late_entries(self) -> int:
        """Changes that the feed itself threw away because they came too late."""
        ...


class OurFeed:
    """The puller over the real client."""

    def __init__(self, pd_addresses: Sequence[str], start_ts: int, clock: SteppedClock, rng: random.Random) -> None:
        settings = TiKVSettings(
            tuple(pd_addresses),
            region_scan_limit=rng.choice([1, 3, 40]),
            region_load_limit=rng.choice([1, 2, 1024]),
            backlog_bytes_max=rng.choice([1, 100_000]),
        )
        self.client = TiKVClient(settings, clock=clock, rng=rng)
        self.puller = Puller(SPANS, start_ts, self.client)

    async def prepare(self) -> None:
        await self.client.pd.cluster_id()

    async def run(self) -> None:
        await self.puller.run()

    def output(self) -> AsyncIterator[PullerOutput]:
        return self.puller.output()

    async def close(self) -> None:
        await self.client.close()

    def errors(self) -> Counter[str]:
        return sum((Counter(stats.errors) for stats in self.client.stats().values()), Counter())

    def late_entries(self) -> int:
        return self.puller.stats().late_entries


FeedFactory = Callable[[Sequence[str], int, SteppedClock, random.Random], Feed]


class SocketRun:
    """One run.

    Args:
        server: its sockets; its cluster is replaced.
        seed: of all decisions.
        make_feed: what is tested.
        deaths: the share of the cluster's clients that die and leave locks behind.
        faults: the share of steps in which something goes wrong.
        settle_seconds_max: real time to reach the present once nothing goes wrong any more.
    """

    def __init__(
        self,
        server: TiKVServer,
        seed: int,
        make_feed: FeedFactory = OurFeed,
        *,
        deaths: float = 0.05,
        faults: float = 0.04,
        settle_seconds_max: float = 30.0,
    ) -> None:
        self._faults = faults
        self._settle_seconds_max = settle_seconds_max
        self._rng = random.Random(seed)
        self.clock = SteppedClock()
        self.cluster = server.cluster = TiKVCluster(self._rng, self.clock.now_ms)
        self.workload = Workload(self.cluster, self._rng, KEYS, deaths=deaths)
        self.adversity = Adversity(self.cluster, self._rng, KEYS)
        self.cluster.old_stores = {store for store in self.cluster.feeds if self._rng.random() < 0.2}
        for feed in self.cluster.feeds.values():
            feed.holds_back = self._rng.random() < 0.5 and faults > 0
        for _ in range(self._rng.randint(0, 100)):
            self.workload.step()
        self.start_ts = self.cluster.tso()
        self.feed = make_feed(server.pd_addresses, self.start_ts, self.clock, self._rng)
        self.resolved = [self.start_ts]
        self.messages: list[Message] = []
        self.raw: list[RawKVEntry] = []
        self.errors: Counter[str] = Counter()
        self._sorter = Sorter(memory_limit_bytes=self._rng.choice([0, 3000, 10**6]))

    async def run(self) -> None:
        """Faults, then quiet until the present is reached; then everything is checked.

        Raises:
            AssertionError: something does not hold.
        """
        await self.feed.prepare()
        running = asyncio.create_task(self.feed.run())
        consuming = asyncio.create_task(self._consume())
        try:
            if self._rng.random() < 0.7 or not self._faults:
                await self._begin_quietly(consuming)
            if self._faults:
                self.adversity.begin()
            for _ in range(STEPS):
                await self._step(consuming)
            self.adversity.end()
            self.workload.finish()
            target = self.cluster.tso()
            async with asyncio.timeout(self._settle_seconds_max):
                while self.resolved[-1] < target:
                    await self._settle(consuming)
        except TimeoutError as error:
            raise AssertionError(f"stands still at {self.resolved[-1]}") from error
        finally:
            self.errors = self.feed.errors()
            for task in (consuming, running):
                task.cancel()
            await asyncio.gather(consuming, running, return_exceptions=True)
            await self.feed.close()
            self._sorter.close()
        self._check()

    # ── the world ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _step(self, consuming: asyncio.Task[None]) -> None:
        rng, luck = self._rng, self._rng.random()
        if luck < self._faults:
            self.adversity.strike()
        elif luck < 0.5:
            self.workload.step()
        elif luck < 0.7:
            self.cluster.step_scans()
        elif luck < 0.8:
            self.cluster.report_resolved()
        else:
            self.clock.advance(rng.choice([0.001, 0.05, 0.3, 2.5]))
        for feed in self.cluster.feeds.values():
            for connection in feed.connections:
                connection.release(rng.randint(0, 2))
        # Sockets need real time; whatever is under way gets some of it, now and then.
        await asyncio.sleep(rng.choice([0, 0, 0.0005]))
        self._raise_failure(consuming)

    async def _begin_quietly(self, consuming: asyncio.Task[None]) -> None:
        """Lets the feed reach the present once, so that there is something to disturb."""
        if not self._faults:
            self.workload.finish()
        async with asyncio.timeout(self._settle_seconds_max):
            while self.resolved[-1] == self.start_ts:
                if self._faults:  # the scan of a region and its live rows meet
                    self.workload.step()
                for feed in self.cluster.feeds.values():
                    for connection in feed.connections:
                        connection.release(10)
                await self._settle(consuming)

    async def _settle(self, consuming: asyncio.Task[None]) -> None:
        for _ in range(20):
            self.cluster.step_scans(100)
        self.cluster.report_resolved()
        self.cluster.topology.tell_pd()
        self.clock.advance(0.5)
        await asyncio.sleep(0.001)
        self._raise_failure(consuming)

    @staticmethod
    def _raise_failure(consuming: asyncio.Task[None]) -> None:
        if consuming.done():
            consuming.result()

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _consume(self) -> None:
        async for item in sorted_output(self._watched(self.feed.output()), self._sorter):
            if isinstance(item, Message):
                assert not self.messages or item.commit_ts > self.messages[-1].commit_ts, "messages out of order"
                self.messages.append(item)

    async def _watched(self, outputs: AsyncIterator[PullerOutput]) -> AsyncIterator[PullerOutput]:
        async for output in outputs:
            if isinstance(output, Resolved):
                assert output.ts > self.resolved[-1], "the resolved timestamp does not advance"
                self.resolved.append(output.ts)
            else:
                assert isinstance(output, EntryBatch)
                for entry in output.entries:
                    assert entry.commit_ts > self.resolved[-1], "a change came after its resolved timestamp"
                self.raw += output.entries
            yield output

    def _check(self) -> None:
        expected = [
            change
            for change in self.cluster.changes(self.start_ts, self.resolved[-1])
            if any(encode_bytes(change.key) in span for span in SPANS)
        ]
        delivered = [_change(entry) for message in self.messages for entry in message.entries]
        assert delivered == expected, "what was delivered is not what was committed"
        assert {_change(entry) for entry in self.raw} >= set(expected)
        assert self.feed.late_entries() == 0, "a change came after its resolved timestamp, and was thrown away"
        for feed in self.cluster.feeds.values():
            asked = [(request.region_id, request.request_id) for request in feed.seen_requests]
            assert len(asked) == len(set(asked)), "a request id was used twice for one region"


_OP_TYPES = {OpType.PUT: PUT, OpType.DELETE: DELETE}


def _change(entry: RawKVEntry) -> Change:
    return Change(entry.commit_ts, entry.start_ts, entry.key, _OP_TYPES[entry.op_type], entry.value, entry.old_value)
