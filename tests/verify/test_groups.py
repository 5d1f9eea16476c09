"""The history of a group says what happened in the order in which it did, whatever calls share the transaction."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from store.databases import Databases
from store.support import CALLER, Clock, ScriptedFaults, World, lane, position, reasons, save

from coordinator.store import ChannelRelease, CheckpointMove
from coordinator.store.verify import verify
from verify.test_whatever_happens import EverythingIsThere

Call = Callable[[World, str, int], Coroutine[Any, Any, Any]]


async def _late_checkpoint(world: World, name: str, epoch: int) -> Any:
    """Beside an entry that is refused, so that core decides."""
    moves = [CheckpointMove(name, epoch, position(10)), CheckpointMove(world.channels[1], 999, position(10))]
    return await world.store.update_channel_checkpoints(moves, caller=CALLER)


async def _drop(world: World, name: str, epoch: int) -> Any:
    return await world.store.drop_virtual_channel(save(name, epoch), caller=CALLER)


async def _release(world: World, name: str, epoch: int) -> Any:
    """A graph gives its channel back; its last save is still on the way."""
    return await world.store.release_channels([ChannelRelease(name, epoch, position(10))], caller=CALLER)


@pytest.mark.parametrize("saved_first", [False, True])
@pytest.mark.parametrize("beside", [_late_checkpoint, _drop, _release])
async def test_a_save_and_what_shares_its_transaction_leave_a_history_that_can_be_followed(
    databases: Databases, beside: Call, saved_first: bool
) -> None:
    """`datacoord verify` would call a sound database damaged, and whoever trusts it would restore an older one."""
    world = await World(databases.migrated(), Clock(), ScriptedFaults()).open()
    await world.create()
    await world.start_datanode()
    name = world.channels[0]
    epoch = await world.epoch(name)
    await world.save(name, lane(world.default, 0, 5), epoch=epoch, checkpoint=5)

    saving = world.store.save_binlog_paths([save(name, epoch, lane(world.default, 5, 20), checkpoint=6)], caller=CALLER)
    other = beside(world, name, epoch)
    answers = await asyncio.gather(*((saving, other) if saved_first else (other, saving)))

    assert reasons(answers[0 if saved_first else 1]) == ["APPLIED"]
    report = verify(world.url, storage_root="/objects", open_store=lambda _: EverythingIsThere(world.url))
    assert report.findings == []
    await world.store.close()
