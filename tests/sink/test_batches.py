"""PROTOCOL R6 row by row: whatever happens to tasks, commits and drivers, every row is landed exactly once."""

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from server.running_coordinator import CoordinatorThread, definition

from datacoord.client import CoordinatorClient
from datacoord.errors import (
    CollectionNotFoundError,
    ConfigInvalidError,
    CoordinatorUnreachableError,
    FencedError,
    InvalidFieldError,
    OutOfOrderError,
    OverlapError,
    OwnedError,
    WrongModeError,
)
from datacoord.v1 import common_pb2
from sink.rig import KEYED, ORDERED, Query, Row, insert_timestamps, landed, orphans, positions, split, table

FIRST: list[Row] = [(key, f"a{key}", key % 2, key, "append") for key in range(1, 41)]
SECOND: list[Row] = [(key, f"b{key}", key % 2, key, "append") for key in range(41, 81)]


def values(*batches: list[Row]) -> Counter[tuple[int, str | None]]:
    """What readers must see of append-only batches."""
    return Counter((row[0], row[1]) for batch in batches for row in batch)


@pytest.fixture
def query(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> Query:
    """A query that lands rows with an order of their own in two channels."""
    return Query(coordinator.address, new_name(), **ORDERED, operationColumn="op")


def again(query: Query, **options: str) -> Query:
    """The same query after its driver was started again."""
    keep = {**ORDERED, "operationColumn": "op", **options}
    return Query(query.address, query.collection, query_id=query.query_id, owner=query.owner, **keep)


def test_a_task_that_ran_twice_counts_once(query: Query) -> None:
    """Spark runs tasks twice: a retry after a failure, or a speculative copy. The message of one attempt wins."""
    plan = query.plan()
    parts = split(table(FIRST), 3)
    lost = query.task(plan, 0, parts[1], 1)
    reports = query.tasks(plan, 0, parts)

    query.commit(reports)

    assert landed(query.address, query.collection) == values(FIRST)
    written = {binlog.split("/")[-1] for binlog in orphans(query.address, query.collection)}
    assert len(written) == len(lost.ranges) == 2


def test_a_commit_repeated_changes_nothing(query: Query) -> None:
    """A reply that is lost is asked for again; a driver that died after the commit has the batch run again by Spark."""
    plan = query.plan()
    reports = query.tasks(plan, 0, split(table(FIRST), 2))
    query.commit(reports)
    query.commit(reports)

    restarted = again(query)
    repeated = restarted.run(0, FIRST, tasks=3)

    assert landed(query.address, query.collection) == values(FIRST)
    assert sum(report.rows for report in repeated) == 0
    assert sum(report.skipped_rows for report in repeated) == len(FIRST)
    assert positions(query.address, query.collection) == [(40, f"{query.query_id}/0"), (39, f"{query.query_id}/0")]


def test_a_driver_that_planned_before_the_other_committed_is_told_so(query: Query) -> None:
    """Two drivers of one query, one of them a zombie: the same epoch, so only the ranges stand between them and doubled rows."""
    zombie_reports = query.tasks(query.plan(), 0, split(table(FIRST[:30]), 2))
    more = query.tasks(query.plan(), 0, split(table(FIRST), 2))
    query.commit(zombie_reports)

    with pytest.raises(OverlapError):
        query.commit(more)

    again(query).run(0, FIRST)
    again(query).run(1, FIRST[30:])
    assert landed(query.address, query.collection) == values(FIRST)


def test_a_zombie_that_commits_an_old_batch_late_changes_nothing(query: Query) -> None:
    """Its rows are registered already, by the driver that took its place."""
    zombie_reports = query.tasks(query.plan(), 0, split(table(FIRST), 2))
    again(query).run(0, FIRST, tasks=3)
    again(query).run(1, SECOND)

    query.commit(zombie_reports)

    assert landed(query.address, query.collection) == values(FIRST, SECOND)


def test_a_batch_of_which_one_channel_was_refused_is_completed_when_it_runs_again(query: Query) -> None:
    """Channels are independent: what one of them refused must not be lost because the others took it."""
    plan = query.plan()
    reports = query.tasks(plan, 0, split(table(FIRST), 2))
    ahead = [row for row in FIRST if row[2] == 0][:5]
    query.commit(query.tasks(plan, 0, [table(ahead)]))

    with pytest.raises(OverlapError, match="1 of 2 channels"):
        query.commit(reports)

    assert landed(query.address, query.collection) == values(ahead, [row for row in FIRST if row[2] == 1])


def test_late_rows_are_refused_and_never_left_out(query: Query) -> None:
    """A row at or below the checkpoint would be below what readers have seen as complete; filtering it would lose it."""
    query.run(0, FIRST)

    with pytest.raises(OutOfOrderError, match=r"timestamp 38 .* landed up to 40 by batch 0") as caught:
        query.run(1, [(38, "late", 0, 38, "append"), *SECOND])

    assert caught.value.metadata["checkpoint"] == "40"
    assert landed(query.address, query.collection) == values(FIRST)


def test_rows_of_one_timestamp_split_over_two_batches_are_refused(query: Query) -> None:
    """The second half would count as landed already."""
    query.run(0, [(1, "x", 0, 7, "append")])

    with pytest.raises(OutOfOrderError):
        query.run(1, [(2, "y", 0, 7, "append")])


def test_a_query_that_begins_anew_is_refused_unless_it_goes_on_from_progress(query: Query) -> None:
    """Without its checkpoint directory it reads all again: landed silently that doubles, left out silently it may lose."""
    query.run(0, FIRST)
    anew = Query(query.address, query.collection, **ORDERED, operationColumn="op")
    with pytest.raises(OutOfOrderError, match="resume=progress"):
        anew.run(0, FIRST + SECOND)

    resumed = Query(query.address, query.collection, **ORDERED, operationColumn="op", resume="progress")
    everything = FIRST + SECOND
    reports = [report for batch in range(8) for report in resumed.run(batch, everything[batch * 10 : batch * 10 + 10])]

    assert landed(query.address, query.collection) == values(FIRST, SECOND)
    assert sum(report.skipped_rows for report in reports) == len(FIRST)


def test_going_on_from_progress_is_over_with_the_first_new_row(query: Query) -> None:
    """From then on a late row is a late row of this query, and leaving it out would lose it."""
    query.run(0, FIRST)
    resumed = Query(query.address, query.collection, **ORDERED, operationColumn="op", resume="progress")
    resumed.run(0, SECOND)

    with pytest.raises(OutOfOrderError):
        resumed.run(1, [(50, "late", 0, 50, "append")])


def test_an_abort_after_a_commit_takes_nothing_back(query: Query) -> None:
    """Spark aborts a batch whose commit failed, also when it failed after it was applied."""
    from datanode_client.spark.sink import StreamSink, TaskMessage

    reports = query.tasks(query.plan(), 0, split(table(FIRST), 2))
    sink = StreamSink(query.options, None)
    sink.commit([TaskMessage(report) for report in reports], 0)

    sink.abort([TaskMessage(report) for report in reports] + [None], 0)

    assert landed(query.address, query.collection) == values(FIRST)
    assert orphans(query.address, query.collection) == set()


def test_another_query_cannot_write_while_the_first_one_lives_except_by_force(query: Query) -> None:
    """Two queries that write one channel would each end the other's batches."""
    query.run(0, FIRST)
    options = {**ORDERED, "operationColumn": "op"}
    with pytest.raises(OwnedError):
        Query(query.address, query.collection, owner="other", **options).run(0, SECOND)

    planned = query.tasks(query.plan(), 1, split(table(SECOND), 2))
    forced = Query(query.address, query.collection, owner="other", force="true", **options)
    forced.run(0, SECOND)

    with pytest.raises(FencedError, match="2 of 2 channels"):
        query.commit(planned)
    assert landed(query.address, query.collection) == values(FIRST, SECOND)


def test_a_query_that_was_fenced_does_not_take_its_channels_back(query: Query) -> None:
    """Else each of two queries with `force` would end the other's batches, for ever."""
    forced = again(query, force="true")
    forced.run(0, FIRST)
    other = Query(query.address, query.collection, owner="other", force="true", **ORDERED, operationColumn="op")
    other.plan()

    with pytest.raises(OwnedError, match="does not take a channel back"):
        forced.run(1, SECOND)

    other.run(0, SECOND)
    assert landed(query.address, query.collection) == values(FIRST, SECOND)


def test_a_query_whose_owner_is_called_otherwise_after_an_upgrade_doubles_nothing(query: Query) -> None:
    """What is landed is known by the query's id, which lies in its checkpoint; the name only says who may write."""
    query.run(0, FIRST)
    zombie_reports = query.tasks(query.plan(), 1, [table(SECOND)])
    keep = {**ORDERED, "operationColumn": "op"}
    upgraded = Query(query.address, query.collection, query_id=query.query_id, owner="renamed", force="true", **keep)
    upgraded.run(0, FIRST)
    upgraded.run(1, SECOND)

    with pytest.raises(FencedError):
        query.commit(zombie_reports)

    assert landed(query.address, query.collection) == values(FIRST, SECOND)


def test_two_queries_that_share_a_name_do_not_take_each_others_rows_for_their_own(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """They share the epoch, and both begin at timestamp 1: ALREADY_APPLIED would then mean that the other one's rows are landed."""
    name, frame = new_name(), pa.table({"key": [1, 2], "value": ["x", "y"]})
    one, two = Query(coordinator.address, name), Query(coordinator.address, name)
    planned = two.tasks(two.plan(frame.schema), 0, [frame])
    one.frame(0, pa.table({"key": [3], "value": ["z"]}))

    with pytest.raises(FencedError, match="an owner of its own"):
        two.commit(planned)

    assert landed(coordinator.address, name) == Counter({(3, "z"): 1})


def test_a_commit_that_gets_no_answer_says_what_to_do(query: Query, unused_port: int) -> None:
    """A query that hangs without a word is worse than one that ends."""
    reports = query.tasks(query.plan(), 0, [table(FIRST)])
    gone = Query(f"127.0.0.1:{unused_port}", query.collection, timeoutSeconds="1")

    with pytest.raises(CoordinatorUnreachableError, match=r"batch 0 within 1 s; start the query again"):
        gone.commit(reports)

    query.commit(reports)
    assert landed(query.address, query.collection) == values(FIRST)


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_rows_without_an_order_of_their_own_get_the_number_of_their_batch(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """And a batch that runs again is known by its number, whatever rows it has then."""
    name = new_name()
    query = Query(coordinator.address, name)
    query.frame(0, pa.table({"key": [1, 2, 3], "value": ["a", "b", "c"]}), tasks=2)
    query.frame(1, pa.table({"key": [1], "value": ["d"]}))
    query.frame(1, pa.table({"key": [1, 9], "value": ["d", "other bounds"]}))

    assert sorted(insert_timestamps(coordinator.address, name)) == [1, 1, 2]
    assert landed(coordinator.address, name) == Counter({(1, "a"): 1, (2, "b"): 1, (3, "c"): 1, (1, "d"): 1})
    assert positions(coordinator.address, name) == [(2, f"{query.query_id}/1"), (0, "")]


def test_a_new_query_without_an_order_is_refused_where_another_has_written(
    coordinator: CoordinatorThread, new_name: Callable[[], str]
) -> None:
    """Its batches begin at 0 again, and nothing says which of its rows were landed."""
    name, frame = new_name(), pa.table({"key": [1], "value": ["a"]})
    Query(coordinator.address, name).frame(0, frame)
    anew = Query(coordinator.address, name)

    with pytest.raises(OutOfOrderError, match="a channel of its own"):
        anew.frame(0, frame)

    other_channel = Query(coordinator.address, name, query_id=anew.query_id, channels="1")
    other_channel.frame(0, frame)
    assert landed(coordinator.address, name) == Counter({(1, "a"): 2})


def test_objects_end_where_their_rows_do_and_are_found_again(query: Query) -> None:
    """A task does not know how far the others come; were its objects registered under the end of the batch, nobody found them."""
    query.run(0, FIRST, tasks=4)
    with CoordinatorClient(query.address) as client:
        logs = [log for channel in client.list_binlogs(query.collection) for log in channel.binlogs]

    assert len({log.range_to for log in logs}) > 2
    assert all(log.range_to == log.binlog.timestamp_to for log in logs)
    assert landed(query.address, query.collection) == values(FIRST)


def test_the_whole_batch_is_one_call(query: Query, coordinator: CoordinatorThread) -> None:
    """A call per channel would make the commit of a batch as slow as it has channels."""
    seen = _saves(coordinator)
    query.run(0, FIRST, tasks=4)

    assert _saves(coordinator) == seen + 1


def _saves(coordinator: CoordinatorThread) -> float:
    from urllib.request import urlopen

    with urlopen(f"http://{coordinator.web_address}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("datacoord_rpc_duration_seconds_count") and 'SaveBinlogPaths"' in line
    )


def test_channels_of_a_datanode_job_are_refused(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> None:
    """A sink that took them would be fenced by the next assignment, for ever."""
    name = new_name()
    with CoordinatorClient(coordinator.address) as client:
        client.create_collection(definition(name, channel_mode=common_pb2.CHANNEL_MODE_MANAGED))

    with pytest.raises(WrongModeError):
        Query(coordinator.address, name).plan(pa.schema([("path", pa.string()), ("mode", pa.int32())]))


def test_a_collection_is_created_as_the_frame_is(coordinator: CoordinatorThread, new_name: Callable[[], str]) -> None:
    """Columns that only say where, when and what are not stored; keys are never null."""
    name = new_name()
    plan = Query(coordinator.address, name, **KEYED, **ORDERED).plan()

    assert plan.schema == pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.string())])
    assert plan.primary_key == ("key",)
    assert len(plan.channels) == 2
    assert Query(coordinator.address, name, **KEYED, **ORDERED).plan().collection_id == plan.collection_id
    with pytest.raises(ConfigInvalidError, match="primaryKey is value"):
        Query(coordinator.address, name, **ORDERED, primaryKey="value", operationColumn="op").plan()
    with pytest.raises(CollectionNotFoundError):
        Query(coordinator.address, new_name(), createIfMissing="false").plan()


@pytest.mark.parametrize(
    ("frame", "options", "error", "sentence"),
    [
        (
            pa.schema([("key", pa.int64())]),
            {"timestampColumn": "when"},
            ConfigInvalidError,
            "'when', but the frame has key",
        ),
        (pa.schema([("key", pa.int64()), ("more", pa.int8())]), {}, InvalidFieldError, "'more' of the frame is not in"),
        (pa.schema([("value", pa.string())]), {}, InvalidFieldError, "needs column 'key'"),
        (pa.schema([("key", pa.list_(pa.int8()))]), {}, InvalidFieldError, "cannot become the int64"),
        (
            pa.schema([("key", pa.int64()), ("at", pa.timestamp("us"))]),
            {},
            InvalidFieldError,
            "cannot become the timestamp",
        ),
        (pa.schema([("key", pa.int64())]), {"operation": "append"}, ConfigInvalidError, "takes upsert and delete only"),
        (pa.schema([("key", pa.int64())]), {"channels": "0-2"}, ConfigInvalidError, "has channels 0 to 1"),
        (pa.schema([("key", pa.int64())]), {"channels": "0-1"}, ConfigInvalidError, "no channelColumn"),
        (pa.schema([("key", pa.int64()), ("KEY", pa.int64())]), {}, InvalidFieldError, "stands twice"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_a_row_is_written(
    coordinator: CoordinatorThread, frame: pa.Schema, options: dict[str, str], error: type[Exception], sentence: str
) -> None:
    """Spark would run a thousand tasks first, and each of them would fail four times."""
    stored = pa.schema([("key", pa.int64()), ("value", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    Query(coordinator.address, "fitting", primaryKey="key").plan(stored)

    with pytest.raises(error, match=sentence):
        Query(coordinator.address, "fitting", **options).plan(frame)
