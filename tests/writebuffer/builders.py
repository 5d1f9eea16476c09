"""Small parts for tests of the write buffer."""

import pyarrow as pa

from datacoord.positions import START, Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.binlog.schemas import CollectionSchema
from datanode_client.writebuffer.buffers import LaneBuffer, LaneRows, RowBuffer

SCHEMA = CollectionSchema.of(pa.schema([pa.field("key", pa.int64()), pa.field("value", pa.string())]), ("key",))
TSO = 1 << 18


class StillClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """The time it was set to."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Nothing here waits."""
        raise AssertionError("nobody waits here")


def at(timestamp: int) -> Position:
    """A position."""
    return Position(timestamp, f"at {timestamp}".encode()) if timestamp else START


def inserts(*timestamps: int, text: str = "x") -> pa.RecordBatch:
    """Rows of an insert log."""
    count = len(timestamps)
    columns = [pa.array(timestamps, pa.int64()), pa.array([text] * count), pa.array(timestamps, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.insert_log)


def deletes(*timestamps: int) -> pa.RecordBatch:
    """Rows of a delta log."""
    columns = [pa.array(timestamps, pa.int64()), pa.array(timestamps, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.delta_log)


def lane_rows(partition_id: int, *timestamps: int, text: str = "x") -> LaneRows:
    """Upserts of one lane."""
    return LaneRows(partition_id, inserts(*timestamps, text=text), deletes(*timestamps), timestamps[0])


def lane_buffer(
    *, pin: int = 5, ts_min: int = 6, rows: int = 1, limit: int = 1000, stale_at: float = 1e9, partition_id: int = 1
) -> LaneBuffer:
    """A lane buffer with a row, as policies see it."""
    buffer = LaneBuffer(partition_id, RowBuffer(limit), RowBuffer(limit), 1, at(pin), ts_min, stale_at)
    if rows:
        buffer.buffer(lane_rows(partition_id, *range(ts_min, ts_min + rows)))
    return buffer


def recovery_info(
    checkpoint: int = 0,
    lanes: dict[int, int] | None = None,
    *,
    dropped: tuple[int, ...] = (),
    kind: common_pb2.TimestampKind = common_pb2.TIMESTAMP_KIND_ORDINAL,
    growing: tuple[tuple[int, int], ...] = (),
) -> data_coord_pb2.ChannelRecoveryInfo:
    """Recovery info of a channel: progress by partition, growing segments as (segment, partition)."""
    return data_coord_pb2.ChannelRecoveryInfo(
        channel_name="c",
        epoch=1,
        checkpoint=at(checkpoint).to_proto("c") if checkpoint else None,
        timestamp_kind=kind,
        lanes=[
            data_coord_pb2.LaneProgress(partition_id=partition, timestamp=ts, dropped=partition in dropped)
            for partition, ts in (lanes or {}).items()
        ],
        growing_segments=[
            data_coord_pb2.SegmentInfo(
                segment_id=segment, partition_id=partition, state=common_pb2.SEGMENT_STATE_GROWING
            )
            for segment, partition in growing
        ],
    )


def lane_result(
    partition_id: int,
    segment_id: int,
    progress: int,
    *,
    state: common_pb2.SegmentState = common_pb2.SEGMENT_STATE_GROWING,
    outcome: common_pb2.Outcome = common_pb2.OUTCOME_APPLIED,
) -> data_coord_pb2.LaneResult:
    """What the coordinator answers for a lane."""
    return data_coord_pb2.LaneResult(
        partition_id=partition_id, segment_id=segment_id, progress=progress, segment_state=state, outcome=outcome
    )
