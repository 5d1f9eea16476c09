"""The kind of a binlog is checked without a set, which SQLite makes anew for every statement: a twentieth of what a save costs."""

from alembic import op
from sqlalchemy import column, select, table, text, update

revision = "20261124"
down_revision = "20261121f"
branch_labels = None
depends_on = None

_BEFORE, _AFTER = "kind IN (1, 2, 3)", "kind BETWEEN 1 AND 3"


def upgrade() -> None:
    # PostgreSQL keeps its own: there it costs nothing, and to check the largest table anew would hold up every save meanwhile.
    if op.get_bind().dialect.name == "sqlite":
        _write_down_anew()


def _write_down_anew() -> None:
    """Changes what SQLite has written down of the table, in the way that it documents (sqlite.org/lang_altertable.html).

    The table is the largest there is: to build it anew would take minutes, and as much room again.
    """
    connection = op.get_bind()
    schema = table("sqlite_schema", column("type"), column("name"), column("sql"))
    here = (schema.c.type == "table", schema.c.name == "binlogs")
    written = connection.execute(select(schema.c.sql).where(*here)).scalar_one()
    if _AFTER in written:
        return
    if written.count(_BEFORE) != 1:
        raise RuntimeError(f"the table `binlogs` is not as an earlier version made it: {written}")
    version = connection.execute(text("PRAGMA schema_version")).scalar_one()
    connection.execute(text("PRAGMA writable_schema = ON"))
    connection.execute(update(schema).where(*here).values(sql=written.replace(_BEFORE, _AFTER)))
    # Whoever has the database open reads it again.
    connection.execute(text(f"PRAGMA schema_version = {int(version) + 1}"))
    connection.execute(text("PRAGMA writable_schema = RESET"))


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
