"""One coordinator per SQLite file: a lock of the operating system that goes with the process, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import IO

from coordinator.store.databases import database_kind
from coordinator.store.sqlite import Sqlite
from datacoord.errors import ConfigInvalidError


def lock_alone(url: str) -> IO[str] | None:
    """Makes sure that no other coordinator serves an embedded database, for as long as the file that is answered stays open.

    Args:
        url: of the database.

    Returns:
        what to close at the end; None: the database takes any number of coordinators.

    Raises:
        ConfigInvalidError: another process serves it, or its lock file cannot be written.
    """
    kind = database_kind(url)
    if not isinstance(kind, Sqlite):
        return None
    path = Path(f"{kind.path}.lock")
    if not path.parent.is_dir():
        return None  # there is no database either: whoever opens it says so
    try:
        held = path.open("a+")
    except OSError as error:
        message = f"the database {kind.path!r} cannot be used: {error.strerror or error}"
        raise ConfigInvalidError(message, database=kind.path) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.seek(0)
        pid = held.read().strip()
        held.close()
        message = (
            f"another coordinator (process {pid or 'unknown'}) serves the database {kind.path!r}, and SQLite takes one; "
            "stop it, or use PostgreSQL for replicas"
        )
        raise ConfigInvalidError(message, database=kind.path, pid=pid) from error
    held.truncate(0)
    held.write(str(os.getpid()))
    held.flush()
    return held
