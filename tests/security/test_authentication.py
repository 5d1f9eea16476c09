"""Row *Authentication*: whoever shows no token that counts gets nowhere, and tokens come and go without a restart."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from server.running_coordinator import CoordinatorThread, definition, running
from support.waiting import eventually

from coordinator.rpc.authentication import Authenticator, read_tokens
from datacoord.client import CoordinatorClient
from datacoord.credentials import Credentials
from datacoord.errors import ConfigInvalidError, Reason, UnauthenticatedError
from datacoord.tokens import new_token, token_digest, tokens_file_entry
from datacoord.v1 import common_pb2, data_coord_pb2, data_coord_pb2_grpc
from security.logins import Logins, log_lines
from security.raw import METHODS, RawChannel, bearer

FORGED = new_token()


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        bearer(""),
        bearer(FORGED),
        bearer(FORGED * 100),
        [("authorization", FORGED)],
        [("authorization", f"Basic {FORGED}")],
        [("x-authorization", f"Bearer {FORGED}")],
        [("datacoord-client", "datanode"), ("x-forwarded-for", "127.0.0.1"), ("x-internal", "true")],
    ],
    ids=["none", "empty", "forged", "long", "bare", "basic", "elsewhere", "claims to be internal"],
)
def test_no_method_can_be_called_without_a_token_that_counts(
    guarded: CoordinatorThread, metadata: Sequence[tuple[str, str]]
) -> None:
    """In Milvus a header that anybody could forge counted as internal, and every call was open to it (CVE-2025-64513)."""
    with RawChannel(guarded.address) as channel:
        answers = {name: channel.call(path, b"\xff", metadata) for name, path in METHODS.items()}
    assert {name for name, answer in answers.items() if answer.reason is not Reason.UNAUTHENTICATED} == set()
    assert {answer.code for answer in answers.values()} == {grpc.StatusCode.UNAUTHENTICATED}


def test_the_hash_of_a_token_is_not_a_token(guarded: CoordinatorThread, logins: Logins) -> None:
    """Whoever reads the tokens file must not get in by it; nor by a good token beside a bad one."""
    good = logins.tokens["admin"]
    path = METHODS["CollectionService.ListCollections"]
    with RawChannel(guarded.address) as channel:
        assert channel.call(path, b"", bearer(good)).code is grpc.StatusCode.OK
        for shown in (token_digest(good).hex(), good[:-1], good + "x", good.upper(), f" {good}"):
            assert channel.call(path, b"", bearer(shown)).reason is Reason.UNAUTHENTICATED
        for both in (bearer(FORGED) + bearer(good), bearer(good) + bearer(FORGED)):
            assert channel.call(path, b"", both).reason is Reason.UNAUTHENTICATED


def test_tokens_come_and_go_without_a_restart(guarded: CoordinatorThread, logins: Logins) -> None:
    """A token that leaked must be gone in a moment, and not at the next deployment."""
    path = METHODS["CollectionService.ListCollections"]
    old, fresh = logins.tokens["reader"], new_token()
    with RawChannel(guarded.address) as channel:
        assert channel.call(path, b"", bearer(old)).code is grpc.StatusCode.OK
        logins.write(tokens_file_entry("fresh", "reader", fresh, None))
        eventually(lambda: channel.call(path, b"", bearer(fresh)).code is grpc.StatusCode.OK)
        assert channel.call(path, b"", bearer(old)).reason is Reason.UNAUTHENTICATED


class Clocks:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_seconds = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        self.monotonic_seconds = 0.0

    def authenticator(self, path: Path) -> Authenticator:
        """One that lives in this time."""
        return Authenticator(
            path, now_seconds=lambda: self.now_seconds, monotonic_seconds=lambda: self.monotonic_seconds
        )


def test_a_token_counts_until_it_expires_and_not_a_moment_longer(logins: Logins) -> None:
    """An end that is only looked at when the file is read never comes."""
    clocks = Clocks()
    logins.write(logins.entry("writer", datetime.fromtimestamp(clocks.now_seconds, UTC) + timedelta(seconds=10)))
    authenticator = clocks.authenticator(logins.path)
    shown = bearer(logins.tokens["writer"])
    clocks.now_seconds += 9.9
    assert authenticator.identify(shown).name == "the-writer"
    clocks.now_seconds += 0.1
    with pytest.raises(UnauthenticatedError, match="expired"):
        authenticator.identify(shown)


@pytest.mark.parametrize("accident", ["", "[[tok", "[[token]]\nname = 1\n", None])
def test_a_file_that_breaks_keeps_the_tokens_that_counted_and_is_said(
    logins: Logins, accident: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of an editor must neither lock everybody out nor let anybody in."""
    from coordinator import logging

    logging.configure("info", "json")
    clocks = Clocks()
    authenticator = clocks.authenticator(logins.path)
    if accident is None:
        logins.path.unlink()
    else:
        logins.write(accident)
    for _ in range(3):
        clocks.monotonic_seconds += 5
        assert authenticator.identify(bearer(logins.tokens["admin"])).name == "the-admin"
        with pytest.raises(UnauthenticatedError):
            authenticator.identify(bearer(FORGED))
    assert len(log_lines(capsys.readouterr().out, "tokens_file_refused")) == 1
    logins.write(logins.entry("reader"))
    clocks.monotonic_seconds += 5
    with pytest.raises(UnauthenticatedError):
        authenticator.identify(bearer(logins.tokens["admin"]))


