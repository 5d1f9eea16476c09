"""The databases that Datacoord knows."""

from sqlalchemy import exc
from sqlalchemy.engine import make_url

from coordinator.store import sqlite_driver
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.postgresql import Postgresql
from coordinator.store.sqlite import Sqlite
from datacoord.errors import ConfigInvalidError


def error_code(error: BaseException) -> str:
    """What the database calls an error of its driver, such as 40P01 or SQLITE_BUSY; "" = it has no name there."""
    return getattr(error, "sqlstate", None) or sqlite_driver.code_name(error)


def database_kind(url: str) -> DatabaseKind:
    """The database a URL names.

    Raises:
        ConfigInvalidError: it names none that Datacoord supports.
    """
    try:
        backend = make_url(url).get_backend_name()
    except exc.ArgumentError as error:
        message = (
            "the database URL cannot be read; it looks like sqlite:////var/lib/datacoord/datacoord.db or postgresql://…"
        )
        raise ConfigInvalidError(message) from error
    if backend == "sqlite":
        return Sqlite(url)
    if backend == "postgresql":
        return Postgresql(url)
    message = f"databases of kind {backend!r} are not supported; use sqlite or postgresql"
    raise ConfigInvalidError(message, backend=backend)
