"""Row *Transport*: nobody listens in or takes the coordinator's place, and certificates are replaced without a restart."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from server.running_coordinator import CoordinatorThread, definition, running

from coordinator.config import Settings
from coordinator.rpc.transport_security import ServerCertificates, check_exposure
from datacoord.client import CoordinatorClient
from datacoord.credentials import Credentials
from datacoord.errors import ConfigInvalidError, CoordinatorUnreachableError
from datacoord.tls_files import TlsFiles
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig
from security.logins import log_lines
from security.pki import Authority


def tls(authority: Authority, *, client_ca: Path | str = "") -> dict[str, Any]:
    """Settings of a coordinator with a certificate."""
    certificate, key = authority.issue("coordinator")
    return {"tls_cert_file": str(certificate), "tls_key_file": str(key), "tls_client_ca_file": str(client_ca)}


def names(address: str, credentials: Credentials, timeout_seconds: float = 10) -> list[str]:
    """Names of the collections."""
    with CoordinatorClient(address, timeout_seconds=timeout_seconds, credentials=credentials) as client:
        return [collection.collection_name for collection in client.list_collections()]


def served_serial(thread: CoordinatorThread) -> str:
    """Serial number of the certificate that the port shows to the next one who connects."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = thread.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as secure:
        raw = secure.getpeercert(binary_form=True)
    assert raw is not None
    from cryptography import x509

    return f"{x509.load_der_x509_certificate(raw).serial_number:x}"


def test_every_client_speaks_tls_and_checks_whom_it_speaks_to(tmp_path: Path, authority: Authority) -> None:
    """A client that takes any certificate gives its token to whoever is in between."""
    other = Authority(tmp_path, "other")
    with running(tmp_path / "data", **tls(authority)) as thread:
        good = Credentials(tls_ca=str(authority.path))
        assert names(thread.address, good) == []

        async def saves() -> None:
            broker = Broker(BrokerConfig(thread.address, credentials=good))
            try:
                assert (await broker.claim_channels("x", ["no-such-channel"]))[0].error is not None
            finally:
                await broker.close()

        asyncio.run(saves())
        refused = (
            Credentials(tls_ca=str(other.path)),
            Credentials(tls_ca=str(authority.path), tls_server_name="elsewhere"),
            Credentials(),
        )
        for bad in refused:
            with pytest.raises(CoordinatorUnreachableError):
                names(thread.address, bad, timeout_seconds=1)


def test_where_clients_need_a_certificate_nobody_gets_in_without_one(tmp_path: Path, authority: Authority) -> None:
    """MTLS that only asks, and takes no for an answer, is TLS."""
    other = Authority(tmp_path, "other")
    ours, theirs = authority.issue("datanode"), other.issue("mallory")
    with running(tmp_path / "data", **tls(authority, client_ca=authority.path)) as thread:
        ca = str(authority.path)
        assert names(thread.address, Credentials(ca, str(ours[0]), str(ours[1]))) == []
        for bad in (Credentials(ca), Credentials(ca, str(theirs[0]), str(theirs[1]))):
            with pytest.raises(CoordinatorUnreachableError):
                names(thread.address, bad, timeout_seconds=1)


@pytest.mark.parametrize("apart", [False, True], ids=["one process", "gRPC process"])
def test_a_certificate_is_replaced_without_a_restart_and_a_broken_one_changes_nothing(
    tmp_path: Path, authority: Authority, capfd: pytest.CaptureFixture[str], apart: bool
) -> None:
    """A certificate that needs a restart is one that runs out on a holiday."""
    settings = tls(authority)
    good = Credentials(tls_ca=str(authority.path))
    with (
        running(tmp_path / "data", grpc_process=apart, **settings) as thread,
        CoordinatorClient(thread.address, credentials=good) as client,
    ):
        client.create_collection(definition())
        first = served_serial(thread)
        authority.issue("coordinator")
        assert served_serial(thread) != first
        second = served_serial(thread)
        Path(settings["tls_key_file"]).write_text("half a ke")
        assert served_serial(thread) == second
        assert names(thread.address, good) == ["files"]
        assert [collection.collection_name for collection in client.list_collections()] == ["files"]
    assert len(log_lines(capfd.readouterr().out, "tls_files_refused")) == 1


