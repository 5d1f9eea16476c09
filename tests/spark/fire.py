"""The fire: a datanode job on two executors, and everything that may be done to it while it lands a source.

A fault is a block: at its beginning the damage is done, and seen to be done; at its end it is over, and seen to be over. So faults
burn together where their blocks lie in each other.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from server.running_coordinator import ROOT, CoordinatorProcess, command, environment
from support.waiting import eventually, joined

from datacoord.client import CoordinatorClient
from datacoord.demo.failpoint_files import OBJECTS_WRITTEN, FailpointFiles
from datacoord.demo.kills import HeadLimit
from datacoord.errors import DatacoordError
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.judges.generator import judge_generator
from datacoord.judges.verdict import Verdict
from datacoord.objectstore import is_temporary
from datacoord.reading import read_batches
from datacoord.reported_metrics import SYNC_FAILURES
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2, data_coord_pb2
from datanode_client.sources.generator import GENERATOR_PRIMARY_KEY, GENERATOR_SCHEMA
from spark.fire_driver import EXECUTORS, source
from spark.fire_memory import Memory

LEASE_SECONDS = 3
SETTINGS = {
    "DATACOORD_DATANODE_LEASE_SECONDS": str(LEASE_SECONDS),
    "DATACOORD_HEARTBEAT_INTERVAL_SECONDS": "0.3",
    "DATACOORD_ASSIGNMENT_JOB_INTERVAL_SECONDS": "0.3",
    "DATACOORD_LEASE_JOB_INTERVAL_SECONDS": "0.3",
    "DATACOORD_JOB_LEASE_SECONDS": "1",
    "DATACOORD_WATCH_POLL_SECONDS": "0.2",
}
WAIT_SECONDS_MAX = 300.0
"""A new executor is a new JVM and a new Python, and the machine may be busy."""

PROCESSES, STORE, COORDINATOR = "processes", "store", "coordinator"
"""What a fault is done to. Faults of different places burn together, begun in this order: to choose a victim the coordinator must
answer, and to catch one that writes the store must work."""

Fault = Callable[[], AbstractContextManager[None]]


class Fire:
    """The stage: coordinator, driver, source, and the faults.

    Args:
        directory: for everything.
        seed: of the source and of the faults.
        rows: operations of the source.
        channels: of the collection.
    """

    def __init__(self, directory: Path, seed: int, rows: int, channels: int) -> None:
        sys.stdout.write(f"seed {seed}\n")
        self.directory = directory
        self.rng = random.Random(seed)
        self.source = source(seed, rows, channels, directory / "limit")
        self.limit = HeadLimit(directory / "limit", self.source.log.last_timestamp)
        self.limit.set_share(0.001)
        self.failpoints = FailpointFiles(directory / "failpoints")
        self.done: list[tuple[str, ...]] = []
        self.coordinator = CoordinatorProcess(directory / "data", environment=SETTINGS)
        self._arguments = [str(seed), str(rows), str(channels)]
        self._store = directory / "data" / "objects"
        self.driver: subprocess.Popen[str]
        self.client: CoordinatorClient
        self.memory = Memory(lambda: list(self.client.list_datanodes("fire")), is_python)
        self.faults: dict[str, dict[str, Fault]] = {
            PROCESSES: {
                "a worker is killed": self.killed_worker,
                "an executor is killed": self.killed_executor,
                "a worker freezes beyond its lease": self.frozen_worker,
            },
            STORE: {"the store fails": self.broken_store, "the store is slow": self.slow_store},
            COORDINATOR: {"the coordinator is killed": self.killed_coordinator},
        }

    def __enter__(self) -> Self:
        # The root of the objects is a link, because a link can be put on something else in one step.
        real = self.directory / "objects"
        real.mkdir()
        self._store.parent.mkdir()
        self._store.symlink_to(real)
        self.coordinator.start()
        self.client = CoordinatorClient(self.coordinator.address, timeout_seconds=20)
        self.client.create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name="generated",
                arrow_schema=GENERATOR_SCHEMA.serialize().to_pybytes(),
                primary_key=GENERATOR_PRIMARY_KEY,
                channel_count=self.source.log.channels,
                channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
            )
        )
        script = str(Path(__file__).with_name("fire_driver.py"))
        with (self.directory / "driver.log").open("w") as log:
            self.driver = subprocess.Popen(
                [sys.executable, script, self.coordinator.address, str(self.directory), *self._arguments],
                cwd=self.directory,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
                    ENVIRONMENT_VARIABLE: str(self.failpoints.directory),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.failpoints.release(OBJECTS_WRITTEN)
        with contextlib.suppress(ProcessLookupError):  # executors and workers are of the driver's group
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait(WAIT_SECONDS_MAX)
        self.client.close()
        self.coordinator.__exit__()

    def set_on_fire(self, names: Sequence[str]) -> None:
        """Lets faults burn together, in the middle of things; all are over afterwards.

        Args:
            names: of the faults, each of another place, in the order of the places.
        """
        sys.stdout.write(f"{' and '.join(names)}\n")
        started = time.monotonic()
        known = {name: fault for faults in self.faults.values() for name, fault in faults.items()}
        with contextlib.ExitStack() as burning:
            for name in names:
                burning.enter_context(known[name]())
        self.done.append(tuple(names))
        sys.stdout.write(f"  {time.monotonic() - started:.1f} s\n")

    def some_faults(self) -> list[str]:
        """One, two or three at random, each of another place."""
        places = [place for place in self.faults if self.rng.random() < 0.5] or [self.rng.choice(list(self.faults))]
        return [self.rng.choice(list(self.faults[place])) for place in places]

    @contextlib.contextmanager
    def flowing(self, seconds: float, cap: Callable[[], float]) -> Iterator[None]:
        """Gives the source out bit by bit around a block, so that it takes so long; all of it afterwards.

        Beyond the cap it trickles: what is to be disturbed must go on.

        Args:
            seconds: the whole source takes at least so long.
            cap: how much of it, from 0 to 1, may be out by now at that speed.
        """
        ended = threading.Event()

        def flow() -> None:
            share, last = 0.001, time.monotonic()
            while not ended.wait(0.1):
                now = time.monotonic()
                speed = 1.0 if share < cap() else 0.02
                share, last = min(share + speed * (now - last) / seconds, 1.0), now
                self.limit.set_share(share)

        thread = threading.Thread(target=flow, name="flowing source", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            joined(thread)
            self.limit.lift()

    def until(self, condition: Callable[[], object], seconds: float = WAIT_SECONDS_MAX) -> None:
        """Waits; a coordinator that is away has said nothing."""

        def holds() -> bool:
            assert self.driver.poll() is None, (self.directory / "driver.log").read_text()[-4000:]
            try:
                return bool(condition())
            except DatacoordError:
                return False

        eventually(holds, seconds)

    def channels(self) -> dict[str, admin_pb2.ChannelInfo]:
        """What the coordinator says of the channels."""
        return {channel.channel_name: channel for channel in self.client.list_channels("generated")}

    def a_worker(self) -> admin_pb2.DataNodeInfo:
        """A datanode that owns channels and reads them, chosen at random; waits until there is one."""
        found: list[admin_pb2.DataNodeInfo] = []

        def look() -> bool:
            # A killed process is listed until its lease is over, and its number may be in use again.
            found[:] = [node for node in self.client.list_datanodes("fire") if node.msgs and is_python(node.pid)]
            return bool(found)

        self.until(look)
        return self.rng.choice(sorted(found, key=lambda node: node.slot))

    def hit_a_worker(self, number: int) -> admin_pb2.DataNodeInfo:
        """Sends a signal to a datanode that is there to get it: one that is gone is no victim."""
        while True:
            victim = self.a_worker()
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, number)
                return victim

    def await_back(self, victim: admin_pb2.DataNodeInfo) -> None:
        """Waits until another session lives in the slot of one that was killed."""
        self.until(lambda: any(self._is_next(node, victim) for node in self.client.list_datanodes("fire")))

    def _is_next(self, node: admin_pb2.DataNodeInfo, victim: admin_pb2.DataNodeInfo) -> bool:
        return node.slot == victim.slot and node.node_id > victim.node_id

    @contextlib.contextmanager
    def killed_worker(self) -> Iterator[None]:
        """SIGKILL of a Python worker, while it has objects that are written and not registered; back in its slot."""
        self.failpoints.hold(OBJECTS_WRITTEN)
        victims: list[admin_pb2.DataNodeInfo] = []

        def look() -> bool:
            held = [pid for pid in self.failpoints.held(OBJECTS_WRITTEN) if is_python(pid)]
            victims[:] = [node for node in self.client.list_datanodes("fire") if node.pid in held]
            return bool(victims)

        self.until(look)
        victim = self.rng.choice(victims)
        os.kill(victim.pid, signal.SIGKILL)
        self.until(lambda: not is_python(victim.pid))
        self.failpoints.forget(OBJECTS_WRITTEN, victim.pid)
        self.failpoints.release(OBJECTS_WRITTEN)
        yield
        self.await_back(victim)

    @contextlib.contextmanager
    def killed_executor(self) -> Iterator[None]:
        """SIGKILL of the JVM above a worker: all its workers go, and Spark starts another."""
        before = self.executors()
        victim = self.a_worker()
        executor = parent(parent(victim.pid))
        while executor not in before:  # the worker went away between two looks
            victim = self.a_worker()
            before, executor = self.executors(), parent(parent(victim.pid))
        os.kill(executor, signal.SIGKILL)
        self.until(lambda: executor not in self.executors() and not is_python(victim.pid))
        yield
        self.until(lambda: len(self.executors()) == EXECUTORS and self.executors() - before)
        self.await_back(victim)

    def executors(self) -> set[int]:
        """The JVMs of the executors; all processes of the driver are of its group."""
        return {
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if b"CoarseGrainedExecutorBackend" in command_line(int(path.name)) and group(path) == self.driver.pid
        }

    @contextlib.contextmanager
    def frozen_worker(self) -> Iterator[None]:
        """SIGSTOP of a worker until others own its channels and have gone on, and SIGCONT: now it is a zombie."""
        victim = self.hit_a_worker(signal.SIGSTOP)
        names = [message.channel_name for message in victim.msgs]
        try:
            yield
            self.until(lambda: self._is_moved(victim.node_id, names))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)

    def _is_moved(self, node_id: int, names: list[str]) -> bool:
        channels = self.channels()
        owners = {channels[name].node_id for name in names}
        return 0 not in owners and node_id not in owners

    @contextlib.contextmanager
    def killed_coordinator(self) -> Iterator[None]:
        """SIGKILL, and back on the same port: at once, or after the leases are over."""
        self.coordinator.kill()
        yield
        threading.Event().wait(self.rng.choice((0.0, 0.5, 1.5, LEASE_SECONDS + 0.5)))
        self.coordinator.start()

    @contextlib.contextmanager
    def broken_store(self) -> Iterator[None]:
        """Whatever is written fails, until a datanode has said so: where the directory was there is a file."""
        failures = self.failed_writes()
        real = self._store.resolve()
        broken = self.directory / "no-directory"
        broken.touch()
        self._point_store_at(broken)
        try:
            self.until(lambda: self.failed_writes() > failures)
            yield
            threading.Event().wait(self.rng.uniform(0.0, 1.0))
        finally:
            self._point_store_at(real)

    def failed_writes(self) -> float:
        """Uploads that failed, as all datanodes have said by now."""
        said = [0.0]

        def look() -> bool:
            nodes = self.client.list_datanodes("fire", include_ended=True)
            said[0] = sum(
                value for node in nodes for name, value in node.metrics.items() if name.startswith(SYNC_FAILURES)
            )
            return True

        self.until(look)
        return said[0]

    def _point_store_at(self, target: Path) -> None:
        fresh = self.directory / "link"
        fresh.symlink_to(target)
        fresh.replace(self._store)

    @contextlib.contextmanager
    def slow_store(self) -> Iterator[None]:
        """Objects are written, and the store does not say so for a while, to at least one datanode."""
        self.failpoints.hold(OBJECTS_WRITTEN)
        try:
            self.until(lambda: any(is_python(pid) for pid in self.failpoints.held(OBJECTS_WRITTEN)))
            yield
            threading.Event().wait(self.rng.uniform(0.5, 2.0))
        finally:
            self.failpoints.release(OBJECTS_WRITTEN)

    def await_landed(self) -> None:
        """Waits until the driver has landed everything and ended in order."""
        output, _ = self.driver.communicate(timeout=WAIT_SECONDS_MAX)
        said = (self.directory / "driver.log").read_text()[-4000:]
        heard = [line for line in output.splitlines() if line.startswith(("landed", "fell"))]
        assert (self.driver.returncode, heard) == (0, ["landed"]), f"{self.driver.returncode}, {output!r}, {said}"

    def judge(self) -> Verdict:
        """Compares the rows with the generator's own account of them."""
        files = self.source.log.write_files(self.directory / "input")
        return judge_generator(read_batches(self.client, "generated"), files, scratch_dir=self.directory)

    def verify(self) -> dict[str, Any]:
        """What `datacoord verify` finds."""
        run = subprocess.run(
            command("verify", "--deep", "--data-dir", str(self.directory / "data"), "--output", "json"),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert run.stdout, run.stderr
        (report,) = json.loads(run.stdout)
        assert isinstance(report, dict)
        return report

    def unregistered(self) -> list[str]:
        """Objects that are there and in no row, found by a walk of our own."""
        root = Path(self.client.describe_collection("generated").storage_root.removeprefix("file://"))
        rows = {log.binlog.log_path for channel in self.client.list_binlogs("generated") for log in channel.binlogs}
        files = {
            str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not is_temporary(str(path))
        }
        assert rows <= files
        return sorted(files - rows)

    def sessions(self) -> list[admin_pb2.DataNodeInfo]:
        """Every session there was."""
        return list(self.client.list_datanodes("fire", include_ended=True))


def is_over(node: admin_pb2.DataNodeInfo) -> bool:
    """Whether a session has ended."""
    return node.state == data_coord_pb2.DATA_NODE_STATE_ENDED


def command_line(pid: int) -> bytes:
    """How a process was started; empty = it is gone, or nobody has taken note of its end yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def group(process: Path) -> int:
    """The process group of a process; 0 = it is gone."""
    with contextlib.suppress(OSError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    return 0


def parent(pid: int) -> int:
    """The process that started another; 0 = it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def is_python(pid: int) -> bool:
    """Whether a process runs and is a Python of Spark's."""
    return b"pyspark" in command_line(pid)
