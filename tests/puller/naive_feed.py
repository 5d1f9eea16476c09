"""A puller as one writes it on the first day: it works on a quiet cluster. A test of the test: the simulation must refuse it.

What it gets wrong: a region that is being looked up again does not count for the resolved timestamp; a region is requested as PD
describes it, whatever else feeds the same keys already; prewrites are forgotten with the stream; a commit that finds no prewrite
is skipped.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import grpc

from datanode_client.puller.events import EntryBatch, OpType, PullerOutput, RawKVEntry, Resolved
from datanode_client.puller.span import Span, encode_bytes
from datanode_client.puller.tikv import calls
from datanode_client.puller.tikv.codec import TICDC_VERSION
from datanode_client.puller.tikv.pd_client import PDClient, PDUnavailableError
from datanode_client.puller.wire import cdcpb_pb2, metapb_pb2

from .socket_run import SPANS, SteppedClock


class NaiveFeed:
    """The puller of the first day, over the old protocol."""

    def __init__(self, pd_addresses: Sequence[str], start_ts: int, clock: SteppedClock, rng: random.Random) -> None:
        self._pd = PDClient(pd_addresses)
        self._clock = clock
        self._start_ts = start_ts
        self._resolved: dict[int, int] = {}
        self._announced = start_ts
        self._outputs: asyncio.Queue[PullerOutput] = asyncio.Queue()
        self._request_id = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        cluster_id = await self._pd.cluster_id()
        self._header = cdcpb_pb2.Header(cluster_id=cluster_id, ticdc_version=TICDC_VERSION)

    async def run(self) -> None:
        asked = [await self._ask(span.start, span.end, self._start_ts) for span in SPANS]
        for address, request in [pair for pairs in asked for pair in pairs]:
            self._tasks.append(asyncio.create_task(self._feed(address, request)))
        await asyncio.Event().wait()

    async def output(self) -> AsyncIterator[PullerOutput]:
        while True:
            yield await self._outputs.get()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pd.close()

    def errors(self) -> Counter[str]:
        return Counter()

    def late_entries(self) -> int:
        return 0

    async def _ask(self, start: bytes, end: bytes, checkpoint_ts: int) -> list[tuple[str, cdcpb_pb2.ChangeDataRequest]]:
        """Looks up the regions of a range: whom to ask for what."""
        while True:
            try:
                regions = await self._pd.scan_regions(Span(start, end), 100)
                addresses = {store.id: store.address for store in await self._pd.stores()}
                break
            except PDUnavailableError:
                await asyncio.sleep(0.005)
        asked = []
        for region in regions:
            self._request_id += 1
            request = cdcpb_pb2.ChangeDataRequest(
                header=self._header,
                region_id=region.ver_id.id,
                region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.ver_id.conf_ver, version=region.ver_id.version),
                checkpoint_ts=checkpoint_ts,
                start_key=max(start, region.span.start),
                end_key=min(end, region.span.end or end),
                request_id=self._request_id,
            )
            self._resolved[request.request_id] = checkpoint_ts
            asked.append((addresses[region.leader_store_id], request))
        return asked

    async def _feed(self, address: str, request: cdcpb_pb2.ChangeDataRequest) -> None:
        channel = calls.open_channel(address)
        call = calls.EVENT_FEED.stream(channel)()
        prewrites: dict[tuple[int, bytes], cdcpb_pb2.Event.Row] = {}
        try:
            await call.write(request)
            while isinstance(message := await call.read(), cdcpb_pb2.ChangeDataEvent):
                if any(event.HasField("error") for event in message.events):
                    break
                for event in message.events:
                    self._emit(event.entries.entries, prewrites, request)
                if message.HasField("resolved_ts"):
                    self._advance(request.request_id, message.resolved_ts.ts)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            await channel.close()
        checkpoint_ts = self._resolved.pop(request.request_id)
        await asyncio.sleep(0.002)
        for next_address, again in await self._ask(request.start_key, request.end_key, checkpoint_ts):
            self._tasks.append(asyncio.create_task(self._feed(next_address, again)))

    def _emit(
        self,
        rows: Sequence[cdcpb_pb2.Event.Row],
        prewrites: dict[tuple[int, bytes], cdcpb_pb2.Event.Row],
        request: cdcpb_pb2.ChangeDataRequest,
    ) -> None:
        entries = []
        for row in rows:
            values = row
            if row.type == cdcpb_pb2.Event.PREWRITE and (row.value or (row.start_ts, row.key) not in prewrites):
                prewrites[row.start_ts, row.key] = row
            if row.type == cdcpb_pb2.Event.COMMIT:
                values = prewrites.pop((row.start_ts, row.key), row)
            if row.type == cdcpb_pb2.Event.COMMITTED or (row.type == cdcpb_pb2.Event.COMMIT and values is not row):
                entries.append(
                    RawKVEntry(
                        OpType(row.op_type), row.key, values.value, values.old_value, row.start_ts, row.commit_ts
                    )
                )
        inside = [entry for entry in entries if request.start_key <= encode_bytes(entry.key) < request.end_key]
        if inside:
            self._outputs.put_nowait(EntryBatch(inside))

    def _advance(self, request_id: int, ts: int) -> None:
        self._resolved[request_id] = ts
        lowest = min(self._resolved.values())
        if lowest > self._announced:
            self._announced = lowest
            self._outputs.put_nowait(Resolved(lowest))
