"""SQLite by APSW as SQLAlchemy sees it: what the store relies on, and what a driver may get wrong without anybody noticing."""

import ast
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from sqlalchemy import Engine, create_engine, exc

from coordinator.store import sqlite_driver
from coordinator.store.sqlite import Sqlite
from coordinator.store.sqlite_driver import SqliteConnection, code_name, connect
from coordinator.store.tables import metadata
from datacoord.errors import ConfigInvalidError

from .support import sqlite_error

ROOT = Path(__file__).parents[2]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[SqliteConnection]:
    """On a database with a table of three rows."""
    with contextlib.closing(connect(str(tmp_path / "x.db"))) as opened:
        opened.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v)")
        opened.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        yield opened


@pytest.fixture
def engine(connection: SqliteConnection) -> Iterator[Engine]:
    """SQLAlchemy on the same database."""
    opened = create_engine(Sqlite(f"sqlite:///{connection.filename}").url)
    yield opened
    opened.dispose()


def test_the_sqlite_in_use_does_not_lose_commits() -> None:
    """3.7.0 to 3.51.2 may lose committed writes: https://sqlite.org/wal.html#walresetbug."""
    with contextlib.closing(apsw.Connection("")) as opened:
        assert opened.execute("SELECT sqlite_version()").get == sqlite_driver.sqlite_version
    assert sqlite_driver.sqlite_version_info >= sqlite_driver.SAFE_VERSION_INFO >= (3, 51, 3)


def test_the_dialect_knows_the_version(engine: Engine) -> None:
    """Without it SQLAlchemy cannot read a table's columns, and no migration can rebuild a table."""
    with engine.connect() as opened:
        assert opened.dialect.server_version_info == sqlite_driver.sqlite_version_info


@pytest.mark.parametrize("package", ["benchmarks", "coordinator", "datacoord", "datanode_client", "migrations"])
def test_nothing_opens_our_database_by_a_second_sqlite(package: str) -> None:
    """Two copies of the library drop each other's locks: two writers at once, and the file is broken."""
    # Once the coordinator has stopped, which is another process.
    alone = {ROOT / "datacoord/demo/rpc_figures.py"}
    kinds = {ROOT / "coordinator/store/sqlite.py", ROOT / "coordinator/store/postgresql.py"}
    for path in set((ROOT / package).rglob("*.py")) - alone:
        source = path.read_text()
        assert path in kinds or "create_engine(" not in source, f"{path}: take a DatabaseKind's engine"
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"sqlite3", "_sqlite3", "pysqlite3"}, path
            assert not any("pysqlite" in name for name in names), path


def test_no_test_opens_a_database_by_another_sqlite() -> None:
    """A test that drops the locks of the coordinator it tests fails one day in a hundred, and nobody finds out why."""
    alone = {
        "store/revisions.py",
        "server/test_start.py",
    }  # while nothing in this process has it open
    ours = {"support/engines.py", "store/test_sqlite_driver.py"}
    for path in (ROOT / "tests").rglob("*.py"):
        name, source = str(path.relative_to(ROOT / "tests")), path.read_text()
        assert name in alone or "import sqlite3\n" not in source, name
        assert name in ours or "create_engine(" not in source, f"{name}: take support.engines.engine_of"


def test_a_select_without_rows_has_columns(connection: SqliteConnection) -> None:
    """APSW knows them only while there are rows; without them SQLAlchemy takes the select for a statement that gives none."""
    cursor = connection.cursor()
    cursor.execute("SELECT k, v AS value FROM t WHERE k > 3")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["k", "value"]
    assert cursor.fetchall() == []
    assert cursor.execute("UPDATE t SET v = 'x' WHERE k > 3").description is None
    cursor.execute("SELECT k FROM t")
    assert cursor.executemany("DELETE FROM t WHERE k = ?", [(9,)]).description is None


def test_a_closed_cursor_locks_nothing_though_rows_are_left(connection: SqliteConnection) -> None:
    """A statement that goes on behind the back keeps its snapshot: the log grows without end, and no table can be rebuilt."""
    cursor = connection.cursor()
    cursor.execute("SELECT k FROM t")
    assert cursor.fetchmany(2) == [(1,), (2,)]
    cursor.close()
    connection.execute("DROP TABLE t")


def test_a_forgotten_cursor_locks_nothing_before_garbage_is_collected(connection: SqliteConnection) -> None:
    """One that refers to itself stays open until then, and that may be never: the coordinator freezes what it has."""
    gc.disable()
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT k FROM t")
        cursor.fetchone()
        del cursor
        connection.execute("DROP TABLE t")
    finally:
        gc.enable()


