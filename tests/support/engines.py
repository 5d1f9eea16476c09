"""What somebody else does to a database, by hand."""

from typing import Any

from sqlalchemy import Engine, create_engine

from coordinator.store.databases import database_kind
from coordinator.store.sqlite import Sqlite

_BUSY_TIMEOUT_MS = 20_000


def engine_of(url: str, **options: Any) -> Engine:
    """An engine of SQLAlchemy with nothing set up.

    Not `create_engine`: it would take Python's own driver for SQLite, a second copy of the library in this process, which takes the
    locks of the coordinator's copy with it when it closes the file.
    """
    kind = database_kind(url)
    if not isinstance(kind, Sqlite):
        return create_engine(url, **options)
    return create_engine(kind.url, connect_args={"busy_timeout_ms": _BUSY_TIMEOUT_MS}, **options)
