"""The process that accepts calls: what callers see is the same, and whichever of the two processes dies, nothing is lost."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from security.logins import Logins, log_lines
from security.pki import Authority
from support.waiting import WAIT_SECONDS_MAX, eventually

from coordinator.front import processes
from coordinator.front.link import Link
from coordinator.front.processes import GrpcProcess
from datacoord.client import CoordinatorClient
from datacoord.errors import (
    CollectionNotFoundError,
    InternalError,
    InvalidFieldError,
    OverloadedError,
    PermissionDeniedError,
    PortInUseError,
    UnauthenticatedError,
)
from datacoord.failpoints import ENVIRONMENT_VARIABLE
from datacoord.failures import retry_delay_seconds, status_of
from datacoord.limits import MESSAGE_BYTES_MAX
from datacoord.transport import client_options
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2
from server.running_coordinator import (
    CoordinatorProcess,
    CoordinatorThread,
    claim,
    definition,
    grpc_process_of,
    grpc_processes_of,
    in_flight,
    is_gone,
    metric,
    running,
    save_part,
)
from server.wire import Wire

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY_APPLIED = common_pb2.OUTCOME_ALREADY_APPLIED
SAVE = "/datacoord.v1.DataCoordService/SaveBinlogPaths"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorThread]:
    """A coordinator whose calls another process accepts."""
    with running(tmp_path / "data", grpc_process=True) as thread:
        yield thread


@pytest.fixture
def client(coordinator: CoordinatorThread) -> Iterator[CoordinatorClient]:
    """A client of it."""
    with CoordinatorClient(coordinator.address, caller="demo", timeout_seconds=30) as connected:
        yield connected


def ready(web_address: str) -> bool:
    """Whether the coordinator says that it can serve."""
    try:
        with urllib.request.urlopen(f"http://{web_address}/readyz", timeout=WAIT_SECONDS_MAX):
            return True
    except urllib.error.HTTPError:
        return False


def grpc_process(coordinator: CoordinatorThread) -> GrpcProcess:
    """What the coordinator knows of its gRPC process."""
    server = coordinator.coordinator._server
    assert isinstance(server, GrpcProcess)
    return server


# ---- what callers see -----------------------------------------------------------------------------------------------------------


def told(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, bytes]:
    """What a call that must fail is told: code, sentence, details."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    status = status_of(error)
    # What gRPC itself says is in its words.
    return (error.code(), error.details(), status.SerializeToString()) if status else (error.code(), "", b"")


def errors_of(address: str) -> list[tuple[grpc.StatusCode, str, bytes]]:
    """What callers of a coordinator are told of everything that must fail."""
    describe = "/datacoord.v1.CollectionService/DescribeCollection"
    unary = [
        (SAVE, b"\xff\xff"),
        (SAVE, b""),
        (SAVE, b"\x00" * (MESSAGE_BYTES_MAX + 1)),
        (describe, collection_pb2.DescribeCollectionRequest(collection_name="nöne" * 2000).SerializeToString()),
        (describe, collection_pb2.DescribeCollectionRequest(collection_name="none").SerializeToString()),
        ("/datacoord.v1.DataCoordService/Nothing", b""),
        ("/grpc.health.v1.Health/List", b""),
        ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service="nobody").SerializeToString()),
    ]
    unlimited = [*client_options(), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=unlimited) as channel:
        call_of: Any = channel.unary_unary
        calls: list[Any] = [partial(call_of(method), body) for method, body in unary]
        watch: Any = channel.unary_stream("/datacoord.v1.DataCoordService/WatchDmChannels")
        nobody = data_coord_pb2.WatchDmChannelsRequest(node_id=77).SerializeToString()
        calls.append(lambda timeout: list(watch(nobody, timeout=timeout)))
        return [told(partial(call, timeout=WAIT_SECONDS_MAX)) for call in calls]


def test_errors_are_those_of_one_process(coordinator: CoordinatorThread, tmp_path: Path) -> None:
    """A client that reads reasons and times to come back must not have to know how a coordinator is run."""
    with running(tmp_path / "alone") as alone:
        assert errors_of(coordinator.address) == errors_of(alone.address)


