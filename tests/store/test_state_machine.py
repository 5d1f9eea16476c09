"""Channels, owners, saves, lost replies, zombies, crashes, session losses, flushes and drops, in any order, against a model."""

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordinator.core.model import BinlogFacts, ChannelMode, ChannelState, LaneSave, Outcome, Save, SegmentState
from coordinator.core.segments import SealPolicy
from coordinator.store import ChannelRelease, CheckpointMove, DataNodeState
from coordinator.store import Session as StoreSession
from datacoord.errors import (
    ChannelDroppedError,
    CollectionNotFoundError,
    CommitOutcomeUnknownError,
    DatacoordError,
    SessionNotFoundError,
    StoreUnavailableError,
    WrongModeError,
)
from datacoord.paths import BinlogKind
from datacoord.v1 import data_coord_pb2

from .databases import Databases
from .model import UNKNOWN_EPOCH, Channel, Model, Range, Segment, Session
from .support import CALLER, CLAIM_LEASE_MS, LEASE_MS, Clock, ScriptedFaults, World, position, reasons

T = TypeVar("T")
NEVER_SEAL = SealPolicy(binlogs_max=10**9, lifetime_ms_max=10**12, idle_ms_max=10**12)
SLOTS = 3

Request = tuple[str, int, list[Range], int | None]
"""A save as it was sent, once: channel, epoch, ranges, checkpoint. It may be delivered any number of times, at any time."""


