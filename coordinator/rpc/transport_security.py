"""The gRPC port: encrypted by certificates that are read again when they change; in the clear only where it is told."""

import threading
import time
from collections.abc import Callable

import grpc

from coordinator.config import Settings
from coordinator.logging import get_logger
from datacoord.errors import ConfigInvalidError
from datacoord.tls_files import Pem, TlsFiles, expiry_seconds
from datacoord.transport import is_loopback

_log = get_logger("tls")


def check_exposure(settings: Settings) -> None:
    """Refuses a port that others can reach and that nobody said should be open to them.

    Raises:
        ConfigInvalidError: calls would travel in plain text, or anybody could make them.
    """
    if is_loopback(settings.grpc_host):
        return
    if not settings.tls_cert_file:
        if not settings.allow_plaintext:
            raise ConfigInvalidError(
                f"grpc_host is {settings.grpc_host}, which other machines may reach, and calls would travel in plain text; give "
                "tls_cert_file and tls_key_file, or say allow_plaintext where the network is trusted",
                setting="allow_plaintext",
            )
        _log.warning("grpc_is_not_encrypted", grpc_host=settings.grpc_host)
    if not settings.tokens_file and not settings.tls_client_ca_file:
        if not settings.allow_anonymous:
            raise ConfigInvalidError(
                f"grpc_host is {settings.grpc_host}, which other machines may reach, and anybody there could do everything; give "
                "tokens_file or tls_client_ca_file, or say allow_anonymous where everybody is trusted",
                setting="allow_anonymous",
            )
        _log.warning("grpc_is_open_to_anybody", grpc_host=settings.grpc_host)


def server_certificates(settings: Settings) -> "ServerCertificates | None":
    """The certificates of the gRPC port; None = it speaks in plain text.

    Raises:
        ConfigInvalidError: the files cannot be used.
    """
    if not settings.tls_cert_file:
        return None
    files = TlsFiles(settings.tls_client_ca_file, settings.tls_cert_file, settings.tls_key_file)
    return ServerCertificates(files, of_clients=bool(settings.tls_client_ca_file))


class ServerCertificates:
    """Certificates for the next handshake.

    Args:
        files: where they are.
        of_clients: only clients that show one of their own can connect.
        now_seconds: Unix time.

    Raises:
        ConfigInvalidError: the files cannot be used.

    Attributes:
        read_seconds: when the files that count were read, in seconds of Unix time.
        refused: the files, as they are now, cannot be used.
        expiry_seconds: when the first certificate of the chain that is shown ends, in seconds of Unix time.
    """

    def __init__(
        self, files: TlsFiles, *, of_clients: bool = False, now_seconds: Callable[[], float] = time.time
    ) -> None:
        self._files = files
        self._of_clients = of_clients
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._refusal = ""
        self._first = self._taken(files.read())
        self._newer: grpc.ServerCertificateConfiguration | None = None

    @property
    def refused(self) -> bool:
        """See the class."""
        return bool(self._refusal)

    def credentials(self) -> grpc.ServerCredentials:
        """What the gRPC port is opened with."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self.newer,  # type: ignore[arg-type] # the stubs do not know that None means "as before"
            require_client_authentication=self._of_clients,
        )

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates, if they have changed since the last handshake. A set that cannot be used changes nothing."""
        self.look_again()
        with self._lock:
            newer, self._newer = self._newer, None
        return newer

    def look_again(self) -> None:
        """Reads the files again if they have changed, for the next handshake. gRPC calls from a thread of its own."""
        with self._lock:
            try:
                pem = self._files.read_if_changed()
            except ConfigInvalidError as error:
                if error.message != self._refusal:
                    _log.error("tls_files_refused", error=error.message)
                self._refusal = error.message
                return
            if pem is not None:
                self._newer = self._taken(pem)
                _log.info("tls_files_read")

    def _taken(self, pem: Pem) -> grpc.ServerCertificateConfiguration:
        assert pem.key is not None and pem.certificate is not None  # noqa: S101, PT018 - settings give both or none
        self.read_seconds, self._refusal = self._now_seconds(), ""
        self.expiry_seconds = expiry_seconds(pem.certificate)
        return grpc.ssl_server_certificate_configuration(
            [(pem.key, pem.certificate)], root_certificates=pem.authorities
        )