def test_calls_are_answered_as_by_one_process(client: CoordinatorClient) -> None:
    """Everything there is goes over the socket between the two: small and large, reads and writes."""
    client.create_collection(definition(channel_count=500))
    infos = claim(client)
    assert len(infos) == 500
    parts = [save_part(info, 0, 5, 1 + info.channel_index) for info in infos]
    assert {result.outcome for result in client.save_binlog_paths(parts)} == {APPLIED}
    assert {result.outcome for result in client.save_binlog_paths(parts)} == {ALREADY_APPLIED}
    with pytest.raises(CollectionNotFoundError):
        client.describe_collection("none")
    with pytest.raises(InvalidFieldError):
        client.create_collection(definition("no name"))


def test_every_caller_gets_its_own_answer(coordinator: CoordinatorThread, client: CoordinatorClient) -> None:
    """One socket carries all calls: an answer that goes to another caller acknowledges what was not done."""
    client.create_collection(definition(channel_count=64))
    infos = claim(client)
    channels = [grpc.insecure_channel(coordinator.address, options=client_options()) for _ in range(4)]
    waiting = []
    for number, info in enumerate(infos):
        request = data_coord_pb2.SaveBinlogPathsRequest(channels=[save_part(info, 0, 5, 1 + number)])
        call: Any = channels[number % 4].unary_unary(SAVE)
        waiting.append((info, call.future(request.SerializeToString(), timeout=WAIT_SECONDS_MAX)))
    for info, answer in waiting:
        (result,) = data_coord_pb2.SaveBinlogPathsResponse.FromString(answer.result()).results
        assert (result.channel_name, result.outcome) == (info.channel_name, APPLIED), "an answer went to another caller"
    for channel in channels:
        channel.close()


