"""Create the tables of the coordinator."""

import sqlalchemy as sa
from alembic import op

revision = "20261121"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SMALL = sa.SmallInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "collections",
        sa.Column("collection_id", BIG, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", SMALL, nullable=False),
        sa.Column("arrow_schema", sa.LargeBinary(), nullable=False),
        sa.Column("primary_key", sa.Text(), nullable=False),
        sa.Column("channel_count", BIG, nullable=False),
        sa.Column("channel_mode", SMALL, nullable=False),
        sa.Column("timestamp_kind", SMALL, nullable=False),
        sa.Column("storage_root", sa.Text(), nullable=False),
        sa.Column("properties", sa.Text(), nullable=False),
        sa.Column("create_time_ms", BIG, nullable=False),
        sa.CheckConstraint("channel_count BETWEEN 1 AND 65536", name=op.f("ck_collections_channel_count")),
        sa.CheckConstraint("channel_mode IN (1, 2)", name=op.f("ck_collections_channel_mode")),
        sa.CheckConstraint("collection_id > 0", name=op.f("ck_collections_collection_id")),
        sa.CheckConstraint("length(name) BETWEEN 1 AND 128", name=op.f("ck_collections_name")),
        sa.CheckConstraint("state IN (1, 2)", name=op.f("ck_collections_state")),
        sa.CheckConstraint("timestamp_kind IN (1, 2)", name=op.f("ck_collections_timestamp_kind")),
        sa.PrimaryKeyConstraint("collection_id", name=op.f("pk_collections")),
        sqlite_strict=True,
    )
    op.create_index(
        "uq_collections_name",
        "collections",
        ["name"],
        unique=True,
        sqlite_where=sa.text("state = 1"),
        postgresql_where=sa.text("state = 1"),
    )
    op.create_table(
        "epochs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", BIG, nullable=False),
        sa.CheckConstraint("value >= 0", name=op.f("ck_epochs_value")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_epochs")),
        sqlite_strict=True,
    )
    op.create_table(
        "events",
        sa.Column("event_id", BIG, autoincrement=True, nullable=False),
        sa.Column("time_ms", BIG, nullable=False),
        sa.Column("rpc", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("channels", BIG, nullable=False),
        sa.Column("items", BIG, nullable=False),
        sa.Column("changes", sa.Text(), nullable=False),
        sa.CheckConstraint("channels >= 0 AND items >= 0", name=op.f("ck_events_counts")),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_events")),
        sqlite_strict=True,
    )
    op.create_table(
        "job_leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("fence", BIG, nullable=False),
        sa.Column("lease_until_ms", BIG, nullable=False),
        sa.CheckConstraint("fence > 0", name=op.f("ck_job_leases_fence")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_job_leases")),
        sqlite_strict=True,
    )
    op.create_table(
        "owners",
        sa.Column("owner_id", BIG, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", SMALL, nullable=False),
        sa.Column("lease_until_ms", BIG, nullable=False),
        sa.Column("last_seen_time_ms", BIG, nullable=False),
        sa.CheckConstraint("kind IN (1, 2)", name=op.f("ck_owners_kind")),
        sa.CheckConstraint("length(name) BETWEEN 1 AND 256", name=op.f("ck_owners_name")),
        sa.CheckConstraint("owner_id > 0", name=op.f("ck_owners_owner_id")),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("pk_owners")),
        sa.UniqueConstraint("name", name=op.f("uq_owners_name")),
        sqlite_strict=True,
    )
    op.create_table(
        "datanodes",
        sa.Column("node_id", BIG, autoincrement=False, nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("slot", BIG, nullable=False),
        sa.Column("state", SMALL, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", BIG, nullable=False),
        sa.Column("collection_ids", sa.Text(), nullable=False),
        sa.Column("desired_revision", BIG, nullable=False),
        sa.Column("register_time_ms", BIG, nullable=False),
        sa.CheckConstraint("desired_revision > 0", name=op.f("ck_datanodes_desired_revision")),
        sa.CheckConstraint("length(job) BETWEEN 1 AND 128", name=op.f("ck_datanodes_job")),
        sa.CheckConstraint("slot BETWEEN 0 AND 65535", name=op.f("ck_datanodes_slot")),
        sa.CheckConstraint("state IN (1, 2, 4, 5)", name=op.f("ck_datanodes_state")),
        sa.ForeignKeyConstraint(["node_id"], ["owners.owner_id"], name=op.f("fk_datanodes_node_id")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_datanodes")),
        sqlite_strict=True,
    )
    op.create_index(
        "uq_datanodes_job_slot",
        "datanodes",
        ["job", "slot"],
        unique=True,
        sqlite_where=sa.text("state <> 5"),
        postgresql_where=sa.text("state <> 5"),
    )
    op.create_table(
        "flushes",
        sa.Column("flush_id", BIG, autoincrement=False, nullable=False),
        sa.Column("collection_id", BIG, nullable=False),
        sa.Column("create_time_ms", BIG, nullable=False),
        sa.CheckConstraint("flush_id > 0", name=op.f("ck_flushes_flush_id")),
        sa.ForeignKeyConstraint(
            ["collection_id"], ["collections.collection_id"], name=op.f("fk_flushes_collection_id")
        ),
        sa.PrimaryKeyConstraint("flush_id", name=op.f("pk_flushes")),
        sqlite_strict=True,
    )
    op.create_table(
        "partitions",
        sa.Column("partition_id", BIG, autoincrement=False, nullable=False),
        sa.Column("collection_id", BIG, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", SMALL, nullable=False),
        sa.CheckConstraint("length(name) BETWEEN 1 AND 128", name=op.f("ck_partitions_name")),
        sa.CheckConstraint("partition_id > 0", name=op.f("ck_partitions_partition_id")),
        sa.CheckConstraint("state IN (1, 2)", name=op.f("ck_partitions_state")),
        sa.ForeignKeyConstraint(
            ["collection_id"], ["collections.collection_id"], name=op.f("fk_partitions_collection_id")
        ),
        sa.PrimaryKeyConstraint("partition_id", name=op.f("pk_partitions")),
        sqlite_strict=True,
    )
    op.create_index("ix_partitions_collection_id", "partitions", ["collection_id"], unique=False)
    op.create_index(
        "uq_partitions_collection_id_name",
        "partitions",
        ["collection_id", "name"],
        unique=True,
        sqlite_where=sa.text("state = 1"),
        postgresql_where=sa.text("state = 1"),
    )
    op.create_table(
        "vchannels",
        sa.Column("channel_id", BIG, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("collection_id", BIG, nullable=False),
        sa.Column("channel_index", BIG, nullable=False),
        sa.Column("mode", SMALL, nullable=False),
        sa.Column("consumed_timestamp", BIG, nullable=False),
        sa.CheckConstraint("channel_id > 0", name=op.f("ck_vchannels_channel_id")),
        sa.CheckConstraint("channel_index >= 0", name=op.f("ck_vchannels_channel_index")),
        sa.CheckConstraint("consumed_timestamp >= 0", name=op.f("ck_vchannels_consumed_timestamp")),
        sa.CheckConstraint("mode IN (1, 2)", name=op.f("ck_vchannels_mode")),
        sa.ForeignKeyConstraint(
            ["collection_id"], ["collections.collection_id"], name=op.f("fk_vchannels_collection_id")
        ),
        sa.PrimaryKeyConstraint("channel_id", name=op.f("pk_vchannels")),
        sa.UniqueConstraint("collection_id", "channel_index", name=op.f("uq_vchannels_collection_id_channel_index")),
        sa.UniqueConstraint("name", name=op.f("uq_vchannels_name")),
        sqlite_strict=True,
    )
    op.create_table(
        "channel_state",
        sa.Column("channel_id", BIG, autoincrement=False, nullable=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("state", SMALL, nullable=False),
        sa.Column("owner_id", BIG, nullable=False),
        sa.Column("release_requested", SMALL, nullable=False),
        sa.Column("flush_timestamp", BIG, nullable=False),
        sa.Column("checkpoint_timestamp", BIG, nullable=False),
        sa.Column("checkpoint_event_time_ms", BIG, nullable=False),
        sa.Column("checkpoint_msg_id", sa.LargeBinary(), nullable=False),
        sa.Column("checkpoint_msg_group", sa.Text(), nullable=False),
        sa.CheckConstraint("checkpoint_timestamp >= 0", name=op.f("ck_channel_state_checkpoint_timestamp")),
        sa.CheckConstraint("epoch > 0", name=op.f("ck_channel_state_epoch")),
        sa.CheckConstraint(
            "flush_timestamp = 0 OR flush_timestamp > checkpoint_timestamp",
            name=op.f("ck_channel_state_flush_timestamp"),
        ),
        sa.CheckConstraint("length(checkpoint_msg_id) <= 4096", name=op.f("ck_channel_state_checkpoint_msg_id")),
        sa.CheckConstraint("owner_id >= 0", name=op.f("ck_channel_state_owner_id")),
        sa.CheckConstraint("release_requested IN (0, 1)", name=op.f("ck_channel_state_release_requested")),
        sa.CheckConstraint(
            "state = 1 OR (owner_id = 0 AND release_requested = 0 AND flush_timestamp = 0)",
            name=op.f("ck_channel_state_tombstone"),
        ),
        sa.CheckConstraint("state IN (1, 2)", name=op.f("ck_channel_state_state")),
        sa.ForeignKeyConstraint(["channel_id"], ["vchannels.channel_id"], name=op.f("fk_channel_state_channel_id")),
        sa.PrimaryKeyConstraint("channel_id", name=op.f("pk_channel_state")),
        sqlite_strict=True,
    )
    op.create_index("ix_channel_state_owner_id", "channel_state", ["owner_id"], unique=False)
    op.create_table(
        "datanode_reports",
        sa.Column("node_id", BIG, autoincrement=False, nullable=False),
        sa.Column("report", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["datanodes.node_id"], name=op.f("fk_datanode_reports_node_id")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_datanode_reports")),
        sqlite_strict=True,
    )
    op.create_table(
        "flush_targets",
        sa.Column("flush_id", BIG, autoincrement=False, nullable=False),
        sa.Column("channel_id", BIG, autoincrement=False, nullable=False),
        sa.Column("target_timestamp", BIG, nullable=False),
        sa.CheckConstraint("target_timestamp >= 0", name=op.f("ck_flush_targets_target_timestamp")),
        sa.ForeignKeyConstraint(["channel_id"], ["vchannels.channel_id"], name=op.f("fk_flush_targets_channel_id")),
        sa.ForeignKeyConstraint(["flush_id"], ["flushes.flush_id"], name=op.f("fk_flush_targets_flush_id")),
        sa.PrimaryKeyConstraint("flush_id", "channel_id", name=op.f("pk_flush_targets")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_flush_targets_channel_id_target_timestamp",
        "flush_targets",
        ["channel_id", "target_timestamp"],
        unique=False,
    )
    op.create_table(
        "segments",
        sa.Column("segment_id", BIG, autoincrement=False, nullable=False),
        sa.Column("channel_id", BIG, nullable=False),
        sa.Column("partition_id", BIG, nullable=False),
        sa.Column("state", SMALL, nullable=False),
        sa.Column("level", SMALL, nullable=False),
        sa.Column("rows", BIG, nullable=False),
        sa.Column("delete_rows", BIG, nullable=False),
        sa.Column("size_bytes", BIG, nullable=False),
        sa.Column("binlogs", BIG, nullable=False),
        sa.Column("timestamp_from", BIG, nullable=False),
        sa.Column("timestamp_to", BIG, nullable=False),
        sa.Column("seal_reason", sa.Text(), nullable=False),
        sa.Column("create_time_ms", BIG, nullable=False),
        sa.Column("last_write_time_ms", BIG, nullable=False),
        sa.CheckConstraint("state <> 1 OR seal_reason = ''", name=op.f("ck_segments_seal_reason")),
        sa.CheckConstraint("level IN (1, 2, 3)", name=op.f("ck_segments_level")),
        sa.CheckConstraint("partition_id > 0 OR partition_id = -1", name=op.f("ck_segments_partition_id")),
        sa.CheckConstraint(
            "rows >= 0 AND delete_rows >= 0 AND size_bytes >= 0 AND binlogs > 0", name=op.f("ck_segments_sizes")
        ),
        sa.CheckConstraint("segment_id > 0", name=op.f("ck_segments_segment_id")),
        sa.CheckConstraint("state IN (1, 2, 4)", name=op.f("ck_segments_state")),
        sa.CheckConstraint("timestamp_from >= 0 AND timestamp_from < timestamp_to", name=op.f("ck_segments_range")),
        sa.ForeignKeyConstraint(["channel_id"], ["vchannels.channel_id"], name=op.f("fk_segments_channel_id")),
        sa.PrimaryKeyConstraint("segment_id", name=op.f("pk_segments")),
        sqlite_strict=True,
    )
    op.create_index("ix_segments_channel_id", "segments", ["channel_id"], unique=False)
    op.create_index(
        "uq_segments_growing",
        "segments",
        ["channel_id", "partition_id"],
        unique=True,
        sqlite_where=sa.text("state = 1"),
        postgresql_where=sa.text("state = 1"),
    )
    op.create_table(
        "binlogs",
        sa.Column("binlog_id", BIG, autoincrement=True, nullable=False),
        sa.Column("segment_id", BIG, nullable=False),
        sa.Column("kind", SMALL, nullable=False),
        sa.Column("field_id", BIG, nullable=False),
        sa.Column("log_id", BIG, nullable=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("range_from", BIG, nullable=False),
        sa.Column("range_to", BIG, nullable=False),
        sa.Column("rows", BIG, nullable=False),
        sa.Column("ts_min", BIG, nullable=False),
        sa.Column("ts_max", BIG, nullable=False),
        sa.Column("size_bytes", BIG, nullable=False),
        sa.Column("memory_bytes", BIG, nullable=False),
        sa.CheckConstraint(
            "0 <= range_from AND range_from < ts_min AND ts_min <= ts_max AND ts_max <= range_to",
            name=op.f("ck_binlogs_timestamps"),
        ),
        sa.CheckConstraint("field_id >= 0 AND log_id > 0 AND epoch > 0", name=op.f("ck_binlogs_identity")),
        sa.CheckConstraint("kind IN (1, 2, 3)", name=op.f("ck_binlogs_kind")),
        sa.CheckConstraint("rows >= 0 AND size_bytes >= 0 AND memory_bytes >= 0", name=op.f("ck_binlogs_sizes")),
        sa.ForeignKeyConstraint(["segment_id"], ["segments.segment_id"], name=op.f("fk_binlogs_segment_id")),
        sa.PrimaryKeyConstraint("binlog_id", name=op.f("pk_binlogs")),
        sqlite_strict=True,
    )
    op.create_index("ix_binlogs_segment_id", "binlogs", ["segment_id"], unique=False)
    op.create_table(
        "lanes",
        sa.Column("channel_id", BIG, autoincrement=False, nullable=False),
        sa.Column("partition_id", BIG, autoincrement=False, nullable=False),
        sa.Column("progress", BIG, nullable=False),
        sa.Column("growing_segment_id", BIG, nullable=True),
        sa.CheckConstraint("partition_id > 0 OR partition_id = -1", name=op.f("ck_lanes_partition_id")),
        sa.CheckConstraint("progress > 0", name=op.f("ck_lanes_progress")),
        sa.ForeignKeyConstraint(["channel_id"], ["vchannels.channel_id"], name=op.f("fk_lanes_channel_id")),
        sa.ForeignKeyConstraint(
            ["growing_segment_id"], ["segments.segment_id"], name=op.f("fk_lanes_growing_segment_id")
        ),
        sa.PrimaryKeyConstraint("channel_id", "partition_id", name=op.f("pk_lanes")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.bulk_insert(
        sa.table("epochs", sa.column("name"), sa.column("value")),
        [{"name": "epoch", "value": 0}, {"name": "id", "value": 0}],
    )
    if op.get_bind().dialect.name == "postgresql":
        # Rows that are changed all the time leave room for their next version on the same page (hot updates).
        op.execute("ALTER TABLE channel_state SET (fillfactor = 50)")
        op.execute("ALTER TABLE lanes SET (fillfactor = 50)")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
