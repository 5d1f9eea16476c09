"""Seeded runs of the client over real sockets, against a cluster that splits, merges, moves, loses, duplicates and delays.

What must hold in every run stands in `socket_run`: every change comes out once and in commit order, at least once before the
sorter; the resolved timestamp only rises, and nothing comes after it; once the faults stop, it reaches the present.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from .naive_feed import NaiveFeed
from .socket_run import SocketRun, SteppedClock
from .tikv_server.cluster import TiKVCluster
from .tikv_server.server import TiKVServer

SEEDS = 150
LONG_SEEDS = 2850


@pytest.fixture
async def server() -> AsyncIterator[TiKVServer]:
    """Sockets of three stores and two members of PD."""
    cluster = TiKVCluster(random.Random(0), SteppedClock().now_ms)
    async with TiKVServer(cluster) as started:
        yield started


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_change_comes_through_the_sockets_once_and_in_order(server: TiKVServer, seed: int) -> None:
    """A lost change is found by nobody; a resolved timestamp that lies makes a checkpoint that lies."""
    await SocketRun(server, seed).run()


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_every_change_comes_through_the_sockets_in_many_more_runs(server: TiKVServer) -> None:
    """The same for seeds that `make test` has no time for."""
    for seed in range(SEEDS, SEEDS + LONG_SEEDS):
        try:
            await SocketRun(server, seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def test_the_simulation_refuses_a_naive_puller(server: TiKVServer) -> None:
    """A judge that lets everything through proves nothing: what one writes on the first day must fail, and soon."""
    refused = 0
    for seed in range(40):
        try:
            await SocketRun(server, seed, NaiveFeed, deaths=0, settle_seconds_max=2).run()
        except AssertionError:
            refused += 1
        if refused == 3:
            return

    pytest.fail(f"only {refused} of 40 runs were refused")


async def test_the_naive_puller_works_on_a_quiet_cluster(server: TiKVServer) -> None:
    """What fails it must be the faults: not the judge, and not a puller that could not work at all."""
    for seed in range(3):
        await SocketRun(server, seed, NaiveFeed, deaths=0, faults=0).run()


async def test_the_simulation_over_sockets_reaches_what_it_is_there_for(server: TiKVServer) -> None:
    """A simulation in which nothing happens proves nothing."""
    happened, errors = Counter[str](), Counter[str]()
    changes = copies = 0
    for seed in range(25):
        run = SocketRun(server, seed)
        await run.run()
        happened.update(run.adversity.happened)
        errors.update(run.errors)
        changes += sum(len(message.entries) for message in run.messages)
        copies += len(run.raw)

    assert changes > 200
    assert copies > changes
    assert errors.keys() >= {"not_leader", "epoch_not_match", "store_stream", "server_is_busy", "region_not_found"}
    assert happened.keys() >= {
        "split", "merge", "transfer_leader", "move_peer", "break_streams", "store_down", "pd_leader_moves", "pd_member_down",
        "send_again", "fall_back", "busy", "lost_prewrite",
    }  # fmt: skip