def test_changed_rows_are_counted_over_all_executions(connection: SqliteConnection) -> None:
    """A guard in SQL that held a row back is noticed by nothing but this number."""
    cursor = connection.cursor()
    assert cursor.execute("UPDATE t SET v = 'x' WHERE k < 3").rowcount == 2
    assert cursor.execute("UPDATE t SET v = 'x' WHERE k = ?", (9,)).rowcount == 0
    assert cursor.executemany("UPDATE t SET v = ? WHERE k = ?", [("y", 1), ("y", 9), ("y", 2), ("y", 3)]).rowcount == 3
    assert cursor.executemany("UPDATE t SET v = ? WHERE k = ?", [("y", 9)]).rowcount == 0


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("INSERT INTO t VALUES (1, 'twice')", exc.IntegrityError),
        ("SELEKT", exc.OperationalError),
        ("SELECT zeroblob(3000000000)", exc.DataError),
        ("SELECT ?", exc.ProgrammingError),
    ],
)
def test_errors_are_what_sqlalchemy_calls_them(engine: Engine, statement: str, kind: type[exc.DBAPIError]) -> None:
    """By the class the store tells a bug, which is not repeated, from a database that was not able to."""
    with engine.connect() as opened, pytest.raises(exc.DBAPIError) as raised:
        opened.exec_driver_sql(statement)
    assert type(raised.value) is kind


def test_a_disk_that_fails_is_an_operational_error() -> None:
    """One that is of no class of PEP 249 passes whoever looks for what a database may fail with."""
    kinds = Sqlite("sqlite:///x.db").driver_dialect.dbapi_exception_translation_map
    assert {kinds[name] for name in ("FullError", "IOError", "ReadOnlyError", "CorruptError")} == {"OperationalError"}


def test_a_lock_is_an_error_worth_trying_again(connection: SqliteConnection, engine: Engine) -> None:
    """Taken for anything else, each backup would make saves fail."""
    connection.execute("BEGIN IMMEDIATE")
    with engine.connect() as opened, pytest.raises(exc.OperationalError) as raised:
        opened.exec_driver_sql("DELETE FROM t")
    assert Sqlite("sqlite:///x.db").is_transient(raised.value)
    assert code_name(raised.value.orig or raised.value) == "SQLITE_BUSY"


def test_a_lock_is_waited_for_as_long_as_asked(connection: SqliteConnection) -> None:
    """The writer's does not wait, for it would hold the event loop; a migration's waits for minutes."""
    for busy_timeout_ms in (0, 1234):
        with contextlib.closing(connect(connection.filename, busy_timeout_ms=busy_timeout_ms)) as opened:
            assert opened.execute("PRAGMA busy_timeout").get == busy_timeout_ms


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (sqlite_error(apsw.SQLITE_BUSY), "SQLITE_BUSY"),
        (sqlite_error(apsw.SQLITE_FULL), "SQLITE_FULL"),
        (sqlite_error(apsw.SQLITE_IOERR_FSYNC), "SQLITE_IOERR_FSYNC"),
        (OSError("no route to host"), ""),
        (apsw.ConnectionClosedError("no code"), ""),
    ],
)
def test_errors_have_the_names_that_sqlite_gives_them(error: Exception, name: str) -> None:
    """An operator looks for SQLITE_FULL, not for a number."""
    assert code_name(error) == name


def test_what_goes_in_comes_out(engine: Engine) -> None:
    """A position that is rounded, or bytes that become text, is a place nobody finds again."""
    values: tuple[Any, ...] = (2**63 - 1, -(2**63), b"\x00\xff", b"", None, 0.1, "ä\x00€", "")
    with engine.connect() as opened:
        sql = f"SELECT {', '.join('?' * len(values))}"
        (row,) = opened.exec_driver_sql(sql, values).all()
        opened.exec_driver_sql(
            "INSERT INTO t VALUES (?, ?)", [(10 + place, value) for place, value in enumerate(values)]
        )
        stored = opened.exec_driver_sql("SELECT v FROM t WHERE k >= 10 ORDER BY k").scalars().all()
    assert [(type(value), value) for value in row] == [(type(value), value) for value in values]
    assert tuple(stored) == values


def test_without_a_transaction_there_is_nothing_to_end(connection: SqliteConnection) -> None:
    """A pool rolls back whatever comes back to it: an error there would cost the connection."""
    connection.commit()
    connection.rollback()
    for end, left in ((connection.rollback, 3), (connection.commit, 0)):
        connection.execute("BEGIN")
        connection.execute("DELETE FROM t")
        end()
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM t").get == left


