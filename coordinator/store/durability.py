"""What a database must be set to so that an acknowledged write survives: asked when a coordinator starts to serve."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import text
from sqlalchemy.engine import Connection

from coordinator.store.database_kind import DatabaseKind
from coordinator.store.sqlite import Sqlite
from datacoord.errors import ConfigInvalidError

_SQLITE: Final = {"journal_mode": {"wal"}, "synchronous": {"2", "3"}, "foreign_keys": {"1"}}
"""We set them; where the file system cannot do them, SQLite stays with others and says nothing."""

_SESSION: Final = {"synchronous_commit": {"on", "remote_apply"}, "transaction_read_only": {"off"}}
"""We set them for our sessions; a pooler that does not keep sessions apart loses them."""

_SERVER: Final = {"fsync": "on", "full_page_writes": "on", "data_sync_retry": "off", "zero_damaged_pages": "off"}
"""The server's own: whoever set them otherwise may know why (a file system without torn pages, a test)."""


def read(connection: Connection, kind: DatabaseKind) -> dict[str, str]:
    """The settings of the connection that writes, and of its server."""
    if isinstance(kind, Sqlite):
        return {name: str(connection.execute(text(f"PRAGMA {name}")).scalar()) for name in _SQLITE}
    statement = text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)")
    rows = connection.execute(statement, {"names": [*_SESSION, *_SERVER]})
    return {name: setting for name, setting in rows}  # noqa: C416 - rows are no pairs to the type checker


def weak_settings(shown: Mapping[str, str]) -> dict[str, str]:
    """Settings of the server with which a crash of its machine may lose what was acknowledged, with their values.

    Args:
        shown: what `read` answered.

    Raises:
        ConfigInvalidError: what we set for ourselves is not what counts.
    """
    for name, allowed in {**_SQLITE, **_SESSION}.items():
        if name in shown and shown[name] not in allowed:
            message = (
                f"the database answers that {name} is {shown[name]!r} where {sorted(allowed)[0]!r} was set: acknowledged writes "
                "could be lost; give SQLite a local file system, and PostgreSQL no pooler that mixes sessions"
            )
            raise ConfigInvalidError(message, setting=name, value=shown[name])
    return {name: shown[name] for name, wanted in _SERVER.items() if name in shown and shown[name] != wanted}
