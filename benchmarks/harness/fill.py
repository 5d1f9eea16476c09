"""Databases with a past: sealed segments and their binlogs, as many as wanted, written by SQL alone before anything is measured.

They are rows as the store would have written them: the segments of a lane follow each other, each has binlogs of the three kinds
over ranges that follow each other, and its sums are those of its binlogs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    cast,
    insert,
    literal,
    select,
    update,
)

from benchmarks.harness.workload import Lane
from coordinator.core.model import SegmentLevel, SegmentState
from coordinator.store.databases import database_kind
from coordinator.store.tables import binlogs, epochs, segments, vchannels

Numbers = ColumnElement[int]
_BUSY_TIMEOUT_MS = 60_000

PER_SEGMENT = 30
"""Binlogs."""
_KINDS = 3
_PER_STATEMENT = 500_000
_STEP = 10
_ROWS = 1000
_SIZE_BYTES = 1000
_PAST = 1_000_000_000
"""Ranges of the past lie far beyond what is saved later, so that nothing is registered twice."""


def sealed(url: str, lanes: Sequence[Lane], *, segment_count: int, per_segment: int = PER_SEGMENT) -> None:
    """Writes so many sealed segments, and their binlogs.

    Args:
        url: of a database in which one collection has been made, and nothing saved.
        lanes: all channels of it, among which the segments are shared out.
        segment_count: how many.
        per_segment: binlogs of each.
    """
    ranges = -(-per_segment // _KINDS)

    def begins_at(segment: Numbers) -> Numbers:
        return segment // len(lanes) * (ranges * _STEP) + _PAST

    def segment_of(n: Numbers) -> Select[Any]:
        values = {
            "segment_id": n + first,
            "channel_id": vchannels.c.channel_id,
            "partition_id": lanes[0].partition_id,
            "state": int(SegmentState.SEALED),
            "level": int(SegmentLevel.L1),
            "rows": ranges * _ROWS,
            "delete_rows": (per_segment + 1) // _KINDS * _ROWS,
            "size_bytes": per_segment * _SIZE_BYTES,
            "binlogs": per_segment,
            "ranges": ranges,
            "timestamp_from": begins_at(n),
            "timestamp_to": begins_at(n) + ranges * _STEP,
            "seal_reason": "requested",
            "create_time_ms": 0,
            "last_write_time_ms": 0,
        }
        return _columns(values).where(vchannels.c.channel_index == n % len(lanes))

    def binlog_of(n: Numbers) -> Select[Any]:
        segment, within = n // per_segment, n % per_segment
        start = begins_at(segment) + within // _KINDS * _STEP
        values = {
            "segment_id": segment + first,
            "kind": within % _KINDS + 1,
            "field_id": 0,
            "log_id": n + 1,
            "epoch": lanes[0].epoch,
            "range_from": start,
            "range_to": start + _STEP,
            "rows": _ROWS,
            "ts_min": start + 1,
            "ts_max": start + _STEP,
            "size_bytes": _SIZE_BYTES,
            "memory_bytes": 2 * _SIZE_BYTES,
        }
        return _columns(values)

    engine = database_kind(url).migrator(_BUSY_TIMEOUT_MS)
    with engine.begin() as connection:
        counter = epochs.c.name == "id"
        first = int(connection.execute(select(epochs.c.value).where(counter)).scalar_one()) + 1
        connection.execute(update(epochs).where(counter).values(value=epochs.c.value + segment_count))
    _insert(engine, segments, segment_of, segment_count)
    _insert(engine, binlogs, binlog_of, segment_count * per_segment)
    _settle(engine)
    engine.dispose()


def _columns(values: Mapping[str, Any]) -> Select[Any]:
    return select(
        *((value if isinstance(value, ColumnElement) else literal(value)).label(name) for name, value in values.items())
    )


def _insert(engine: Engine, table: Table, row_of: Callable[[Numbers], Select[Any]], count: int) -> None:
    """Inserts the rows number 0 to count - 1, made where they are stored: a driver takes ten times as long to bind them."""
    for start in range(0, count, _PER_STATEMENT):
        numbers = select(cast(start, BigInteger).label("n")).cte("numbers", recursive=True)
        end = min(start + _PER_STATEMENT, count)
        numbers = numbers.union_all(select(numbers.c.n + 1).where(numbers.c.n + 1 < end))
        rows = row_of(numbers.c.n).select_from(numbers)
        with engine.begin() as connection:
            _hurry(connection)
            connection.execute(insert(table).from_select([column.name for column in rows.selected_columns], rows))


def _hurry(connection: Connection) -> None:
    """Spares syncs, and the look for a parent of every row, which is known to be there."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")


def _settle(engine: Engine) -> None:
    """Does what the database would do later of its own accord, in the middle of the measurement."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute("ANALYZE; PRAGMA wal_checkpoint")
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in ("VACUUM (ANALYZE)", "CHECKPOINT"):
            connection.exec_driver_sql(statement)
