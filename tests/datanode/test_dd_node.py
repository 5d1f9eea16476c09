"""The dd node: what is filtered, what is refused, and where rows go."""

from typing import Any

import pyarrow as pa
import pytest

from datacoord import reported_metrics as names
from datacoord.errors import SourceInvalidError
from datacoord.limits import ALL_PARTITIONS_ID
from datacoord.v1 import data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.flowgraph.dd_node import DDNode
from datanode_client.metrics import DataNodeMetrics
from datanode_client.sources.base import MessageBatch
from datanode_client.writebuffer.buffers import LaneRows
from datanode_client.writebuffer.metacache import MetaCache

from .harness import DEFAULT_PARTITION, SCHEMA, Message, Row, message, position, to_batch


class Node:
    """A dd node with its neighbours."""

    def __init__(
        self,
        lanes: dict[int, int] | None = None,
        *,
        checkpoint: int = 0,
        replayed_until: int = 0,
        dropped: tuple[int, ...] = (),
        primary_key: tuple[str, ...] = ("key",),
        default_partition_id: int | None = DEFAULT_PARTITION,
    ) -> None:
        self.metrics = DataNodeMetrics()
        self.metacache = MetaCache(
            data_coord_pb2.ChannelRecoveryInfo(
                lanes=[
                    data_coord_pb2.LaneProgress(partition_id=one, timestamp=ts, dropped=one in dropped)
                    for one, ts in {**dict.fromkeys(dropped, 0), **(lanes or {})}.items()
                ]
            )
        )
        self.node = DDNode(
            channel_name="c",
            schema=CollectionSchema.of(SCHEMA, primary_key),
            default_partition_id=default_partition_id,
            metacache=self.metacache,
            replayed_until=replayed_until,
            metrics=self.metrics,
        )
        self.node.reader_opened(checkpoint)

    def feed(self, *messages: Message, partitions: bool | None = None) -> dict[int, tuple[list[int], list[int]]]:
        """Per lane the timestamps of inserts and deletes."""
        return summary(self.node.operate(to_batch(messages, partitions=partitions)))

    def filtered(self, reason: str) -> float:
        """Rows that went, by reason."""
        return self.metrics.value(names.FILTERED_ROWS, reason=reason)


def summary(lanes: list[LaneRows]) -> dict[int, tuple[list[int], list[int]]]:
    """Per lane the timestamps of inserts and deletes."""

    def timestamps(rows: pa.RecordBatch | None) -> list[int]:
        return [] if rows is None else rows.column("_timestamp").to_pylist()

    for lane in lanes:
        assert lane.ts_min == min(timestamps(lane.inserts) + timestamps(lane.deletes))
    return {lane.partition_id: (timestamps(lane.inserts), timestamps(lane.deletes)) for lane in lanes}


def content(rows: pa.RecordBatch | None) -> list[dict[str, Any]]:
    """The rows themselves."""
    return [] if rows is None else list(rows.to_pylist())


def raw(**columns: Any) -> MessageBatch:
    """A batch with some columns replaced (None = left out)."""
    base: dict[str, Any] = {
        "key": pa.array(["a"], pa.string()),
        "value": pa.array([1], pa.int64()),
        "_timestamp": pa.array([5], pa.int64()),
        "_op": pa.array([1], pa.int8()),
    }
    kept = {name: column for name, column in {**base, **columns}.items() if column is not None}
    return MessageBatch(pa.record_batch(kept), position(5))


# ---- filter -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "left"), [(0, [4, 5, 6]), (3, [4, 5, 6]), (4, [5, 6]), (5, [6]), (6, []), (9, [])]
)
def test_rows_at_or_below_the_lanes_progress_are_filtered(progress: int, left: list[int]) -> None:
    """R3 filter: they are registered; a row at the progress itself too."""
    node = Node({DEFAULT_PARTITION: progress}, checkpoint=3)
    lanes = node.feed(*(message(ts, ("upsert", "a")) for ts in (4, 5, 6)))

    assert lanes == ({DEFAULT_PARTITION: (left, left)} if left else {})
    assert node.filtered("registered") == 3 - len(left)
    assert node.metrics.value(names.CONSUMED_ROWS) == 3


def test_lanes_are_filtered_each_by_its_own_progress() -> None:
    """One lane is far ahead because its buffer was full; another has saved nothing."""
    node = Node({12: 5}, checkpoint=3)
    lanes = node.feed(message(4, ("upsert", "a"), ("upsert", "b", 12)), message(6, ("upsert", "b", 12)))

    assert lanes == {DEFAULT_PARTITION: ([4], [4]), 12: ([6], [6])}


def test_messages_that_a_sloppy_reader_hands_over_again_are_dropped_whole() -> None:
    """A source that can only seek to a block begins a little early."""
    node = Node(checkpoint=5)
    lanes = node.feed(message(4, ("upsert", "a")), message(5, ("upsert", "b")), message(6, ("upsert", "c")))

    assert lanes == {DEFAULT_PARTITION: ([6], [6])}
    assert node.filtered("registered") == 2
    assert node.feed(message(7, ("upsert", "c"))) == {DEFAULT_PARTITION: ([7], [7])}


