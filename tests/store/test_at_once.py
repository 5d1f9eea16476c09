"""Checkpoints by one statement that is a transaction of its own, on PostgreSQL: what it refuses, and what its ends mean."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.engine import Connection

from coordinator.core.model import ChannelMode
from coordinator.store import CheckpointMove, WriteAnswer, pipeline
from coordinator.store.engine import AgainError, Database
from datacoord import failpoints
from datacoord.errors import CommitOutcomeUnknownError, StoreUnavailableError

from .databases import Databases
from .other_session import Session, until_waiting
from .support import CALLER, CLAIM_LEASE_MS, Clock, ScriptedFaults, World, dump, position, reasons

pytestmark = pytest.mark.parametrize("templates", ["postgresql"], indirect=True)


class Stage:
    """A store that knows all it needs to move both channels of a claimed collection at once.

    Attributes:
        world: the store.
        other: another session of its database.
        tried: how often it began to do something at once.
        whole: how often it began a transaction of several round trips.
    """

    def __init__(self, world: World, other: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.other = other
        self.tried = self.whole = 0
        self.epochs: dict[str, int] = {}
        monkeypatch.setattr(Database, "write_at_once", self._counted("tried", Database.write_at_once))
        monkeypatch.setattr(Database, "write", self._counted("whole", Database.write))

    def _counted(self, name: str, original: Any) -> Any:
        def counting(*arguments: Any, **named: Any) -> Any:
            setattr(self, name, getattr(self, name) + 1)
            return original(*arguments, **named)

        return counting

    async def claim(self, timestamp: int = 1) -> "Stage":
        """Somebody owns the channels, and nothing about them is unknown any more; moves them three times."""
        claimed = await self.world.store.claim_channels("q", self.world.channels, caller=CALLER)
        self.epochs = {answer.channel_name: answer.info.epoch for answer in claimed if answer.info is not None}
        await self.move(*self.world.channels, timestamp=timestamp)
        await self.move(*self.world.channels, timestamp=timestamp + 1)
        self.ways()
        await self.move(*self.world.channels, timestamp=timestamp + 2)
        assert self.ways() == (1, 0)
        return self

    async def move(
        self, *channels: str, timestamp: int, deadline: float | None = None, off: int = 0
    ) -> list[WriteAnswer]:
        """One call; `off` = how far the first channel's epoch is wrong."""
        entries = [CheckpointMove(name, self.epochs[name], position(timestamp)) for name in channels]
        entries[0] = CheckpointMove(channels[0], entries[0].epoch + off, position(timestamp))
        return await self.world.store.update_channel_checkpoints(entries, caller=CALLER, deadline=deadline)

    def begin(self, *channels: str, timestamp: int) -> asyncio.Task[list[WriteAnswer]]:
        """The same, without waiting for its end."""
        return asyncio.get_running_loop().create_task(self.move(*channels, timestamp=timestamp))

    async def stored(self) -> list[int]:
        """Timestamps of the checkpoints."""
        return [(await self.world.info(channel)).checkpoint.timestamp for channel in self.world.channels]

    def events(self) -> list[tuple[Any, ...]]:
        """The history."""
        return dump(self.world.url)["events"]

    def lease_until_ms(self) -> int:
        """Of the claimant."""
        ((_, _, _, until_ms, _),) = dump(self.world.url)["owners"]
        return int(until_ms)

    def ways(self) -> tuple[int, int]:
        """How often something was tried at once, and how often in several round trips, since this was asked."""
        ways = self.tried, self.whole
        self.tried = self.whole = 0
        return ways


