"""Databases of both kinds, and a store with objects below it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store.conftest import logs
from store.databases import Databases, Templates

from garbage.rig import Rig

__all__ = ["logs"]


@pytest.fixture
async def rig(databases: Databases, tmp_path: Path) -> AsyncIterator[Rig]:
    """A store with a collection of two channels and two partitions, on each kind of database."""
    made = await Rig(databases.migrated(), tmp_path).open()
    yield made
    await made.world.store.close()


@pytest.fixture(scope="session")
def sqlite_templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """SQLite databases, for what is a matter of objects and of one process."""
    return Templates("sqlite", tmp_path_factory.mktemp("sqlite"), None)


@pytest.fixture
async def sqlite_rig(sqlite_templates: Templates, tmp_path: Path) -> AsyncIterator[Rig]:
    """The same as `rig`, on SQLite only."""
    taken = Databases(sqlite_templates)
    made = await Rig(taken.migrated(), tmp_path).open()
    yield made
    await made.world.store.close()
    taken.close()
