"""When a flush was first seen to be done: what its retention counts from."""

from alembic import op

revision = "20261121d"
down_revision = "20261121c"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Both add a column to a table as it is; building the table anew would lose what cannot be read back from SQLite.
    kind = "BIGINT" if op.get_bind().dialect.name == "postgresql" else "INTEGER"
    constraint = "CONSTRAINT ck_flushes_done_time_ms CHECK (done_time_ms >= 0)"
    op.execute(f"ALTER TABLE flushes ADD COLUMN done_time_ms {kind} NOT NULL DEFAULT 0 {constraint}")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
