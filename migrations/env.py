"""Alembic's environment: migrates on the connection it is given, or the database that DATACOORD_DATABASE_URL names."""

import os

from alembic import context
from sqlalchemy.engine import Connection

from coordinator.store import migrate
from coordinator.store.tables import metadata


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,  # SQLite changes tables by building them anew
        transactional_ddl=True,  # both databases undo schema changes with the transaction
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    # `alembic` itself, for developers who write a migration.
    with migrate.locked(os.environ["DATACOORD_DATABASE_URL"]) as opened:
        run(opened)
