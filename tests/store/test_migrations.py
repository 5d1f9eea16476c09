"""Schemas: from nothing, with data, by eight processes at once, from a newer version."""

import multiprocessing
import shutil
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint, inspect, text
from sqlalchemy.exc import IntegrityError
from support.engines import engine_of

import coordinator
from coordinator.store import Store, migrate
from coordinator.store.databases import database_kind
from coordinator.store.tables import metadata
from datacoord.errors import ConfigInvalidError, DatabaseNotMigratedError, DatabaseTooNewError, StoreUnavailableError

from .databases import Databases
from .revisions import load, path_of
from .support import Clock, ScriptedFaults, World, dump, lane, settings

PROCESSES = 8


def execute(url: str, statement: str) -> None:
    """Runs one statement."""
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_a_migrated_database_is_what_the_tables_say(databases: Databases) -> None:
    """A migration that differs from the tables is found by the first user, not by a test."""
    engine = engine_of(databases.migrated())
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            stored = {check["name"] for check in inspector.get_check_constraints(table.name)}
            assert stored == {c.name for c in table.constraints if isinstance(c, CheckConstraint)}
    engine.dispose()


def test_every_constraint_and_index_has_a_name() -> None:
    """One without a name cannot be dropped by a later migration."""
    for table in metadata.sorted_tables:
        assert all(constraint.name for constraint in table.constraints)
        assert all(index.name for index in table.indexes)


def test_every_constraint_and_index_of_a_database_has_the_name_that_the_tables_say(databases: Databases) -> None:
    """A migration that leaves a name to the database gets another one from each, and the next migration finds neither."""
    engine = engine_of(databases.migrated())
    with engine.connect() as connection:
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            stored = {inspector.get_pk_constraint(table.name)["name"]}
            stored |= {foreign["name"] for foreign in inspector.get_foreign_keys(table.name)}
            stored |= {check["name"] for check in inspector.get_check_constraints(table.name)}
            unique = {constraint["name"] for constraint in inspector.get_unique_constraints(table.name)}
            indexes = {index["name"] for index in inspector.get_indexes(table.name)}
            assert stored | unique == {str(constraint.name) for constraint in table.constraints}
            # What keeps a unique constraint is an index of the same name.
            assert indexes - unique == {str(index.name) for index in table.indexes}
    engine.dispose()


def test_revisions_are_named_by_date_and_what_they_do() -> None:
    """They are read in order."""
    names = sorted(path.stem for path in (migrate.script_location() / "versions").glob("*.py"))
    assert [name.split("_", 1)[0] for name in names] == migrate.known_revisions()


def test_no_revision_pretends_that_one_can_go_back() -> None:
    """A downgrade that does nothing, or half of it, leaves a schema that no version knows; one goes back by a backup."""
    for script in ScriptDirectory(str(migrate.script_location())).walk_revisions():
        with pytest.raises(NotImplementedError, match="backup"):
            script.module.downgrade()


async def test_a_database_without_a_schema_is_refused_with_a_sentence(databases: Databases) -> None:
    """And is not created by looking at it."""
    url = databases.empty()
    with pytest.raises(DatabaseNotMigratedError, match="datacoord migrate"):
        await Store.open(url, settings())
    assert migrate.current_revision(url) == ""


async def test_a_newer_database_is_refused_with_a_sentence_and_left_alone(databases: Databases) -> None:
    """Writing to a schema one does not know destroys what the newer version keeps there."""
    url = databases.migrated()
    execute(url, "UPDATE alembic_version SET version_num = '99991231'")
    with pytest.raises(DatabaseTooNewError, match="upgrade this one"):
        await Store.open(url, settings())
    with pytest.raises(DatabaseTooNewError, match="upgrade this one"):
        migrate.upgrade(url)
    assert migrate.current_revision(url) == "99991231"


async def test_an_upgrade_keeps_what_is_there(databases: Databases) -> None:
    """And says which revision there was."""
    world = await World(databases.migrated(), Clock(), ScriptedFaults()).open()
    await world.create()
    await world.save(world.channels[0], lane(world.default, 0, 9), checkpoint=9)
    await world.store.close()
    before = dump(world.url)

    assert migrate.upgrade(world.url) == migrate.head()
    assert dump(world.url) == before


def _upgrade(url: str, barrier: "multiprocessing.synchronize.Barrier", results: "Queue[str]") -> None:
    barrier.wait(timeout=60)
    try:
        results.put(f"from {migrate.upgrade(url)!r}")
    except Exception as error:  # noqa: BLE001 - the test shows it
        results.put(repr(error))


