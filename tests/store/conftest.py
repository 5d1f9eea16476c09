"""Fixtures of the store: databases of each kind, and a store with a collection in it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from coordinator.core.model import ChannelMode

from .databases import Databases, Templates
from .support import Clock, ScriptedFaults, World


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    """What was logged; hundreds of errors on purpose are not written out."""
    with structlog.testing.capture_logs() as captured:
        yield captured


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
