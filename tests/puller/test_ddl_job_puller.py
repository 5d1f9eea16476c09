"""The feed of schema changes: jobs out of the queues and the job table, each once, in order."""

import asyncio
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.ddl_job import DDLJob, JobState, MalformedJobError, decode_row_column, parse_ddl_job
from datanode_client.puller.ddl_job_puller import DDL_PULLER_STUCK_SECONDS, DDLJobPuller, DDLJobPullerCore
from datanode_client.puller.events import EntryBatch, Message, OpType, RawKVEntry, RegionSpan, Resolved, ResolvedSpans
from datanode_client.puller.puller import EventSink
from datanode_client.puller.sorter import Sorter
from datanode_client.puller.span import JOB_TABLE_ID, Span, ddl_spans, table_range, to_comparable

LIST_KEY = ddl_spans()[0].start + b"\x80\x00\x00\x00\x00\x00\x00\x00"
TABLE_KEY = table_range(JOB_TABLE_ID).start + b"\x80\x00\x00\x00\x00\x00\x00\x07"


def job_json(job_id: int, version: int, state: int = JobState.DONE) -> bytes:
    """A job as TiDB writes it, shortened."""
    job = {
        "id": job_id, "type": 3, "schema_id": 1, "table_id": 50 + job_id, "schema_name": "test", "table_name": "",
        "state": state, "query": f"create table t{job_id} (id int)", "start_ts": 7,
        "binlog": {"SchemaVersion": version, "FinishedTS": 0},
    }  # fmt: skip
    return json.dumps(job).encode()


def row_v2(columns: dict[int, bytes | None], *, large: bool = False) -> bytes:
    """A row in TiDB's row format 2."""
    present = sorted(column for column, value in columns.items() if value is not None)
    absent = sorted(column for column, value in columns.items() if value is None)
    values = [columns[column] or b"" for column in present]
    ends, end = [], 0
    for value in values:
        end += len(value)
        ends.append(end)
    ids_format, offsets_format = ("I", "I") if large else ("B", "H")
    head = struct.pack("<BBHH", 128, int(large), len(present), len(absent))
    ids = struct.pack(f"<{len(columns)}{ids_format}", *present, *absent)
    return head + ids + struct.pack(f"<{len(ends)}{offsets_format}", *ends) + b"".join(values)


def put(key: bytes, value: bytes, commit_ts: int = 100) -> RawKVEntry:
    """A change of a queue."""
    return RawKVEntry(OpType.PUT, key, value, b"", commit_ts - 1, commit_ts)


def in_table(meta: bytes | None, commit_ts: int = 100) -> RawKVEntry:
    """A change of the job table."""
    return put(TABLE_KEY, row_v2({2: b"\x00", 3: b"1", 4: None, 5: meta, 6: b"\x03"}), commit_ts)


COLUMNS = st.dictionaries(st.integers(1, 255), st.none() | st.binary(max_size=30), max_size=8)


@given(columns=COLUMNS, large=st.booleans(), column_id=st.integers(1, 255))
def test_a_column_is_read_back_as_it_was_written(columns: dict[int, bytes | None], large: bool, column_id: int) -> None:
    """A column off by one would be a schema change that makes no sense, or one that is missed."""
    row = row_v2(columns, large=large)

    for column in [*columns, column_id]:
        assert decode_row_column(row, column) == columns.get(column)


@pytest.mark.parametrize("value", [b"", b"\x80", b"\x01" + bytes(9), b"\x80\x00\xff\x00\x00\x00\x01"])
def test_a_row_of_another_format_is_refused(value: bytes) -> None:
    """Guessing would lose the schema change; the message says what to set."""
    with pytest.raises(MalformedJobError):
        decode_row_column(value, 5)


@pytest.mark.parametrize("entry", [put(LIST_KEY, job_json(7, 30)), in_table(job_json(7, 30))])
def test_jobs_come_from_the_lists_and_from_the_table(entry: RawKVEntry) -> None:
    """Clusters before and after concurrent DDL give the same feed."""
    job = parse_ddl_job(entry)

    assert job is not None
    assert (job.id, job.state, job.table_id, job.schema_version) == (7, JobState.DONE, 57, 30)
    assert job.finished_ts == 100  # the row's commit timestamp: TiDB writes 0 before it knows
    assert job.detail["type"] == job.type == 3


