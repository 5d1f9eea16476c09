"""Which schema a database has, and how it gets the one this code needs. Safe when several processes start at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import exc
from sqlalchemy.engine import Connection

import coordinator
from coordinator.store.databases import database_kind
from datacoord.errors import DatabaseNotMigratedError, DatabaseTooNewError, InternalError, StoreUnavailableError

log = structlog.get_logger()

_LOCK_TIMEOUT_MS = 300_000


def script_location() -> Path:
    """Where the migrations are: inside the installed package, or at the top of the repository."""
    package = Path(coordinator.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    return config


def head() -> str:
    """The revision this code needs."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def known_revisions() -> list[str]:
    """Every revision this code knows, oldest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]


@contextmanager
def locked(url: str) -> Iterator[Connection]:
    """A transaction that alone may change the schema; committed at the end.

    Raises:
        StoreUnavailableError: the database does not answer, or another process has held the lock for minutes.
    """
    kind = database_kind(url)
    engine = kind.migrator(_LOCK_TIMEOUT_MS)
    try:
        kind.make_place()
        with engine.connect() as connection:
            kind.lock_for_migration(connection)
            yield connection
            connection.commit()
    except (exc.DBAPIError, OSError) as error:
        raise _unavailable(error) from error
    finally:
        engine.dispose()


def _unavailable(error: Exception) -> StoreUnavailableError:
    origin = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    return StoreUnavailableError(f"the database cannot be used: {' '.join(str(origin).split())[:200]}")


def current_revision(url: str) -> str:
    """The revision a database has; empty = none.

    Raises:
        StoreUnavailableError: the database does not answer.
    """
    kind = database_kind(url)
    if kind.is_missing():
        return ""
    engine = kind.reader(_LOCK_TIMEOUT_MS)
    try:
        with engine.connect() as connection:
            return _revision(connection)
    except (exc.DBAPIError, OSError) as error:
        raise _unavailable(error) from error
    finally:
        engine.dispose()


def _revision(connection: Connection) -> str:
    return MigrationContext.configure(connection).get_current_revision() or ""


def check(url: str) -> None:
    """Makes sure that a database has exactly the schema this code needs.

    Raises:
        DatabaseNotMigratedError: it has none or an older one.
        DatabaseTooNewError: it has one this code does not know.
        StoreUnavailableError: the database does not answer.
    """
    revision = current_revision(url)
    _refuse_newer(revision)
    if revision != head():
        has = f"has the schema of revision {revision}" if revision else "has no schema yet"
        message = f"the database {has}, this version needs {head()}; run `datacoord migrate`"
        raise DatabaseNotMigratedError(message, revision=revision, needed=head())


def _refuse_newer(revision: str) -> None:
    if revision and revision not in known_revisions():
        message = (
            f"the database has the schema of revision {revision}, which this version does not know: a newer version has "
            "migrated it; upgrade this one"
        )
        raise DatabaseTooNewError(message, revision=revision, known=head())


def upgrade(url: str) -> str:
    """Brings a database to the schema this code needs. Any number of processes may do this at once: one works, the others wait.

    Returns:
        the revision it had before; empty = none.

    Raises:
        DatabaseTooNewError: it has one this code does not know; it is left as it is.
        StoreUnavailableError: the database does not answer.
    """
    revision = current_revision(url)
    _refuse_newer(revision)
    if revision == head():
        return revision
    with locked(url) as connection:
        revision = _revision(connection)
        _refuse_newer(revision)
        if revision != head():
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            broken = database_kind(url).broken_references(connection)
            if broken:
                raise InternalError(f"the migration would leave rows of {broken} that refer to nothing; it was undone")
            log.info("database_migrated", revision_before=revision, revision=head())
    return revision
