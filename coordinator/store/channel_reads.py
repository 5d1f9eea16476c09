"""The bulk queries that read channels and lanes for a write transaction, in the order of the fields that take their rows."""

from sqlalchemy import BigInteger, and_, select

from coordinator.store.driver_statement import DriverQuery
from coordinator.store.tables import channel_state, lanes, segments, vchannels

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

LANES = DriverQuery(
    {"key_channel_id": BigInteger(), "key_partition_id": BigInteger()},
    lambda given: (
        select(lanes.c.channel_id, lanes.c.partition_id, lanes.c.progress, *(segments.c[n] for n in _SEGMENT_COLUMNS))
        .join_from(
            given,
            lanes,
            and_(lanes.c.channel_id == given.c.key_channel_id, lanes.c.partition_id == given.c.key_partition_id),
        )
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
