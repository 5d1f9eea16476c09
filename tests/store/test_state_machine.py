"""Channels, owners, saves, lost replies, zombies, crashes, session losses and flushes, in any order, against a model."""

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordinator.core.model import BinlogFacts, ChannelMode, ChannelState, LaneSave, Save, SegmentState
from coordinator.core.segments import SealPolicy
from coordinator.store import ChannelRelease, CheckpointMove, DataNodeState
from datacoord.errors import CommitOutcomeUnknownError, DatacoordError, SessionNotFoundError, StoreUnavailableError
from datacoord.paths import BinlogKind
from datacoord.v1 import data_coord_pb2

from .databases import Databases
from .model import UNKNOWN_EPOCH, Channel, Model, Range, Session
from .support import CALLER, CLAIM_LEASE_MS, LEASE_MS, Clock, ScriptedFaults, World, position, reasons

T = TypeVar("T")
NEVER_SEAL = SealPolicy(binlogs_max=10**9, lifetime_ms_max=10**12, idle_ms_max=10**12)
SLOTS = 3

Request = tuple[str, int, list[Range], int | None]
"""A save as it was sent, once: channel, epoch, ranges, checkpoint. It may be delivered any number of times, at any time."""


class StoreMachine(RuleBasedStateMachine):
    """Clients that do whatever they like, right or wrong, against the store and the model at once."""

    requests: Bundle[Request] = Bundle("requests")
    databases: Databases

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.log_ids = itertools.count(1)
        self.epochs_seen: dict[str, list[int]] = {}
        self.checkpoints_seen: dict[str, int] = {}
        self.world = World(self.databases.migrated(), Clock(), ScriptedFaults())
        self.model = Model(LEASE_MS, CLAIM_LEASE_MS, self.world.clock.now_ms)
        self.managed = ""
        self.partitions: list[int] = []
        self.steps = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs on the one loop of this machine."""
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        """Looks at everything once more and closes."""
        if self.managed:
            self._compare_all()
        self.run(self.world.store.close())
        self.runner.close()

    # ---- beginning ----------------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Two MANAGED and two CLAIMED channels, two partitions each."""

        async def begin() -> None:
            await self.world.open(seal_policy=NEVER_SEAL)
            await self.world.create("claimed", ChannelMode.CLAIMED)
            await self._adopt(managed=False)
            await self.world.create("managed")
            await self._adopt(managed=True)

        self.run(begin())
        self.managed = "managed"

    async def _adopt(self, *, managed: bool) -> None:
        for info in (await self.world.store.recovery_info(collection_name=self.world.collection.name)).items:
            self.model.channels[info.channel_name] = Channel(info.channel_name, managed, info.epoch)
            self.epochs_seen[info.channel_name] = [info.epoch]
        self.partitions += [self.world.default, self.world.other]

    def partitions_of(self, name: str) -> list[int]:
        """Partitions of a channel's collection."""
        return self.partitions[2:] if self.model.channels[name].managed else self.partitions[:2]

    def channel_names(self, *, managed: bool) -> list[str]:
        """Channels of a mode."""
        return [c.name for c in self.model.channels.values() if c.managed == managed]

    # ---- saves --------------------------------------------------------------------------------------------------------------

    @rule(target=requests, data=st.data())
    def prepare(self, data: st.DataObject) -> Request:
        """A writer of now or of long ago makes up its save: mostly right, sometimes not."""
        channel = data.draw(st.sampled_from(sorted(self.model.channels)), label="channel")
        facts = self.model.channels[channel]
        epoch = data.draw(
            st.sampled_from([*self.epochs_seen[channel], *self.epochs_seen[channel][-1:] * 8]), label="epoch"
        )
        ranges = []
        for partition in data.draw(st.sets(st.sampled_from(self.partitions_of(channel)), max_size=2), label="lanes"):
            progress = facts.lane(partition).progress
            start = data.draw(st.sampled_from([progress] * 9 + [0, max(0, progress - 1), progress + 1]), label="from")
            end = start + data.draw(st.integers(1, 4), label="length")
            lowest = min(max(start, facts.checkpoint) + 1, end)
            ts_min = data.draw(st.sampled_from([lowest] * 4 + [start + 1]), label="ts_min")
            ranges.append(
                Range(partition, start, end, ts_min, next(self.log_ids), data.draw(st.booleans(), label="seal"))
            )
        checkpoint = data.draw(st.none() | st.integers(max(0, facts.checkpoint - 1), facts.checkpoint + 3), label="C'")
        return channel, epoch, ranges, checkpoint

    @staticmethod
    def _part(request: Request) -> Save:
        channel, epoch, ranges, checkpoint = request
        lanes = tuple(
            LaneSave(
                r.partition,
                r.start,
                r.end,
                (BinlogFacts(BinlogKind.INSERT, 0, r.log, 1, r.ts_min, r.end, 1, 1),),
                r.seal,
            )
            for r in ranges
        )
        return Save(channel, epoch, lanes, None if checkpoint is None else position(checkpoint))

    @rule(sent=st.lists(requests, min_size=1, max_size=4))
    def deliver(self, sent: list[Request]) -> None:
        """Requests arrive at once, first, again, or long after their writer died."""
        calls = [self.world.store.save_binlog_paths([self._part(request)], caller=CALLER) for request in sent]
        answers = [answer for (answer,) in self.run(_gather(calls))]
        for request, answer in zip(sent, answers, strict=True):
            expected, lanes = self.model.save(*request)
            assert reasons([answer]) == [expected]
            assert [lane.outcome.name for lane in answer.lanes] == lanes

    @rule(sent=st.lists(requests, min_size=1, max_size=3), done=st.booleans())
    def deliver_and_lose_the_reply(self, sent: list[Request], done: bool) -> None:
        """COMMIT fails or its reply is lost; the caller cannot know which."""
        self.world.faults.lose_reply, self.world.faults.fail_commit = done, not done
        calls = [self.world.store.save_binlog_paths([self._part(request)], caller=CALLER) for request in sent]
        assert {type(answer) for answer in self.run(_gather(calls))} == {CommitOutcomeUnknownError}
        if done:
            for request in sent:
                self.model.save(*request)

    @rule(request=requests, statement=st.integers(1, 12))
    def deliver_and_fail_a_statement(self, request: Request, statement: int) -> None:
        """The database fails in the middle: nothing is done, and the caller is told so."""
        self.world.faults.fail_statement = statement
        call = self.world.store.save_binlog_paths([self._part(request)], caller=CALLER)
        (answer,) = self.run(_gather([call]))
        if self.world.faults.fail_statement == 0:
            assert isinstance(answer, StoreUnavailableError)
        else:
            assert reasons(answer) == [self.model.save(*request)[0]]
        self.world.faults.fail_statement = 0

    # ---- checkpoints --------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def move_checkpoints(self, data: st.DataObject) -> None:
        """Entries of any channels and epochs, some channels twice, some behind."""
        entries = []
        for _ in range(data.draw(st.integers(1, 4))):
            channel = data.draw(st.sampled_from(sorted(self.model.channels)), label="channel")
            seen = self.epochs_seen[channel]
            epoch = data.draw(st.sampled_from([*seen, *seen[-1:] * 12]), label="epoch")
            ahead = data.draw(st.sampled_from([1, 1, 1, 2, 5, 0, -1]), label="ahead")
            entries.append((channel, epoch, max(0, self.model.channels[channel].checkpoint + ahead)))
        moves = [CheckpointMove(channel, epoch, position(timestamp)) for channel, epoch, timestamp in entries]
        answers = self.run(self.world.store.update_channel_checkpoints(moves, caller=CALLER))
        assert reasons(answers) == [self.model.move(*entry) for entry in entries]

    # ---- owners -------------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """An owner of now or before hands its channel back."""
        channel = data.draw(st.sampled_from(sorted(self.model.channels)), label="channel")
        epoch = data.draw(st.sampled_from([*self.epochs_seen[channel], self.epochs_seen[channel][-1]]), label="epoch")
        checkpoint = self.model.channels[channel].checkpoint
        timestamp = data.draw(st.none() | st.integers(max(0, checkpoint - 1), checkpoint + 2), label="C'")
        release = ChannelRelease(channel, epoch, None if timestamp is None else position(timestamp))
        answers = self.run(self.world.store.release_channels([release], caller=CALLER))
        assert reasons(answers) == [self.model.release(channel, epoch, timestamp)]

    @rule(name=st.sampled_from(["q1", "q2"]), force=st.sampled_from([False, False, False, True]))
    def claim(self, name: str, force: bool) -> None:
        """A claimant takes what it gets."""
        wanted = sorted(self.model.channels)
        answers = self.run(self.world.store.claim_channels(name, wanted, force=force, caller=CALLER))
        for channel, answer in zip(wanted, answers, strict=True):
            expected = self.model.claim(channel, name, force=force)
            if answer.info is None:
                assert answer.refusal is not None
                assert answer.refusal.reason.value == expected
            else:
                assert expected == "CLAIMED"
                self._adopt_epoch(channel, answer.info.epoch)
                assert answer.info.owner == name

    @rule(slot=st.integers(0, SLOTS - 1))
    def register(self, slot: int) -> None:
        """A task starts, for the first time or again."""
        registered = self.run(
            self.world.store.register_datanode("job", slot, [self.managed], host="h", pid=1, caller=CALLER)
        )
        for session in self.model.sessions.values():
            if session.slot == slot and not session.ended:
                self.model.end_session(session)
        node_id = registered.node_id
        assert node_id not in self.model.sessions
        name = f"job/{slot}#{node_id}"
        self.model.sessions[node_id] = Session(node_id, name, slot, self.model.now_ms)

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        """A session begins to watch, or finds out that it is over."""
        session = data.draw(st.sampled_from(list(self.model.sessions.values())), label="session")
        (answer,) = self.run(_gather([self.world.store.watch_datanode(session.node_id)]))
        if session.ended:
            assert isinstance(answer, SessionNotFoundError)
            return
        session.watching, session.heard_ms = True, self.model.now_ms
        expected = {
            (c.name, c.epoch, c.releasing or session.stopping, c.flush_timestamp()) for c in self.model.owned(session)
        }
        assert {(w.channel_name, w.epoch, w.release, w.flush_timestamp) for w in answer.channels} == expected

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        """A heartbeat, perhaps the last one."""
        session = data.draw(st.sampled_from(list(self.model.sessions.values())), label="session")
        names = data.draw(st.sets(st.sampled_from(self.channel_names(managed=True))), label="channels")
        consumed = {
            n: self.model.channels[n].checkpoint + data.draw(st.integers(0, 6), label="consumed") for n in names
        }
        stopping = data.draw(st.sampled_from([False] * 5 + [True]), label="stopping")
        ended = data.draw(st.sampled_from([False] * 9 + [True]), label="ended")
        message = data_coord_pb2.ReportDataNodeTtMsgsRequest(
            node_id=session.node_id,
            msgs=[data_coord_pb2.DataNodeTtMsg(channel_name=n, timestamp=t) for n, t in consumed.items()],
            stopping=stopping,
            ended=ended,
        )
        (answer,) = self.run(_gather([self.world.store.report_datanode(message, caller=CALLER)]))
        if session.ended:
            assert isinstance(answer, SessionNotFoundError)
            return
        session.heard_ms, session.reported = self.model.now_ms, consumed
        if ended:
            self.model.end_session(session)
        elif stopping and not session.stopping:
            session.stopping = True
            for channel in self.model.owned(session):
                channel.releasing = True
        assert answer.state is self._state(session)

    def _state(self, session: Session) -> DataNodeState:
        if session.ended:
            return DataNodeState.ENDED
        if session.stopping:
            return DataNodeState.STOPPING
        if not session.watching:
            return DataNodeState.INITIALIZING
        return DataNodeState.HEALTHY if self.model.owned(session) else DataNodeState.IDLE

    @rule()
    def assign(self) -> None:
        """The job: only what is free, only to who watches, and everything that is free if somebody does."""
        before = {c.name: c.owner for c in self.model.channels.values()}
        self.run(self.world.store.run_assignment_job())
        takers = [s for s in self.model.sessions.values() if s.watching and not s.ended and not s.stopping]
        for row in self.run(self.world.store.list_channels(collection_name=self.managed)).items:
            channel = self.model.channels[row.channel_name]
            if row.owner != before[channel.name]:
                assert before[channel.name] == ""
                session = self.model.sessions[row.node_id]
                assert session in takers
                self.model.assigned(channel, session)
                self._adopt_epoch(channel.name, row.epoch)
            elif not channel.dropped and not row.owner:
                assert not takers
        for session in takers:
            desired = self.run(self.world.store.desired_state(session.node_id))
            for watched in desired.channels:
                # Asked for, because another session has two fewer.
                channel = self.model.channels[watched.channel_name]
                channel.releasing = channel.releasing or watched.release

    @rule(ms=st.sampled_from([1, 1, 1, 2 * CLAIM_LEASE_MS]))
    def wait(self, ms: int) -> None:
        """Time passes: hardly any, or more than any lease."""
        self.world.clock.advance(ms)
        self.model.now_ms += ms

    @rule()
    def lose_sessions(self) -> None:
        """The job: whoever was not heard of is gone."""
        expected = {session.node_id for session in self.model.expired()}
        assert set(self.run(self.world.store.run_lease_job()).ended) == expected
        for node_id in expected:
            self.model.end_session(self.model.sessions[node_id])

    # ---- flush, drops, crashes ----------------------------------------------------------------------------------------------

    @rule(timestamp=st.sampled_from([0, 0, 0, 3, 8, 15]), collection=st.sampled_from(["managed", "claimed"]))
    def flush(self, timestamp: int, collection: str) -> None:
        """Somebody wants everything durable."""
        flush = self.run(self.world.store.flush(collection, timestamp, caller=CALLER))
        names = self.channel_names(managed=collection == "managed")
        targets = self.model.flush(flush.flush_id, names, timestamp)
        assert {t.channel_name: t.timestamp for t in flush.targets} == targets

    @rule(request=requests, really=st.sampled_from([False, False, True]))
    def drop_channel(self, request: Request, really: bool) -> None:
        """A drop with its last save; rarely, for nothing comes after it."""
        channel, epoch, ranges, checkpoint = request
        if really or self.model.channels[channel].dropped or epoch != self.model.channels[channel].epoch:
            answer = self.run(self.world.store.drop_virtual_channel(self._part(request), caller=CALLER))
            assert reasons([answer]) == [self.model.drop(channel, epoch, ranges, checkpoint)]

    @rule(really=st.sampled_from([False] * 4 + [True]))
    def drop_partition(self, really: bool) -> None:
        """A partition goes, in every channel of its collection."""
        if really:
            self.run(self.world.store.drop_partition(self.managed, "other", caller=CALLER))
            for name in self.channel_names(managed=True):
                lane = self.model.channels[name].lane(self.partitions[3])
                lane.dropped = True
                lane.drop()

    @rule()
    def crash(self) -> None:
        """The process dies, another one opens the database; what was acknowledged is there."""

        async def crash() -> None:
            await self.world.store.abandon()
            await self.world.open(seal_policy=NEVER_SEAL)

        self.run(crash())

    # ---- what must always be so ---------------------------------------------------------------------------------------------

    def _adopt_epoch(self, name: str, epoch: int) -> None:
        channel = self.model.channels[name]
        if channel.epoch == UNKNOWN_EPOCH:
            assert epoch > max(itertools.chain(*self.epochs_seen.values())), "an epoch came back"
            channel.epoch = epoch
            self.epochs_seen[name].append(epoch)
        assert channel.epoch == epoch

    @precondition(lambda self: self.managed)
    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        """Every channel after every step, everything else every few steps."""
        rows = {row.channel_name: row for row in self.run(self.world.store.list_channels()).items}
        changed = sorted((row.epoch, name) for name, row in rows.items())
        for epoch, name in changed:
            self._adopt_epoch(name, epoch)
        for name, channel in self.model.channels.items():
            row = rows[name]
            assert row.state is (ChannelState.DROPPED if channel.dropped else ChannelState.ACTIVE)
            assert row.owner == channel.owner
            assert row.checkpoint == (position(channel.checkpoint) if channel.checkpoint else row.checkpoint)
            assert row.checkpoint.timestamp == channel.checkpoint
            assert row.flush_timestamp == (0 if channel.dropped else channel.flush_timestamp())
            assert self.checkpoints_seen.get(name, 0) <= channel.checkpoint, "a checkpoint went back"
            self.checkpoints_seen[name] = channel.checkpoint
            progress = {lane.partition_id: lane.progress for lane in row.lanes if lane.progress}
            assert progress == {p: lane.progress for p, lane in channel.lanes.items() if lane.progress}
        self.steps += 1
        if self.steps % 5 == 0:
            self._compare_all()

    def _compare_all(self) -> None:
        self._compare_segments()
        for flush_id in self.model.flushes:
            assert self.run(self.world.store.get_flush_state(flush_id)).flushed == self.model.flushed(flush_id)
        for collection in ("managed", "claimed"):
            for info in self.run(self.world.store.recovery_info(collection_name=collection)).items:
                assert info.consumed_timestamp == self.model.channels[info.channel_name].consumed
        assert self.world.store.statistics.invariant_violations == 0

    def _compare_segments(self) -> None:
        stored: dict[tuple[str, int], list[tuple[int, SegmentState]]] = {}
        for row in self.run(self.world.store.list_segments()).items:
            stored.setdefault((row.channel_name, row.partition_id), []).append((row.binlogs, row.state))
        seen: dict[tuple[str, int], list[int]] = {}
        for collection in ("managed", "claimed"):
            for listed in self.run(self.world.store.list_binlogs(collection)).items:
                for binlog in listed.binlogs:
                    seen.setdefault((listed.channel_name, binlog.partition_id), []).append(binlog.facts.log_id)
        expected, visible = {}, {}
        for channel in self.model.channels.values():
            for partition, lane in channel.lanes.items():
                if lane.segments:
                    expected[channel.name, partition] = [
                        (len(s.logs), _shown(s.growing, s.dropped, channel.checkpoint >= s.end)) for s in lane.segments
                    ]
                logs = [log for s in lane.segments if not s.dropped for log in s.logs]
                if logs:
                    visible[channel.name, partition] = logs
        assert stored == expected
        assert seen == visible


def _shown(growing: bool, dropped: bool, passed: bool) -> SegmentState:
    if dropped:
        return SegmentState.DROPPED
    if growing:
        return SegmentState.GROWING
    return SegmentState.FLUSHED if passed else SegmentState.SEALED


async def _gather(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All at once; what they answer or raise."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, DatacoordError):
            raise answer
    return list(answers)


def test_the_store_and_the_model_agree_whatever_happens(databases: Databases) -> None:
    """The one test that nobody thought of every case of."""
    # Each statement is a round trip to the server there.
    examples = 30 if databases.kind == "sqlite" else 12
    machine = type("Machine", (StoreMachine,), {"databases": databases})
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
