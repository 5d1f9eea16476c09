"""What a person is told of channels whose source, reader or object store fails, by a real datanode through a real coordinator."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from support.waiting import eventually_in_thread

from datacoord.client import CoordinatorClient
from datacoord.errors import SourceInvalidError
from datacoord.paths import BinlogKind
from datacoord.positions import Position
from datacoord.v1 import admin_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig
from datanode_client.config import DataNodeConfig
from datanode_client.sources.base import (
    OP_COLUMN,
    OP_UPSERT,
    TIMESTAMP_COLUMN,
    ChannelContext,
    EndOfChannel,
    MessageBatch,
    SourceEvent,
)
from datanode_process.coordinator_process import CoordinatorProcess
from datanode_process.landing import Datanodes, managed
from datanode_process.lists import SCHEMA

ROWS = pa.schema([*SCHEMA, pa.field(TIMESTAMP_COLUMN, pa.int64()), pa.field(OP_COLUMN, pa.int8())])
END, FAILS_AT = 30, 10
LONG_AGO_MS = 1_000_000_000_000
REFUSES_TO_OPEN, FAILS_HALF_WAY, INVALID, UNWRITABLE, WELL = range(5)
CONFIG = DataNodeConfig(
    insert_buf_size_bytes=1,
    sync_policy_tick_seconds=0.1,
    source_retry_delay_seconds_initial=0.05,
    source_retry_delay_seconds_max=1.0,
    sync_retry_delay_seconds_max=1.0,
)


@dataclass
class Sources:
    """A log per channel, of events long past; some of them fail until they are mended."""

    failing: set[int] = field(default_factory=lambda: {REFUSES_TO_OPEN, FAILS_HALF_WAY, INVALID})

    def reader(self, context: ChannelContext) -> "FailingReader":
        """The reader factory."""
        return FailingReader(self, context.channel_index)


class FailingReader:
    """Reads one of the logs."""

    def __init__(self, sources: Sources, index: int) -> None:
        self._sources = sources
        self._index = index
        self._at = 0

    def _fails(self, index: int) -> bool:
        return self._index == index and index in self._sources.failing

    async def open(self, after: Position) -> None:
        if self._fails(REFUSES_TO_OPEN):
            raise ConnectionRefusedError("the upstream refuses")
        self._at = after.timestamp

    async def next(self) -> SourceEvent:
        if self._fails(FAILS_HALF_WAY) and self._at >= FAILS_AT:
            raise TimeoutError("the upstream\nstalls")
        if self._fails(INVALID):
            raise SourceInvalidError("what the upstream has is no row")
        if self._at >= END:
            return EndOfChannel(Position(END))
        self._at += 1
        values = [self._at, f"{self._index}", self._at, OP_UPSERT]
        arrays = [pa.array([value], type=kind.type) for value, kind in zip(values, ROWS, strict=True)]
        position = Position(self._at, event_time_ms=LONG_AGO_MS + self._at)
        return MessageBatch(pa.RecordBatch.from_arrays(arrays, schema=ROWS), position)

    def head(self) -> int | None:
        return END

    async def close(self) -> None:
        return


@pytest.mark.timeout(240)
async def test_a_channel_that_cannot_go_on_is_called_so_with_the_reason_and_no_longer_than_it_lasts(
    tmp_path: Path,
) -> None:
    """Who is called at night would read "all is well" of a source with a wrong password, and of a store that takes nothing."""
    coordinator, sources = CoordinatorProcess(tmp_path), Sources()
    datanodes = Datanodes(coordinator, sources.reader)
    await coordinator.start()
    client = CoordinatorClient(coordinator.target, timeout_seconds=20)
    try:
        made = await asyncio.to_thread(client.create_collection, managed(WELL + 1))
        index_of = {name: index for index, name in enumerate(made.channel_names)}
        broker = Broker(BrokerConfig(coordinator.target))
        unwritable = (await broker.get_recovery_info(made.channel_names[UNWRITABLE])).channel_id
        await broker.close()
        blocked = Path(made.storage_root) / BinlogKind.INSERT.value / str(unwritable)
        blocked.parent.mkdir(parents=True)
        blocked.write_text("a file where a directory must be")
        datanodes.start(0, config=CONFIG)

        findings: dict[int, admin_pb2.Finding] = {}

        def problems() -> dict[int, str]:
            explained = client.explain(admin_pb2.ExplainRequest(collection_name="t"))
            findings.clear()
            findings.update((index_of[finding.channel_name], finding) for finding in explained.findings)
            return {index: finding.problem for index, finding in findings.items()}

        expected = {
            REFUSES_TO_OPEN: ("SOURCE_FAILS", "ConnectionRefusedError: the upstream refuses."),
            FAILS_HALF_WAY: ("SOURCE_FAILS", "TimeoutError: the upstream stalls."),
            INVALID: ("SOURCE_FAILS", "SourceInvalidError: "),
            UNWRITABLE: ("UPLOADS_FAIL", "ObjectStoreError: "),
        }
        # At first they are not read yet, which is another problem.
        await eventually_in_thread(
            lambda: problems() == {index: problem for index, (problem, _) in expected.items()}, 120
        )
        for index, (_, words) in expected.items():
            assert words in findings[index].explanation

        sources.failing.clear()
        blocked.unlink()
        await eventually_in_thread(lambda: all(row.report.finished for row in client.list_channels("t")), 120)
        assert await asyncio.to_thread(problems) == {}
    finally:
        await datanodes.kill_all()
        client.close()
        await coordinator.kill()
