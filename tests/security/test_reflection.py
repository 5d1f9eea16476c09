"""Row *Reflection, channelz*: off unless asked for, and then for admins only."""

from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]
from server.running_coordinator import CoordinatorThread, running

from security.logins import Logins
from security.raw import RawChannel, bearer


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.channelz.v1.Channelz/GetServers",
        "/grpc.admin.v1.Admin/GetServers",
    ],
)
def test_nothing_that_describes_the_server_is_there_by_default(
    guarded: CoordinatorThread, logins: Logins, path: str
) -> None:
    """A stranger who can ask for the contract, or for the connections, has a map."""
    with RawChannel(guarded.address) as channel:
        assert channel.call(path, b"", bearer(logins.tokens["admin"])).code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("apart", [False, True], ids=["one process", "gRPC process"])
def test_reflection_that_is_on_answers_admins_only(tmp_path: Path, logins: Logins, apart: bool) -> None:
    """A switch for development that somebody forgot in production."""

    def ask(metadata: list[tuple[str, str]]) -> str:
        with grpc.insecure_channel(thread.address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            try:
                return str(next(stub.ServerReflectionInfo(iter([question]), metadata=metadata, timeout=10)))
            except grpc.RpcError as error:
                return str(error.code().name)

    settings = {"grpc_reflection": True, "grpc_process": apart, "tokens_file": str(logins.path)}
    with running(tmp_path / "data", **settings) as thread:
        assert "datacoord.v1.AdminService" in ask(bearer(logins.tokens["admin"]))
        assert ask([]) == "UNAUTHENTICATED"
        for word in ("reader", "writer"):
            assert ask(bearer(logins.tokens[word])) == "PERMISSION_DENIED"
