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


def short_text(error: Exception) -> str:
    """What an error says, for the log."""
    origin = _origin(error)
    return " ".join(str(origin).split())[:200] or type(origin).__name__


def code_for_callers(error: Exception) -> str:
    """What callers learn of an error of the database: its code. Its text, which goes to the log, may hold SQL, values and hosts."""
    origin = _origin(error)
    return f"{error_code(origin) or type(origin).__name__}; the log of the coordinator says more"


def _origin(error: Exception) -> BaseException:
    """The driver's own error, where there is one."""
    return error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error


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
