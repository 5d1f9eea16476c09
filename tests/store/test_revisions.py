"""A database of each earlier revision, with data in it, as it was then: it upgrades, and everything in it goes on."""

from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, MetaData, inspect, select, text
from support.engines import engine_of

from coordinator.core.model import Outcome
from coordinator.store import ChannelRelease, migrate
from coordinator.store.tables import metadata
from datacoord.errors import Reason

from .databases import KINDS, Databases
from .older_code import read, say_again
from .revisions import DIRECTORY, load, path_of, said_path
from .support import CALLER, Clock, ScriptedFaults, World, lane, reason_of

FILLED = ("collections", "channel_state", "lanes", "segments", "binlogs", "owners", "datanodes", "flushes", "events")
"""Tables without whose rows nothing is shown."""
REFUSED_AT_ONCE = "22P02"
"""How a statement that is a transaction of its own says that it must be done another way; see `postgresql_at_once`."""

Rows = dict[str, set[tuple[tuple[str, Any], ...]]]


def rows_of(url: str, columns: dict[str, list[str]] | None = None) -> Rows:
    """Everything in a database of any revision, by table; of named columns only, where they are named."""
    engine = engine_of(url)
    with engine.connect() as connection:
        reflected = MetaData()
        reflected.reflect(connection)
        found: Rows = {}
        for table in reflected.sorted_tables:
            if table.name == "alembic_version" or (columns is not None and table.name not in columns):
                continue
            names = columns[table.name] if columns is not None else sorted(table.c.keys())
            statement = select(*(table.c[name] for name in names))
            rows = connection.execute(statement).all()
            found[table.name] = {tuple(zip(names, map(_plain, row), strict=True)) for row in rows}
    engine.dispose()
    return found


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def columns_of(url: str) -> dict[str, list[str]]:
    """Columns by table."""
    engine = engine_of(url)
    with engine.connect() as connection:
        inspector = inspect(connection)
        names = [name for name in inspector.get_table_names() if name != "alembic_version"]
        found = {name: sorted(column["name"] for column in inspector.get_columns(name)) for name in names}
    engine.dispose()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_revision_has_its_database(kind: str) -> None:
    """A revision without one can never be upgraded in a test again: its code is gone."""
    missing = [r for r in migrate.known_revisions() if not path_of(r, kind).exists()]
    assert not missing, "run `make fixture` and commit what it writes"
    known = {path_of(revision, kind) for revision in migrate.known_revisions()}
    assert set(DIRECTORY.glob(f"*.{kind}.sql")) <= known, "the database of a revision that does not exist"