GOOD = {"name": '"a"', "role": '"reader"', "sha256": f'"{"0" * 64}"'}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "token = 1",
        "token = []",
        "[[token]]\n[[other]]",
        *(
            "[[token]]\n" + "\n".join(f"{key} = {value}" for key, value in {**GOOD, **change}.items() if value)
            for change in (
                {"name": ""},
                {"name": '"a b"'},
                {"name": '"a\\nb"'},
                {"name": f'"{"a" * 65}"'},
                {"role": '"root"'},
                {"role": "3"},
                {"sha256": f'"{"0" * 63}"'},
                {"sha256": '"datacoord_secret"'},
                {"expires": "2026-01-01T00:00:00"},
                {"expires": '"never"'},
                {"more": "1"},
            )
        ),
    ],
)
def test_a_tokens_file_that_is_not_understood_stops_the_start(tmp_path: Path, text: str) -> None:
    """A line that is left out because of a slip is a token that does not count, or one that counts for ever."""
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(ConfigInvalidError) as caught:
        read_tokens(path)
    assert "datacoord_secret" not in caught.value.message
    path.write_text("[[token]]\n" + "\n".join(f"{key} = {value}" for key, value in GOOD.items()))
    assert len(read_tokens(path)) == 1
    path.write_text(path.read_text() + "\n" + path.read_text())
    with pytest.raises(ConfigInvalidError, match="twice"):
        read_tokens(path)


def test_a_start_without_its_tokens_file_fails(tmp_path: Path) -> None:
    """An open coordinator where one with tokens was ordered."""
    with pytest.raises(ConfigInvalidError, match="tokens file"):
        CoordinatorThread(tmp_path / "data", tokens_file=str(tmp_path / "missing.toml"))


def test_an_open_stream_ends_with_its_token(tmp_path: Path, logins: Logins) -> None:
    """A datanode listens for minutes: what it was let in with may be gone long before."""
    settings: dict[str, Any] = {"tokens_file": str(logins.path), "datanode_lease_seconds": 60.0}
    with running(tmp_path / "data", **settings) as thread, logins.client(thread.address, "admin") as admin:
        admin.create_collection(definition(channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
        with grpc.insecure_channel(thread.address) as channel:
            stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(channel)  # type: ignore[no-untyped-call]
            shown = bearer(logins.tokens["writer"])
            register = data_coord_pb2.RegisterDataNodeRequest(job="j", slot=0, collection_names=["files"])
            node = stub.RegisterDataNode(register, metadata=shown, timeout=10)
            watch = data_coord_pb2.WatchDmChannelsRequest(node_id=node.node_id)
            stream = stub.WatchDmChannels(watch, metadata=shown, timeout=30)
            while len(next(stream).channels) < 2:
                pass
            logins.write(logins.entry("admin"))
            listed = METHODS["CollectionService.ListCollections"]
            with RawChannel(thread.address) as raw:
                eventually(lambda: raw.call(listed, b"", shown).reason is Reason.UNAUTHENTICATED)
            admin.drop_collection("files")
            with pytest.raises(grpc.RpcError) as caught:
                for _ in stream:
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_health_is_open_and_says_nothing_else(guarded: CoordinatorThread) -> None:
    """A balancer has no token, and needs none to learn whether this replica serves."""
    from grpc_health.v1 import health_pb2

    with RawChannel(guarded.address) as channel:
        answer = channel.call("/grpc.health.v1.Health/Check")
    assert health_pb2.HealthCheckResponse.FromString(answer.body).status == health_pb2.HealthCheckResponse.SERVING


def test_our_clients_say_what_to_do(guarded: CoordinatorThread, logins: Logins) -> None:
    """Who forgot the token must not be told that the coordinator is broken."""
    with (
        CoordinatorClient(guarded.address) as nobody,
        pytest.raises(UnauthenticatedError, match="DATACOORD_TOKEN_FILE"),
    ):
        list(nobody.list_collections())
    stranger = logins.directory / "stranger.token"
    stranger.write_text(FORGED)
    credentials = Credentials(token_file=str(stranger))
    with (
        CoordinatorClient(guarded.address, credentials=credentials) as other,
        pytest.raises(UnauthenticatedError, match="not known"),
    ):
        list(other.list_collections())
