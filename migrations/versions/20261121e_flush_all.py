"""A flush of every collection at once; the ranges of a segment, which its seal policy counts."""

from alembic import op

revision = "20261121e"
down_revision = "20261121d"
branch_labels = None
depends_on = None


def upgrade() -> None:
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    kind = "BIGINT" if is_postgresql else "INTEGER"
    constraint = "CONSTRAINT ck_segments_ranges CHECK (ranges > 0)"
    op.execute(f"ALTER TABLE segments ADD COLUMN ranges {kind} NOT NULL DEFAULT 1 {constraint}")
    # Only what grows is ever judged by it. Every object of a range names the start of the range.
    op.execute(
        "UPDATE segments SET ranges = "
        "(SELECT count(DISTINCT range_from) FROM binlogs WHERE binlogs.segment_id = segments.segment_id) WHERE state = 1"
    )
    if is_postgresql:
        op.execute("ALTER TABLE flushes ALTER COLUMN collection_id DROP NOT NULL")
    else:
        # SQLite changes no column in place; written out, because what it cannot tell of a table (STRICT) would be lost.
        op.execute(
            """
            CREATE TABLE flushes_rebuilt (
                flush_id INTEGER NOT NULL,
                collection_id INTEGER,
                create_time_ms INTEGER NOT NULL,
                done_time_ms INTEGER NOT NULL DEFAULT 0,
                CONSTRAINT pk_flushes PRIMARY KEY (flush_id),
                CONSTRAINT ck_flushes_flush_id CHECK (flush_id > 0),
                CONSTRAINT ck_flushes_done_time_ms CHECK (done_time_ms >= 0),
                CONSTRAINT fk_flushes_collection_id FOREIGN KEY(collection_id) REFERENCES collections (collection_id)
            ) STRICT
            """
        )
        op.execute(
            "INSERT INTO flushes_rebuilt (flush_id, collection_id, create_time_ms, done_time_ms) "
            "SELECT flush_id, collection_id, create_time_ms, done_time_ms FROM flushes"
        )
        op.execute("DROP TABLE flushes")
        op.execute("ALTER TABLE flushes_rebuilt RENAME TO flushes")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
