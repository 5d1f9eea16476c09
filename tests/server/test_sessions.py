"""Sessions of datanodes through a real server: leases, assignment, hand-over, and what is shown of them."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.waiting import eventually, joined

from datacoord.client import CoordinatorClient, error_of
from datacoord.errors import SessionNotFoundError
from datacoord.v1 import common_pb2, data_coord_pb2
from server.running_coordinator import CoordinatorThread, definition, running
from server.wire import Wire


@pytest.fixture
def short_leases(tmp_path: Path) -> Iterator[CoordinatorThread]:
    """A coordinator whose leases end while a test waits for it, and not while the machine is busy for a moment."""
    with running(tmp_path / "short", datanode_lease_seconds=5.0) as thread:
        yield thread


def managed(name: str = "files", channel_count: int = 2) -> Any:
    """A collection of MANAGED channels."""
    return definition(name, channel_mode=common_pb2.CHANNEL_MODE_MANAGED, channel_count=channel_count)


class Node:
    """A registered datanode that watches in a thread and remembers the newest desired state."""

    def __init__(self, wire: Wire, slot: int = 0, collection: str = "files") -> None:
        self._wire = wire
        request = data_coord_pb2.RegisterDataNodeRequest(
            job="job", slot=slot, collection_names=[collection], host="here", pid=1
        )
        self.registered = wire.call(wire.data_coord.RegisterDataNode, request)
        self.node_id: int = self.registered.node_id
        self.states: list[data_coord_pb2.WatchDmChannelsResponse] = []
        self.end: Exception | None = None
        self._stream = wire.data_coord.WatchDmChannels(data_coord_pb2.WatchDmChannelsRequest(node_id=self.node_id))
        self._thread = threading.Thread(target=self._read, name="watching", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for state in self._stream:
                self.states.append(state)
        except grpc.RpcError as error:
            self.end = error_of(error, "")

    def held(self) -> dict[str, int]:
        """Channels to hold, with their epochs, by the newest state."""
        return {c.channel_name: c.epoch for c in self.states[-1].channels if not c.release} if self.states else {}

    def released(self) -> dict[str, int]:
        """Channels to hand back."""
        return {c.channel_name: c.epoch for c in self.states[-1].channels if c.release} if self.states else {}

    def report(self, **fields: Any) -> Any:
        """A heartbeat."""
        request = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=self.node_id, **fields)
        return self._wire.call(self._wire.data_coord.ReportDataNodeTtMsgs, request)

    def close(self) -> None:
        """Ends the stream."""
        self._stream.cancel()
        joined(self._thread)


def test_a_datanode_gets_its_channels_and_loses_them_with_its_lease(short_leases: CoordinatorThread) -> None:
    """The life of a datanode: registered, watching, assigned, silent, replaced."""
    wire = Wire(short_leases.address)
    with CoordinatorClient(short_leases.address, timeout_seconds=10) as client:
        client.create_collection(managed())
    node = Node(wire)
    assert node.registered.heartbeat_interval_ms == 200
    assert node.registered.lease_ms == 5000
    eventually(lambda: len(node.held()) == 2)
    before = node.held()
    # It says nothing from now on: the session ends, the stream says so, and a new one gets the channels at new epochs.
    eventually(lambda: node.end is not None)
    assert isinstance(node.end, SessionNotFoundError)
    with pytest.raises(SessionNotFoundError):
        node.report()
    successor = Node(wire, slot=1)
    eventually(lambda: successor.held().keys() == before.keys())
    assert all(successor.held()[name] > epoch for name, epoch in before.items())
    successor.close()
    node.close()
    wire.channel.close()


def test_a_second_datanode_gets_its_share_by_hand_over(wire: Wire, client: CoordinatorClient) -> None:
    """Channels are asked for, never taken by force: the first datanode drains and hands back."""
    client.create_collection(managed(channel_count=4))
    first = Node(wire, slot=0)
    eventually(lambda: len(first.held()) == 4)
    second = Node(wire, slot=1)

    def step() -> bool:
        first.report()
        second.report()
        asked = first.released()
        if asked:
            releases = [data_coord_pb2.ChannelRelease(channel_name=name, epoch=epoch) for name, epoch in asked.items()]
            wire.call(wire.data_coord.ReleaseChannels, data_coord_pb2.ReleaseChannelsRequest(channels=releases))
        return len(first.held()) == 2 and len(second.held()) == 2

    eventually(step)
    assert not first.held().keys() & second.held().keys()
    rows = {row.channel_name: row for row in client.list_channels("files")}
    assert {name: rows[name].node_id for name in second.held()} == dict.fromkeys(second.held(), second.node_id)
    first.close()
    second.close()


def test_registering_a_slot_again_ends_its_session_at_once(wire: Wire, client: CoordinatorClient) -> None:
    """Spark starts a task again before the old one is quite dead: the old one must stop now, not after a lease."""
    client.create_collection(managed())
    old = Node(wire)
    eventually(lambda: len(old.held()) == 2)
    epochs = old.held()
    new = Node(wire)
    eventually(lambda: old.end is not None)
    assert isinstance(old.end, SessionNotFoundError)
    eventually(lambda: new.held().keys() == epochs.keys())
    assert all(new.held()[name] > epoch for name, epoch in epochs.items())
    states = {row.node_id: row.state for row in client.list_datanodes(include_ended=True)}
    assert states[old.node_id] == data_coord_pb2.DATA_NODE_STATE_ENDED
    assert [row.node_id for row in client.list_datanodes()] == [new.node_id]
    old.close()
    new.close()


def test_what_a_datanode_reports_is_shown(wire: Wire, client: CoordinatorClient) -> None:
    """Operators see the owner's own words: consumed, lag, buffers, counters."""
    client.create_collection(managed(channel_count=1))
    node = Node(wire)
    eventually(lambda: len(node.held()) == 1)
    ((name, epoch),) = node.held().items()
    message = data_coord_pb2.DataNodeTtMsg(
        channel_name=name, epoch=epoch, timestamp=42, lag=8, buffered_rows=3, buffered_bytes=99, syncs_in_flight=1
    )
    answer = node.report(msgs=[message], metrics={"datanode_consumed_rows_total": 7.0})
    assert answer.state == data_coord_pb2.DATA_NODE_STATE_HEALTHY
    (channel,) = client.list_channels("files")
    assert channel.report == message
    assert channel.node_id == node.node_id
    assert channel.last_seen_time_ms > 0
    (row,) = client.list_datanodes("job")
    assert dict(row.metrics) == {"datanode_consumed_rows_total": 7.0}
    assert list(row.msgs) == [message]
    assert row.channels == 1
    node.close()
