"""The gRPC port: encrypted by certificates that are read again when they change; in the clear only where it is told."""

import grpc

from coordinator.config import Settings
from coordinator.logging import get_logger
from datacoord.errors import ConfigInvalidError
from datacoord.tls_files import Pem, TlsFiles
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


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What the gRPC port is opened with; None = in plain text.

    Raises:
        ConfigInvalidError: the files cannot be used.
    """
    if not settings.tls_cert_file:
        return None
    certificates = ServerCertificates(
        TlsFiles(settings.tls_client_ca_file, settings.tls_cert_file, settings.tls_key_file)
    )
    return grpc.dynamic_ssl_server_credentials(
        certificates.first,
        certificates.newer,  # type: ignore[arg-type] # the stubs do not know that None means "as before"
        require_client_authentication=bool(settings.tls_client_ca_file),
    )


class ServerCertificates:
    """Certificates for the next handshake.

    Args:
        files: where they are.

    Raises:
        ConfigInvalidError: the files cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.first = _configuration(files.read())

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates, if they have changed since the last handshake. A set that cannot be used changes nothing."""
        try:
            pem = self._files.read_if_changed()
        except ConfigInvalidError as error:
            _log.error("tls_files_refused", error=error.message)
            return None
        if pem is None:
            return None
        _log.info("tls_files_read")
        return _configuration(pem)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    assert pem.key is not None and pem.certificate is not None  # noqa: S101, PT018 - settings give both or none
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], root_certificates=pem.authorities)
