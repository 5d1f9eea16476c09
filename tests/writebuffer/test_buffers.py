"""Insert buffer and delta buffer: full by bytes, emptied together, in order, and no larger in memory than they say."""

import pyarrow as pa

from datacoord.paths import BinlogKind
from datanode_client.writebuffer.buffers import LaneRows, RowBuffer

from .builders import deletes, inserts, lane_buffer, lane_rows


def test_a_buffer_is_full_from_its_limit_on() -> None:
    """One byte late is one message late, which may be a hundred megabytes."""
    batch = inserts(1)
    buffer = RowBuffer(2 * batch.nbytes)
    full = [buffer.is_full]
    for _ in range(2):
        assert buffer.buffer(batch) == batch.nbytes
        full.append(buffer.is_full)

    assert full == [False, False, True]
    assert (buffer.rows, buffer.size_bytes) == (2, 2 * batch.nbytes)


def test_a_buffer_that_was_emptied_begins_again() -> None:
    """Left-over counts would sync the next message at once, and the one after it, for ever."""
    buffer = RowBuffer(1)
    buffer.buffer(inserts(1, 2))
    taken = buffer.take()

    assert [batch.num_rows for batch in taken] == [2]
    assert (buffer.rows, buffer.size_bytes, buffer.is_full, buffer.take()) == (0, 0, False, [])


def test_thousands_of_small_batches_keep_their_order_and_become_few() -> None:
    """A batch of one row costs kilobytes; a buffer of many would outgrow the limit it believes to hold."""
    buffer = RowBuffer(1 << 30)
    for ts in range(1, 1001):
        buffer.buffer(inserts(ts))
    batches = buffer.take()

    assert len(batches) < 150
    table = pa.Table.from_batches(batches)
    assert table.column("_timestamp").to_pylist() == list(range(1, 1001))


def test_large_batches_are_not_copied_to_be_merged_with_small_ones() -> None:
    """Merging everything again and again would make buffering quadratic."""
    large = inserts(*range(1, 2001))
    buffer = RowBuffer(1 << 30)
    buffer.buffer(large)
    for ts in range(2001, 2001 + 300):
        buffer.buffer(inserts(ts))

    first = buffer.take()[0]
    assert first.num_rows == 2000
    assert first.column(0).buffers()[1].address == large.column(0).buffers()[1].address


def test_inserts_and_deletes_of_a_lane_leave_together() -> None:
    """B1: a range that registers the inserts and not the deletes loses the deletes: a replay filters them by progress."""
    buffer = lane_buffer(rows=0)
    buffer.buffer(lane_rows(1, 7))
    buffer.buffer(LaneRows(1, None, deletes(8), 8))
    taken = dict(buffer.take())

    assert {kind: sum(batch.num_rows for batch in batches) for kind, batches in taken.items()} == {
        BinlogKind.INSERT: 1,
        BinlogKind.DELTA: 2,
    }
    assert buffer.rows == buffer.size_bytes == 0


def test_a_lane_is_full_when_either_buffer_is() -> None:
    """A lane that only deletes must not grow without limit because its insert buffer is empty."""
    only_deletes = lane_buffer(rows=0, limit=deletes(7).nbytes)
    only_deletes.buffer(LaneRows(1, None, deletes(7), 7))
    only_inserts = lane_buffer(rows=0, limit=inserts(7).nbytes)
    only_inserts.buffer(LaneRows(1, inserts(7), None, 7))

    assert only_deletes.is_full
    assert only_inserts.is_full
    assert [kind for kind, _ in only_deletes.take()] == [BinlogKind.DELTA]
