"""Every kind of client gets in to a coordinator that encrypts, asks for certificates and for tokens, by the same few words."""

import asyncio
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest
from server.running_coordinator import CoordinatorThread, definition, running
from sink.rig import KEYED, ORDERED, Query, landed

from datacoord.client import CoordinatorClient
from datacoord.credentials import VARIABLES, Credentials
from datacoord.errors import CoordinatorUnreachableError, PermissionDeniedError, UnauthenticatedError
from datacoord.reading import read_batches
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, RetryConfig
from security.logins import Logins
from security.pki import Authority

ROWS = [(1, "a", 0, 1, "upsert"), (2, "b", 1, 1, "upsert"), (3, "c", 0, 2, "upsert")]


@pytest.fixture
def fortress(tmp_path: Path, authority: Authority, logins: Logins) -> Iterator[CoordinatorThread]:
    """A coordinator that asks for everything."""
    certificate, key = authority.issue("coordinator")
    settings = {
        "tls_cert_file": str(certificate),
        "tls_key_file": str(key),
        "tls_client_ca_file": str(authority.path),
        "tokens_file": str(logins.path),
    }
    with running(tmp_path / "fortress", **settings) as thread:
        yield thread


def credentials(authority: Authority, logins: Logins, word: str) -> Credentials:
    """What a caller of a role has."""
    certificate, key = authority.issue("client")
    return Credentials(str(authority.path), str(certificate), str(key), "", logins.token_file(word))


def as_options(given: Credentials) -> dict[str, str]:
    """The same as options of the data source."""
    return {
        "tlsCa": given.tls_ca,
        "tlsClientCert": given.tls_client_cert,
        "tlsClientKey": given.tls_client_key,
        "tokenFile": given.token_file,
    }


def test_a_sink_lands_and_a_reader_reads_with_options_or_variables(
    fortress: CoordinatorThread, authority: Authority, logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client that forgets its credentials in one of its calls makes people switch them off for all."""
    writer = credentials(authority, logins, "writer")
    Query(fortress.address, "files", **KEYED, **ORDERED, **as_options(writer)).run(0, ROWS)
    reader = credentials(authority, logins, "reader")
    with CoordinatorClient(fortress.address, credentials=reader) as client:
        assert sum(batch.num_rows for batch in read_batches(client, "files")) == 3
    for name, variable in VARIABLES.items():
        if getattr(reader, name):
            monkeypatch.setenv(variable, getattr(reader, name))
    assert sum(landed(fortress.address, "files").values()) == 3
    with pytest.raises(PermissionDeniedError):
        Query(fortress.address, "others", **KEYED, **ORDERED).run(0, ROWS)


def test_a_datanode_is_told_at_once_that_it_may_not(
    fortress: CoordinatorThread, authority: Authority, logins: Logins
) -> None:
    """A refusal that is taken for an outage is repeated for ever, and nobody hears of it."""

    async def register(given: Credentials) -> int:
        broker = Broker(BrokerConfig(fortress.address, credentials=given, retry=RetryConfig(0.02, 0.1)))
        try:
            request = data_coord_pb2.RegisterDataNodeRequest(job="job", slot=0, collection_names=["files"])
            return (await broker.register(request)).node_id
        finally:
            await broker.close()

    writer = credentials(authority, logins, "writer")
    with CoordinatorClient(fortress.address, credentials=writer) as client:
        client.create_collection(definition(channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
    assert asyncio.run(register(writer)) > 0
    with pytest.raises(PermissionDeniedError, match="role writer"):
        asyncio.run(register(credentials(authority, logins, "reader")))
    with pytest.raises(UnauthenticatedError):
        asyncio.run(register(Credentials(writer.tls_ca, writer.tls_client_cert, writer.tls_client_key)))


def test_who_cannot_connect_is_told_why(
    fortress: CoordinatorThread, guarded: CoordinatorThread, authority: Authority, tmp_path: Path
) -> None:
    """By itself gRPC says that a socket was closed, or quotes OpenSSL."""
    other = Authority(tmp_path, "other")
    ours = authority.issue("client")
    certified = (str(ours[0]), str(ours[1]))
    cases = (
        (fortress, Credentials(), "It may speak TLS"),
        (fortress, Credentials(str(authority.path)), "want a certificate of yours"),
        (fortress, Credentials(str(other.path), *certified), "DATACOORD_TLS_CA"),
        (fortress, Credentials(str(authority.path), *certified, "elsewhere"), "DATACOORD_TLS_SERVER_NAME"),
        (guarded, Credentials(str(authority.path)), "does not speak TLS"),
    )

    def told(address: str, given: Credentials) -> str:
        with (
            CoordinatorClient(address, timeout_seconds=5, credentials=given) as client,
            pytest.raises(CoordinatorUnreachableError) as caught,
        ):
            list(client.list_collections())
        return caught.value.message

    # Each tries until its time is over: all at once.
    with futures.ThreadPoolExecutor(len(cases)) as pool:
        sentences = list(pool.map(told, *zip(*((thread.address, given) for thread, given, _ in cases), strict=True)))
    for sentence, (*_, hint) in zip(sentences, cases, strict=True):
        assert hint in sentence
