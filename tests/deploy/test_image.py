"""The images, built step by step without a container engine, and the services of the compose file run in them by hand."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name
from support.postgres import PostgresServer

from datacoord.client import CoordinatorClient
from datacoord.credentials import Credentials
from tools.install_release import BILL_OF_MATERIALS

from .image_builder import ROOT, ImageBuilder, Stage, run, start

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
WAIT_SECONDS_MAX = 240.0
PORTS = (13333, 13334, 13335, 7077, 8080)
"""That the services listen on here."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    """All stages."""
    if os.geteuid() != 0:
        pytest.fail("building images needs root; run `make test-long` as root")
    return ImageBuilder(tmp_path_factory.mktemp("images")).build()


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Waits until a service does what it should; fails with what it wrote when it ends or is too slow."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert process.poll() is None, f"{log.name}: ended with {process.returncode}: {log.read_text()[-3000:]}"
        assert time.monotonic() < deadline, f"{log.name}: {log.read_text()[-3000:]}"
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_coordinators_image_has_no_spark_and_no_tools_to_build_with(images: dict[str, Stage]) -> None:
    """What is not there cannot be attacked, and need not be downloaded to every machine."""
    listed = run(images["coordinator"], ["/app/bin/python", "-m", "pip", "list", "--format=json"])
    names = {package["name"].lower() for package in json.loads(listed)}
    assert "datacoord" in names
    assert not names & {"pyspark", "pandas", "hatchling", "pytest", "ruff"}
    run(images["coordinator"], ["/app/bin/python", "-m", "pip", "check"])
    run(images["spark"], ["/app/bin/python", "-m", "pip", "check"])
    materials = json.loads(run(images["coordinator"], ["cat", f"/app/{BILL_OF_MATERIALS}"]))
    named = {component["name"] for component in materials["components"]}
    # Older Pythons put setuptools into every environment.
    assert {canonicalize_name(name) for name in names} - named - {"setuptools"} == {"datacoord", "pip"}


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_services_land_rows_when_they_run_as_the_compose_file_says(
    images: dict[str, Stage], tmp_path: Path
) -> None:
    """Users, read-only roots, commands and their order, all as deployed; only addresses are this machine's."""
    objects, secrets = tmp_path / "objects", tmp_path / "deploy" / "secrets"
    objects.mkdir()
    os.chown(objects, 10001, 10001)
    secrets.parent.mkdir()
    script = secrets.parent / "make-secrets.sh"
    script.write_bytes((ROOT / "deploy" / "make-secrets.sh").read_bytes())
    subprocess.run(["sh", script], check=True, capture_output=True)
    for directory in (tmp_path, tmp_path.parent, secrets):
        directory.chmod(0o755)
    with ExitStack() as stack:
        server = PostgresServer()
        stack.callback(server.remove)
        server.start()
        url = server.create_database("deployed")
        for role in ("migrate", "run"):
            (secrets / f"database_url_{role}").write_text(url)

        def service(name: str, image: str, *, replace: dict[str, str]) -> subprocess.Popen[bytes]:
            command = [_replaced(word, replace) for word in SERVICES[name]["command"]]
            environment = {key: str(value) for key, value in SERVICES[name]["environment"].items()}
            if "DATACOORD_STORAGE_ROOT" in environment:
                environment["DATACOORD_STORAGE_ROOT"] = "/objects"
            output = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            ours = secrets / ("coordinator" if image == "coordinator" else "datanode")
            mounts = {objects: "/objects", secrets: "/run/secrets", ours: "/etc/datacoord"}
            process = start(images[image], command, output, mounts=mounts, more=environment)
            stack.callback(_end, process)
            return process

        assert service("migrate", "coordinator", replace={}).wait(WAIT_SECONDS_MAX) == 0, _log(tmp_path, "migrate")
        coordinator = service("coordinator", "coordinator", replace={})
        wait_for(lambda: _answers("http://127.0.0.1:13334/readyz"), coordinator, tmp_path / "coordinator.log")
        page = "http://127.0.0.1:13335/"
        wait_for(lambda: b"Datacoord" in _body(page), coordinator, tmp_path / "coordinator.log")
        local = {"spark-master": "127.0.0.1", "coordinator": "127.0.0.1", "--rows=5000000": "--rows=20000"}
        master = service("spark-master", "spark", replace=local)
        wait_for(lambda: _answers("http://127.0.0.1:8080/json/"), master, tmp_path / "spark-master.log")
        worker = service("spark-worker", "spark", replace=local)
        alive = b'"aliveworkers" : 1'
        wait_for(lambda: alive in _body("http://127.0.0.1:8080/json/"), worker, tmp_path / "spark-worker.log")
        land = service("land", "spark", replace=local)
        assert land.wait(600) == 0, _log(tmp_path, "land")
        assert "everything is registered" in _log(tmp_path, "land")
        assert run(images["coordinator"], ["datacoord", "health"]).strip() == "ready"
        credentials = Credentials(token_file=str(secrets / "admin_token"))
        with CoordinatorClient("127.0.0.1:13333", credentials=credentials) as client:
            channels = list(client.list_channels("generated"))
        assert len(channels) == 64
        assert all(channel.checkpoint.timestamp > 0 for channel in channels)
        assert {path.stat().st_uid for path in objects.rglob("*.parquet")} == {10001}


def _replaced(word: str, replace: dict[str, str]) -> str:
    for old, new in replace.items():
        word = word.replace(old, new)
    return word


def _body(url: str) -> bytes:
    with suppress(OSError), urllib.request.urlopen(url, timeout=3) as answer:
        body: bytes = answer.read()
        return body
    return b""


def _answers(url: str) -> bool:
    return bool(_body(url))


def _log(directory: Path, name: str) -> str:
    path = directory / f"{name}.log"
    return path.read_text(errors="replace")[-3000:] if path.exists() else ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the first process of the namespace, and with it all others; `unshare` itself hands no signal on."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    first = [int(child) for child in children.read_text().split()] if children.exists() else []
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in first:
            with suppress(ProcessLookupError):
                os.kill(child, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
            return
    process.kill()
    process.wait(20)


@pytest.fixture(autouse=True, scope="module")
def _ports_are_free() -> None:
    """The services use the ports they are deployed with; another deployment on this machine would answer for them."""
    for port in PORTS:
        try:
            # Only who can listen knows that nobody else does: what is there need not speak HTTP, nor answer at once.
            socket.create_server(("", port)).close()
        except OSError as error:
            pytest.fail(f"port {port} is in use: {error}")
