"""Three coordinators on one PostgreSQL under every kind of call: each is killed, each is stopped and wakes, the server dies."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from server.running_coordinator import CoordinatorProcess
from support.postgres import PostgresServer
from support.waiting import eventually

from coordinator.core.jobs import Job
from coordinator.grpc_port import SERVICES
from coordinator.store.verify import verify

from .load import PATIENCE_SECONDS, Load, create_collections
from .tiling import stored_log_ids

REPLICAS = 3
SAVES_BETWEEN_FAULTS = 15
EVERY_CALL = {method.name for service in SERVICES.values() for method in service.methods}
SETTINGS = {
    "DATACOORD_HEARTBEAT_INTERVAL_SECONDS": "0.5",
    "DATACOORD_DATANODE_LEASE_SECONDS": "2",
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.2",
    "DATACOORD_SEAL_JOB_INTERVAL_SECONDS": "0.3",
    "DATACOORD_RETENTION_JOB_INTERVAL_SECONDS": "0.3",
    "DATACOORD_GC_INTERVAL_SECONDS": "0.3",
    "DATACOORD_JOB_LEASE_SECONDS": "1.5",
}
"""Short intervals: every job runs all the time, so that each fault meets it in the middle of something."""
SHARED_JOBS = frozenset(Job) - {Job.PAGE, Job.WATCH}
"""Those that run on one replica at a time."""
LONG_SECONDS = 60.0


@dataclass(frozen=True)
class Lease:
    """The lease of a job.

    Attributes:
        replica: that holds it; None = a process that is no more.
        fence: of it.
        lives: whether it is not over yet.
    """

    replica: CoordinatorProcess | None
    fence: int
    lives: bool


_LEASES = "SELECT name, holder, fence, lease_until_ms > extract(epoch FROM clock_timestamp()) * 1000 FROM job_leases"


class Cluster:
    """Replicas, the server below them, and the load upon them."""

    def __init__(self, server: PostgresServer, url: str, replicas: list[CoordinatorProcess], load: Load) -> None:
        self.server = server
        self.url = url
        self.replicas = replicas
        self.load = load

    def goes_on(self) -> None:
        """Callers get on with their work."""
        self.load.goes_on(SAVES_BETWEEN_FAULTS)

    def leases(self) -> dict[str, Lease]:
        """Every lease of a job."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            rows = connection.execute(_LEASES).fetchall()
        # A host, a process, and perhaps what tells the process from an earlier one of the same number.
        by_pid = {str(replica.process.pid): replica for replica in self.replicas}
        return {name: Lease(by_pid.get(holder.split(":")[1]), fence, lives) for name, holder, fence, lives in rows}

    def every_job_runs(self) -> bool:
        """Whether each job belongs to a replica that is there, and that does it."""
        found = self.leases()
        return found.keys() == SHARED_JOBS and all(lease.replica and lease.lives for lease in found.values())

    def has_collected(self) -> bool:
        """Whether the garbage collector has deleted something."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return connection.execute("SELECT 1 FROM events WHERE rpc = %s", (Job.GARBAGE.rpc,)).fetchone() is not None

    def some_holder(self, job: Job) -> CoordinatorProcess:
        """The replica that runs a job now."""
        eventually(self.every_job_runs, PATIENCE_SECONDS)
        found = self.leases()[job].replica
        assert found is not None
        return found

    @contextmanager
    def without(self, replica: CoordinatorProcess, how: str) -> Iterator[None]:
        """A replica is killed, or stopped for longer than its leases with calls in its hands; afterwards it is back."""
        held = {name: lease.fence for name, lease in self.leases().items() if lease.replica is replica}
        pid, unknown = replica.process.pid, self.load.facts.unknown
        replica.kill() if how == "kill" else os.kill(pid, signal.SIGSTOP)
        try:
            # Its jobs are somebody else's now, each of them.
            eventually(lambda: self._are_taken_over(held, replica), PATIENCE_SECONDS)
            eventually(lambda: self.load.facts.unknown > unknown, PATIENCE_SECONDS)
            self.goes_on()
            yield
        finally:
            if how == "kill":
                replica.start()
            else:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self.goes_on()

    def _are_taken_over(self, held: dict[str, int], replica: CoordinatorProcess) -> bool:
        now = self.leases()
        return all(now[name].fence > fence and now[name].replica not in {None, replica} for name, fence in held.items())

    def restart_server(self, how: str) -> None:
        """PostgreSQL dies at once (`immediate`) or ends its sessions (`fast`), and comes back."""
        self.server.crash() if how == "immediate" else self.server.stop()
        self.server.start()
        self.goes_on()


@contextmanager
def cluster(server: PostgresServer, url: str, directory: Path, seed: int) -> Iterator[Cluster]:
    """Three replicas under load; at the end everybody stops, and what was acknowledged is looked for."""
    flags = ("--database-url", url, "--storage-root", str(directory / "objects"))
    with ExitStack() as closing:
        replicas = [CoordinatorProcess(directory / f"r{n}", *flags, environment=SETTINGS) for n in range(REPLICAS)]
        for replica in replicas:
            closing.callback(end, replica)
        with ThreadPoolExecutor() as starting:
            # All at once, as a deployment does.
            list(starting.map(CoordinatorProcess.start, replicas))
        load = Load([replica.address for replica in replicas], create_collections(replicas[0].address), seed)
        closing.callback(load.stopping.set)
        made = Cluster(server, url, replicas, load)
        made.goes_on()
        yield made
        eventually(lambda: bool(load.facts.failures) or load.facts.calls.keys() >= EVERY_CALL, PATIENCE_SECONDS)
        # What was dropped has to go.
        eventually(made.has_collected, PATIENCE_SECONDS)
        eventually(made.every_job_runs, PATIENCE_SECONDS)
        load.stop()
        outputs = [replica.output() for replica in replicas]
        assert [replica.terminate() for replica in replicas] == [0] * REPLICAS
    for output in outputs:
        assert '"reason": "INTERNAL"' not in output
        assert "group_commit_failed" not in output
    nothing_is_lost_or_doubled(url, load, directory / "objects")


def end(replica: CoordinatorProcess) -> None:
    """Ends a replica that may have been started."""
    if hasattr(replica, "process"):
        replica.__exit__()


def nothing_is_lost_or_doubled(url: str, load: Load, objects: Path) -> None:
    """Looks at the rows, and at their objects: the garbage collector has worked all the time."""
    facts = load.facts
    stored = stored_log_ids(url)
    for channel, log_ids in facts.acknowledged.items():
        # What was dropped may be collected.
        assert channel in facts.dropped or log_ids <= stored, f"acknowledged saves of {channel} are lost"
    assert not facts.refused & stored, "a refused save was done"
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        statement = "SELECT name, state, checkpoint_timestamp FROM vchannels JOIN channel_state USING (channel_id)"
        states = {name: (state, timestamp) for name, state, timestamp in connection.execute(statement).fetchall()}
        sessions = {row[0] for row in connection.execute("SELECT node_id FROM datanodes").fetchall()}
        flushes = {row[0] for row in connection.execute("SELECT flush_id FROM flushes").fetchall()}
        owned = connection.execute("SELECT count(*), count(DISTINCT epoch) FROM channel_state").fetchone()
    for channel, timestamp in facts.checkpoints.items():
        assert states[channel][1] >= timestamp, f"the checkpoint of {channel} went back"
    assert all(states[channel][0] == 2 for channel in facts.dropped), "a dropped channel came back"
    assert facts.sessions <= sessions
    assert facts.flushes <= flushes
    assert owned is not None
    assert owned[0] == owned[1], "two channels have one epoch"
    report = verify(url, storage_root=str(objects))
    assert report.faults == 0, [finding for finding in report.findings if finding.fault]
    kept = sum(len(log_ids) for channel, log_ids in facts.acknowledged.items() if channel not in facts.dropped)
    assert report.checked["objects"] >= kept > 0


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_and_nothing_doubled_whoever_dies(
    crashing_server: PostgresServer, database_url: str, tmp_path: Path
) -> None:
    """A replica is killed, one sleeps through its lease and wakes with calls in its hands, the database dies under all."""
    with cluster(crashing_server, database_url, tmp_path, seed=1) as made:
        with made.without(made.some_holder(Job.GARBAGE), "kill"):
            made.restart_server("immediate")
        with made.without(made.some_holder(Job.ASSIGNMENT), "stop"):
            made.restart_server("fast")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 6))
def test_each_replica_is_killed_and_stopped_again_and_again(
    crashing_server: PostgresServer, database_url: str, tmp_path: Path, seed: int
) -> None:
    """A minute of it, and every replica at least once in each way, with the database dying in both ways in between."""
    end = time.monotonic() + LONG_SECONDS
    with cluster(crashing_server, database_url, tmp_path, seed) as made:
        turn = 0
        while turn < 2 * REPLICAS or time.monotonic() < end:
            replica, how = made.replicas[turn % REPLICAS], ("kill", "stop")[turn // REPLICAS % 2]
            with made.without(replica, how):
                made.restart_server(("immediate", "fast")[(turn + seed) % 2])
            turn += 1