@pytest.fixture
async def stage(claimed_world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """A stage, ready."""
    session = Session(claimed_world.url)
    yield await Stage(claimed_world, session, monkeypatch).claim()
    session.close()


async def test_plain_checkpoints_are_one_statement_and_their_history_is_what_it_was(stage: Stage) -> None:
    """Four round trips are most of what a position costs that is alone; and history is what `verify` and operators go by."""
    before = stage.events()
    stage.world.faults.statements = 0
    stage.world.clock.advance(7)
    calls = [stage.move(stage.world.channels[0], timestamp=t) for t in (5, 6)] + [
        stage.move(*stage.world.channels, timestamp=7)
    ]
    answers = await asyncio.gather(*calls)

    assert [reasons(answer) for answer in answers] == [["APPLIED"], ["APPLIED"], ["APPLIED", "APPLIED"]]
    assert stage.ways() == (1, 0)
    assert stage.world.faults.statements == 1
    assert await stage.stored() == [7, 7]
    numbers, *rest = zip(*stage.events()[len(before) :], strict=True)
    assert list(numbers) == list(range(before[-1][0] + 1, before[-1][0] + 4))
    assert rest[0] == (stage.world.clock.now_ms,) * 3
    assert rest[1:5] == [("UpdateChannelCheckpoint",) * 3, (CALLER,) * 3, (1, 1, 2), (1, 1, 2)]


async def test_what_a_row_refuses_is_done_again_and_nothing_of_the_attempt_is_kept(stage: Stage) -> None:
    """Kept in part, a neighbour's checkpoint moves without its history, or a number of the history is gone."""
    before = stage.events()
    answers = await stage.move(*stage.world.channels, timestamp=9, off=1)

    assert reasons(answers) == ["FENCED", "APPLIED"]
    assert stage.ways() == (1, 1), "not tried a second time: core decides"
    assert await stage.stored() == [3, 9]
    assert [row[0] for row in stage.events()] == [*(row[0] for row in before), before[-1][0] + 1]
    assert reasons(await stage.move(*stage.world.channels, timestamp=10)) == ["APPLIED", "APPLIED"]
    assert stage.ways() == (1, 0)


async def test_a_zombie_that_waits_for_a_claim_in_progress_is_fenced(stage: Stage) -> None:
    """A statement that decides on the rows it saw first, and not on those it locks, writes behind the claimant's back."""
    first, second = stage.world.channels
    stage.other.take(first)
    moving = stage.begin(first, second, timestamp=5)
    await until_waiting(stage.other)
    stage.other.connection.commit()

    assert reasons(await moving) == ["FENCED", "APPLIED"]
    assert await stage.stored() == [3, 5]
    assert stage.ways() == (1, 1)


async def test_the_deadline_ends_a_statement_that_waits_for_a_row(stage: Stage) -> None:
    """A caller that has gone must not hold the one writer. What the statement has done by then is not known to him."""
    channel = stage.world.channels[0]
    stage.other.lock(channel)
    deadline = asyncio.get_running_loop().time() + 1.0
    with pytest.raises(CommitOutcomeUnknownError, match="57014"):
        await stage.move(channel, timestamp=5, deadline=deadline)
    assert asyncio.get_running_loop().time() < deadline + 5
    assert stage.ways() == (1, 0)
    stage.other.connection.rollback()

    assert await stage.stored() == [3, 3]
    assert reasons(await stage.move(channel, timestamp=5)) == ["APPLIED"]


async def test_the_bound_is_gone_with_the_statement(stage: Stage) -> None:
    """The next transaction of the connection would be ended after what was left of another caller's time."""
    loop = asyncio.get_running_loop()
    await stage.move(stage.world.channels[0], timestamp=5, deadline=loop.time() + 2)
    assert stage.ways() == (1, 0)
    shown = await stage.world.store._database.write(
        lambda c, _now_ms: c.execute(text("SHOW statement_timeout")).scalar()
    )

    assert shown == "1min"


async def test_a_connection_that_breaks_in_the_statement_is_unknown_and_settled_by_repeating(stage: Stage) -> None:
    """It commits by itself: nobody can tell how far it came, and "not done" would be a guess."""
    channel = stage.world.channels[0]
    stage.other.lock(channel)
    moving = stage.begin(channel, timestamp=5)
    await until_waiting(stage.other)
    stage.other.end(stage.other.pid_of_writer())
    with pytest.raises(CommitOutcomeUnknownError):
        await moving
    stage.other.connection.rollback()

    assert stage.world.store.statistics.unknown_outcomes == 1
    assert await stage.stored() == [3, 3]
    assert reasons(await stage.move(channel, timestamp=5)) == ["APPLIED"]


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_a_reply_that_is_lost_is_unknown_and_settled_by_repeating(stage: Stage, lost: str) -> None:
    """Done or not, the repetition has the effect of one."""
    channel = stage.world.channels[0]
    stage.world.faults.fail_commit, stage.world.faults.lose_reply = lost == "before", lost == "after"
    with pytest.raises(CommitOutcomeUnknownError):
        await stage.move(channel, timestamp=5)
    assert stage.ways() == (1, 0)

    assert await stage.stored() == [5 if lost == "after" else 3, 3]
    again = await stage.move(channel, timestamp=5)
    assert reasons(again) == ["ALREADY_APPLIED" if lost == "after" else "APPLIED"]
    assert await stage.stored() == [5, 3]


async def test_a_connection_that_ended_while_idle_is_replaced_unnoticed(stage: Stage) -> None:
    """After each restart of the server the first callers would hear "perhaps done" of what never arrived there."""
    stage.other.end(stage.other.pid_of_writer())

    assert reasons(await stage.move(stage.world.channels[0], timestamp=5)) == ["APPLIED"]
    assert stage.ways() == (1, 1), "the usual way finds another connection"
    assert reasons(await stage.move(stage.world.channels[0], timestamp=6)) == ["APPLIED"]
    assert stage.ways() == (1, 0)


async def test_two_statements_that_wait_for_each_other_both_get_through(
    stage: Stage, logs: list[structlog.typing.EventDict]
) -> None:
    """A deadlock is certainly not committed, also where the statement commits by itself: it is tried again at once."""
    await stage.world.store.close()
    # A session looks for a deadlock once, so long after it began to wait: not before there is one.
    stage.world.url += "?options=-c%20deadlock_timeout%3D2s"
    await stage.world.open()
    await stage.claim(4)
    first, second = stage.world.channels
    stage.other.lock(second)
    moving = stage.begin(first, second, timestamp=9)
    await until_waiting(stage.other)
    # The one that finds the deadlock is ended.
    stage.other.connection.execute("SET deadlock_timeout = '60s'")
    await asyncio.to_thread(stage.other.lock, first)
    stage.other.connection.commit()

    assert reasons(await moving) == ["APPLIED", "APPLIED"]
    assert [entry["event"] for entry in logs].count("transaction_retried") == 1
    assert stage.world.store.statistics.unknown_outcomes == 0


TRIGGER = """
CREATE FUNCTION {schema}.at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION {schema}.at_commit();
"""


@contextmanager
def at_commit(url: str, what: str) -> Iterator[None]:
    """Something happens in each COMMIT of what has a history."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as session:
        session.execute(TRIGGER.format(schema="public", what=what).encode())
        try:
            yield
        finally:
            session.execute("DROP FUNCTION public.at_commit CASCADE")


async def test_a_commit_that_warns_is_unknown(stage: Stage) -> None:
    """Its wait for a synchronous standby was cut short: it has happened on this server only."""
    with at_commit(stage.world.url, "RAISE WARNING 'not replicated'"):
        with pytest.raises(CommitOutcomeUnknownError) as raised:
            await stage.move(stage.world.channels[0], timestamp=5)
        assert stage.ways() == (1, 0)

    assert raised.value.__class__ is CommitOutcomeUnknownError
    assert reasons(await stage.move(stage.world.channels[0], timestamp=5)) == ["ALREADY_APPLIED"]


async def test_a_commit_that_the_server_refuses_is_certainly_not_done(stage: Stage) -> None:
    """The statement was answered well, and its transaction fails after that: taken for done, a checkpoint is lost."""
    with at_commit(stage.world.url, "RAISE EXCEPTION 'no' USING ERRCODE = '53100'"):
        with pytest.raises(StoreUnavailableError, match="53100"):
            await stage.move(stage.world.channels[0], timestamp=5)
        assert stage.ways() == (1, 0)

    assert await stage.stored() == [3, 3]
    assert reasons(await stage.move(stage.world.channels[0], timestamp=5)) == ["APPLIED"]


async def test_a_statement_that_the_server_has_forgotten_is_done_another_way(stage: Stage) -> None:
    """A pooler that resets sessions, somebody's DEALLOCATE: the next caller must not hear of that."""
    database = stage.world.store._database
    await database.write(lambda connection, _now_ms: connection.exec_driver_sql("DEALLOCATE ALL"))
    stage.ways()

    assert reasons(await stage.move(stage.world.channels[0], timestamp=5)) == ["APPLIED"]
    assert stage.ways() == (1, 1)
    assert reasons(await stage.move(stage.world.channels[0], timestamp=6)) == ["APPLIED"]
    assert stage.ways() == (1, 0)


def fail(connection: Connection, _now_ms: int) -> None:
    """Work that must be done another way, after the driver has prepared something: then it makes the server forget all."""
    for _ in range(8):
        connection.exec_driver_sql("SELECT %s::int", (1,))
    raise AgainError


async def test_after_a_rollback_statements_are_prepared_anew_and_do_not_pile_up(stage: Stage) -> None:
    """Not prepared, a group is done twice or fails; prepared beside what is there, the server's memory fills."""
    database = stage.world.store._database
    for timestamp in range(5, 15):
        with pytest.raises(AgainError):
            await database.write(fail if timestamp % 2 else lambda *_: fail_at_once())
        await database.write(lambda _connection, _now_ms: None)  # keeps the connection
        stage.ways()
        assert reasons(await stage.move(stage.world.channels[0], timestamp=timestamp)) == ["APPLIED"]
        assert stage.ways() == (1, 0)
    count = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'datacoord%%'"
    assert await database.write(lambda c, _now_ms: c.exec_driver_sql(count).scalar_one()) == 2


def fail_at_once() -> None:
    """Work that must be done another way, where the driver has prepared nothing and the server forgets nothing."""
    raise AgainError


async def test_a_lease_is_renewed_as_soon_as_it_is_due(stage: Stage) -> None:
    """An owner that writes would lose its channels to another one."""
    channel, clock = stage.world.channels[0], stage.world.clock
    until_ms = stage.lease_until_ms()
    clock.now_ms = until_ms - CLAIM_LEASE_MS + CLAIM_LEASE_MS // 16 - 1
    await stage.move(channel, timestamp=5)
    assert stage.ways() == (1, 0)
    assert stage.lease_until_ms() == until_ms

    clock.advance(1)
    await stage.move(channel, timestamp=6)
    assert stage.ways() == (0, 1)
    assert stage.lease_until_ms() == clock.now_ms + CLAIM_LEASE_MS
    await stage.move(channel, timestamp=7)
    assert stage.ways() == (1, 0)


@pytest.mark.parametrize("wrong_ms", [-1e15, 1e15])
async def test_whether_a_lease_is_due_is_said_by_the_database_and_not_by_an_estimate(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, wrong_ms: float
) -> None:
    """Its clock is set, or this machine sleeps: with a wrong estimate a renewal would be left out for as long as it is wrong."""
    world = World(databases.migrated(), Clock(), ScriptedFaults())
    world.clock = None  # type: ignore[assignment] # the database's own
    await world.open()
    await world.create(mode=ChannelMode.CLAIMED)
    session = Session(world.url)
    stage = await Stage(world, session, monkeypatch).claim()
    runner, memory = world.store._runner, world.store._memory
    until_ms = stage.lease_until_ms()
    (owner_id,) = memory.lease_at_least
    # As long ago as would be due.
    memory.lease_at_least[owner_id] -= CLAIM_LEASE_MS
    runner._clock_lead_ms = wrong_ms

    assert reasons(await stage.move(world.channels[0], timestamp=5)) == ["APPLIED"]
    assert stage.ways() == ((1, 1) if wrong_ms < 0 else (0, 1))
    assert stage.lease_until_ms() > until_ms
    assert abs(runner._clock_lead_ms) < 1e14, "it is right again"
    assert reasons(await stage.move(world.channels[0], timestamp=6)) == ["APPLIED"]
    assert stage.ways() == (1, 0)
    session.close()
    await world.store.close()


async def test_the_moments_around_commit_can_be_held_and_the_loop_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tests that kill a coordinator exactly there also ask whether it is healthy meanwhile."""
    monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, str(tmp_path))
    channel = stage.world.channels[0]
    for timestamp, (point, stored) in enumerate({"before_commit": 3, "after_commit": 6}.items(), 5):
        hold = tmp_path / f"coordinator.{point}.hold"
        hold.touch()
        moving = stage.begin(channel, timestamp=timestamp)
        async with asyncio.timeout(20):
            while not any(tmp_path.glob(f"coordinator.{point}.held.*")):  # noqa: ASYNC110, ASYNC240 - a file tells nobody
                await asyncio.sleep(0.005)
        assert await stage.stored() == [stored, 3]
        hold.unlink()
        assert reasons(await moving) == ["APPLIED"]
    assert stage.ways() == (2, 0)


async def test_time_in_the_statement_does_not_count_as_time_in_commit(stage: Stage) -> None:
    """Operators read there what the disk takes; a row that somebody has locked is something else."""
    channel = stage.world.channels[0]
    before = stage.world.store.statistics.commit_seconds
    stage.other.lock(channel)
    moving = stage.begin(channel, timestamp=5)
    await until_waiting(stage.other)
    await asyncio.sleep(0.5)
    stage.other.connection.rollback()
    await moving

    assert 0 < stage.world.store.statistics.commit_seconds - before < 0.4


async def test_nobody_gets_the_answer_to_a_statement_that_was_given_up(stage: Stage) -> None:
    """A coordinator that ends while it waits: what comes late must not be taken for the answer to something else."""
    channel = stage.world.channels[0]
    database = stage.world.store._database
    stage.other.lock(channel)
    kept = database._kept
    assert kept is not None
    driver = kept.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    statement: pipeline.Statement = (b"SELECT 1 FROM channel_state FOR UPDATE", [])
    giving_up = asyncio.get_running_loop().create_task(pipeline.run(driver, [statement], {}))
    await until_waiting(stage.other)
    giving_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving_up
    stage.other.connection.rollback()

    assert driver.closed
    assert reasons(await stage.move(channel, timestamp=5)) == ["APPLIED"]


async def test_more_than_a_socket_takes_is_sent_in_parts_and_answered_whole(stage: Stage) -> None:
    """A group may hold half a megabyte: sent without waiting for room, the loop stands or the rest is lost."""
    url = stage.world.url.replace("+psycopg", "")
    large = bytes(range(256)) * 60_000
    with psycopg.connect(url, autocommit=True) as connection:
        prepared: pipeline.Prepared = {}
        for _ in range(2):
            (answer,) = await pipeline.run(connection, [(b"SELECT $1::bytea", [large])], prepared)
            assert answer.get_value(0, 0) == large
