"""Stages on each kind of database."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store.conftest import logs
from store.databases import Databases, Templates

from verify.stage import Copy, Golden, Stage

__all__ = ["logs"]


@pytest.fixture
async def empty_stage(databases: Databases, tmp_path: Path) -> AsyncIterator[Stage]:
    """Two collections, a datanode and a claimant; nothing has landed."""
    stage = await Stage(databases.migrated(), tmp_path).open()
    yield stage
    await stage.world.store.close()


@pytest.fixture
async def stage(empty_stage: Stage) -> Stage:
    """The same with something of everything in it, and a store open on it."""
    return await empty_stage.fill()


@pytest.fixture(scope="session")
def made_golden() -> dict[str, Golden]:
    """What `golden` made, by kind of database; see `made_templates`."""
    return {}


@pytest.fixture(scope="session")
def golden(templates: Templates, tmp_path_factory: pytest.TempPathFactory, made_golden: dict[str, Golden]) -> Golden:
    """A stage with something of everything in it, made once."""
    if templates.kind not in made_golden:
        url = templates.take()
        made_golden[templates.kind] = asyncio.run(Golden.make(url, tmp_path_factory.mktemp("golden")))
        templates.give_back(url)
    return made_golden[templates.kind]


@pytest.fixture
def copy(golden: Golden, databases: Databases, tmp_path: Path) -> Copy:
    """That stage again, for one test to spoil."""
    return golden.copy(databases.migrated(), tmp_path)
