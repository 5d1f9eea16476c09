"""The embedded database: one coordinator, which finds its datanodes again however it ended."""

import time
from pathlib import Path

from server.running_coordinator import CoordinatorProcess, command, definition, environment
from server.wire import Wire
from support.commands import run
from support.waiting import eventually

from datacoord.client import CoordinatorClient
from datacoord.errors import CoordinatorUnreachableError, StoreUnavailableError
from datacoord.v1 import common_pb2, data_coord_pb2

SETTINGS = {
    "DATACOORD_JOB_LEASE_SECONDS": "3600",
    "DATACOORD_HEARTBEAT_INTERVAL_SECONDS": "0.2",
    # A busy machine does not lose it, and the test waits for its end.
    "DATACOORD_DATANODE_LEASE_SECONDS": "5",
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.1",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.1",
}


def test_a_second_coordinator_on_one_sqlite_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """Each would believe that the other's jobs are its own."""
    with CoordinatorProcess(tmp_path / "data") as first:
        arguments = ("serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--web-port", "0")
        second = run(command(*arguments), environment=environment())
        assert second.returncode == 2
        assert f"(process {first.process.pid}) serves the database" in second.stderr
        assert "PostgreSQL" in second.stderr
        first.kill()
        # The lock goes with the process, however it ended.
        first.start()


def test_a_coordinator_killed_for_longer_than_a_lease_finds_its_datanodes_and_its_jobs_again(tmp_path: Path) -> None:
    """Waiting for a dead process's lease (an hour here), or ending every session, would stop all channels."""
    watch = data_coord_pb2.WatchDmChannelsRequest()
    with CoordinatorProcess(tmp_path / "data", environment=SETTINGS) as process:
        wire, client = Wire(process.address), CoordinatorClient(process.address)
        client.create_collection(definition(channel_mode=common_pb2.CHANNEL_MODE_MANAGED, channel_count=2))
        request = data_coord_pb2.RegisterDataNodeRequest(job="j", slot=0, collection_names=["files"])
        watch.node_id = wire.call(wire.data_coord.RegisterDataNode, request).node_id
        stream = wire.data_coord.WatchDmChannels(watch)
        held = next(list(state.channels) for state in stream if len(state.channels) == 2)
        stream.cancel()
        (row,) = client.list_datanodes()
        client.close()
        wire.channel.close()
        process.kill()
        eventually(lambda: time.time() * 1000 > row.lease_until_time_ms + 500)
        process.start()
        # New connections: old ones may wait long before they try again.
        wire, client = Wire(process.address), CoordinatorClient(process.address)

        beat = data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=watch.node_id)
        eventually(lambda: lives(wire, beat))
        stream = wire.data_coord.WatchDmChannels(watch)
        assert list(next(iter(stream)).channels) == held
        stream.cancel()
        # And the jobs run: the session says nothing more, and ends.
        eventually(lambda: not list(client.list_datanodes()))
        client.close()
        wire.channel.close()


def lives(wire: Wire, beat: data_coord_pb2.ReportDataNodeTtMsgsRequest) -> bool:
    """Whether a heartbeat is taken; False = nobody answers yet. A session that is over raises."""
    try:
        wire.call(wire.data_coord.ReportDataNodeTtMsgs, beat)
    except (CoordinatorUnreachableError, StoreUnavailableError):
        return False
    return True
