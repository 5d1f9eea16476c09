"""Databases with a past: segments and binlogs written by SQL directly, as many as wanted, before anything is measured."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy import create_engine, func, insert, select, text, update

from benchmarks.harness.workload import Lane
from coordinator.store.tables import binlogs, epochs, segments

T = TypeVar("T")

PER_SEGMENT = 30
_PER_STATEMENT = 20_000
_PAST = 1_000_000_000
"""Ranges of the past lie far beyond what is saved later, so that nothing is registered twice."""


def binlogs_of(first_segment: int, count: int, epoch: int) -> Iterator[dict[str, int]]:
    """Rows of `binlogs`."""
    for number in range(count):
        start = _PAST + number * 10
        yield {
            "segment_id": first_segment + number // PER_SEGMENT,
            "kind": number % 3 + 1,
            "field_id": 0,
            "log_id": number + 1,
            "epoch": epoch,
            "range_from": start,
            "range_to": start + 10,
            "rows": 1000,
            "ts_min": start + 1,
            "ts_max": start + 10,
            "size_bytes": 1000,
            "memory_bytes": 2000,
        }


def segments_of(first: int, count: int, lanes: Sequence[Lane], *, per_segment: int) -> Iterator[dict[str, int | str]]:
    """Rows of `segments`, sealed, shared out over the lanes."""
    for number in range(count):
        lane = lanes[number % len(lanes)]
        values: dict[str, int | str] = dict.fromkeys(segments.c.keys(), 0)
        values.update(segment_id=first + number, channel_id=lane.channel_id, partition_id=lane.partition_id)
        values.update(state=2, level=1, rows=1000, size_bytes=1000, binlogs=per_segment, seal_reason="requested")
        values.update(timestamp_from=_PAST, timestamp_to=_PAST + 10, ranges=1)
        yield values


def binlogs_and_segments(url: str, lanes: Sequence[Lane], *, segment_count: int, binlog_count: int) -> None:
    """Writes so many sealed segments, and binlogs into them."""
    engine = create_engine(url)
    with engine.begin() as connection:
        counter = epochs.c.name == "id"
        first = int(connection.execute(select(epochs.c.value).where(counter)).scalar_one()) + 1
        connection.execute(update(epochs).where(counter).values(value=epochs.c.value + segment_count))
        per_segment = max(1, binlog_count // segment_count)
        for sealed_rows in _chunks(segments_of(first, segment_count, lanes, per_segment=per_segment)):
            connection.execute(insert(segments), sealed_rows)
        for rows in _chunks(binlogs_of(first, binlog_count, lanes[0].epoch)):
            connection.execute(insert(binlogs), rows)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
        assert connection.execute(select(func.count()).select_from(segments)).scalar_one() >= segment_count
    engine.dispose()


def sealed(url: str, lanes: Sequence[Lane], count: int) -> None:
    """Writes so many binlogs, in as many sealed segments as they need."""
    binlogs_and_segments(url, lanes, segment_count=-(-count // PER_SEGMENT), binlog_count=count)


def _chunks(rows: Iterator[T]) -> Iterator[list[T]]:
    chunk: list[T] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _PER_STATEMENT:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