@pytest.mark.parametrize("statement", ["SELECT k FROM t", "UPDATE t SET v = 'x' RETURNING k"])
def test_a_connection_closes_though_rows_are_left(connection: SqliteConnection, statement: str) -> None:
    """One that cannot be closed keeps the file and its locks, and after a failure every write waits for it."""
    broken = connect(connection.filename)
    broken.begin()
    cursor = broken.cursor()
    cursor.execute(statement)
    assert cursor.fetchone() is not None
    broken.close()

    connection.execute("BEGIN EXCLUSIVE")
    connection.rollback()


def test_a_transaction_that_sqlite_has_rolled_back_is_not_committed(tmp_path: Path) -> None:
    """Some errors end it: answered as committed, the write would be acknowledged and gone."""
    kind = Sqlite(f"sqlite:///{tmp_path / 'x.db'}")
    writer = kind.writer(0)
    with writer.connect() as opened:
        kind.begin(opened, None)
        driver: Any = opened.connection.driver_connection
        driver.execute("ROLLBACK")
        with pytest.raises(exc.OperationalError, match="rolled the transaction back") as raised:
            kind.commit(opened)
    assert not kind.commit_was_refused(raised.value), "what came after the rollback may be committed"
    writer.dispose()


def test_sqlalchemy_begins_a_transaction_and_rolls_it_back(engine: Engine) -> None:
    """A driver that begins none commits every statement by itself, and no error undoes anything."""
    with contextlib.suppress(ZeroDivisionError), engine.begin() as opened:
        opened.exec_driver_sql("DELETE FROM t")
        raise ZeroDivisionError
    with engine.connect() as opened:
        assert opened.exec_driver_sql("SELECT count(*) FROM t").scalar() == 3


def test_no_row_changes_another_one() -> None:
    """Changed rows are counted with those that triggers and foreign keys change: a guard would take them for its own."""
    keys = [key for table in metadata.tables.values() for key in table.foreign_keys]
    assert keys
    assert {(key.ondelete, key.onupdate) for key in keys} == {(None, None)}


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///{path}?mode=ro",
        "sqlite:///{path}?vfs=unix-none",
        "sqlite://user:secret@/{path}",
        "sqlite://host/{path}",
        "sqlite+pysqlcipher://:secret@/{path}",
        "sqlite+aiosqlite:///{path}",
        "sqlite:///{path}?key=secret",
        "sqlite:///file:{path}",
    ],
)
def test_a_url_that_says_more_than_a_file_is_refused(tmp_path: Path, url: str) -> None:
    """What is ignored is a promise that is not kept: a file in plain text for a password, and no locks for an option."""
    with pytest.raises(ConfigInvalidError, match="more than its file") as refused:
        Sqlite(url.format(path=tmp_path / "x.db"))
    assert "secret" not in refused.value.message + str(refused.value.metadata)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite+pysqlcipher://:secret@/?key=secret"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    """A coordinator that forgets; and what it is told as a password does not go to the log."""
    with pytest.raises(ConfigInvalidError, match="has no file") as refused:
        Sqlite(url)
    assert "secret" not in refused.value.message + str(refused.value.metadata)


def test_who_writes_takes_the_lock_when_a_transaction_begins(tmp_path: Path, connection: SqliteConnection) -> None:
    """A transaction that reads first cannot wait for the lock later: what it has read is old by then."""
    kind = Sqlite(f"sqlite:///{tmp_path / 'x.db'}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    engines = [kind.writer(0), kind.migrator(0), kind.reader(0)]
    for engine in engines[:2]:
        with engine.connect() as opened, pytest.raises(exc.OperationalError, match="locked") as refused:
            opened.begin()
        assert kind.is_transient(refused.value)
    with engines[2].begin() as opened:
        assert opened.exec_driver_sql("SELECT count(*) FROM t").scalar() == 3
    connection.rollback()
    with engines[0].connect() as opened:
        assert kind.begin(opened, None)
    for engine in engines:
        engine.dispose()


def test_a_sqlite_that_may_lose_commits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """APSW may be built with the library of the machine: the version of the package says nothing then."""
    monkeypatch.setattr(sqlite_driver, "sqlite_version_info", (3, 51, 2))
    with pytest.raises(ConfigInvalidError, match="may lose committed writes"):
        Sqlite(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_file_that_is_no_database_is_an_error_that_is_translated(tmp_path: Path) -> None:
    """Who restores asks who uses the file, and would see the driver's own error."""
    path = tmp_path / "x.db"
    path.write_text("something else, and long enough to be looked at" * 100)
    for place in (path, tmp_path):
        with pytest.raises(exc.OperationalError):
            Sqlite(f"sqlite:///{place}").used_by()
