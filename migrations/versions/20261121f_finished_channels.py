"""Where the source of a channel was said to have ended: such a channel without an owner is done, not stuck."""

from alembic import op

revision = "20261121f"
down_revision = "20261121e"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Both add a column to a table as it is.
    kind = "BIGINT" if op.get_bind().dialect.name == "postgresql" else "INTEGER"
    constraint = "CONSTRAINT ck_vchannels_finished_timestamp CHECK (finished_timestamp >= 0)"
    op.execute(f"ALTER TABLE vchannels ADD COLUMN finished_timestamp {kind} NOT NULL DEFAULT 0 {constraint}")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
