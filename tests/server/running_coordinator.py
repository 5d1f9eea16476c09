"""Real coordinators for tests: one in a thread of this process, or one in a process of its own that can be killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from support.waiting import WAIT_SECONDS_MAX, eventually, joined

from coordinator import logging
from coordinator.config import Settings
from coordinator.server import Coordinator
from datacoord.client import CoordinatorClient
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 60.0

QUICK: dict[str, Any] = {
    "grpc_port": 0,
    "web_port": 0,
    "heartbeat_interval_seconds": 0.2,
    "datanode_lease_seconds": 10.0,
    "lease_job_interval_seconds": 0.1,
    "assignment_job_interval_seconds": 0.2,
    "watch_poll_seconds": 0.1,
    "shutdown_grace_seconds": 5.0,
}
"""Ports of the system's choice, and intervals for which nobody has to wait; a lease that no busy machine loses."""


class CoordinatorThread:
    """A coordinator on an event loop of its own, in a thread."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        logging.configure("info", "json")
        self._settings = Settings(**{**QUICK, "data_dir": str(data_dir), **settings})
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordinator", daemon=True)
        self._thread.start()
        try:
            self.coordinator: Coordinator = self.run(Coordinator.start(self._settings))
        except BaseException:
            self._end_loop()
            raise

    def run(self, coroutine: Any) -> Any:
        """Runs something on the coordinator's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(READY_SECONDS_MAX)

    @property
    def address(self) -> str:
        """host:port of gRPC."""
        return self.coordinator.address

    @property
    def web_address(self) -> str:
        """host:port of metrics and health."""
        return self.coordinator.web_address

    def stop(self) -> None:
        """Ends it in order."""
        self.run(self.coordinator.stop())
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        joined(self._thread)
        self._loop.close()


@contextmanager
def running(data_dir: Path, **settings: Any) -> Iterator[CoordinatorThread]:
    """A coordinator in a thread, ended in order."""
    thread = CoordinatorThread(data_dir, **settings)
    try:
        yield thread
    finally:
        thread.stop()


class CoordinatorProcess:
    """`datacoord serve` as a process of its own, on the same ports over restarts."""

    def __init__(self, data_dir: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.ready_path = data_dir.with_name(f"{data_dir.name}-ready.json")
        self.output_path = data_dir.with_name(f"{data_dir.name}.log")
        self._flags = flags
        self._environment = environment or {}
        self._ports: Sequence[str] = ("0", "0")
        self.process: subprocess.Popen[bytes]
        self.address = ""
        self.web_address = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_SECONDS_MAX)

    def start(self) -> Self:
        """Starts it and waits until it serves."""
        self.ready_path.unlink(missing_ok=True)
        with self.output_path.open("ab") as output:
            self.process = subprocess.Popen(
                command("serve", *self._where(), *self._flags),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(**self._environment),
            )
        eventually(lambda: self.ready_path.exists() or self.process.poll() is not None, READY_SECONDS_MAX)
        assert self.process.poll() is None, self.output()
        ready = json.loads(self.ready_path.read_text())
        assert ready["pid"] == self.process.pid
        self.address, self.web_address = ready["address"], ready["web_address"]
        self._ports = (str(ready["port"]), str(ready["web_port"]))
        return self

    def _where(self) -> list[str]:
        port, web_port = self._ports
        where = ["--data-dir", str(self.data_dir), "--ready-file", str(self.ready_path)]
        return [*where, "--port", port, "--web-port", web_port]

    def output(self) -> str:
        """Everything it has written."""
        return self.output_path.read_text()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait(WAIT_SECONDS_MAX)

    def terminate(self, number: int = signal.SIGTERM, timeout_seconds: float = 30.0) -> int:
        """Asks it to end, and waits; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout_seconds)


def command(*arguments: str) -> list[str]:
    """The `datacoord` command of this source tree."""
    return [sys.executable, "-m", "datacoord.cli", *arguments]


def environment(**more: str) -> dict[str, str]:
    """This environment without our own variables, with this source tree on the path."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DATACOORD_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def definition(name: str = "files", **change: Any) -> collection_pb2.CreateCollectionRequest:
    """A collection of two CLAIMED channels."""
    fields: dict[str, Any] = {
        "collection_name": name,
        "arrow_schema": pa.schema([("path", pa.string()), ("mode", pa.int32())]).serialize().to_pybytes(),
        "primary_key": ["path"],
        "channel_count": 2,
        "channel_mode": common_pb2.CHANNEL_MODE_CLAIMED,
        "timestamp_kind": common_pb2.TIMESTAMP_KIND_ORDINAL,
        **change,
    }
    return collection_pb2.CreateCollectionRequest(**fields)


def save_part(
    info: data_coord_pb2.ChannelRecoveryInfo, timestamp_from: int, timestamp_to: int, log_id: int
) -> data_coord_pb2.ChannelBinlogs:
    """A save of one object, for one range of the first partition of a channel, that moves the checkpoint to its end."""
    (partition_id,) = info.partitions.values()
    path = BinlogPath(
        BinlogKind.INSERT, info.channel_id, partition_id, info.epoch, timestamp_from, timestamp_to, 0, log_id
    )
    binlog = common_pb2.Binlog(
        log_id=log_id,
        log_path=str(path),
        entries_num=1,
        timestamp_from=timestamp_from + 1,
        timestamp_to=timestamp_to,
        log_size_bytes=10,
        memory_size_bytes=10,
    )
    lane = data_coord_pb2.LaneBinlogs(
        partition_id=partition_id,
        timestamp_from=timestamp_from,
        timestamp_to=timestamp_to,
        insert_logs=[common_pb2.FieldBinlog(binlogs=[binlog])],
    )
    return data_coord_pb2.ChannelBinlogs(
        channel_name=info.channel_name,
        epoch=info.epoch,
        lanes=[lane],
        check_point=common_pb2.MsgPosition(timestamp=timestamp_to, msg_id=str(timestamp_to).encode()),
    )


def claim(client: CoordinatorClient, collection: str = "files") -> list[data_coord_pb2.ChannelRecoveryInfo]:
    """Claims every channel of a collection."""
    names = client.describe_collection(collection).channel_names
    results = client.claim_channels("query-1", names)
    assert all(result.HasField("info") for result in results)
    return [result.info for result in results]


def metric(web_address: str, name: str, **labels: str) -> float:
    """A metric, of all samples with these labels."""
    with urllib.request.urlopen(f"http://{web_address}/metrics", timeout=WAIT_SECONDS_MAX) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name == f"datacoord_{name}"]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def in_flight(process: CoordinatorProcess, method: str) -> float:
    """Calls of a method that are in progress, by the coordinator's own metrics."""
    return metric(process.web_address, "rpc_in_flight", method=method)


def grpc_processes_of(pid: int) -> list[int]:
    """The gRPC processes that a process has started and that still run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Threads and processes come and go meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            children = (task / "children").read_text().split()
            ours = [child for child in children if "coordinator.front" in Path(f"/proc/{child}/cmdline").read_text()]
            found += [int(child) for child in ours if not is_gone(int(child))]
    return found


def grpc_process_of(process: CoordinatorProcess) -> int:
    """The gRPC process of a coordinator."""
    (child,) = grpc_processes_of(process.process.pid)
    return child


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whoever has to be told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True
