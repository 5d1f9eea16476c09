"""Files that are read again when they change: what became of the last change stands in metrics, also where nobody calls."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from server.running_coordinator import running
from server.test_web import labelled, scrape
from support.waiting import eventually

from coordinator.rpc.authentication import Authenticator
from coordinator.rpc.transport_security import ServerCertificates
from datacoord.tls_files import TlsFiles, expiry_seconds
from security.logins import Logins
from security.pki import Authority, issued_until

TOKENS, TLS = labelled(files="tokens"), labelled(files="tls")


def test_a_change_that_is_refused_is_seen_by_who_scrapes_and_by_no_call(
    tmp_path: Path, logins: Logins, authority: Authority
) -> None:
    """Who takes a token back and slips must hear that it still counts; a line in the log is read by nobody."""
    certificate, key = authority.issue("coordinator")
    settings = {
        "tokens_file": str(logins.path),
        "tls_cert_file": str(certificate),
        "tls_key_file": str(key),
    }
    with running(tmp_path / "data", **settings) as thread:

        def refused(files: tuple[tuple[str, str], ...]) -> bool:
            return scrape(thread)["datacoord_files_refused"][files] == 1

        samples = scrape(thread)
        assert samples["datacoord_files_refused"] == {TOKENS: 0, TLS: 0}
        read = dict(samples["datacoord_files_read_timestamp_seconds"])
        assert min(read.values()) > 0
        first_end = samples["datacoord_certificate_expiry_timestamp_seconds"][()]
        assert first_end == issued_until(certificate)
        logins.write("half a fi")
        whole = key.read_bytes()
        key.write_text("half a ke")
        eventually(lambda: refused(TOKENS) and refused(TLS))
        assert scrape(thread)["datacoord_files_read_timestamp_seconds"] == read
        logins.write(logins.entry("admin"))
        key.write_bytes(whole)
        eventually(lambda: not refused(TOKENS) and not refused(TLS))
        now = scrape(thread)["datacoord_files_read_timestamp_seconds"]
        assert now[TOKENS] > read[TOKENS]
        assert now[TLS] > read[TLS]


def test_a_coordinator_without_files_has_nothing_to_worry_about(tmp_path: Path) -> None:
    """An alert that fires where nobody uses tokens is switched off everywhere."""
    with running(tmp_path / "data") as thread:
        samples = scrape(thread)
    for name in ("files_refused", "files_read_timestamp_seconds"):
        assert samples[f"datacoord_{name}"] == {TOKENS: 0, TLS: 0}
    assert samples["datacoord_certificate_expiry_timestamp_seconds"] == {(): 0}


def test_a_file_that_was_away_and_is_back_is_not_refused_any_more(logins: Logins, authority: Authority) -> None:
    """A directory that is mounted again: the same files, looked at by the same marks, and the alert would stay for ever."""
    paths = (logins.path, *authority.issue("coordinator"))
    seconds = [0.0]
    certificates = ServerCertificates(TlsFiles("", str(paths[1]), str(paths[2])))
    tokens = Authenticator(logins.path, monotonic_seconds=lambda: seconds[0])
    away = [path.rename(path.with_name(f"{path.name}.away")) for path in paths]

    def look() -> set[bool]:
        seconds[0] += 5
        tokens.look_again()
        certificates.look_again()
        return {tokens.refused, certificates.refused}

    assert look() == {True}
    for path, now in zip(paths, away, strict=True):
        now.rename(path)
    assert look() == {False}


def test_what_was_read_for_a_scrape_is_shown_at_the_next_handshake(authority: Authority) -> None:
    """The scrape must not take the news away from gRPC, which asks for it once."""
    certificate, key = authority.issue("coordinator")
    certificates = ServerCertificates(TlsFiles("", str(certificate), str(key)))
    # Of another length: written within one tick of a file system's clock it would look the same.
    authority.issue("coordinator-of-the-next-year", files="coordinator")
    certificates.look_again()
    certificates.look_again()
    assert certificates.newer() is not None
    assert certificates.newer() is None


@pytest.mark.parametrize("end", [datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2051, 1, 2, 3, 4, 5, tzinfo=UTC)])
def test_the_end_of_a_certificate_is_read_as_others_read_it(tmp_path: Path, end: datetime) -> None:
    """Two ways to write a time, before and after 2050; a chain is as good as its first end."""
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("coordinator", ends=end)
    pem = certificate.read_bytes()
    assert expiry_seconds(pem) == end.timestamp() == issued_until(certificate)
    assert expiry_seconds(pem + authority.path.read_bytes()) == min(end.timestamp(), issued_until(authority.path))
    assert expiry_seconds(b"") == 0
    assert expiry_seconds(ssl.DER_cert_to_PEM_cert(b"0\x03\x02\x01\x05").encode()) == 0
