"""Starting: health, reflection, and one sentence for whatever stands in the way, before anything is touched."""

import contextlib
import socket
import sqlite3
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.commands import run

from coordinator.grpc_port import SERVICES
from datacoord.cli import main
from datacoord.client import CoordinatorClient
from server.running_coordinator import CoordinatorProcess, command, definition, environment, running

ANY_PORTS = ["--port", "0", "--web-port", "0"]


def refused(reason: str, *arguments: str) -> str:
    """Runs a command that must fail with one sentence of this reason; the sentence."""
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code in {1, 2}, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("datacoord: ")
    assert line.endswith(f"({reason})")
    return line


def test_health_names_every_service(tmp_path: Path) -> None:
    """Load balancers ask per service."""
    with running(tmp_path / "data") as thread, grpc.insecure_channel(thread.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ["", *(service.full_name for service in SERVICES.values())]:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="another"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_is_off_unless_asked_for(tmp_path: Path) -> None:
    """It tells strangers the contract; developers may switch it on."""
    from grpc_reflection.v1alpha import (  # type: ignore[import-untyped] # it ships no types
        reflection_pb2,
        reflection_pb2_grpc,
    )

    def services(address: str) -> set[str]:
        with grpc.insecure_channel(address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            answers = list(stub.ServerReflectionInfo(iter([request])))
            return {service.name for service in answers[0].list_services_response.service}

    with running(tmp_path / "off") as thread, pytest.raises(grpc.RpcError) as caught:
        services(thread.address)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with running(tmp_path / "on", grpc_reflection=True) as thread:
        assert services(thread.address) >= {service.full_name for service in SERVICES.values()}


@pytest.mark.parametrize("flag", ["--port", "--web-port"])
def test_a_port_in_use_is_said_and_nothing_is_touched(tmp_path: Path, flag: str) -> None:
    """Two coordinators on one port would share its calls at random; a second one must not even open a database."""
    with running(tmp_path / "first") as first:
        address = first.address if flag == "--port" else first.web_address
        port = address.rpartition(":")[2]
        arguments = ["serve", "--data-dir", str(tmp_path / "second"), "--port", "0", "--web-port", "0", flag, port]
        assert port in refused("PORT_IN_USE", *arguments)
        assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("flag", ["--port", "--web-port"])
def test_a_port_that_another_program_is_willing_to_share_is_in_use(tmp_path: Path, flag: str) -> None:
    """With SO_REUSEPORT on both sides the kernel would let us in, and give us every second connection."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        arguments = ["serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--web-port", "0", flag, port]
        assert port in refused("PORT_IN_USE", *arguments)


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    """The sentence must not say that the port is in use: it is not."""
    assert "192.0.2.1" in refused(
        "CONFIG_INVALID", "serve", "--data-dir", str(tmp_path), "--host", "192.0.2.1", "--port", "0", "--web-port", "0"
    )


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """An older version that writes into a newer schema destroys it."""
    data = tmp_path / "data"
    with running(data) as thread, CoordinatorClient(thread.address) as client:
        client.create_collection(definition())
    with contextlib.closing(sqlite3.connect(data / "datacoord.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'of_tomorrow'")
        database.commit()
        before = list(database.iterdump())
    for name in ("serve", "migrate"):
        assert "of_tomorrow" in refused(
            "DATABASE_TOO_NEW", name, "--data-dir", str(data), "--port", "0", "--web-port", "0"
        )
    with contextlib.closing(sqlite3.connect(data / "datacoord.db")) as database:
        assert list(database.iterdump()) == before


def test_a_shared_database_is_migrated_as_a_separate_step(tmp_path: Path) -> None:
    """Of eight replicas that start at once none may migrate on its own."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    flags = ["--database-url", url, "--storage-root", str(tmp_path / "objects"), "--port", "0", "--web-port", "0"]
    assert "datacoord migrate" in refused("DATABASE_NOT_MIGRATED", "serve", *flags)
    assert CliRunner().invoke(main, ["migrate", "--database-url", url]).exit_code == 0
    assert "already" in CliRunner().invoke(main, ["migrate", "--database-url", url]).stdout
    with CoordinatorProcess(tmp_path / "unused", *flags) as process, CoordinatorClient(process.address) as client:
        created = client.create_collection(definition())
        assert created.storage_root.startswith(str(tmp_path / "objects"))
        assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("content", [b"this is no database, not at all, by no means" * 50])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    """A wrong path must not be overwritten."""
    (tmp_path / "datacoord.db").write_bytes(content)
    refused("STORE_UNAVAILABLE", "serve", "--data-dir", str(tmp_path), "--port", "0", "--web-port", "0")
    assert (tmp_path / "datacoord.db").read_bytes() == content


def test_a_ready_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Who starts the process waits for that file; a process that serves without it would be waited for in vain."""
    missing = str(tmp_path / "missing" / "ready.json")
    arguments = [
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "0",
        "--web-port",
        "0",
        "--log-level",
        "error",
    ]
    assert "ready.json" in refused("CONFIG_INVALID", *arguments, "--ready-file", missing)


def test_a_refusal_is_all_there_is_on_standard_error(tmp_path: Path) -> None:
    """Libraries below like to add lines of their own, in C++, past Python's standard error."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        arguments = ["serve", "--data-dir", str(tmp_path / "data"), *ANY_PORTS, "--port", port]
        done = run(command(*arguments), environment=environment())
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("(PORT_IN_USE)")
