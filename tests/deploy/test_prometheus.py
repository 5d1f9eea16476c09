"""What watches over a deployment: shipped rules fire when they should, and every query of a dashboard has an answer.

Prometheus is the real one, from Debian's package, with the configuration that is shipped; only where to look for coordinators is
changed, because there is no compose network here.
"""

import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from server.running_coordinator import CoordinatorThread, claim, definition, running, save_part
from support.waiting import eventually

from coordinator.core.jobs import Job
from datacoord import reported_metrics as names
from datacoord.client import CoordinatorClient
from datacoord.errors import DatacoordError
from datacoord.reported_metrics import REPORTED
from datacoord.v1 import common_pb2, data_coord_pb2, data_coord_pb2_grpc
from datanode_client.metrics import DataNodeMetrics
from tools.debian_package import DebianProgram, debian_program
from tools.generate_dashboards import queries

ROOT = Path(__file__).resolve().parent.parent.parent
PROMETHEUS_DIR = ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def promtool() -> DebianProgram:
    """Prometheus' own tool for configurations and rules."""
    return debian_program("prometheus", "usr/bin/promtool")


def run(program: DebianProgram, *arguments: str) -> str:
    """Runs a program in the folder of the configuration; its output."""
    done = subprocess.run(
        [program.path, *arguments],
        cwd=PROMETHEUS_DIR,
        env=program.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_shipped_configuration_is_one_that_prometheus_takes(promtool: DebianProgram) -> None:
    """A Prometheus that does not start watches over nothing, and nobody is told."""
    run(promtool, "check", "config", "prometheus.yml")


def test_each_alert_fires_when_it_should_and_only_then(promtool: DebianProgram) -> None:
    """An alert whose labels do not match never fires, and looks like peace."""
    run(promtool, "test", "rules", "alerts_test.yml")


def test_there_is_a_case_in_which_each_alert_fires_and_a_place_that_says_what_to_do() -> None:
    """An alert without a case may never fire; one without advice wakes somebody for nothing."""
    rules = yaml.safe_load((PROMETHEUS_DIR / "alerts.yml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((PROMETHEUS_DIR / "alerts_test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules}
    operations = (ROOT / "docs" / "operations.md").read_text()
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (page, anchor) == ("docs/operations.md", rule["alert"].lower())
        assert re.search(rf"(?m)^#+ {rule['alert']}$", operations), f"docs/operations.md has no section {rule['alert']}"


def test_alerts_name_jobs_that_there_are() -> None:
    """A job of another name never runs: the alert that stands for it would fire never, or always."""
    rules = yaml.safe_load((PROMETHEUS_DIR / "alerts.yml").read_text())["groups"][0]["rules"]
    of_jobs = [rule["expr"] for rule in rules if "datacoord_job_" in rule["expr"]]
    named = {job for expr in of_jobs for jobs in re.findall(r'job!?=?~?"([^"]*)"', expr) for job in jobs.split("|")}
    assert named == {Job.LEASE, Job.ASSIGNMENT, Job.WATCH}


@contextmanager
def prometheus(target: str, directory: Path) -> Iterator[str]:
    """A Prometheus with the shipped configuration that scrapes one coordinator often; its URL."""
    config = (PROMETHEUS_DIR / "prometheus.yml").read_text().replace("10s", "1s")
    discovery = re.compile(r"    dns_sd_configs:\n(?:      .*\n)+")
    assert len(discovery.findall(config)) == 1
    (directory / "prometheus.yml").write_text(
        discovery.sub(f'    static_configs: [{{targets: ["{target}"]}}]\n', config)
    )
    (directory / "alerts.yml").write_text((PROMETHEUS_DIR / "alerts.yml").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program = debian_program("prometheus", "usr/bin/prometheus")
    arguments = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}")
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [program.path, *arguments], cwd=directory, env=program.environment(), stdout=log, stderr=log
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            with suppress(OSError):
                return bool(urllib.request.urlopen(f"http://{address}/-/ready", timeout=2).status == 200)
            return False

        eventually(ready, 60)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def ask(url: str, query: str) -> list[Any]:
    """Samples of a query, as a dashboard of the last minute would ask."""
    text = urllib.parse.urlencode({"query": query.replace("$__rate_interval", "1m")})
    with urllib.request.urlopen(f"{url}/api/v1/query?{text}", timeout=10) as answer:
        body = json.load(answer)
    assert body["status"] == "success", body
    samples: list[Any] = body["data"]["result"]
    return [sample for sample in samples if sample["value"][1] != "NaN"]


class Life(threading.Thread):
    """A datanode and a sink that go on and on, so that every rate has something to count."""

    def __init__(self, coordinator: CoordinatorThread) -> None:
        super().__init__(daemon=True)
        self._coordinator = coordinator
        self.over = threading.Event()

    def run(self) -> None:
        """Goes on until it is over."""
        with (
            CoordinatorClient(self._coordinator.address) as client,
            grpc.insecure_channel(self._coordinator.address) as channel,
        ):
            stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(channel)  # type: ignore[no-untyped-call]
            client.create_collection(definition())
            client.create_collection(definition("managed", channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
            first, _ = claim(client)
            node_id = stub.RegisterDataNode(
                data_coord_pb2.RegisterDataNodeRequest(
                    job="land", slot=0, collection_names=["managed"], host="h", pid=1
                )
            ).node_id
            watch = stub.WatchDmChannels(data_coord_pb2.WatchDmChannelsRequest(node_id=node_id))
            counted = DataNodeMetrics()
            for metric in REPORTED.values():
                if not metric.is_counter:
                    counted.gauge(metric.name, lambda: float(turn))
            turn = 0
            while not self.over.wait(0.2):
                turn += 1
                client.save_binlog_paths([save_part(first, 5 * (turn - 1), 5 * turn, 1)])
                with suppress(DatacoordError):
                    client.save_binlog_paths([save_part(first, 10**6, 10**6 + 1, 1)])  # a GAP
                stub.ReportDataNodeTtMsgs(_report(client, node_id, turn, counted))
            watch.cancel()


def _report(
    client: CoordinatorClient, node_id: int, turn: int, counted: DataNodeMetrics
) -> data_coord_pb2.ReportDataNodeTtMsgsRequest:
    """What a datanode that is well reports: it reads and writes, and nothing fails."""
    counted.add(names.CONSUMED_ROWS, 10)
    counted.add(names.FLUSHED_ROWS, 10, kind="insert")
    for name in (names.SAVE_TO_STORAGE_SECONDS, names.SAVE_BINLOG_PATHS_SECONDS):
        counted.observe(name, 0.1)
    messages = [
        data_coord_pb2.DataNodeTtMsg(
            channel_name=row.channel_name, epoch=row.epoch, timestamp=turn, lag=7, event_time_ms=int(time.time() * 1000)
        )
        for row in client.list_channels("managed")
    ]
    return data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node_id, msgs=messages, metrics=counted.export())


def test_every_query_of_every_dashboard_has_an_answer(tmp_path: Path) -> None:
    """A panel that asks for a name that is gone says "no data", which everybody reads as peace: so one that is well must not."""
    settings = {
        "assignment_job_interval_seconds": 0.2,
        "seal_job_interval_seconds": 0.3,
        "datanode_lease_seconds": 600.0,
    }
    with running(tmp_path / "data", **settings) as coordinator:
        life = Life(coordinator)
        life.start()
        try:
            with prometheus(coordinator.web_address, tmp_path) as url:
                missing = set(queries())

                def all_answer() -> bool:
                    assert life.is_alive()
                    missing.difference_update([query for query in missing if ask(url, query)])
                    return not missing

                try:
                    eventually(all_answer, 60)
                except AssertionError:
                    pytest.fail("no answer to: " + "\n".join(sorted(missing)))
        finally:
            life.over.set()
            life.join(10)
