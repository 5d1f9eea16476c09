"""The PEM files of one end of a TLS connection: read as one set, checked, and read again when they have changed."""

import os
import ssl
import threading
from dataclasses import dataclass, field
from typing import Final

from datacoord.errors import ConfigInvalidError

SYSTEM_ROOTS: Final = "system"
"""Instead of a file of authorities: those that gRPC is shipped with."""


@dataclass(frozen=True, slots=True)
class Pem:
    """What the files held.

    Attributes:
        authorities: certificates that the other end's is checked against; None = none of our own.
        certificate: ours, with the chain that leads to an authority; None = none.
        key: its key.
    """

    authorities: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)


Signature = tuple[tuple[int, int, int], ...]


class TlsFiles:
    """Reads the files of one end.

    Args:
        authorities: path of certificates that the other end's is checked against; empty or `system` = none of our own.
        certificate: path of our certificate chain; empty = none.
        key: path of its key, not encrypted; empty = none.
    """

    def __init__(self, authorities: str, certificate: str, key: str) -> None:
        self._authorities = "" if authorities == SYSTEM_ROOTS else authorities
        self._certificate = certificate
        self._key = key
        self._read: Signature = ()
        self._lock = threading.Lock()

    def read(self) -> Pem:
        """Reads and checks the files.

        Raises:
            ConfigInvalidError: one cannot be read, is no PEM, or the key is not the certificate's.
        """
        with self._lock:
            return self._read_checked(self._signature())

    def read_if_changed(self) -> Pem | None:
        """Reads the files again if they are others than those looked at last; None = they are the same.

        A set that is refused is not looked at again before it changes: who replaces two files has a moment with one of each.

        Raises:
            ConfigInvalidError: as in `read`.
        """
        with self._lock:
            try:
                signature = self._signature()
            except ConfigInvalidError:
                self._read = ()  # one is gone: when it is back, it is looked at, also if it is the same
                raise
            return None if signature == self._read else self._read_checked(signature)

    def changed(self) -> bool:
        """Whether the files are others than those looked at last."""
        try:
            return self._signature() != self._read
        except ConfigInvalidError:
            return False  # gone for now: what was read still holds

    def _read_checked(self, signature: Signature) -> Pem:
        self._read = signature
        pem = Pem(*(_content(path) if path else None for path in (self._authorities, self._certificate, self._key)))
        _check(self._authorities, self._certificate, self._key)
        if self._signature() != signature:
            self._read = ()
            raise ConfigInvalidError("the TLS files changed while they were read; they are read again at the next use")
        return pem

    def _signature(self) -> Signature:
        paths = (path for path in (self._authorities, self._certificate, self._key) if path)
        return tuple(_stamp(path) for path in paths)


def expiry_seconds(chain: bytes) -> float:
    """When the first certificate of a chain ends, in seconds of Unix time.

    Args:
        chain: certificates in PEM form.

    Returns:
        0 where one is written in a way of its own: OpenSSL reads more than the standard allows.
    """
    # Only who serves needs it; the standard library says it of a certificate only after it has trusted it.
    from cryptography import x509

    try:
        return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(chain))
    except ValueError:
        return 0.0


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> ConfigInvalidError:
    return ConfigInvalidError(f"TLS file {path!r} cannot be read: {error.strerror or error}", file=path)


def _check(authorities: str, certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authorities:
            context.load_verify_locations(cafile=authorities)
    except (ssl.SSLError, OSError) as error:
        raise ConfigInvalidError(
            f"TLS file {authorities!r} holds no certificates in PEM form ({_why(error)})", file=authorities
        ) from error
    try:
        if certificate:
            # Without a password of ours OpenSSL would ask the terminal for one.
            context.load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise ConfigInvalidError(
            f"TLS files {certificate!r} and {key!r} are not a certificate in PEM form and its key, not encrypted "
            f"({_why(error)})",
            file=certificate,
        ) from error


def _why(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