@pytest.mark.parametrize("revision", migrate.known_revisions())
async def test_a_database_of_every_revision_upgrades_with_what_is_in_it(databases: Databases, revision: str) -> None:
    """The user's data is the only data that counts, and it was written by an older version."""
    url = databases.empty()
    load(path_of(revision, databases.kind), url)
    assert migrate.current_revision(url) == revision
    before, columns = rows_of(url), columns_of(url)
    for name in FILLED:
        assert before[name], f"{name} is empty: this shows little"

    assert migrate.upgrade(url) == revision

    after = columns_of(url)
    kept = {
        table: [name for name in names if name in after[table]] for table, names in columns.items() if table in after
    }
    expected = {table: {tuple((n, v) for n, v in row if n in kept[table]) for row in before[table]} for table in kept}
    assert rows_of(url, kept) == expected
    engine = engine_of(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            stored = {check["name"] for check in inspector.get_check_constraints(table.name)}
            assert stored == {c.name for c in table.constraints if isinstance(c, CheckConstraint)}
        if databases.kind == "sqlite":
            assert _written_down(connection) == _written_down_of(databases.migrated())
            assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
    engine.dispose()
    await goes_on(url)


def _written_down_of(url: str) -> dict[str, str]:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = _written_down(connection)
    engine.dispose()
    return found


def _written_down(connection: Connection) -> dict[str, str]:
    """What SQLite has written down of its tables and indexes: a migration may change that text itself."""
    rows = connection.execute(text("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")).all()
    return {name: " ".join(sql.split()) for name, sql in rows}


def migrate_to(url: str, revision: str) -> None:
    """Gives an empty database the schema of a revision."""
    config = migrate._config()
    with migrate.locked(url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def test_what_the_code_of_every_revision_says_is_written_down() -> None:
    """Once a revision has a successor its code is gone, and nobody can tell any more whether it works on a newer schema."""
    assert {path.name.split(".")[0] for path in DIRECTORY.glob("*.said.json")} == set(migrate.known_revisions()), (
        "run `make fixture` and commit what it writes"
    )


@pytest.mark.parametrize("templates", ["postgresql"], indirect=True)
@pytest.mark.parametrize("revision", migrate.known_revisions())
async def test_the_code_of_every_revision_works_on_the_newest_schema(databases: Databases, revision: str) -> None:
    """Coordinators are replaced one by one after the migration: until the last one is, older ones write what they always did.

    On SQLite one coordinator serves, and migrates when it starts.
    """
    said = read(said_path(revision))
    before, after = databases.empty(), databases.migrated()
    migrate_to(before, revision)
    columns = columns_of(before)

    expected = say_again(before, said)
    outcomes = say_again(after, said)

    different = [
        (one.written_out(), was, now) for one, was, now in zip(said, expected, outcomes, strict=True) if was != now
    ]
    assert different == []
    assert rows_of(after, columns) == rows_of(before, columns)
    written = [one.written_tables() for one, rows in zip(said, expected, strict=True) if rows not in {0, -1}]
    assert {*FILLED, "epochs", "job_leases"} <= set().union(*written), "some are not written to: this shows little"
    assert {outcome for outcome in expected if isinstance(outcome, str)} <= {REFUSED_AT_ONCE}
    await goes_on(after)


async def goes_on(url: str) -> None:
    """Every kind of write continues where the old version stopped."""
    world = await World(url, Clock(now_ms=2_000_000), ScriptedFaults()).open()
    try:
        world.collection = await world.store.describe_collection("claimed")
        (channel, *_), epochs = world.channels, {name: await world.epoch(name) for name in world.channels}
        assert await world.registered(channel) == {world.default: [(1, 7)]}
        answer = await world.save(channel, lane(world.default, 0, 7), checkpoint=7)
        assert answer.outcome is Outcome.ALREADY_APPLIED
        assert (await world.save(channel, lane(world.default, 7, 9), checkpoint=9)).outcome is Outcome.APPLIED
        (claim,) = await world.store.claim_channels("query-2", [channel], force=True, caller=CALLER)
        assert claim.info is not None
        assert claim.info.epoch > max(epochs.values())
        assert reason_of(await world.save(channel, lane(world.default, 9, 11), epoch=epochs[channel])) is Reason.FENCED

        world.collection = await world.store.describe_collection("managed")
        first, second, third = world.channels
        info = await world.info(first)
        assert (info.checkpoint.timestamp, [ln.progress for ln in info.lanes if ln.progress]) == (15, [20, 12, 20])
        assert [ln.dropped for ln in info.lanes] == [False, False, True]
        assert reason_of(await world.move(third, 99)) is Reason.CHANNEL_DROPPED
        release = ChannelRelease(second, await world.epoch(second), None)
        (released,) = await world.store.release_channels([release], caller=CALLER)
        assert released.outcome is Outcome.APPLIED
        await world.start_datanode(7)
        assert (await world.info(second)).owner.startswith("job/")
        assert (await world.save(first, lane(world.default, 20, 40), checkpoint=40)).outcome is Outcome.APPLIED
        for job in (world.store.run_lease_job, world.store.run_assignment_job, world.store.run_seal_job):
            assert (await job()).ran
        assert world.store.statistics.invariant_violations == 0
    finally:
        await world.store.close()


def test_revisions_are_kept_as_text_and_small() -> None:
    """They are read by people, and every clone carries them for ever."""
    for path in DIRECTORY.iterdir():
        assert path.stat().st_size < (64 if path.suffix == ".sql" else 96) * 1024, path
        assert "/home" not in path.read_text(encoding="utf-8"), path
