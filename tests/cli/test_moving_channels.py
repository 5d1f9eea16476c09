"""`datacoord channels move`: an operator's hand on the balance."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from server.running_coordinator import CoordinatorThread, definition, running
from server.test_sessions import Node
from server.wire import Wire
from support.waiting import eventually, joined

from datacoord.cli import main
from datacoord.client import CoordinatorClient
from datacoord.v1 import common_pb2, data_coord_pb2


class Cluster:
    """A coordinator with two datanodes that hand over what they are asked for, and a collection of each mode."""

    def __init__(self, thread: CoordinatorThread) -> None:
        self.address = thread.address
        self.wire = Wire(thread.address)
        self.client = CoordinatorClient(thread.address)
        mode = common_pb2.CHANNEL_MODE_MANAGED
        created = self.client.create_collection(definition("files", channel_mode=mode, channel_count=2))
        self.channel, _ = created.channel_names
        (self.claimed,) = self.client.create_collection(definition("claimed", channel_count=1)).channel_names
        self.nodes = [Node(self.wire, slot=slot) for slot in range(2)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._obey, name="obeying datanodes")
        self._thread.start()
        eventually(lambda: [len(node.held()) for node in self.nodes] == [1, 1])

    def _obey(self) -> None:
        while not self._ended.wait(0.02):
            for node in self.nodes:
                asked = [
                    data_coord_pb2.ChannelRelease(channel_name=name, epoch=epoch)
                    for name, epoch in node.released().items()
                ]
                if asked:
                    self.wire.call(
                        self.wire.data_coord.ReleaseChannels, data_coord_pb2.ReleaseChannelsRequest(channels=asked)
                    )

    def owner(self) -> int:
        """Slot of the datanode that holds the channel; -1 = it is on its way."""
        return next((slot for slot, node in enumerate(self.nodes) if self.channel in node.held()), -1)

    def run(self, *arguments: str) -> Result:
        """Runs a command against it."""
        return CliRunner().invoke(main, ["channels", *arguments, "--address", self.address], catch_exceptions=False)

    def close(self) -> None:
        """Ends it."""
        self._ended.set()
        joined(self._thread)
        for node in self.nodes:
            node.close()
        self.client.close()
        self.wire.channel.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all of these tests."""
    data: Path = tmp_path_factory.mktemp("moving") / "data"
    with running(data, datanode_lease_seconds=600.0) as thread:
        made = Cluster(thread)
        yield made
        made.close()


def record_of(result: Result) -> dict[str, Any]:
    """The one record of an answer; the coordinator, in a thread of this process, logs in between."""
    lines = [line for line in result.stdout.splitlines() if not line.startswith('{"component"')]
    (record,) = json.loads("\n".join(lines))
    return dict(record)


def test_a_channel_goes_where_it_is_sent_and_stays_there(cluster: Cluster) -> None:
    """Whoever moves it at night wants to see that it has arrived, and not to find it back in the morning."""
    for _ in range(2):
        target = 1 - cluster.owner()
        done = cluster.run("move", cluster.channel, "--to", f"job/{target}", "--wait", "60")
        assert done.exit_code == 0, done.stderr
        assert f"is on session {cluster.nodes[target].node_id}, epoch" in done.stdout
        eventually(lambda slot=target: cluster.owner() == slot)  # type: ignore[misc]
    again = cluster.run("move", cluster.channel, "--to", str(cluster.nodes[target].node_id), "--output", "json")
    record = record_of(again)
    assert record["outcome"] == "OUTCOME_ALREADY_APPLIED"
    assert record["arrived"]


def test_without_a_target_it_goes_to_another_datanode(cluster: Cluster) -> None:
    """Away from here, wherever to."""
    before = cluster.owner()
    assert record_of(cluster.run("move", cluster.channel, "--wait", "60", "--output", "json"))["arrived"]
    eventually(lambda: cluster.owner() == 1 - before)


def test_without_waiting_it_says_who_was_asked(cluster: Cluster) -> None:
    """The move goes on without whoever asked for it."""
    before = cluster.owner()
    said = cluster.run("move", cluster.channel).stdout
    assert f"Session {cluster.nodes[before].node_id} was asked for channel {cluster.channel}" in said
    eventually(lambda: cluster.owner() == 1 - before)


@pytest.mark.parametrize(
    ("arguments", "reason", "status"),
    [
        (("{channel}", "--to", "nobody"), "INVALID_FIELD", 2),
        (("{channel}", "--to", "job/9"), "SESSION_NOT_FOUND", 1),
        (("{channel}", "--to", "999999"), "SESSION_NOT_FOUND", 1),
        (("{claimed}",), "WRONG_MODE", 1),
        (("no_such_channel",), "CHANNEL_NOT_FOUND", 1),
    ],
)
def test_what_cannot_be_moved_is_said_in_one_sentence(
    cluster: Cluster, arguments: tuple[str, ...], reason: str, status: int
) -> None:
    """A traceback helps nobody at night."""
    shown = [argument.format(channel=cluster.channel, claimed=cluster.claimed) for argument in arguments]
    refused = cluster.run("move", *shown)
    assert refused.exit_code == status
    assert reason in refused.stderr
    assert "Traceback" not in refused.stderr


def test_listing_needs_no_word(cluster: Cluster) -> None:
    """`datacoord channels files` is what everybody types."""
    for arguments in ((), ("files",), ("list", "files"), ("--output", "json")):
        listed = cluster.run(*arguments)
        assert listed.exit_code == 0
        assert cluster.channel in listed.stdout
    help_text = CliRunner().invoke(main, ["channels", "--help"]).stdout
    assert "move" in help_text
    assert "list" in help_text