def test_a_stream_ends_with_its_caller(coordinator: CoordinatorThread, client: CoordinatorClient, wire: Wire) -> None:
    """A stream that goes on for a caller who has left keeps a session of a datanode alive that is gone."""
    client.create_collection(definition(channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
    session = wire.call(
        wire.data_coord.RegisterDataNode,
        data_coord_pb2.RegisterDataNodeRequest(job="job", slot=0, collection_names=["files"], host="here", pid=1),
    )
    stream = wire.data_coord.WatchDmChannels(data_coord_pb2.WatchDmChannelsRequest(node_id=session.node_id))
    held = next(state for state in stream if len(state.channels) == 2)
    assert held.revision > 0
    assert metric(coordinator.web_address, "watch_streams") == 1
    stream.cancel()
    eventually(lambda: metric(coordinator.web_address, "watch_streams") == 0, WAIT_SECONDS_MAX)


def test_a_call_ends_with_its_caller(tmp_path: Path) -> None:
    """Nobody waits for it: what it holds must be let go, or callers that give up fill the coordinator."""
    points = tmp_path / "points"
    points.mkdir()
    environment = {ENVIRONMENT_VARIABLE: str(points)}
    with CoordinatorProcess(tmp_path / "data", "--grpc-process", environment=environment) as process:
        with CoordinatorClient(process.address) as client:
            client.create_collection(definition())
            info = claim(client)[0]
        (points / "coordinator.before_commit.hold").touch()
        with grpc.insecure_channel(process.address, options=client_options()) as channel:
            request = data_coord_pb2.SaveBinlogPathsRequest(channels=[save_part(info, 0, 5, 1)])
            save: Any = channel.unary_unary(SAVE)
            answer = save.future(request.SerializeToString(), timeout=WAIT_SECONDS_MAX)
            eventually(lambda: in_flight(process, "SaveBinlogPaths") == 1, WAIT_SECONDS_MAX)
            answer.cancel()
            eventually(lambda: in_flight(process, "SaveBinlogPaths") == 0, WAIT_SECONDS_MAX)
        (points / "coordinator.before_commit.hold").unlink()


def test_health_is_watched_through_it(coordinator: CoordinatorThread) -> None:
    """A load balancer that watches must learn of the end before calls fail."""
    with grpc.insecure_channel(coordinator.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        service = "datacoord.v1.DataCoordService"
        states = stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_SECONDS_MAX)
        assert next(states).status == health_pb2.HealthCheckResponse.SERVING
        coordinator.run(coordinator.coordinator._health.enter_graceful_shutdown())
        assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
        states.cancel()


def test_who_calls_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens, certificates and addresses come in at the other process; the gate and the audit log must have them."""
    authority, logins = Authority(tmp_path), Logins(tmp_path)
    certificate, key = authority.issue("localhost")
    own, own_key = authority.issue("the-caller")
    files = {"tls_cert_file": str(certificate), "tls_key_file": str(key), "tls_client_ca_file": str(authority.path)}
    with running(tmp_path / "data", grpc_process=True, tokens_file=str(logins.path), **files) as coordinator:
        credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), own_key.read_bytes(), own.read_bytes())
        with grpc.secure_channel(coordinator.address, credentials) as channel:
            drop: Any = channel.unary_unary("/datacoord.v1.CollectionService/DropCollection")
            body = collection_pb2.DropCollectionRequest(collection_name="none").SerializeToString()
            for metadata, code in (
                ((), grpc.StatusCode.UNAUTHENTICATED),
                ((("authorization", f"Bearer {logins.tokens['reader']}"),), grpc.StatusCode.PERMISSION_DENIED),
                ((("authorization", f"Bearer {logins.tokens['admin']}"),), grpc.StatusCode.NOT_FOUND),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    drop(body, metadata=metadata, timeout=WAIT_SECONDS_MAX)
                assert caught.value.code() is code
    lines = log_lines(capsys.readouterr().out, "audit")
    assert [line["outcome"] for line in lines] == [
        UnauthenticatedError.reason.value,
        PermissionDeniedError.reason.value,
        "NOT_FOUND",
    ]
    assert {line["certificate"] for line in lines} == {"'the-caller'"}
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines)


# ---- one of the two ends --------------------------------------------------------------------------------------------------------


def unable_to_start(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """From now on no gRPC process can be started, until the event is set."""
    able, start = threading.Event(), processes._start

    def refuse(theirs: socket.socket) -> "subprocess.Popen[bytes]":
        if not able.is_set():
            raise OSError(errno.EAGAIN, "no more processes")
        return start(theirs)

    monkeypatch.setattr(processes, "_start", refuse)
    return able


def test_it_is_not_ready_while_nobody_accepts_calls(
    coordinator: CoordinatorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer must send calls elsewhere as long as there is nobody to take them."""
    assert ready(coordinator.web_address)
    able = unable_to_start(monkeypatch)
    os.kill(grpc_process(coordinator)._process.pid, signal.SIGKILL)
    eventually(lambda: not ready(coordinator.web_address), WAIT_SECONDS_MAX)
    assert metric(coordinator.web_address, "grpc_process_restarts_total") == 0
    able.set()
    eventually(lambda: ready(coordinator.web_address), WAIT_SECONDS_MAX)
    assert metric(coordinator.web_address, "grpc_process_restarts_total") == 1


def test_a_coordinator_ends_while_it_restarts_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is killed again and again must not keep its coordinator from ending, nor leave a process behind."""
    with running(tmp_path / "data", grpc_process=True) as coordinator:
        unable_to_start(monkeypatch)
        os.kill(grpc_process(coordinator)._process.pid, signal.SIGKILL)
        eventually(lambda: not ready(coordinator.web_address), WAIT_SECONDS_MAX)
    monkeypatch.undo()
    with running(tmp_path / "data", grpc_process=True) as coordinator:
        os.kill(grpc_process(coordinator)._process.pid, signal.SIGKILL)
        eventually(lambda: not grpc_process(coordinator).accepts, WAIT_SECONDS_MAX)
    assert not grpc_processes_of(os.getpid())


def test_a_coordinator_ends_where_it_is_told_to_while_a_new_process_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own cleanup wrote to the closed connection, and its error took the place of the cancellation.

    The restart was repeated, and neither the coordinator nor the new process ended.
    """
    made = Link.connection_made
    with running(tmp_path / "data", grpc_process=True) as coordinator:
        keeping = grpc_process(coordinator)._keeping
        assert keeping is not None

        def connection_made(link: Link, transport: asyncio.BaseTransport) -> None:
            made(link, transport)
            keeping.cancel()

        monkeypatch.setattr(Link, "connection_made", connection_made)
        os.kill(grpc_process(coordinator)._process.pid, signal.SIGKILL)
        eventually(keeping.cancelled)
    assert not grpc_processes_of(os.getpid())


def test_it_cannot_start_without_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has no room for it must be told in a sentence, not in a traceback."""
    unable_to_start(monkeypatch)
    with (
        pytest.raises(InternalError, match="cannot be started: no more processes"),
        running(tmp_path / "data", grpc_process=True),
    ):
        pass


def test_it_learns_no_password(coordinator: CoordinatorThread, tmp_path: Path) -> None:
    """Whoever breaks into the process that faces the network must not find the way into the database there."""
    needed = processes._needed(coordinator._settings)
    assert {"grpc_port", "tls_cert_file", "tokens_file", "log_level"} <= needed.keys()
    assert not {name for name in needed if "database" in name or "storage" in name}
    environment = Path(f"/proc/{grpc_process(coordinator)._process.pid}/environ").read_text()
    assert "DATACOORD_" not in environment


def test_it_ends_with_the_coordinator(tmp_path: Path) -> None:
    """A process that goes on accepting for a coordinator that is dead keeps callers waiting, and the port from the next one."""
    with CoordinatorProcess(tmp_path / "data", "--grpc-process") as process:
        with CoordinatorClient(process.address) as client:
            client.create_collection(definition())
            info = claim(client)[0]
            assert client.save_binlog_paths([save_part(info, 0, 5, 1)])[0].outcome == APPLIED
        child = grpc_process_of(process)
        process.kill()
        eventually(lambda: is_gone(child), WAIT_SECONDS_MAX)
        process.start()
        with CoordinatorClient(process.address) as client:
            assert client.save_binlog_paths([save_part(info, 0, 5, 1)])[0].outcome == ALREADY_APPLIED
        another = grpc_process_of(process)
        assert process.terminate() == 0
        assert is_gone(another)
        assert "Traceback" not in process.output()


def test_a_port_that_is_taken_is_said_as_by_one_process(tmp_path: Path) -> None:
    """Who starts a second coordinator by mistake must read the sentence, and not find a process left behind."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError) as caught, running(tmp_path / "data", grpc_process=True, grpc_port=port):
            pass
    assert str(port) in caught.value.message
    assert caught.value.metadata["port"] == str(port)
    assert not (tmp_path / "data").exists(), "it must not come as far as making a database"
    assert not grpc_processes_of(os.getpid())


# ---- one of the two stands still ------------------------------------------------------------------------------------------------


def test_calls_are_refused_while_the_coordinator_stands_still(tmp_path: Path) -> None:
    """What waits for a coordinator that does not move must be bounded, and callers must be told to come back."""
    with CoordinatorProcess(tmp_path / "data", "--grpc-process") as process:
        body = b"\x00" * (MESSAGE_BYTES_MAX // 2)
        refusals: list[Any] = []
        with grpc.insecure_channel(process.address, options=client_options()) as channel:
            save: Any = channel.unary_unary(SAVE)
            process.process.send_signal(signal.SIGSTOP)
            try:
                waiting = [save.future(body, timeout=WAIT_SECONDS_MAX) for _ in range(8)]
                eventually(lambda: any(call.done() for call in waiting), WAIT_SECONDS_MAX)
                refusals += [call.exception() for call in waiting if call.done()]
            finally:
                process.process.send_signal(signal.SIGCONT)
            for call in waiting:
                call.exception(WAIT_SECONDS_MAX)
        for refusal in refusals:
            status = status_of(refusal)
            assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert status is not None
            assert OverloadedError.reason.value in str(status.details)
            assert (retry_delay_seconds(status) or 0) > 0
        with CoordinatorClient(process.address) as client:
            client.create_collection(definition())
            assert len(claim(client)) == 2


def test_a_process_that_does_not_end_is_ended(coordinator: CoordinatorThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gRPC process that hangs must not keep its coordinator from ending."""
    monkeypatch.setattr(processes, "_END_SECONDS_MAX", 0.2)
    pid = grpc_process(coordinator)._process.pid
    os.kill(pid, signal.SIGSTOP)
    coordinator.run(grpc_process(coordinator).stop(0.0))
    assert is_gone(pid)
