"""Where operators want channels to be."""

import sqlalchemy as sa
from alembic import op

revision = "20261121c"
down_revision = "20261121b"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "placements",
        sa.Column("channel_id", BIG, autoincrement=False, nullable=False),
        sa.Column("node_id", BIG, nullable=False),
        sa.Column("from_node_id", BIG, nullable=False),
        sa.CheckConstraint("node_id > 0 OR (node_id = 0 AND from_node_id > 0)", name=op.f("ck_placements_nodes")),
        sa.ForeignKeyConstraint(["channel_id"], ["vchannels.channel_id"], name=op.f("fk_placements_channel_id")),
        sa.PrimaryKeyConstraint("channel_id", name=op.f("pk_placements")),
        sqlite_strict=True,
    )


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
