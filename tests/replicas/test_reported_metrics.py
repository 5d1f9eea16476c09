"""What datanodes count, as Prometheus sees it through replicas that come and go: one series per slot, from one replica."""

import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.running_coordinator import CoordinatorProcess, definition
from support.waiting import eventually

from datacoord.client import CoordinatorClient
from datacoord.v1 import common_pb2, data_coord_pb2, data_coord_pb2_grpc

COUNTER = "datacoord_datanode_consumed_rows_total"
SETTINGS = {
    # The job changes its holder when that stands still, and not because the machine is busy for a moment.
    "DATACOORD_JOB_LEASE_SECONDS": "5",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_DATANODE_LEASE_SECONDS": "60",
}


@pytest.fixture
def replicas(database_url: str, tmp_path: Path) -> Iterator[list[CoordinatorProcess]]:
    """Two coordinators on one database."""
    flags = ("--database-url", database_url, "--storage-root", str(tmp_path / "objects"))
    with ExitStack() as closing:
        yield [
            closing.enter_context(CoordinatorProcess(tmp_path / f"r{number}", *flags, environment=SETTINGS))
            for number in range(2)
        ]


class Slot:
    """A datanode that reports what it is told to, to any replica that lives."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._node_id = 0

    def register(self) -> None:
        """A process in the slot begins, and its counters with it."""
        request = data_coord_pb2.RegisterDataNodeRequest(job="land", slot=3, collection_names=["files"])
        self._node_id = self._stub.RegisterDataNode(request, timeout=20).node_id

    def report(self, consumed: float) -> None:
        """A heartbeat."""
        request = data_coord_pb2.ReportDataNodeTtMsgsRequest(
            node_id=self._node_id, metrics={"datanode_consumed_rows_total": consumed}
        )
        self._stub.ReportDataNodeTtMsgs(request, timeout=20)

    def close(self) -> None:
        self._channel.close()


def scrape(replica: CoordinatorProcess) -> list[tuple[dict[str, str], float]]:
    """The samples of the counter that a replica exports."""
    with urllib.request.urlopen(f"http://{replica.web_address}/metrics", timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return [(sample.labels, sample.value) for family in families for sample in family.samples if sample.name == COUNTER]


def increase(values: list[float]) -> float:
    """As Prometheus has it: a counter that falls has begun again at 0."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def test_a_rate_survives_a_restarted_datanode_and_a_replica_that_loses_the_job(
    replicas: list[CoordinatorProcess],
) -> None:
    """A series per session breaks every rate at a restart; two replicas that both speak for a datanode double it."""
    seen: list[float] = []

    def is_shown(by: CoordinatorProcess, value: float) -> bool:
        samples = scrape(by)
        if [labels for labels, _ in samples] != [{"job": "land", "slot": "3"}]:
            return False
        seen.append(samples[0][1])
        return seen[-1] == value

    with CoordinatorClient(replicas[0].address) as client:
        client.create_collection(definition(channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
    eventually(lambda: any(holds_job(replica) for replica in replicas))
    holder = next(replica for replica in replicas if holds_job(replica))
    other = next(replica for replica in replicas if replica is not holder)
    slot = Slot(other.address)
    try:
        slot.register()
        slot.report(10)
        eventually(lambda: is_shown(holder, 10))
        slot.report(110)
        eventually(lambda: is_shown(holder, 110))
        assert scrape(other) == []
        slot.register()  # the process died and came back
        slot.report(7)
        eventually(lambda: is_shown(holder, 7))
        slot.report(27)
        eventually(lambda: is_shown(holder, 27))

        holder.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: is_shown(other, 27), 40)
            slot.report(57)
            eventually(lambda: is_shown(other, 57))
        finally:
            holder.process.send_signal(signal.SIGCONT)
        # It wakes, finds the job taken, and is silent; the other one goes on.
        eventually(lambda: scrape(holder) == [])
        slot.report(60)
        eventually(lambda: is_shown(other, 60))
        assert scrape(holder) == []
    finally:
        slot.close()

    assert increase(seen) == 100 + 27 + 33


def holds_job(replica: CoordinatorProcess) -> bool:
    """Whether a replica runs the assignment job: it alone counts the channels."""
    with urllib.request.urlopen(f"http://{replica.web_address}/metrics", timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return any(
        sample.value > 0 for family in families for sample in family.samples if sample.name == "datacoord_channels"
    )
