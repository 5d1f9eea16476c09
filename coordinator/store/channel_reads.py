"""The bulk queries that read channels and lanes for a write transaction, in the order of the fields that take their rows."""

from sqlalchemy import BigInteger, ColumnElement, FromClause, and_, literal_column, select

from coordinator.store.driver_statement import DriverQuery
from coordinator.store.tables import DROPPED, channel_state, lanes, partitions, segments, vchannels

_CHANNEL_COLUMNS = (
    channel_state.c.channel_id,
    vchannels.c.name,
    vchannels.c.collection_id,
    vchannels.c.mode,
    channel_state.c.state,
    channel_state.c.epoch,
    channel_state.c.owner_id,
    channel_state.c.release_requested,
    channel_state.c.flush_timestamp,
    channel_state.c.checkpoint_timestamp,
    channel_state.c.checkpoint_msg_id,
    channel_state.c.checkpoint_msg_group,
    channel_state.c.checkpoint_event_time_ms,
)
_SEGMENT_COLUMNS = (
    *("segment_id", "channel_id", "partition_id", "level", "state", "rows", "delete_rows", "size_bytes", "binlogs"),
    *("timestamp_from", "timestamp_to", "seal_reason", "create_time_ms", "last_write_time_ms", "ranges"),
)

_FENCE_COLUMNS = ("channel_id", "state", "epoch", "owner_id", "flush_timestamp", "checkpoint_timestamp")
_GROWN_COLUMNS = ("segment_id", "rows", "delete_rows", "size_bytes", "binlogs", "create_time_ms", "ranges")


def _of_lane(given: FromClause) -> ColumnElement[bool]:
    return and_(lanes.c.channel_id == given.c.key_channel_id, lanes.c.partition_id == given.c.key_partition_id)


CHANNELS = DriverQuery(
    {"key_channel_id": BigInteger()},
    lambda given: (
        select(*_CHANNEL_COLUMNS)
        .join_from(given, channel_state, channel_state.c.channel_id == given.c.key_channel_id)
        .join(vchannels, vchannels.c.channel_id == channel_state.c.channel_id)
        .order_by(channel_state.c.channel_id)
        .with_for_update(key_share=True, of=channel_state)
    ),
)
"""Channels by number, their rows locked in that order."""

FENCES = DriverQuery(
    {"key_channel_id": BigInteger()},
    lambda given: (
        select(*(channel_state.c[name] for name in _FENCE_COLUMNS))
        .join_from(given, channel_state, channel_state.c.channel_id == given.c.key_channel_id)
        .order_by(channel_state.c.channel_id)
        .with_for_update(key_share=True, of=channel_state)
    ),
)
"""What fences and guards a save, of channels by number, their rows locked in that order."""

LANE_GUARDS = DriverQuery(
    {"key_channel_id": BigInteger(), "key_partition_id": BigInteger()},
    lambda given: (
        select(
            given.c.key_channel_id,
            given.c.key_partition_id,
            partitions.c.collection_id,
            lanes.c.progress,
            *(segments.c[name] for name in _GROWN_COLUMNS),
        )
        .join_from(given, lanes, _of_lane(given), isouter=True)
        .join(segments, segments.c.segment_id == lanes.c.growing_segment_id, isouter=True)
        .join(
            partitions,
            # Not `state = ACTIVE`: that is the condition of an index, which PostgreSQL might walk through for every row.
            and_(
                partitions.c.partition_id == given.c.key_partition_id, partitions.c.state < literal_column(str(DROPPED))
            ),
            isouter=True,
        )
    ),
)
"""Lanes, whether there are rows of them or not: the collection that has the partition, if it lives; progress, if there is any; and
what grows in the growing segment, if there is one."""

LANES = DriverQuery(
    {"key_channel_id": BigInteger(), "key_partition_id": BigInteger()},
    lambda given: (
        select(lanes.c.channel_id, lanes.c.partition_id, lanes.c.progress, *(segments.c[n] for n in _SEGMENT_COLUMNS))
        .join_from(given, lanes, _of_lane(given))
        .join(segments, segments.c.segment_id == lanes.c.growing_segment_id, isouter=True)
    ),
)
"""Lanes with their growing segments."""

GROWING = DriverQuery(
    {"key_channel_id": BigInteger()},
    lambda given: (
        select(lanes.c.channel_id, lanes.c.partition_id, lanes.c.progress, *(segments.c[n] for n in _SEGMENT_COLUMNS))
        .join_from(given, lanes, lanes.c.channel_id == given.c.key_channel_id)
        .join(segments, segments.c.segment_id == lanes.c.growing_segment_id)
    ),
)
"""The lanes of channels in which something grows, with what grows."""