@pytest.mark.parametrize("state", [0, 1, 2, 3, 5, 7])
def test_jobs_under_way_or_cancelled_change_no_schema(state: int) -> None:
    """A job is rewritten at every step."""
    assert parse_ddl_job(put(LIST_KEY, job_json(7, 30, state))) is None


def test_a_job_that_leaves_its_queue_is_no_news() -> None:
    """It is deleted there once it is in the history."""
    assert parse_ddl_job(RawKVEntry(OpType.DELETE, LIST_KEY, b"", job_json(7, 30), 1, 2)) is None


@pytest.mark.parametrize(
    "entry",
    [put(LIST_KEY, b"{"), put(LIST_KEY, b"[1]"), put(LIST_KEY, b'{"state": 4}'), in_table(b"\xff"), in_table(None)],
)
def test_what_is_no_job_ends_the_feed(entry: RawKVEntry) -> None:
    """A schema change that is skipped makes every later row of its table unreadable, or wrong."""
    with pytest.raises(MalformedJobError, match="TiDB"):
        parse_ddl_job(entry)


def test_each_job_comes_out_once() -> None:
    """DONE, then SYNCED; in the list and in the table: the schema version tells."""
    core = DDLJobPullerCore(50)
    running = put(LIST_KEY, job_json(9, 40, 1))
    first = core.handle(Message(100, [running, put(LIST_KEY, job_json(7, 30)), in_table(job_json(7, 30))]))
    again = core.handle(Message(110, [put(LIST_KEY, job_json(7, 30, JobState.SYNCED), 110)]))
    second = core.handle(Message(120, [put(LIST_KEY, job_json(8, 31), 120)]))

    assert [job.id for job in [*first, *again, *second] if isinstance(job, DDLJob)] == [7, 8]
    assert core.discarded_jobs == 2


def test_jobs_from_before_the_checkpoint_are_discarded() -> None:
    """They are part of the schema that the reader starts with."""
    core = DDLJobPullerCore(100)

    assert core.handle(Message(100, [put(LIST_KEY, job_json(7, 30))])) == []
    assert core.handle(Resolved(130)) == [Resolved(130)]
    assert core.resolved_ts == 130


class Clock:
    """Time that is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class JobsClient:
    """Feeds jobs of one span, and resolves all."""

    def __init__(self, jobs: dict[Span, list[RawKVEntry]]) -> None:
        self.jobs = jobs
        self.spans: set[Span] = set()

    async def event_feed(self, span: Span, start_ts: int, sink: EventSink) -> None:
        self.spans.add(span)
        if span in self.jobs:
            await sink(EntryBatch(self.jobs[span]))
        await sink(ResolvedSpans(200, [RegionSpan(1, span)]))
        await asyncio.Event().wait()


async def test_jobs_come_out_in_the_order_in_which_they_took_effect() -> None:
    """The same statement twice in another order is another schema."""
    queue, _, table = (to_comparable(span) for span in ddl_spans())
    client = JobsClient({queue: [put(LIST_KEY, job_json(9, 32), 140)], table: [in_table(job_json(8, 31), 120)]})
    sorter, clock = Sorter(), Clock()
    puller = DDLJobPuller(100, client, sorter, clock)
    running = asyncio.create_task(puller.run())
    got: list[Any] = []
    async for item in puller.output():
        got.append(item)
        if isinstance(item, Resolved):
            break

    assert [item.id if isinstance(item, DDLJob) else item for item in got] == [8, 9, Resolved(200)]
    assert puller.resolved_ts == puller.stats().resolved_ts_egress == 200
    assert client.spans == {to_comparable(span) for span in ddl_spans()}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    sorter.close()


async def test_a_feed_that_stands_still_is_stuck_until_it_moves() -> None:
    """It is the barrier of all tables: nothing is decoded beyond it."""
    sorter, clock = Sorter(), Clock()
    puller = DDLJobPuller(100, JobsClient({}), sorter, clock)
    clock.now = DDL_PULLER_STUCK_SECONDS - 1
    assert not puller.is_stuck()
    clock.now = DDL_PULLER_STUCK_SECONDS
    assert puller.is_stuck()
    running = asyncio.create_task(puller.run())
    async for _ in puller.output():
        break

    assert not puller.is_stuck()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    sorter.close()
