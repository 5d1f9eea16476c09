"""The tables. Names are the glossary's; every constraint has a name and states what SQL can state.

What prototypes taught (docs/performance.md): the hot state of a channel is one narrow row apart from what describes it; only keys
that grow at their right edge are indexed on tables that grow; an object's path is derived, never stored, and not unique:
exactly-once comes from the compare-and-set on a lane's progress.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from coordinator.core.model import ChannelState, SegmentState
from datacoord.limits import (
    CHANNEL_COUNT_MAX,
    GC_REASON_CHARS_MAX,
    MSG_ID_BYTES_MAX,
    NAME_CHARS_MAX,
    OWNER_NAME_CHARS_MAX,
    SLOT_MAX,
)

BIG = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits. SQLite's STRICT tables know one integer type, and only INTEGER can be its row id."""
SMALL = SmallInteger().with_variant(Integer(), "sqlite")

ACTIVE = int(ChannelState.ACTIVE)
DROPPED = int(ChannelState.DROPPED)
GROWING = int(SegmentState.GROWING)
SESSION_ENDED = 5
"""DataNodeState.ENDED."""
OWNER_DATANODE = 1
OWNER_CLAIMANT = 2

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _id(name: str, *constraints: ForeignKey) -> Column[int]:
    return Column(name, BIG, *constraints, nullable=False)


def _key(name: str, *constraints: ForeignKey) -> Column[int]:
    return Column(name, BIG, *constraints, primary_key=True, autoincrement=False)


def _serial(name: str) -> Column[int]:
    return Column(name, BIG, primary_key=True, autoincrement=True)


