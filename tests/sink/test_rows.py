"""What a row becomes: its columns, its channel, its partition, its timestamp and what it does."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from server.running_coordinator import CoordinatorThread

import datacoord
from datacoord.client import CoordinatorClient
from datacoord.errors import (
    ConfigInvalidError,
    InternalError,
    InvalidFieldError,
    OutOfOrderError,
    PartitionNotFoundError,
)
from datanode_client.spark import sink_task
from datanode_client.spark.sink_task import SinkTask
from sink.rig import KEYED, ORDERED, Query, Row, insert_timestamps, landed, positions, split, table


@pytest.fixture
def keyed(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> Query:
    """A query whose rows replace and delete each other."""
    return Query(coordinator.address, new_name(), **KEYED, **ORDERED)


def test_upserts_replace_and_deletes_delete(keyed: Query) -> None:
    """Across batches, tasks and channels, and in one batch by their timestamps, whatever the order of the rows."""
    keyed.run(0, [(1, "a", 1, 1, "upsert"), (2, "b", 0, 1, "UPSERT"), (3, "c", 1, 2, "Upsert")])
    keyed.run(
        1, [(1, None, 1, 9, "delete"), (2, "y", 0, 8, "upsert"), (2, "x", 0, 7, "upsert"), (3, None, 1, 7, "delete")]
    )
    keyed.run(2, [(3, "again", 1, 10, "upsert")])

    assert landed(keyed.address, keyed.collection) == Counter({(2, "y"): 1, (3, "again"): 1})


def test_of_two_operations_of_one_timestamp_the_later_row_of_an_object_counts(keyed: Query) -> None:
    """A transaction that inserts a row and deletes it again leaves nothing."""
    keyed.run(
        0, [(1, "a", 0, 5, "upsert"), (1, None, 0, 5, "delete"), (2, None, 0, 5, "delete"), (2, "b", 0, 5, "upsert")], 1
    )

    assert landed(keyed.address, keyed.collection) == Counter({(2, "b"): 1})


def test_a_key_that_stands_at_one_timestamp_in_two_tasks_is_refused(keyed: Query) -> None:
    """Neither hides the other: both rows would be seen."""
    rows: list[Row] = [
        (1, "a", 0, 5, "upsert"),
        (2, "b", 0, 5, "upsert"),
        (1, "c", 0, 5, "upsert"),
        (3, "d", 0, 6, "upsert"),
    ]
    with pytest.raises(InvalidFieldError, match=r"'key': 1.* name an ordinalColumn"):
        keyed.run(0, rows, tasks=2)

    keyed.run(0, [row for row in rows if row[1] != "c"], tasks=2)
    assert landed(keyed.address, keyed.collection) == Counter({(1, "a"): 1, (2, "b"): 1, (3, "d"): 1})


def test_an_ordinal_says_which_of_one_timestamp_is_the_last(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """Whichever task it is in; and the next batch may go on within the same timestamp."""
    query = Query(coordinator.address, new_name(), **KEYED, timestampColumn="ts", ordinalColumn="shard")
    query.run(0, [(1, "second", 1, 5, "upsert"), (1, "first", 0, 5, "upsert"), (2, "b", 2, 5, "upsert")], tasks=3)
    assert landed(query.address, query.collection) == Counter({(1, "second"): 1, (2, "b"): 1})

    query.run(1, [(2, None, 3, 5, "delete")])
    assert landed(query.address, query.collection) == Counter({(1, "second"): 1})
    assert positions(query.address, query.collection)[0][0] == 5 << 18 | 3
    with pytest.raises(OutOfOrderError):
        query.run(2, [(2, "late", 3, 5, "upsert")])


def test_an_ordinal_alone_orders_the_rows_of_a_batch(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """A frame may know which of its rows is the last without knowing an order over batches."""
    query = Query(coordinator.address, new_name(), **KEYED, ordinalColumn="ts")
    rows = table([(1, "second", 0, 9, "upsert"), (1, "first", 0, 0, "upsert")]).drop_columns(["shard"])
    query.frame(0, rows, tasks=2)
    query.frame(1, table([(2, "b", 0, 0, "upsert")]).drop_columns(["shard"]))

    assert landed(query.address, query.collection) == Counter({(1, "second"): 1, (2, "b"): 1})
    assert insert_timestamps(query.address, query.collection) == [1 << 18, 1 << 18 | 9, 2 << 18]


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"ts": pa.array([None], pa.int64())}, InvalidFieldError, "'ts' is null in 1 rows"),
        ({"ts": [0]}, InvalidFieldError, "'ts' is 0 in a row, but must be from 1"),
        ({"ts": ["1"]}, InvalidFieldError, "'ts' is string, but must be an integer"),
        ({"shard": [2]}, InvalidFieldError, "'shard' is 2 in a row, which is none of the 2 channels"),
        ({"shard": pa.array([None], pa.int32())}, InvalidFieldError, "'shard' is None in a row"),
        ({"shard": ["nobody"]}, InvalidFieldError, "'shard' is 'nobody' in a row"),
        ({"op": ["append"]}, InvalidFieldError, "'op' is 'append' in a row, but collection .* takes upsert and delete"),
        ({"op": ["insert"]}, InvalidFieldError, "'op' is 'insert'"),
        ({"op": pa.array([None], pa.string())}, InvalidFieldError, "'op' is None"),
        ({"op": [1]}, InvalidFieldError, "'op' is int64, but must be text"),
        ({"key": [None]}, InvalidFieldError, "key column 'key' is null"),
        ({"key": ["x"]}, InvalidFieldError, "column 'key' of the frame is string, which cannot become the int64"),
        ({"key": [1.0]}, InvalidFieldError, "column 'key' of the frame is double, which cannot become the int64"),
    ],
)
def test_a_wrong_value_is_refused_with_its_column(
    keyed: Query, change: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    """A cast that makes null of what it does not understand loses rows silently."""
    row = {"key": [1], "value": ["a"], "shard": [0], "ts": [1], "op": ["upsert"], **change}
    keyed.plan()

    with pytest.raises(error, match=sentence):
        keyed.frame(0, pa.table(row))


def test_a_column_that_is_never_null_is_never_null(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> None:
    """But for a delete, which has a key and nothing else."""
    schema = pa.schema(
        [pa.field("key", pa.int64()), pa.field("value", pa.string(), nullable=False), ("op", pa.string())]
    )
    query = Query(coordinator.address, new_name(), **KEYED)
    query.frame(0, pa.table({"key": [1, 2], "value": ["a", "b"], "op": ["upsert", "upsert"]}, schema=schema))
    loose = pa.schema([("key", pa.int64()), ("value", pa.string()), ("op", pa.string())])

    with pytest.raises(InvalidFieldError, match="'value' is null in a row"):
        query.frame(1, pa.table({"key": [1], "value": [None], "op": ["upsert"]}, schema=loose))
    query.frame(1, pa.table({"key": [1], "value": [None], "op": ["delete"]}, schema=loose))
    deleting = Query(query.address, query.collection, query_id=query.query_id, operation="delete")
    deleting.frame(2, pa.table({"key": [2]}))

    assert landed(query.address, query.collection) == Counter()


def test_columns_are_found_and_cast_as_spark_would(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> None:
    """Spark compares names without regard to case; integers widen; what would lose something is refused."""
    query = Query(coordinator.address, new_name(), timestampColumn="TS")
    query.run(0, [])
    query.frame(0, pa.table({"KEY": pa.array([7], pa.int8()), "shard": [1], "Value": ["a"], "op": ["x"], "ts": [4]}))
    assert landed(query.address, query.collection) == Counter({(7, "a"): 1})

    with pytest.raises(InvalidFieldError, match="'shard', which is int64, cannot become the int32 of collection"):
        query.frame(1, pa.table({"key": [1], "shard": [2**40], "value": ["b"], "op": ["x"], "ts": [5]}))


def test_rows_go_to_the_partition_they_name(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> None:
    """Each partition is a lane with a progress of its own; those that a batch has nothing for stay where they are."""
    query = Query(coordinator.address, new_name(), **KEYED, timestampColumn="ts", partitionColumn="part")

    def rows(*given: tuple[int, str | None, int]) -> pa.Table:
        part = pa.array([part for _, part, _ in given], pa.string())
        keys = [key for key, _, _ in given]
        columns = {"key": keys, "value": [f"v{key}" for key in keys], "ts": [ts for _, _, ts in given]}
        return pa.table({**columns, "op": ["upsert"] * len(keys), "part": part})

    with pytest.raises(PartitionNotFoundError, match="'north' in a row"):
        query.frame(0, rows((1, "north", 1)))
    with CoordinatorClient(query.address) as client:
        client.create_partition(query.collection, "north")
        query.frame(0, rows((1, "north", 1), (2, None, 2)), tasks=2)
        query.frame(1, rows((3, "north", 3)))
        query.frame(2, rows((2, None, 4), (4, "_default", 5)))
        (channel, _) = client.list_binlogs(query.collection)

    assert sorted(landed(query.address, query.collection).elements()) == [(key, f"v{key}") for key in (1, 2, 3, 4)]
    assert sorted(lane.timestamp for lane in channel.lanes) == [3, 5]


def test_a_channel_may_be_named(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> None:
    """By what `datacoord channels` shows."""
    query = Query(coordinator.address, new_name(), channelColumn="where")
    plan = query.plan(pa.schema([("key", pa.int64()), ("value", pa.string()), ("where", pa.string())]))
    names = [channel.name for channel in plan.channels.values()]
    query.frame(0, pa.table({"key": [1, 2], "value": ["a", "b"], "where": names}), tasks=1)

    assert [timestamp for timestamp, _ in positions(query.address, query.collection)] == [1, 1]


def test_channels_that_are_not_ours_are_not_claimed(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """Several queries may share a collection, each with channels of its own."""
    name, options = new_name(), {**ORDERED, "operationColumn": "op"}
    one = Query(coordinator.address, name, owner="one", channels="0", **options)
    two = Query(coordinator.address, name, owner="two", channels="1", **options)
    one.run(0, [(1, "a", 0, 1, "append")])
    two.run(0, [(2, "b", 1, 1, "append")])

    assert landed(coordinator.address, name) == Counter({(1, "a"): 1, (2, "b"): 1})
    with pytest.raises(InvalidFieldError, match="none of the 1 channels"):
        one.run(1, [(3, "c", 1, 2, "append")])


def test_memory_is_bounded_by_the_buffer(
    coordinator: CoordinatorThread, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a large batch must not hold all of it, nor may a channel with few rows hold the memory of its neighbours."""
    query = Query(coordinator.address, new_name(), **ORDERED, operationColumn="op", bufferBytes="20000")
    plan = query.plan()
    most = 0
    take = SinkTask._take

    def watched(task: SinkTask, rows: pa.RecordBatch) -> None:
        nonlocal most
        before = pa.total_allocated_bytes()
        take(task, rows)
        most = max(most, task._buffered_bytes)
        assert pa.total_allocated_bytes() - before < 3 * 20000

    monkeypatch.setattr(SinkTask, "_take", watched)
    rows: list[Row] = [(key, "x" * 100, int(key % 500 == 0), key, "append") for key in range(1, 3000)]
    (report,) = query.tasks(plan, 0, split(table(rows), 1))
    query.commit([report])

    assert 10000 < most <= 20000
    assert len(report.ranges) > 10
    assert sum(landed(query.address, query.collection).values()) == len(rows)