def test_a_client_whose_certificate_was_replaced_shows_the_new_one(tmp_path: Path, authority: Authority) -> None:
    """A datanode lives longer than its certificate: the one it was started with is refused some day, at its next connection."""
    certificate, key = authority.issue("datanode")
    credentials = Credentials(str(authority.path), str(certificate), str(key))
    settings = tls(authority, client_ca=authority.path)

    async def both() -> None:
        broker = Broker(BrokerConfig(thread.address, credentials=credentials))
        try:
            await broker.claim_channels("x", ["none"])
            before = broker._lines().connection._channel
            authority.issue("datanode-2", files="datanode")
            await broker.claim_channels("x", ["none"])
            assert broker._lines().connection._channel is not before
            certificate.write_text("broken")
            await broker.claim_channels("x", ["none"])
        finally:
            await broker.close()

    with running(tmp_path / "data", **settings) as thread:
        with CoordinatorClient(thread.address, credentials=credentials) as client:
            list(client.list_collections())
            before = client._channel
            authority.issue("datanode-3", files="datanode")
            list(client.list_collections())
            assert client._channel is not before
        asyncio.run(both())


def test_a_set_of_files_that_is_half_replaced_is_never_used(tmp_path: Path, authority: Authority) -> None:
    """Two files cannot be replaced at once; a handshake in between must not end with a key of another certificate."""
    certificate, key = authority.issue("coordinator")
    certificates = ServerCertificates(TlsFiles("", str(certificate), str(key)))
    assert certificates.newer() is None
    fresh_certificate, fresh_key = authority.issue("fresh")
    fresh_certificate.replace(certificate)
    assert certificates.newer() is None
    fresh_key.replace(key)
    assert certificates.newer() is not None
    key.unlink()
    assert certificates.newer() is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "plain text"),
        ({"tokens_file": "t"}, "plain text"),
        ({"allow_plaintext": True}, "anybody there could do everything"),
        ({"tls_cert_file": "c", "tls_key_file": "k"}, "anybody there could do everything"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "coordinator.example"])
def test_a_port_that_others_reach_is_not_open_by_accident(host: str, settings: dict[str, Any], sentence: str) -> None:
    """Milvus's metrics port was open to the world with every call on it, because nobody had to say that it should be."""
    with pytest.raises(ConfigInvalidError, match=sentence):
        check_exposure(Settings(grpc_host=host, **settings))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_on_loopback_nothing_needs_to_be_said(host: str) -> None:
    """`datacoord serve` alone must work."""
    check_exposure(Settings(grpc_host=host))


def test_an_open_port_is_said_at_every_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A switch that was set for a trial stays set; the log is where somebody may notice."""
    with running(tmp_path / "data", grpc_host="0.0.0.0", allow_plaintext=True, allow_anonymous=True):
        written = capsys.readouterr().out
    for event in ("grpc_is_not_encrypted", "grpc_is_open_to_anybody"):
        (line,) = log_lines(written, event)
        assert line["level"] == "warning"


def test_a_start_with_files_that_cannot_work_fails_with_a_sentence(tmp_path: Path, authority: Authority) -> None:
    """By itself gRPC takes broken files, and refuses every connection without a word."""
    settings = tls(authority)
    elsewhere = authority.issue("elsewhere")
    for change, sentence in (
        ({"tls_key_file": str(elsewhere[1])}, "its key"),
        ({"tls_cert_file": str(tmp_path / "missing")}, "cannot be read"),
        ({"tls_client_ca_file": settings["tls_key_file"]}, "holds no certificates"),
    ):
        with pytest.raises(ConfigInvalidError, match=sentence):
            CoordinatorThread(tmp_path / "data", **{**settings, **change})
    wrongs: list[dict[str, Any]] = [{"tls_cert_file": "c"}, {"tls_key_file": "k"}, {"tls_client_ca_file": "a"}]
    for wrong in wrongs:
        with pytest.raises(ConfigInvalidError):
            Settings(**wrong)