def test_a_reader_that_is_opened_again_may_repeat_what_was_consumed() -> None:
    """What was consumed is buffered or registered: taking it in again would double it."""
    node = Node()
    node.feed(message(4, ("upsert", "a")), message(5, ("upsert", "b")))
    node.node.reader_opened(5)

    assert node.feed(message(5, ("upsert", "b")), message(6, ("upsert", "c"))) == {DEFAULT_PARTITION: ([6], [6])}


def test_rows_an_earlier_owner_had_read_are_counted_as_replayed() -> None:
    """The figure that shows what a kill cost; it changes nothing."""
    node = Node(replayed_until=5)
    node.feed(message(4, ("upsert", "a")), message(5, ("upsert", "b"), ("upsert", "c")), message(6, ("upsert", "d")))
    node.feed(message(7, ("upsert", "d")))

    assert node.metrics.value(names.REPLAYED_ROWS) == 3
    assert node.metrics.value(names.CONSUMED_ROWS) == 5
    assert node.filtered("registered") == 0


def test_rows_of_a_dropped_partition_are_thrown_away() -> None:
    """R3: rows of the partition after the drop; they count as registered and pin nothing."""
    node = Node(dropped=(12,))
    lanes = node.feed(message(4, ("upsert", "a", 12), ("upsert", "b")))

    assert lanes == {DEFAULT_PARTITION: ([4], [4])}
    assert node.filtered("dropped_partition") == 1


# ---- lanes and operations ----------------------------------------------------------------------------------------------------


def test_an_upsert_is_a_delete_and_an_insert_of_one_timestamp() -> None:
    """The delete hides older versions, wherever they are; the insert is the new one."""
    node = Node()
    lanes = node.node.operate(to_batch([message(4, ("upsert", "a"), ("delete", "b")), message(5, ("delete", "c"))]))

    assert summary(lanes) == {DEFAULT_PARTITION: ([4], [4, 4, 5])}
    [lane] = lanes
    assert content(lane.inserts) == [{"key": "a", "value": 4, "_timestamp": 4}]
    assert content(lane.deletes)[1] == {"key": "b", "_timestamp": 4}


@pytest.mark.parametrize(
    ("ops", "inserts", "deletes"),
    [(("upsert", "upsert"), [4, 4], [4, 4]), (("delete", "delete"), [], [4, 4]), (("upsert", "delete"), [4], [4, 4])],
)
def test_batches_of_one_kind_of_operation_go_the_same_way(
    ops: tuple[str, str], inserts: list[int], deletes: list[int]
) -> None:
    """They take a shorter way through the code."""
    assert Node().feed(message(4, (ops[0], "a"), (ops[1], "b"))) == {DEFAULT_PARTITION: (inserts, deletes)}


def test_append_only_collections_have_inserts_and_nothing_else() -> None:
    """Rows of equal content are all kept: there is no key to fold by."""
    node = Node(primary_key=())
    lanes = node.feed(Message(4, (Row("insert", "a", 1), Row("insert", "a", 1))))

    assert lanes == {DEFAULT_PARTITION: ([4, 4], [])}


def test_rows_go_to_the_lane_they_name_and_deletes_may_name_all() -> None:
    """B1: a delete without a partition goes to the lane ALL, whose range it then belongs to."""
    node = Node()
    one = message(4, ("upsert", "a", 12), ("delete", "b", ALL_PARTITIONS_ID), ("upsert", "c"))

    assert node.feed(one) == {12: ([4], [4]), ALL_PARTITIONS_ID: ([], [4]), DEFAULT_PARTITION: ([4], [4])}


def test_one_partition_for_a_whole_batch_needs_no_sorting() -> None:
    """The common case of partitioned collections."""
    assert Node().feed(message(4, ("upsert", "a", 12), ("upsert", "b", 12))) == {12: ([4, 4], [4, 4])}


def test_a_key_that_moves_between_partitions_within_a_message_is_folded_across_them() -> None:
    """Two inserts of one timestamp hide nothing of each other: the row would live in both partitions."""
    node = Node()
    lanes = node.feed(message(4, ("upsert", "a", 12), ("upsert", "a")))

    assert lanes == {DEFAULT_PARTITION: ([4], [4])}
    assert node.filtered("folded") == 1


def test_what_a_message_means_does_not_depend_on_how_far_a_lane_is() -> None:
    """Filtering first and folding then would register, in a replay, the operation that the first run had folded away."""
    log = message(4, ("upsert", "a", 12), ("upsert", "a"))

    assert Node({DEFAULT_PARTITION: 4}).feed(log) == {}


