"""AlterCollection: what it changes, what it leaves alone, and two at once."""

import asyncio

import pyarrow as pa
import pytest

from coordinator.core.model import ChannelMode, Outcome
from coordinator.store import Collection, CollectionChange, NewCollection, TimestampKind
from datacoord.errors import CollectionNotFoundError, InvalidFieldError
from datacoord.limits import PROPERTIES_MAX

from .support import CALLER, World

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])


async def create(world: World) -> None:
    """A collection with a real schema and two properties."""
    schema = SCHEMA.serialize().to_pybytes()
    new = NewCollection(
        "altered", schema, ("k",), 1, ChannelMode.MANAGED, TimestampKind.ORDINAL, "", {"a": "1", "b": "2"}
    )
    await world.store.create_collection(new, caller=CALLER)


async def alter(world: World, *columns: str, remove: str = "", **properties: str) -> tuple[Collection, Outcome]:
    """Changes it."""
    added = pa.schema([pa.field(name, pa.string()) for name in columns]) if columns else None
    change = CollectionChange(added, properties, frozenset(remove.split()))
    return await world.store.alter_collection("altered", change, caller=CALLER)


def columns_of(collection: Collection) -> list[str]:
    """Names of its columns."""
    names: list[str] = pa.ipc.read_schema(pa.py_buffer(collection.arrow_schema)).names
    return names


async def test_a_change_is_stored_and_its_repetition_changes_nothing(empty_world: World) -> None:
    """A caller that lost the answer repeats the call."""
    await create(empty_world)
    changed, outcome = await alter(empty_world, "v", remove="a c", b="3", d="4")
    again, repeated = await alter(empty_world, "v", remove="a c", b="3", d="4")

    assert (outcome, repeated) == (Outcome.APPLIED, Outcome.ALREADY_APPLIED)
    assert columns_of(changed) == ["k", "v"]
    assert dict(changed.properties) == {"b": "3", "d": "4"}
    assert again == changed == await empty_world.store.describe_collection("altered")
    (info,) = (await empty_world.store.recovery_info(collection_name="altered")).items
    assert (info.collection.arrow_schema, info.collection.properties) == (changed.arrow_schema, changed.properties)


async def test_a_refused_change_changes_nothing(empty_world: World) -> None:
    """Half a change would be one that nobody asked for."""
    await create(empty_world)
    before = await empty_world.store.describe_collection("altered")
    with pytest.raises(InvalidFieldError, match="properties"):
        await alter(empty_world, "v", **{f"p{number}": "" for number in range(PROPERTIES_MAX)})
    with pytest.raises(InvalidFieldError, match="'k' is there already"):
        await alter(empty_world, "k", z="1")

    assert await empty_world.store.describe_collection("altered") == before
    with pytest.raises(CollectionNotFoundError):
        await empty_world.store.alter_collection("typo", CollectionChange(), caller=CALLER)


async def test_changes_at_once_are_both_kept(empty_world: World) -> None:
    """Read, change, write of two callers: the one that writes last would undo the other."""
    await create(empty_world)
    await asyncio.gather(*(alter(empty_world, f"c{number}", **{f"p{number}": ""}) for number in range(4)))

    after = await empty_world.store.describe_collection("altered")
    assert sorted(columns_of(after)) == ["c0", "c1", "c2", "c3", "k"]
    assert sorted(after.properties) == ["a", "b", "p0", "p1", "p2", "p3"]
