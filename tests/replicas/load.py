"""Clients that make every kind of call at any replica, repeat what they do not know, and remember what was acknowledged."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from server.running_coordinator import definition, save_part
from support.waiting import eventually

from datacoord.client import error_of
from datacoord.errors import FencedError, SessionNotFoundError
from datacoord.transport import client_options
from datacoord.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    collection_pb2,
    collection_pb2_grpc,
    common_pb2,
    data_coord_pb2,
    data_coord_pb2_grpc,
)

SINKS = 3
SLOTS = 2
ATTEMPT_SECONDS = 2.0
PATIENCE_SECONDS = 90.0
AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
}
"""What a client answers by repeating the call unchanged."""
REFUSALS = {"FENCED", "OWNED"}
"""What may be said to a client that does everything right while others take its channels."""
APPLIED = {common_pb2.OUTCOME_APPLIED, common_pb2.OUTCOME_ALREADY_APPLIED}
CLAIMED, MANAGED = "claimed", "managed"


@dataclass
class Facts:
    """What the clients were told.

    Attributes:
        acknowledged: objects whose save was answered APPLIED or ALREADY_APPLIED, by channel.
        refused: objects whose save was refused at the first attempt.
        checkpoints: the largest acknowledged checkpoint, by channel.
        released: the largest position whose hand-over was acknowledged, by channel.
        dropped: channels whose drop was acknowledged.
        owners: who was told to own a channel at an epoch.
        flushes: acknowledged flushes.
        sessions: acknowledged sessions.
        collections: collections that are there.
        calls: answered calls, by method.
        unknown: attempts without an answer.
        failures: what must not happen.
    """

    acknowledged: dict[str, set[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    checkpoints: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    owners: dict[tuple[str, int], str] = field(default_factory=dict)
    flushes: set[int] = field(default_factory=set)
    sessions: set[int] = field(default_factory=set)
    collections: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    failures: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    log_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def owns(self, channel: str, epoch: int, owner: str) -> None:
        """Somebody was told to own a channel at an epoch. Nobody else ever may be."""
        with self.lock:
            first = self.owners.setdefault((channel, epoch), owner)
        assert first == owner, f"epoch {epoch} of {channel} was given to {first} and to {owner}"

    def saved(self, part: data_coord_pb2.ChannelBinlogs, log_id: int) -> None:
        """A save was acknowledged."""
        with self.lock:
            self.acknowledged.setdefault(part.channel_name, set()).add(log_id)
        if part.HasField("check_point"):
            self.moved(part.channel_name, part.check_point.timestamp)

    def moved(self, channel: str, timestamp: int) -> None:
        """A checkpoint was acknowledged."""
        with self.lock:
            self.checkpoints[channel] = max(self.checkpoints.get(channel, 0), timestamp)

    def saves(self) -> int:
        """How many saves were acknowledged."""
        with self.lock:
            return sum(map(len, self.acknowledged.values()))


class Client:
    """One client, on a thread of its own.

    Args:
        name: of it.
        facts: what it was told.
        addresses: of all replicas.
        channels: by collection.
        rng: what it chooses by.
        stop: set when it shall settle what it has in hand, and end.
    """

    def __init__(
        self,
        name: str,
        *,
        facts: Facts,
        addresses: list[str],
        channels: dict[str, list[str]],
        rng: random.Random,
        stop: threading.Event,
    ) -> None:
        self.name = name
        self.channels = channels
        self.facts = facts
        self.rng = rng
        self.stop = stop
        self._addresses = addresses
        self._stubs: list[dict[str, Any]] = []
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def work(self) -> None:
        """Does something, again and again."""
        raise NotImplementedError

    def _run(self) -> None:
        with ExitStack() as closing:
            for address in self._addresses:
                line = closing.enter_context(grpc.insecure_channel(address, options=client_options()))
                services = (
                    data_coord_pb2_grpc.DataCoordServiceStub(line),  # type: ignore[no-untyped-call]
                    admin_pb2_grpc.AdminServiceStub(line),  # type: ignore[no-untyped-call]
                    collection_pb2_grpc.CollectionServiceStub(line),  # type: ignore[no-untyped-call]
                )
                self._stubs.append({name: method for stub in services for name, method in vars(stub).items()})
            try:
                while not self.stop.is_set():
                    self.work()
            except BaseException as error:  # noqa: BLE001 - the test shows it
                self.facts.failures.append(error)

    def call(self, method: str, request: Any) -> tuple[Any, int]:
        """Repeats a call unchanged, at any replica, until it is answered; (answer, attempts).

        Raises:
            DatacoordError: what the call as a whole was refused with.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        for attempt in itertools.count(1):
            try:
                answer = self.rng.choice(self._stubs)[method](request, timeout=ATTEMPT_SECONDS)
            except grpc.RpcError as error:
                self._again(error, deadline)
            else:
                with self.facts.lock:
                    self.facts.calls[method] += 1
                return answer, attempt
        raise AssertionError

    def _again(self, error: grpc.RpcError, deadline: float) -> None:
        code = error.code()
        if code not in AGAIN or time.monotonic() > deadline:
            raise error_of(error, "") from error
        with self.facts.lock:
            self.facts.unknown += 1
        if code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            # A replica that is away answers at once: do not spin.
            time.sleep(self.rng.uniform(0.02, 0.1))

    def watch(self, node_id: int) -> data_coord_pb2.WatchDmChannelsResponse:
        """The newest desired state of a session.

        Raises:
            SessionNotFoundError: it is over.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        request = data_coord_pb2.WatchDmChannelsRequest(node_id=node_id)
        while True:
            stream = self.rng.choice(self._stubs)["WatchDmChannels"](request, timeout=ATTEMPT_SECONDS)
            try:
                state: data_coord_pb2.WatchDmChannelsResponse = next(stream)
            except grpc.RpcError as error:
                self._again(error, deadline)
            else:
                stream.cancel()
                with self.facts.lock:
                    self.facts.calls["WatchDmChannels"] += 1
                return state

    def save(
        self,
        info: data_coord_pb2.ChannelRecoveryInfo,
        reached: int,
        *,
        with_checkpoint: bool = True,
        drop: bool = False,
    ) -> int:
        """Saves the next range of a channel; its end, or 0 where the channel was lost meanwhile."""
        with self.facts.lock:
            log_id = next(self.facts.log_ids)
        end = max(reached, info.checkpoint.timestamp) + self.rng.randint(1, 3)
        part = save_part(info, reached, end, log_id)
        # One row, beyond the checkpoint.
        (binlog,) = part.lanes[0].insert_logs[0].binlogs
        binlog.timestamp_from = end
        write_object(info, binlog)
        if not with_checkpoint:
            part.ClearField("check_point")
        if drop:
            try:
                answer, attempts = self.call(
                    "DropVirtualChannel", data_coord_pb2.DropVirtualChannelRequest(channel=part)
                )
            except FencedError:
                return 0
            result = answer.result
        else:
            answer, attempts = self.call("SaveBinlogPaths", data_coord_pb2.SaveBinlogPathsRequest(channels=[part]))
            (result,) = answer.results
        if result.HasField("error"):
            assert reason_of(result.error) in REFUSALS, result.error
            if attempts == 1:
                self.facts.refused.add(log_id)
            return 0
        assert result.outcome in APPLIED
        self.facts.saved(part, log_id)
        return end


class Sink(Client):
    """Takes a claimed channel from the others, saves to it for a while, and loses it or leaves it."""

    def work(self) -> None:
        """See the class."""
        claim = data_coord_pb2.ClaimChannelsRequest(
            owner_name=self.name, channel_names=[self.rng.choice(self.channels[CLAIMED])], force=self.rng.random() < 0.7
        )
        answer, _ = self.call("ClaimChannels", claim)
        (claimed,) = answer.results
        if claimed.HasField("error"):
            assert reason_of(claimed.error) in REFUSALS
            return
        info = claimed.info
        self.facts.owns(info.channel_name, info.epoch, self.name)
        reached = next((lane.timestamp for lane in info.lanes), 0)
        for _ in range(self.rng.randint(1, 12)):
            if self.stop.is_set():
                return
            reached = self.save(info, reached)
            if not reached:
                return


class Node(Client):
    """A datanode of one slot: holds what it should, hands over what it is asked for, and now and then starts anew."""

    node_id = 0

    def work(self) -> None:
        """See the class."""
        try:
            if not self.node_id or self.rng.random() < 0.02:
                request = data_coord_pb2.RegisterDataNodeRequest(
                    job="load", slot=int(self.name[-1]), collection_names=[MANAGED]
                )
                self.node_id = self.call("RegisterDataNode", request)[0].node_id
                self.facts.sessions.add(self.node_id)
                self._held: dict[tuple[str, int], tuple[data_coord_pb2.ChannelRecoveryInfo, int]] = {}
            self._serve(self.watch(self.node_id))
        except SessionNotFoundError:
            self.node_id = 0

    def _serve(self, desired: data_coord_pb2.WatchDmChannelsResponse) -> None:
        wanted = {(watch.channel_name, watch.epoch): watch.release for watch in desired.channels}
        self._held = {key: held for key, held in self._held.items() if key in wanted}
        for (channel, epoch), release in wanted.items():
            self.facts.owns(channel, epoch, f"{self.name}#{self.node_id}")
            if (channel, epoch) not in self._held and not release:
                self._start(channel, epoch)
            if (channel, epoch) in self._held:
                self._write(channel, epoch)
            if release:
                self._release(channel, epoch)
        msgs = [
            data_coord_pb2.DataNodeTtMsg(channel_name=channel, epoch=epoch, timestamp=reached)
            for (channel, epoch), (_, reached) in self._held.items()
        ]
        self.call("ReportDataNodeTtMsgs", data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=self.node_id, msgs=msgs))
        if not wanted:
            time.sleep(0.05)

    def _start(self, channel: str, epoch: int) -> None:
        request = data_coord_pb2.GetRecoveryInfoRequest(channel_names=[channel])
        (info,) = self.call("GetRecoveryInfo", request)[0].channels
        if info.epoch == epoch:
            reached = next((lane.timestamp for lane in info.lanes), 0)
            assert info.checkpoint.timestamp >= self.facts.released.get(channel, 0), (
                "a hand-over lost the last progress"
            )
            self._held[channel, epoch] = (info, reached)

    def _write(self, channel: str, epoch: int) -> None:
        info, reached = self._held[channel, epoch]
        for _ in range(self.rng.randint(1, 4)):
            reached = self.save(info, reached, with_checkpoint=self.rng.random() < 0.5)
            if not reached:
                del self._held[channel, epoch]
                return
            if self.rng.random() < 0.5 and not self._move(channel, epoch, reached):
                del self._held[channel, epoch]
                return
        self._held[channel, epoch] = (info, reached)

    def _move(self, channel: str, epoch: int, timestamp: int) -> bool:
        position = common_pb2.MsgPosition(channel_name=channel, timestamp=timestamp, msg_id=str(timestamp).encode())
        entry = data_coord_pb2.ChannelCheckpoint(epoch=epoch, position=position)
        request = data_coord_pb2.UpdateChannelCheckpointRequest(channel_checkpoints=[entry])
        answer, _ = self.call("UpdateChannelCheckpoint", request)
        if answer.outcomes[0] not in APPLIED:
            assert reason_of(answer.details[0].error) in REFUSALS
            return False
        self.facts.moved(channel, timestamp)
        return True

    def _release(self, channel: str, epoch: int) -> None:
        release = data_coord_pb2.ChannelRelease(channel_name=channel, epoch=epoch)
        _, reached = self._held.pop((channel, epoch), (None, 0))
        if reached:
            release.position.CopyFrom(common_pb2.MsgPosition(timestamp=reached, msg_id=str(reached).encode()))
        answer, _ = self.call("ReleaseChannels", data_coord_pb2.ReleaseChannelsRequest(channels=[release]))
        (result,) = answer.results
        if not result.HasField("error"):
            with self.facts.lock:
                self.facts.released[channel] = max(self.facts.released.get(channel, 0), reached)
            self.facts.moved(channel, reached)
        else:
            assert reason_of(result.error) in REFUSALS


class Operator(Client):
    """Lists, flushes, moves, and makes and drops what nobody else uses."""

    number = 0

    def work(self) -> None:
        """See the class."""
        what = [self._list, self._look, self._binlogs, self._flush, self._flush_all, self._move, self._make_and_drop]
        self.rng.choice(what)()

    def _list(self) -> None:
        with self.facts.lock:
            before = dict(self.facts.checkpoints)
            dropped = set(self.facts.dropped)
            made = set(self.facts.collections)
        for row in self.call("ListChannels", admin_pb2.ListChannelsRequest(page_size=1000))[0].channels:
            assert row.checkpoint.timestamp >= before.get(row.channel_name, 0), "an acknowledged checkpoint is not seen"
            assert row.state == admin_pb2.CHANNEL_STATE_DROPPED or row.channel_name not in dropped
        nodes, _ = self.call("ListDataNodes", admin_pb2.ListDataNodesRequest(page_size=1000))
        assert len({row.slot for row in nodes.data_nodes}) == len(nodes.data_nodes), "two sessions live in one slot"
        request = collection_pb2.ListCollectionsRequest(page_size=1000)
        seen = {row.collection_name for row in self.call("ListCollections", request)[0].collections}
        # Nobody else makes or drops any.
        assert seen == {CLAIMED, MANAGED, *made}

    def _look(self) -> None:
        self.call("ListSegments", admin_pb2.ListSegmentsRequest(collection_name=MANAGED))
        self.call("Explain", admin_pb2.ExplainRequest())
        events = self.call("ListEvents", admin_pb2.ListEventsRequest())[0].events
        numbers = [event.event_id for event in events]
        assert numbers == sorted(set(numbers), reverse=True)
        self.call("GcControl", admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_STATUS))

    def _binlogs(self) -> None:
        collection = self.rng.choice([CLAIMED, MANAGED])
        with self.facts.lock:
            before = {name: set(self.facts.acknowledged.get(name, ())) for name in self.channels[collection]}
        request = collection_pb2.ListBinlogsRequest(collection_name=collection, channel_names=list(before))
        for listed in self.call("ListBinlogs", request)[0].channels:
            log_ids = {binlog.binlog.log_id for binlog in listed.binlogs}
            assert before[listed.channel_name] <= log_ids, "an acknowledged save is not seen"

    def _flush(self) -> None:
        flush, _ = self.call("Flush", admin_pb2.FlushRequest(collection_name=self.rng.choice([CLAIMED, MANAGED])))
        self.facts.flushes.add(flush.flush_id)
        self.call("GetFlushState", admin_pb2.GetFlushStateRequest(flush_id=flush.flush_id))

    def _flush_all(self) -> None:
        flush, _ = self.call("FlushAll", admin_pb2.FlushAllRequest())
        self.call("GetFlushAllState", admin_pb2.GetFlushAllStateRequest(flush_all_id=flush.flush_all_id))

    def _move(self) -> None:
        request = admin_pb2.MoveChannelRequest(channel_name=self.rng.choice(self.channels[MANAGED]))
        with suppress(SessionNotFoundError):  # there is only one datanode now
            self.call("MoveChannel", request)

    def _make_and_drop(self) -> None:
        """The whole life of a collection, from its first call to its last."""
        self.number += 1
        name = f"scratch{self.number}"
        made = self.call("CreateCollection", definition(name, channel_count=1))[0].collection
        self.facts.collections.add(name)
        (channel,) = made.channel_names
        self.call("DescribeCollection", collection_pb2.DescribeCollectionRequest(collection_name=name))
        change = collection_pb2.AlterCollectionRequest(collection_name=name, set_properties={"made by": self.name})
        self.call("AlterCollection", change)
        claim = data_coord_pb2.ClaimChannelsRequest(owner_name=self.name, channel_names=[channel])
        info = self.call("ClaimChannels", claim)[0].results[0].info
        reached = self.save(info, 0)
        (segment,) = self.call("ListSegments", admin_pb2.ListSegmentsRequest(collection_name=name))[0].segments
        seal = admin_pb2.SetSegmentStateRequest(segment_id=segment.segment_id, state=common_pb2.SEGMENT_STATE_SEALED)
        assert self.call("SetSegmentState", seal)[0].outcome in APPLIED
        mark = admin_pb2.MarkSegmentsDroppedRequest(segment_ids=[segment.segment_id])
        assert self.call("MarkSegmentsDropped", mark)[0].results[0].outcome in APPLIED
        partition = {"collection_name": name, "partition_name": "p"}
        number = self.call("CreatePartition", collection_pb2.CreatePartitionRequest(**partition))[0].partition_id
        self.call("DropPartition", collection_pb2.DropPartitionRequest(**partition, partition_id=number))
        if self.number % 2:
            assert self.save(info, reached, drop=True)
        else:
            drop = collection_pb2.DropCollectionRequest(collection_name=name, collection_id=made.collection_id)
            assert self.call("DropCollection", drop)[0].outcome in APPLIED
            self.facts.collections.discard(name)
        with self.facts.lock:
            self.facts.dropped.add(channel)


class Load:
    """All clients at once.

    Attributes:
        facts: what they were told.
    """

    def __init__(self, addresses: list[str], channels: dict[str, list[str]], seed: int) -> None:
        self.facts = Facts()
        self.stopping = threading.Event()
        names = [*((Sink, f"query{n}") for n in range(SINKS)), *((Node, f"node{n}") for n in range(SLOTS))]
        self._clients: Sequence[Client] = [
            kind(
                name,
                facts=self.facts,
                addresses=addresses,
                channels=channels,
                rng=random.Random(f"{seed} {name}"),
                stop=self.stopping,
            )
            for kind, name in [*names, (Operator, "operator")]
        ]
        for client in self._clients:
            client.thread.start()

    def stop(self) -> None:
        """Lets every client settle what it has in hand, and end."""
        self.stopping.set()
        for client in self._clients:
            client.thread.join(PATIENCE_SECONDS)
            assert not client.thread.is_alive(), f"{client.name} never got its answer"
        assert self.facts.failures == []

    def goes_on(self, saves: int) -> None:
        """Waits until so many more saves were acknowledged."""
        wanted = self.facts.saves() + saves
        eventually(lambda: bool(self.facts.failures) or self.facts.saves() >= wanted, PATIENCE_SECONDS)
        assert self.facts.failures == []


def write_object(info: data_coord_pb2.ChannelRecoveryInfo, binlog: common_pb2.Binlog) -> None:
    """Writes what a row will name, before it does: the garbage collector may take it, and then no row may ever name it."""
    path = Path(info.storage_root.removeprefix("file://")) / binlog.log_path
    while True:
        # The directory of an epoch that is over goes when it is empty.
        with suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(binlog.log_size_bytes))
            return


def reason_of(status: status_pb2.Status) -> str:
    """The reason in a status."""
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return str(info.reason)
    return ""


def create_collections(address: str) -> dict[str, list[str]]:
    """Makes the collections; their channels."""
    modes = {CLAIMED: common_pb2.CHANNEL_MODE_CLAIMED, MANAGED: common_pb2.CHANNEL_MODE_MANAGED}
    with grpc.insecure_channel(address, options=client_options()) as line:
        stub: Any = collection_pb2_grpc.CollectionServiceStub(line)  # type: ignore[no-untyped-call]
        return {
            name: list(
                stub.CreateCollection(
                    definition(name, channel_mode=mode, channel_count=3), timeout=10
                ).collection.channel_names
            )
            for name, mode in modes.items()
        }