@pytest.mark.parametrize("options", [{}, {"primaryKey": "key"}])
def test_rows_that_arrow_does_not_join_are_all_written(
    coordinator: CoordinatorThread,
    new_name: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
) -> None:
    """It cuts text and bytes above 2 GiB into several batches: all but the first would be lost without a word."""
    join = sink_task._joined
    monkeypatch.setattr(
        sink_task, "_joined", lambda batches: [part for whole in join(batches) for part in _thirds(whole)]
    )
    query = Query(coordinator.address, new_name(), **options)
    frame = pa.table({"key": list(range(100)), "value": [f"v{key}" for key in range(100)]})
    (report,) = query.frame(0, frame)

    assert len(report.ranges) == 3
    assert landed(query.address, query.collection) == Counter((key, f"v{key}") for key in range(100))


def _thirds(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    bounds = [rows.num_rows * third // 3 for third in range(4)]
    parts = [rows.slice(start, end - start) for start, end in pairwise(bounds)]
    return [part for part in parts if part.num_rows]


def test_a_task_that_wrote_other_rows_than_it_was_given_fails(
    coordinator: CoordinatorThread, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: what is registered is what readers see, and Spark has no rows to compare it with."""
    join = sink_task._joined
    monkeypatch.setattr(sink_task, "_joined", lambda batches: [whole.slice(1) for whole in join(batches)])
    query = Query(coordinator.address, new_name())
    with pytest.raises(InternalError, match=r"was given 10 rows, but wrote \d and left out 0"):
        query.frame(0, pa.table({"key": list(range(10)), "value": ["v"] * 10}))

    assert landed(query.address, query.collection) == Counter()


def test_a_write_without_an_order_comes_after_all_there_is(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """`df.write` has no batch number; the plan gives it the next timestamp, and its own name a new epoch."""
    from datanode_client.spark.sink_commit import commit_batch, release_channels
    from datanode_client.spark.sink_plan import Landed, make_plan
    from datanode_client.spark.sink_task import BatchIdentity

    query = Query(coordinator.address, new_name(), primaryKey="key")
    epochs = []
    for value in ("a", "b"):
        frame = pa.table({"key": [1, 2], "value": [value, value]})
        plan = make_plan(query.options, "", frame.schema)
        identity = BatchIdentity(Landed(plan.run_id, 0), numbered=False)
        commit_batch(query.options, [SinkTask(plan, identity, 0).write(frame.to_batches())])
        epochs.append(plan.channels[0].epoch)
        release_channels(query.options, {plan.channels[0].name: plan.channels[0].epoch})

    assert epochs[0] < epochs[1]
    assert landed(query.address, query.collection) == Counter({(1, "b"): 1, (2, "b"): 1})
    newest = datacoord.to_arrow(query.address, query.collection, with_timestamp=True).column("_timestamp").to_pylist()
    assert newest == [2 << 30] * 2


def test_a_write_that_is_repeated_is_known_by_its_number_only(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """A notebook's cell that runs twice lands its rows twice, as the page says, unless it has an owner and a number."""
    from datanode_client.spark.sink_commit import commit_batch, release_channels
    from datanode_client.spark.sink_plan import Landed, make_plan
    from datanode_client.spark.sink_task import BatchIdentity

    frame = pa.table({"key": [1, 2], "value": ["a", "b"]})
    daily = Query(coordinator.address, new_name(), query_id="daily", owner="daily")
    plain = Query(coordinator.address, new_name())
    for _ in range(2):
        daily.frame(20261122, frame)
        plan = make_plan(plain.options, "", frame.schema)
        identity = BatchIdentity(Landed(plan.run_id, 0), numbered=False)
        commit_batch(plain.options, [SinkTask(plan, identity, 0).write(frame.to_batches())])
        release_channels(plain.options, {plan.channels[0].name: plan.channels[0].epoch})

    assert landed(daily.address, daily.collection) == Counter({(1, "a"): 1, (2, "b"): 1})
    assert landed(plain.address, plain.collection) == Counter({(1, "a"): 2, (2, "b"): 2})


def test_too_many_tasks_to_be_told_apart_are_refused(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """Beyond that the number of a task would run into the number of the batch."""
    query = Query(coordinator.address, new_name(), primaryKey="key")
    frame = pa.table({"key": [1], "value": ["a"]})
    with pytest.raises(ConfigInvalidError, match="coalesce"):
        query.task(query.plan(frame.schema), 0, frame, partition=1 << 18)