def counters_of(url: str) -> list[tuple[str, int]]:
    """The counters, in a database of any revision."""
    engine = engine_of(url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT name, value FROM epochs ORDER BY name")).all()
    engine.dispose()
    return [(name, value) for name, value in rows]


@pytest.mark.parametrize("revision", ["", migrate.known_revisions()[0]])
def test_eight_processes_may_migrate_at_once(databases: Databases, revision: str) -> None:
    """Replicas that start together, on nothing or on an old database: one migrates, the others wait and find it done."""
    url = databases.empty()
    if revision:
        load(path_of(revision, databases.kind), url)
    counters = counters_of(url) if revision else [("epoch", 0), ("id", 0)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["coordinator.store.migrate"])
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    processes = [context.Process(target=_upgrade, args=(url, barrier, results)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=100) for _ in processes]
    for process in processes:
        process.join(timeout=30)

    assert set(answers) <= {f"from {revision!r}", f"from {migrate.head()!r}"}
    assert f"from {revision!r}" in answers
    migrate.check(url)
    assert counters_of(url) == counters


def test_migrations_travel_inside_the_package(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel has them in coordinator/migrations, the repository at its top: both must find and run them."""
    package = tmp_path / "coordinator"
    shutil.copytree(migrate.script_location(), package / "migrations")
    monkeypatch.setattr(coordinator, "__file__", str(package / "__init__.py"))
    url = databases.empty()

    assert migrate.script_location() == package / "migrations"
    assert migrate.upgrade(url) == ""
    migrate.check(url)


def test_a_migration_that_fails_is_undone(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a schema can neither be used nor migrated again."""
    url = databases.empty()
    kind = type(database_kind(url))
    monkeypatch.setattr(kind, "broken_references", lambda _kind, _connection: "lanes")
    with pytest.raises(Exception, match="lanes"):
        migrate.upgrade(url)
    monkeypatch.undo()

    assert migrate.current_revision(url) == ""
    migrate.upgrade(url)
    migrate.check(url)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("mysql://host/db", ConfigInvalidError),
        ("not a url", ConfigInvalidError),
        ("sqlite://", ConfigInvalidError),
        ("sqlite:///{directory}/a file/x.db", StoreUnavailableError),
        ("sqlite:///{directory}/a file", StoreUnavailableError),
        ("sqlite:///{directory}", StoreUnavailableError),
        ("postgresql://nobody@127.0.0.1:1/nothing", StoreUnavailableError),
    ],
)
def test_a_database_that_cannot_be_is_told_so(url: str, error: type[Exception], tmp_path: Path) -> None:
    """A traceback of the driver helps nobody."""
    (tmp_path / "a file").write_text("this is no database, but it is long enough to be looked at" * 100)
    with pytest.raises(error):
        migrate.upgrade(url.format(directory=tmp_path))
    # What is not there has no schema: the sentence leads to the line above.
    with pytest.raises((error, DatabaseNotMigratedError)):
        migrate.check(url.format(directory=tmp_path))
    assert "no database" in (tmp_path / "a file").read_text()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE channel_state SET checkpoint_timestamp = -1",
        "UPDATE channel_state SET epoch = 0",
        "UPDATE channel_state SET state = 3",
        "UPDATE channel_state SET flush_timestamp = checkpoint_timestamp WHERE checkpoint_timestamp > 0",
        "UPDATE channel_state SET state = 2, owner_id = 1",
        "UPDATE lanes SET progress = -1",
        "UPDATE lanes SET growing_segment_id = 999999",
        "UPDATE segments SET state = 3",
        "UPDATE segments SET timestamp_to = timestamp_from",
        "UPDATE segments SET seal_reason = 'why' WHERE state = 1",
        "UPDATE binlogs SET ts_min = range_from",
        "UPDATE binlogs SET ts_max = range_to + 1",
        "UPDATE binlogs SET segment_id = 999999",
        "UPDATE binlogs SET kind = 0",
        "UPDATE binlogs SET kind = 4",
        "UPDATE epochs SET value = -1",
        "INSERT INTO segments SELECT segment_id + 1000, channel_id, partition_id, state, level, rows, delete_rows, size_bytes, "
        "binlogs, timestamp_from, timestamp_to, seal_reason, create_time_ms, last_write_time_ms, ranges FROM segments "
        "WHERE state = 1",
        "INSERT INTO vchannels SELECT channel_id + 1000, name, collection_id, channel_index + 1000, mode, 0, 0 FROM vchannels",
    ],
)
async def test_sql_states_what_it_can_state(world: World, statement: str) -> None:
    """The last line: whatever code writes this is stopped."""
    await world.save(world.channels[0], lane(world.default, 0, 9), checkpoint=9)
    with world.store._database._connect() as connection, pytest.raises(IntegrityError):
        connection.execute(text(statement))