def _small(name: str) -> Column[int]:
    return Column(name, SMALL, nullable=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _blob(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def _check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=name)


def _table(name: str, *parts: Any, **options: Any) -> Table:
    return Table(name, metadata, *parts, sqlite_strict=True, **options)


def _unique_where(name: str, condition: str, *columns: str) -> Index:
    return Index(name, *columns, unique=True, sqlite_where=text(condition), postgresql_where=text(condition))


epochs = _table(
    "epochs",
    # The database-wide counters: `epoch` for fencing numbers, `id` for everything else that is numbered. Values are never reused.
    Column("name", Text, primary_key=True),
    _id("value"),
    _check("value", "value >= 0"),
)

collections = _table(
    "collections",
    _key("collection_id"),
    _text("name"),
    _small("state"),
    _blob("arrow_schema"),
    _text("primary_key"),
    _id("channel_count"),
    _small("channel_mode"),
    _small("timestamp_kind"),
    _text("storage_root"),
    _text("properties"),
    _id("create_time_ms"),
    _check("collection_id", "collection_id > 0"),
    _check("name", f"length(name) BETWEEN 1 AND {NAME_CHARS_MAX}"),
    _check("state", "state IN (1, 2)"),
    _check("channel_count", f"channel_count BETWEEN 1 AND {CHANNEL_COUNT_MAX}"),
    _check("channel_mode", "channel_mode IN (1, 2)"),
    _check("timestamp_kind", "timestamp_kind IN (1, 2)"),
    # A name may come back after its collection is dropped; what is numbered does not.
    _unique_where("uq_collections_name", f"state = {ACTIVE}", "name"),
)

partitions = _table(
    "partitions",
    _key("partition_id"),
    _id("collection_id", ForeignKey("collections.collection_id")),
    _text("name"),
    _small("state"),
    _check("partition_id", "partition_id > 0"),
    _check("name", f"length(name) BETWEEN 1 AND {NAME_CHARS_MAX}"),
    _check("state", "state IN (1, 2)"),
    _unique_where("uq_partitions_collection_id_name", f"state = {ACTIVE}", "collection_id", "name"),
    Index("ix_partitions_collection_id", "collection_id"),
)

vchannels = _table(
    "vchannels",
    # What describes a channel.
    _key("channel_id"),
    _text("name"),
    _id("collection_id", ForeignKey("collections.collection_id")),
    _id("channel_index"),
    _small("mode"),
    # The largest consumed timestamp that an earlier owner reported.
    _id("consumed_timestamp"),
    # Where an earlier owner said that the source has ended and everything is registered; 0 = none did. It says so still while the
    # checkpoint is exactly there.
    Column("finished_timestamp", BIG, nullable=False, server_default=text("0")),
    UniqueConstraint("name"),
    UniqueConstraint("collection_id", "channel_index"),
    _check("channel_id", "channel_id > 0"),
    _check("channel_index", "channel_index >= 0"),
    _check("mode", "mode IN (1, 2)"),
    _check("consumed_timestamp", "consumed_timestamp >= 0"),
    _check("finished_timestamp", "finished_timestamp >= 0"),
)

channel_state = _table(
    "channel_state",
    # The hot, narrow row: everything a write is fenced and guarded by.
    _key("channel_id", ForeignKey("vchannels.channel_id")),
    _id("epoch"),
    _small("state"),
    _id("owner_id"),
    _small("release_requested"),
    _id("flush_timestamp"),
    _id("checkpoint_timestamp"),
    _id("checkpoint_event_time_ms"),
    _blob("checkpoint_msg_id"),
    _text("checkpoint_msg_group"),
    _check("epoch", "epoch > 0"),
    _check("state", "state IN (1, 2)"),
    _check("owner_id", "owner_id >= 0"),
    _check("release_requested", "release_requested IN (0, 1)"),
    _check("checkpoint_timestamp", "checkpoint_timestamp >= 0"),
    _check("checkpoint_msg_id", f"length(checkpoint_msg_id) <= {MSG_ID_BYTES_MAX}"),
    # A target that is reached is gone: whoever moves the checkpoint there seals in the same transaction.
    _check("flush_timestamp", "flush_timestamp = 0 OR flush_timestamp > checkpoint_timestamp"),
    _check("tombstone", f"state = {ACTIVE} OR (owner_id = 0 AND release_requested = 0 AND flush_timestamp = 0)"),
    Index("ix_channel_state_owner_id", "owner_id"),
)

segments = _table(
    "segments",
    _key("segment_id"),
    _id("channel_id", ForeignKey("vchannels.channel_id")),
    _id("partition_id"),
    _small("state"),
    _small("level"),
    _id("rows"),
    _id("delete_rows"),
    _id("size_bytes"),
    _id("binlogs"),
    _id("timestamp_from"),
    _id("timestamp_to"),
    _text("seal_reason"),
    _id("create_time_ms"),
    _id("last_write_time_ms"),
    # Ranges with objects in it; several objects may make up one.
    Column("ranges", BIG, nullable=False, server_default="1"),
    _check("ranges", "ranges > 0"),
    _check("segment_id", "segment_id > 0"),
    _check("partition_id", "partition_id > 0 OR partition_id = -1"),
    # FLUSHED (3) is derived and never stored.
    _check("state", "state IN (1, 2, 4)"),
    _check("level", "level IN (1, 2, 3)"),
    _check("sizes", "rows >= 0 AND delete_rows >= 0 AND size_bytes >= 0 AND binlogs > 0"),
    _check("range", "timestamp_from >= 0 AND timestamp_from < timestamp_to"),
    _check("seal_reason", f"state <> {GROWING} OR seal_reason = ''"),
    Index("ix_segments_channel_id", "channel_id"),
    _unique_where("uq_segments_growing", f"state = {GROWING}", "channel_id", "partition_id"),
)

lanes = _table(
    "lanes",
    _key("channel_id", ForeignKey("vchannels.channel_id")),
    # No foreign key: -1 is the lane of deletes that name no partition.
    _key("partition_id"),
    _id("progress"),
    Column("growing_segment_id", BIG, ForeignKey("segments.segment_id"), nullable=True),
    _check("partition_id", "partition_id > 0 OR partition_id = -1"),
    _check("progress", "progress > 0"),
    sqlite_with_rowid=False,
)

binlogs = _table(
    "binlogs",
    _serial("binlog_id"),
    _id("segment_id", ForeignKey("segments.segment_id")),
    _small("kind"),
    _id("field_id"),
    _id("log_id"),
    _id("epoch"),
    _id("range_from"),
    _id("range_to"),
    _id("rows"),
    _id("ts_min"),
    _id("ts_max"),
    _id("size_bytes"),
    _id("memory_bytes"),
    # Not a set: SQLite would build it anew for every statement, a twentieth of what a save costs there.
    _check("kind", "kind BETWEEN 1 AND 3"),
    _check("identity", "field_id >= 0 AND log_id > 0 AND epoch > 0"),
    _check("timestamps", "0 <= range_from AND range_from < ts_min AND ts_min <= ts_max AND ts_max <= range_to"),
    _check("sizes", "rows >= 0 AND size_bytes >= 0 AND memory_bytes >= 0"),
    Index("ix_binlogs_segment_id", "segment_id"),
)

owners = _table(
    "owners",
    # Everybody who can own a channel, by name, with the one lease of the name.
    _key("owner_id"),
    _text("name"),
    _small("kind"),
    _id("lease_until_ms"),
    _id("last_seen_time_ms"),
    UniqueConstraint("name"),
    _check("owner_id", "owner_id > 0"),
    _check("name", f"length(name) BETWEEN 1 AND {OWNER_NAME_CHARS_MAX}"),
    _check("kind", f"kind IN ({OWNER_DATANODE}, {OWNER_CLAIMANT})"),
)

datanodes = _table(
    "datanodes",
    # Sessions.
    _key("node_id", ForeignKey("owners.owner_id")),
    _text("job"),
    _id("slot"),
    _small("state"),
    _text("host"),
    _id("pid"),
    _text("collection_ids"),
    _id("desired_revision"),
    _id("register_time_ms"),
    _check("job", f"length(job) BETWEEN 1 AND {NAME_CHARS_MAX}"),
    _check("slot", f"slot BETWEEN 0 AND {SLOT_MAX}"),
    # HEALTHY (3) is derived and never stored.
    _check("state", f"state IN (1, 2, 4, {SESSION_ENDED})"),
    _check("desired_revision", "desired_revision > 0"),
    _unique_where("uq_datanodes_job_slot", f"state <> {SESSION_ENDED}", "job", "slot"),
)

datanode_reports = _table(
    "datanode_reports",
    # What a session said last, packed: a ReportDataNodeTtMsgsRequest of the contract.
    _key("node_id", ForeignKey("datanodes.node_id")),
    _blob("report"),
)

placements = _table(
    "placements",
    # Where an operator wants a MANAGED channel (MoveChannel): on a session, for as long as that lives; or (node_id = 0, until the
    # channel has been assigned) anywhere but on the session that had it.
    _key("channel_id", ForeignKey("vchannels.channel_id")),
    _id("node_id"),
    _id("from_node_id"),
    _check("nodes", "node_id > 0 OR (node_id = 0 AND from_node_id > 0)"),
)

flushes = _table(
    "flushes",
    _key("flush_id"),
    # NULL = every collection (FlushAll).
    Column("collection_id", BIG, ForeignKey("collections.collection_id"), nullable=True),
    _id("create_time_ms"),
    # When the retention job first saw it done; 0 = not yet.
    Column("done_time_ms", BIG, nullable=False, server_default="0"),
    _check("flush_id", "flush_id > 0"),
    _check("done_time_ms", "done_time_ms >= 0"),
)

flush_targets = _table(
    "flush_targets",
    _key("flush_id", ForeignKey("flushes.flush_id")),
    _key("channel_id", ForeignKey("vchannels.channel_id")),
    _id("target_timestamp"),
    _check("target_timestamp", "target_timestamp >= 0"),
    Index("ix_flush_targets_channel_id_target_timestamp", "channel_id", "target_timestamp"),
    sqlite_with_rowid=False,
)

job_leases = _table(
    "job_leases",
    # Which process runs a background job; `fence` grows with every change of holder.
    Column("name", Text, primary_key=True),
    _text("holder"),
    _id("fence"),
    _id("lease_until_ms"),
    _check("fence", "fence > 0"),
)

gc_control = _table(
    "gc_control",
    # One row: what operators and a restore tell the garbage collector, and its last round (a GcRound of the contract, packed;
    # empty = none yet). A pause may end by itself; the hold of a restore ends only by RESUME. No row = nothing is deleted.
    Column("control_id", SMALL, primary_key=True, autoincrement=False),
    _small("paused"),
    _id("paused_until_ms"),
    _text("pause_reason"),
    _small("held"),
    _text("hold_reason"),
    _small("run_requested"),
    _blob("last_round"),
    _check("control_id", "control_id = 1"),
    _check("paused", "paused = 1 OR (paused = 0 AND paused_until_ms = 0 AND pause_reason = '')"),
    _check("paused_until_ms", "paused_until_ms >= 0"),
    _check("held", "held = 1 OR (held = 0 AND hold_reason = '')"),
    _check(
        "reasons", f"length(pause_reason) <= {GC_REASON_CHARS_MAX} AND length(hold_reason) <= {GC_REASON_CHARS_MAX}"
    ),
    _check("run_requested", "run_requested IN (0, 1)"),
)

events = _table(
    "events",
    # History: one packed row per accepted call. `changes` is JSON; its form by RPC stands in coordinator.core.events_forms.
    _serial("event_id"),
    _id("time_ms"),
    _text("rpc"),
    _text("caller"),
    _id("channels"),
    _id("items"),
    _text("changes"),
    _check("counts", "channels >= 0 AND items >= 0"),
)
