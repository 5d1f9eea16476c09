"""Fixtures of the store: databases of each kind, and a store with a collection in it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from support.postgres import PostgresServer

from coordinator.core.model import ChannelMode

from .databases import KINDS, SERVER_SETTINGS, Databases, Templates
from .support import Clock, ScriptedFaults, World


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    """What was logged; hundreds of errors on purpose are not written out."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The one PostgreSQL server of these tests."""
    server = PostgresServer(SERVER_SETTINGS)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session", params=KINDS)
def templates(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Databases of each kind, to be used again and again."""
    server = request.getfixturevalue("postgres_server") if request.param == "postgresql" else None
    return Templates(request.param, tmp_path_factory.mktemp("databases"), server)


@pytest.fixture
def databases(templates: Templates) -> Iterator[Databases]:
    """Databases for one test, of each kind."""
    taken = Databases(templates)
    yield taken
    taken.close()


@pytest.fixture
async def empty_world(databases: Databases) -> AsyncIterator[World]:
    """A store without a collection."""
    world = await World(databases.migrated(), Clock(), ScriptedFaults()).open()
    yield world
    await world.store.close()


@pytest.fixture
async def world(empty_world: World) -> World:
    """A store with a MANAGED collection of two channels."""
    await empty_world.create()
    return empty_world


@pytest.fixture
async def claimed_world(empty_world: World) -> World:
    """A store with a CLAIMED collection of two channels."""
    await empty_world.create(mode=ChannelMode.CLAIMED)
    return empty_world


@pytest.fixture
async def sqlite_world(tmp_path: Path) -> AsyncIterator[World]:
    """The same on SQLite only, for what is a matter of its files; why stands in the docstring of each test."""
    world = await World(Databases(Templates("sqlite", tmp_path, None)).migrated(), Clock(), ScriptedFaults()).open()
    await world.create()
    yield world
    await world.store.close()
