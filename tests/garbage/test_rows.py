"""Rows of what is dropped go in short transactions, and others write in between."""

from contextlib import suppress

import pytest
from store.support import dump

from datacoord.errors import CommitOutcomeUnknownError, StoreUnavailableError
from datacoord.paths import BinlogKind
from garbage.rig import BOTH, Rig


async def test_rows_go_in_short_transactions_between_which_others_write(rig: Rig) -> None:
    """A million rows in one statement would make every save wait."""
    (first, second), world = rig.world.channels, rig.world
    await rig.land(first, 0, 10, kinds=(BinlogKind.INSERT,) * 12)
    await rig.drop_channel(first)
    saved = 0
    at = 0

    async def write(_seconds: float) -> None:
        nonlocal saved, at
        await rig.land(second, at, at + 1)
        saved, at = saved + 1, at + 1

    job = rig.job(delete_rows_max=3)
    job._rest = write
    await job()

    assert saved >= 3
    assert (await world.store.garbage.status()).last_round.binlog_rows_deleted == 12


@pytest.mark.parametrize("moment", ["statement", "commit", "reply"])
async def test_a_round_may_fail_at_any_statement_and_be_repeated(rig: Rig, moment: str) -> None:
    """Rows half gone, a lost COMMIT, a lost reply: the next round finds what is left, and nothing that lives is touched."""
    (first, second), world = rig.world.channels, rig.world
    await rig.land(first, 0, 10, kinds=BOTH * 2)
    await rig.land(first, 0, 10, partition=world.other)
    kept = await rig.land(second, 0, 10, kinds=BOTH)
    rig.write(second, await world.epoch(second), 0, 10)
    await rig.drop_channel(first)
    failed = 0
    for number in range(1, 200):
        faults = world.faults
        if moment == "statement":
            faults.fail_statement = number
        else:
            faults.fail_commit, faults.lose_reply = moment == "commit", moment == "reply"
        world.clock.advance(120_000)
        with suppress(StoreUnavailableError, CommitOutcomeUnknownError):
            await rig.job()()
        fired = faults.fail_statement == 0 if moment == "statement" else True
        failed += fired
        faults.fail_statement, faults.fail_commit, faults.lose_reply = 0, False, False
        assert set(kept.paths) <= rig.files()
        if not fired or number > 25:
            break

    done = await rig.collect()

    assert failed >= 5
    assert done.error == ""
    assert rig.files() == set(kept.paths)
    assert [row[1] for row in dump(world.url)["segments"]] == [rig.channel_ids[second]]


async def test_the_window_of_a_segment_holds_the_ranges_of_its_binlogs(sqlite_rig: Rig) -> None:
    """The read that judges looks up rows by it: were it narrower, registered objects would seem to have no row."""
    rig = sqlite_rig
    channel = rig.world.channels[0]
    for start, end in ((0, 5), (5, 6), (6, 50), (50, 51)):
        await rig.land(channel, start, end, kinds=BOTH)
    tables = dump(rig.world.url)
    windows = {row[0]: (row[9], row[10]) for row in tables["segments"]}
    found = [(windows[row[1]], row[6], row[7]) for row in tables["binlogs"]]

    assert len(found) == 8
    assert all(window[0] <= start < end <= window[1] for window, start, end in found)
