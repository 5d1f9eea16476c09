"""What operators and a restore tell the garbage collector, and what its last round did."""

import sqlalchemy as sa
from alembic import op

revision = "20261121b"
down_revision = "20261121"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SMALL = sa.SmallInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "gc_control",
        sa.Column("control_id", SMALL, autoincrement=False, nullable=False),
        sa.Column("paused", SMALL, nullable=False),
        sa.Column("paused_until_ms", BIG, nullable=False),
        sa.Column("pause_reason", sa.Text(), nullable=False),
        sa.Column("held", SMALL, nullable=False),
        sa.Column("hold_reason", sa.Text(), nullable=False),
        sa.Column("run_requested", SMALL, nullable=False),
        sa.Column("last_round", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("control_id = 1", name=op.f("ck_gc_control_control_id")),
        sa.CheckConstraint("held = 1 OR (held = 0 AND hold_reason = '')", name=op.f("ck_gc_control_held")),
        sa.CheckConstraint(
            "paused = 1 OR (paused = 0 AND paused_until_ms = 0 AND pause_reason = '')",
            name=op.f("ck_gc_control_paused"),
        ),
        sa.CheckConstraint("paused_until_ms >= 0", name=op.f("ck_gc_control_paused_until_ms")),
        sa.CheckConstraint(
            "length(pause_reason) <= 256 AND length(hold_reason) <= 256", name=op.f("ck_gc_control_reasons")
        ),
        sa.CheckConstraint("run_requested IN (0, 1)", name=op.f("ck_gc_control_run_requested")),
        sa.PrimaryKeyConstraint("control_id", name=op.f("pk_gc_control")),
        sqlite_strict=True,
    )
    columns = ("control_id", "paused", "paused_until_ms", "pause_reason", "held", "hold_reason", "run_requested")
    op.bulk_insert(
        sa.table("gc_control", *(sa.column(name) for name in columns), sa.column("last_round", sa.LargeBinary())),
        [
            {
                "control_id": 1,
                "paused": 0,
                "paused_until_ms": 0,
                "pause_reason": "",
                "held": 0,
                "hold_reason": "",
                "run_requested": 0,
                "last_round": b"",
            }
        ],
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