def test_the_order_of_columns_and_foreign_columns_do_not_matter() -> None:
    """Readers build batches as their source gives them."""
    node = Node()
    batch = pa.record_batch(
        {
            "_op": pa.array([1], pa.int8()),
            "extra": pa.array([None], pa.string()),
            "value": pa.array([9], pa.int64()),
            "_timestamp": pa.array([5], pa.int64()),
            "key": pa.array(["a"], pa.string()),
        }
    )
    [lane] = node.node.operate(MessageBatch(batch, position(5)))

    assert content(lane.inserts) == [{"key": "a", "value": 9, "_timestamp": 5}]


def test_a_reader_may_change_its_layout_on_the_way() -> None:
    """A column order that is remembered beyond the schema it belongs to would swap columns."""
    node = Node()
    node.feed(message(4, ("upsert", "a")))
    swapped = raw().rows.select(["value", "_op", "key", "_timestamp"])
    [lane] = node.node.operate(MessageBatch(swapped, position(5)))

    assert content(lane.inserts) == [{"key": "a", "value": 1, "_timestamp": 5}]


# ---- what a reader may not do ------------------------------------------------------------------------------------------------

BAD = {
    "no timestamps": (raw(_timestamp=None), "'_timestamp'"),
    "no operations": (raw(_op=None), "'_op'"),
    "a missing column": (raw(value=None), "'value'"),
    "another type": (raw(value=pa.array([1.5])), "double instead of int64"),
    "timestamps as uint64": (raw(_timestamp=pa.array([5], pa.uint64())), "uint64"),
    "a null timestamp": (raw(_timestamp=pa.array([None], pa.int64())), "nulls in _timestamp"),
    "timestamp 0": (raw(_timestamp=pa.array([0], pa.int64())), "1 to 2"),
    "a null key": (raw(key=pa.array([None], pa.string())), "nulls in column 'key'"),
    "a null operation": (raw(_op=pa.array([None], pa.int8())), "nulls in _op"),
    "an insert into a keyed collection": (raw(_op=pa.array([0], pa.int8())), "upserts and deletes only"),
    "an unknown operation": (raw(_op=pa.array([7], pa.int8())), "upserts and deletes only"),
    "rows beyond the position": (MessageBatch(raw().rows, position(4)), "under the position 4"),
    "a null partition": (raw(_partition=pa.array([None], pa.int64())), "nulls in column '_partition'"),
    "a foreign partition": (raw(_partition=pa.array([-2], pa.int64())), "partition -2"),
    "an upsert into ALL": (raw(_partition=pa.array([-1], pa.int64())), "only deletes"),
}


@pytest.mark.parametrize(("batch", "says"), BAD.values(), ids=BAD.keys())
def test_a_batch_that_breaks_the_rules_is_refused_with_a_sentence(batch: MessageBatch, says: str) -> None:
    """A reader with a bug must stop its channel, not land rows that nobody can trust."""
    with pytest.raises(SourceInvalidError, match=says):
        Node().node.operate(batch)


@pytest.mark.parametrize("op", ["upsert", "delete"])
def test_an_append_only_collection_refuses_operations_on_keys(op: str) -> None:
    """There is no key to apply them to; dropping them silently would lose data."""
    with pytest.raises(SourceInvalidError, match="takes inserts only"):
        Node(primary_key=()).feed(message(4, (op, "a")))


def test_rows_without_a_partition_need_a_default_partition() -> None:
    """A collection whose default partition is gone cannot take them."""
    with pytest.raises(SourceInvalidError, match="_default"):
        Node(default_partition_id=None).feed(message(4, ("upsert", "a")))


def test_timestamps_must_not_decrease_within_a_batch() -> None:
    """Ranges and filters rest on the order."""
    two = [to_batch([message(ts, ("upsert", "a"))]).rows for ts in (6, 5)]
    batch = pa.Table.from_batches(two).combine_chunks().to_batches()[0]
    with pytest.raises(SourceInvalidError, match="decrease"):
        Node().node.operate(MessageBatch(batch, position(6)))


@pytest.mark.parametrize("next_ts", [4, 5])
def test_a_message_never_comes_in_two_batches(next_ts: int) -> None:
    """B2: a cut between the halves, a crash, and the second half is filtered as registered."""
    node = Node()
    node.feed(message(5, ("upsert", "a")))
    with pytest.raises(SourceInvalidError, match="never split"):
        node.feed(message(next_ts, ("upsert", "b")))


def test_nothing_comes_after_a_tick_that_said_so() -> None:
    """The checkpoint may be at the tick already."""
    node = Node()
    node.node.see(9)
    with pytest.raises(SourceInvalidError, match="after 9"):
        node.feed(message(9, ("upsert", "b")))


def test_a_batch_without_rows_is_a_tick() -> None:
    """Some sources filter everything out of a block."""
    node = Node()
    assert node.node.operate(MessageBatch(raw().rows.slice(0, 0), position(5))) == []
    with pytest.raises(SourceInvalidError, match="after 5"):
        node.feed(message(5, ("upsert", "b")))