class StoreMachine(RuleBasedStateMachine):
    """Clients that do whatever they like, right or wrong, against the store and the model at once."""

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
        self.live = {"managed", "claimed"}
        self.partition_is_dropped = False
        self.partitions: list[int] = []
        self.sent: list[Request] = []
        self.wishes: dict[str, int] = {}
        self.steps = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs on the one loop of this machine."""
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        """Looks at everything once more and closes."""
        try:
            if self.managed:
                self._compare_all()
        finally:
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

    # ---- what clients do ----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), times=st.integers(2, 5))
    def write(self, data: st.DataObject, times: int) -> None:
        """Saves, saves again, and checkpoint updates: most of what happens."""
        for _ in range(times):
            what = data.draw(st.sampled_from(["send"] * 5 + ["repeat"] * 2 + ["move"] * 3), label="what")
            if what == "send":
                new = [self._prepare(data) for _ in range(data.draw(st.integers(1, 3), label="requests"))]
                self.sent += new
                fault = data.draw(st.sampled_from(["", "", "", "", "reply", "commit", "statement"]), label="fault")
                self._deliver(new, fault)
            elif what == "repeat" and self.sent:
                again = data.draw(st.lists(st.sampled_from(self.sent), min_size=1, max_size=4), label="again")
                self._deliver(again, "")
            else:
                self._move(data)

    def _epoch(self, data: st.DataObject, channel: str) -> int:
        """Mostly the epoch of now, sometimes one of long ago."""
        seen = self.epochs_seen[channel]
        return data.draw(st.sampled_from([*seen, *seen[-1:] * 12]), label="epoch")

    def _prepare(self, data: st.DataObject) -> Request:
        """A writer of now or of long ago makes up its save: mostly right, sometimes not."""
        channel = data.draw(st.sampled_from(sorted(self.model.channels)), label="channel")
        facts = self.model.channels[channel]
        epoch = self._epoch(data, channel)
        ranges = []
        default, other = self.partitions_of(channel)
        for partition in data.draw(st.sampled_from([[default], [other], [default, other], []]), label="lanes"):
            progress = facts.lane(partition).progress
            wrong = [0, max(0, progress - 1), progress + 1]
            start = data.draw(st.sampled_from([progress] * 12 + wrong), label="from")
            end = max(start, facts.checkpoint) + data.draw(st.integers(1, 4), label="length")
            right = max(start, facts.checkpoint) + 1
            ts_min = data.draw(st.sampled_from([right] * 9 + [start + 1]), label="ts_min")
            seal = data.draw(st.sampled_from([False, False, True]), label="seal")
            ranges.append(Range(partition, start, end, ts_min, next(self.log_ids), seal))
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

    def _deliver(self, sent: Sequence[Request], fault: str) -> None:
        """Requests arrive at once: for the first time, again, or long after their writer died; the database may fail."""
        faults = self.world.faults
        faults.lose_reply, faults.fail_commit = fault == "reply", fault == "commit"
        faults.fail_statement = 2 + len(self.sent) % 9 if fault == "statement" else 0
        calls = [self.world.store.save_binlog_paths([self._part(request)], caller=CALLER) for request in sent]
        answers = self.run(_gather(calls))
        if fault in {"reply", "commit"}:
            # The caller cannot know which.
            assert {type(answer) for answer in answers} == {CommitOutcomeUnknownError}
        elif fault == "statement" and not faults.fail_statement:
            assert {type(answer) for answer in answers} == {StoreUnavailableError}
        faults_fired = fault == "commit" or (fault == "statement" and not faults.fail_statement)
        faults.fail_statement = 0
        if faults_fired:
            return
        for request, answer in zip(sent, answers, strict=True):
            expected, lanes = self.model.save(*request)
            if fault != "reply":
                assert reasons(answer) == [expected]
                assert [lane.outcome.name for lane in answer[0].lanes] == lanes

    def _move(self, data: st.DataObject) -> None:
        """Entries of any channels and epochs, some channels twice, some behind."""
        entries = []
        for _ in range(data.draw(st.integers(1, 4), label="entries")):
            channel = data.draw(st.sampled_from(sorted(self.model.channels)), label="channel")
            ahead = data.draw(st.sampled_from([1, 1, 1, 2, 5, 0, -1]), label="ahead")
            timestamp = max(0, self.model.channels[channel].checkpoint + ahead)
            entries.append((channel, self._epoch(data, channel), timestamp))
        moves = [CheckpointMove(channel, epoch, position(timestamp)) for channel, epoch, timestamp in entries]
        answers = self.run(self.world.store.update_channel_checkpoints(moves, caller=CALLER))
        assert reasons(answers) == [self.model.move(*entry) for entry in entries]

    # ---- owners -------------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def own(self, data: st.DataObject) -> None:
        """Datanodes and claimants come, go, and say how they are."""
        what = data.draw(
            st.sampled_from(["start"] * 3 + ["report"] * 3 + ["release"] * 2 + ["claim"] * 2 + ["watch", "place"]),
            label="what",
        )
        if what == "start" and self.managed not in self.live:
            (answer,) = self.run(_gather([self._registering(0)]))
            assert isinstance(answer, CollectionNotFoundError)
        elif what == "start":
            node_id = self._register(data.draw(st.integers(0, SLOTS - 1), label="slot"))
            if data.draw(st.sampled_from([True, True, True, False]), label="watches"):
                self._watch(self.model.sessions[node_id])
                self._assign()
        elif what == "claim":
            force = data.draw(st.sampled_from([False, False, False, True]), label="force")
            self._claim(data.draw(st.sampled_from(["q1", "q2"]), label="name"), force=force)
        elif what == "release":
            self._release(data)
        elif what == "place":
            self._place(data)
        elif self.model.sessions:
            # The newest ones live.
            session = data.draw(st.sampled_from(list(self.model.sessions.values())[-5:]), label="session")
            self._watch(session) if what == "watch" else self._report(data, session)

    def _release(self, data: st.DataObject) -> None:
        """An owner of now or before hands its channel back."""
        channel = data.draw(st.sampled_from(sorted(self.model.channels)), label="channel")
        epoch = self._epoch(data, channel)
        checkpoint = self.model.channels[channel].checkpoint
        timestamp = data.draw(st.none() | st.integers(max(0, checkpoint - 1), checkpoint + 2), label="C'")
        release = ChannelRelease(channel, epoch, None if timestamp is None else position(timestamp))
        answers = self.run(self.world.store.release_channels([release], caller=CALLER))
        assert reasons(answers) == [self.model.release(channel, epoch, timestamp)]

    def _takers(self) -> list[Session]:
        return [s for s in self.model.sessions.values() if s.watching and not s.ended and not s.stopping]

    def _place(self, data: st.DataObject) -> None:
        """An operator moves a channel, to somebody or to anybody else."""
        channel = self.model.channels[data.draw(st.sampled_from(sorted(self.model.channels)), label="channel")]
        target = data.draw(st.sampled_from([0, *list(self.model.sessions)[-4:]]), label="target")
        takers = {session.node_id for session in self._takers()}
        owner_id = next((s.node_id for s in self.model.sessions.values() if s.name == channel.owner), 0)
        (answer,) = self.run(_gather([self.world.store.move_channel(channel.name, target, caller=CALLER)]))
        if channel.dropped:
            assert isinstance(answer, ChannelDroppedError)
        elif not channel.managed:
            assert isinstance(answer, WrongModeError)
        elif not ({target} & takers if target else takers - {owner_id}):
            assert isinstance(answer, SessionNotFoundError)
        else:
            there = owner_id == target and not channel.releasing
            assert answer.outcome.name == ("ALREADY_APPLIED" if there else "APPLIED")
            assert (answer.node_id, answer.epoch) == (owner_id, channel.epoch)
            channel.releasing = channel.releasing or (owner_id != 0 and not there)
            self.wishes[channel.name] = target

    def _claim(self, name: str, *, force: bool) -> None:
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

    def _register(self, slot: int) -> int:
        """A task starts, for the first time or again."""
        registered = self.run(self._registering(slot))
        for session in self.model.sessions.values():
            if session.slot == slot and not session.ended:
                self.model.end_session(session)
        node_id = registered.node_id
        assert node_id not in self.model.sessions
        name = f"job/{slot}#{node_id}"
        self.model.sessions[node_id] = Session(node_id, name, slot, self.model.now_ms)
        return node_id

    def _registering(self, slot: int) -> Coroutine[Any, Any, StoreSession]:
        return self.world.store.register_datanode("job", slot, [self.managed], host="h", pid=1, caller=CALLER)

    def _watch(self, session: Session) -> None:
        """A session begins to watch, or finds out that it is over."""
        (answer,) = self.run(_gather([self.world.store.watch_datanode(session.node_id)]))
        if session.ended:
            assert isinstance(answer, SessionNotFoundError)
            return
        session.watching, session.heard_ms = True, self.model.now_ms
        expected = {
            (c.name, c.epoch, c.releasing or session.stopping, c.flush_timestamp()) for c in self.model.owned(session)
        }
        assert {(w.channel_name, w.epoch, w.release, w.flush_timestamp) for w in answer.channels} == expected
        # Nobody is told of partitions of channels that are not theirs.
        dropped = (self.partitions[3],) if expected and self.partition_is_dropped else ()
        assert answer.dropped_partitions == dropped

    def _report(self, data: st.DataObject, session: Session) -> None:
        """A heartbeat, perhaps the last one."""
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

    def _assign(self) -> None:
        """The job: only what is free, only to who watches, and everything that is free if somebody does."""
        before = {c.name: c.owner for c in self.model.channels.values()}
        self.run(self.world.store.run_assignment_job())
        takers = self._takers()
        for row in self.run(self.world.store.list_channels()).items:
            channel = self.model.channels[row.channel_name]
            if not channel.managed:
                continue
            if row.owner != before[channel.name]:
                assert before[channel.name] == ""
                session = self.model.sessions[row.node_id]
                assert session in takers
                wish = self.wishes.pop(channel.name, 0)
                assert row.node_id == wish or wish not in {taker.node_id for taker in takers}
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

    # ---- what happens to them -----------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        """Time, crashes, jobs, drops."""
        often = ["flush", "flush", "leases", "crash", "assign"]
        rare = ["channel", "partition", "collection", "segment", "segment", "segments"]
        what = data.draw(st.sampled_from(often * 3 + rare), label="what")
        if what == "flush":
            self._flush(data)
        elif what == "leases":
            self._wait(data.draw(st.sampled_from([1, 2 * CLAIM_LEASE_MS]), label="ms"))
            self._lose_sessions()
        elif what == "crash":
            self._crash()
        elif what == "assign":
            self._assign()
        elif what == "channel" and self.sent:
            self._drop_channel(data.draw(st.sampled_from(self.sent), label="last save"))
        elif what == "partition":
            self._drop_partition()
        elif what == "collection" and data.draw(st.sampled_from([True, False, False]), label="really"):
            self._drop_collection(data.draw(st.sampled_from(["managed", "claimed"]), label="collection"))
        elif what == "segment":
            self._set_segment_state(data)
        elif what == "segments":
            self._mark_dropped(data)

    def _wait(self, ms: int) -> None:
        """Time passes: hardly any, or more than any lease."""
        self.world.clock.advance(ms)
        self.model.now_ms += ms

    def _lose_sessions(self) -> None:
        """The job: whoever was not heard of is gone."""
        expected = {session.node_id for session in self.model.expired()}
        assert set(self.run(self.world.store.run_lease_job()).ended) == expected
        for node_id in expected:
            self.model.end_session(self.model.sessions[node_id])

    def _drop_channel(self, request: Request) -> None:
        """A drop with its last save."""
        channel, epoch, ranges, checkpoint = request
        answer = self.run(self.world.store.drop_virtual_channel(self._part(request), caller=CALLER))
        assert reasons([answer]) == [self.model.drop(channel, epoch, ranges, checkpoint)]

    def _drop_partition(self) -> None:
        """A partition goes, in every channel of its collection."""
        (answer,) = self.run(_gather([self.world.store.drop_partition(self.managed, "other", caller=CALLER)]))
        if self.managed not in self.live:
            assert isinstance(answer, CollectionNotFoundError)
            return
        assert (answer.number, answer.outcome is Outcome.ALREADY_APPLIED) == (
            self.partitions[3],
            self.partition_is_dropped,
        )
        self.partition_is_dropped = True
        for name in self.channel_names(managed=True):
            lane = self.model.channels[name].lane(self.partitions[3])
            lane.dropped = True
            lane.drop()

    def _drop_collection(self, name: str) -> None:
        """A collection goes, with everything of it."""
        (answer,) = self.run(_gather([self.world.store.drop_collection(name, caller=CALLER)]))
        if name not in self.live:
            assert isinstance(answer, CollectionNotFoundError)
            return
        assert answer.outcome is Outcome.APPLIED
        self.live.remove(name)
        self.model.drop_collection(self.channel_names(managed=name == "managed"))

    def _segments(self) -> list[tuple[int, Channel, Segment]]:
        """Every segment: its number, and what the model has of it. Those of a lane are numbered in their order."""
        numbers: dict[tuple[str, int], list[int]] = {}
        for row in self.run(self.world.store.list_segments()).items:
            numbers.setdefault((row.channel_name, row.partition_id), []).append(row.segment_id)
        return [
            (number, channel, segment)
            for channel in self.model.channels.values()
            for partition, lane in channel.lanes.items()
            for number, segment in zip(numbers.get((channel.name, partition), []), lane.segments, strict=True)
        ]

    def _set_segment_state(self, data: st.DataObject) -> None:
        """An operator seals a segment, or drops one."""
        known = self._segments()
        if not known:
            return
        number, channel, segment = data.draw(st.sampled_from(known), label="segment")
        wanted = data.draw(st.sampled_from([SegmentState.SEALED, SegmentState.DROPPED]), label="state")
        (answer,) = self.run(_gather([self.world.store.set_segment_state(number, wanted, caller=CALLER)]))
        expected = self.model.set_segment_state(channel, segment, wanted.name)
        if isinstance(answer, DatacoordError):
            assert answer.reason.value == expected
        else:
            assert answer.outcome.name == expected
            assert answer.state is _shown(segment.growing, segment.dropped, channel.checkpoint >= segment.end)

    def _mark_dropped(self, data: st.DataObject) -> None:
        """An operator drops segments, whatever their state."""
        known = self._segments()
        if not known:
            return
        chosen = data.draw(
            st.lists(st.sampled_from(known), min_size=1, max_size=3, unique_by=lambda k: k[0]), label="s"
        )
        wanted = [number for number, _, _ in chosen]
        answers = self.run(self.world.store.mark_segments_dropped([*wanted, 10**9], caller=CALLER))
        assert [answer.segment_id for answer in answers] == [*wanted, 10**9]
        expected = [Outcome.ALREADY_APPLIED if segment.dropped else Outcome.APPLIED for _, _, segment in chosen]
        assert [answer.outcome for answer in answers] == [*expected, None]
        for _, _, segment in chosen:
            segment.growing, segment.dropped = False, True

    def _crash(self) -> None:
        """The process dies, another one opens the database; what was acknowledged is there."""

        async def crash() -> None:
            await self.world.store.abandon()
            await self.world.open(seal_policy=NEVER_SEAL)

        self.run(crash())

    def _flush(self, data: st.DataObject) -> None:
        """Somebody wants everything durable."""
        collection = data.draw(st.sampled_from(["managed", "managed", "claimed", ""]), label="collection")
        timestamp = data.draw(st.sampled_from([0, 0, 0, 3, 8, 15]), label="F") if collection else 0
        store = self.world.store
        asked = store.flush(collection, timestamp, caller=CALLER) if collection else store.flush_all(caller=CALLER)
        (flush,) = self.run(_gather([asked]))
        if collection and collection not in self.live:
            assert isinstance(flush, CollectionNotFoundError)
            return
        names = [
            c.name for c in self.model.channels.values() if not collection or c.managed == (collection == "managed")
        ]
        targets = self.model.flush(flush.flush_id, names, timestamp)
        assert {t.channel_name: t.timestamp for t in flush.targets} == targets

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
            late = self.run(self.world.store.get_flush_all_state(flush_id))
            assert late.flushed == self.model.flushed(flush_id)
            assert {(one.target.channel_name, one.owner) for one in late.pending} == self.model.late(flush_id)
        for collection in self.live:
            for info in self.run(self.world.store.recovery_info(collection_name=collection)).items:
                assert info.consumed_timestamp == self.model.channels[info.channel_name].consumed
        assert self.world.store.statistics.invariant_violations == 0

    def _compare_segments(self) -> None:
        stored: dict[tuple[str, int], list[tuple[int, SegmentState]]] = {}
        for row in self.run(self.world.store.list_segments()).items:
            stored.setdefault((row.channel_name, row.partition_id), []).append((row.binlogs, row.state))
        seen: dict[tuple[str, int], list[int]] = {}
        for collection in self.live:
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
    run_examples(databases, 14 if databases.kind == "sqlite" else 6)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_store_and_the_model_agree_for_fourteen_times_as_long(databases: Databases) -> None:
    """What needs five calls in one order happens once in a thousand histories."""
    run_examples(databases, 200 if databases.kind == "sqlite" else 80)


def run_examples(databases: Databases, examples: int) -> None:
    """Runs so many histories."""
    machine = type("Machine", (StoreMachine,), {"databases": databases})
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
