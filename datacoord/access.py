"""How a process gets in to a coordinator: TLS, and a bearer token on every call.

Files are read where the process runs, and again when they change: nothing is restarted when a token or a certificate is replaced.
"""

import os
from collections.abc import Mapping
from dataclasses import fields

import grpc
import grpc.aio

from datacoord.credentials import (
    AUTHORIZATION_METADATA_KEY,
    BEARER,
    PLAINTEXT_VARIABLE,
    TOKEN_VARIABLE,
    VARIABLES,
    Credentials,
)
from datacoord.errors import ConfigInvalidError
from datacoord.tls_files import SYSTEM_ROOTS, TlsFiles
from datacoord.transport import CALLER_METADATA_KEY, client_options, is_loopback_target

_HINTS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not one of the authorities of DATACOORD_TLS_CA (--tls-ca, tlsCa)",
    ),
    (
        "Hostname Verification",
        "its certificate is for another name: connect to that one, or set DATACOORD_TLS_SERVER_NAME",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS there: leave DATACOORD_TLS_CA (--tls-ca, tlsCa) empty"),
    (
        "Socket closed",
        "does it run? It may speak TLS, or want a certificate of yours (DATACOORD_TLS_CA, DATACOORD_TLS_CLIENT_CERT)",
    ),
    ("Connection refused", "nobody listens there: is it running, and is the port right?"),
    ("address lookup failed", "no host of that name is known here: is the address right?"),
)


def connection_hint(details: str) -> str:
    """What to do about a connection that gRPC says failed with these details; empty = they say nothing of use."""
    return next((hint for sign, hint in _HINTS if sign in details), "")


class Access:
    """Opens channels to a coordinator, and says what each call carries. Of one process.

    Args:
        target: the coordinator, as gRPC understands it.
        credentials: where to find what is needed.
        caller: what is calling, one of `datacoord.transport.CALLERS`.
        environment: completes the credentials; None = of this process.

    Raises:
        ConfigInvalidError: a file cannot be used, two settings contradict each other, or a token would travel in plain text.
    """

    def __init__(
        self, target: str, credentials: Credentials, *, caller: str, environment: Mapping[str, str] | None = None
    ) -> None:
        environment = os.environ if environment is None else environment
        self._target = target
        self._caller = ((CALLER_METADATA_KEY, caller),)
        complete = credentials.completed(environment)
        self._server_name = complete.tls_server_name
        self._files = _tls_files(complete)
        value = environment.get(TOKEN_VARIABLE, "") if not credentials.token_file else ""
        if value and complete.token_file:
            raise ConfigInvalidError(
                f"{TOKEN_VARIABLE} and {VARIABLES['token_file']} are both set; unset one of them",
                variable=TOKEN_VARIABLE,
            )
        self._token_file = complete.token_file
        self._token_stamp: tuple[int, int, int] | None = None
        self._metadata = self._with_token(value, TOKEN_VARIABLE) if value else self._caller
        if self._token_file:
            self._read_token()
        plaintext = environment.get(PLAINTEXT_VARIABLE, "").lower() in {"true", "1", "yes", "on"}
        if self._metadata is not self._caller and not (self._files or plaintext or is_loopback_target(target)):
            raise ConfigInvalidError(
                f"the token for {target} would travel in plain text; say {VARIABLES['tls_ca']} (or --tls-ca, tlsCa), or "
                f"{PLAINTEXT_VARIABLE}=true where the network is trusted",
                target=target,
            )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What the next call carries; with the token as its file holds it now."""
        if self._token_file:
            self._read_token()
        return self._metadata

    def outdated(self) -> bool:
        """Whether the files of TLS have changed since a channel was opened: open another one."""
        return self._files is not None and self._files.changed()

    def open_channel(self) -> grpc.Channel:
        """A channel for threads."""
        secure = self._channel_credentials()
        if secure is None:
            return grpc.insecure_channel(self._target, options=client_options())
        return grpc.secure_channel(self._target, secure, options=self._secure_options())

    def open_aio_channel(self) -> grpc.aio.Channel:
        """A channel for asyncio, of the running loop."""
        secure = self._channel_credentials()
        if secure is None:
            return grpc.aio.insecure_channel(self._target, options=client_options())
        return grpc.aio.secure_channel(self._target, secure, options=self._secure_options())

    def _channel_credentials(self) -> grpc.ChannelCredentials | None:
        if self._files is None:
            return None
        pem = self._files.read()
        return grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)

    def _secure_options(self) -> list[tuple[str, int | str]]:
        override: list[tuple[str, int | str]] = [("grpc.ssl_target_name_override", self._server_name)]
        return client_options() + (override if self._server_name else [])

    def _read_token(self) -> None:
        try:
            found = os.stat(self._token_file)
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp == self._token_stamp:
                return
            with open(self._token_file, encoding="ascii") as file:
                self._metadata = self._with_token(file.read(4096).strip(), self._token_file)
            self._token_stamp = stamp
        except (OSError, UnicodeDecodeError, ConfigInvalidError) as error:
            # A file in the middle of being replaced is no reason to forget the token that was good so far.
            if self._metadata is self._caller:
                why = error.strerror if isinstance(error, OSError) else "it holds no token"
                raise ConfigInvalidError(
                    f"token file {self._token_file!r} cannot be used: {why}; it holds the one line that `datacoord token new` "
                    "has printed",
                    file=self._token_file,
                ) from None

    def _with_token(self, token: str, source: str) -> tuple[tuple[str, str], ...]:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigInvalidError(f"{source} holds no token", source=source)
        return (*self._caller, (AUTHORIZATION_METADATA_KEY, BEARER + token))


def _tls_files(credentials: Credentials) -> TlsFiles | None:
    given = {spec.name for spec in fields(Credentials) if getattr(credentials, spec.name)}
    if ("tls_client_cert" in given) != ("tls_client_key" in given):
        raise ConfigInvalidError("tls_client_cert and tls_client_key belong together; give both or none")
    if "tls_ca" in given:
        return TlsFiles(credentials.tls_ca, credentials.tls_client_cert, credentials.tls_client_key)
    if given & {"tls_client_cert", "tls_server_name"}:
        raise ConfigInvalidError(
            f"there is a client certificate or a server name, but no tls_ca ({VARIABLES['tls_ca']}): without it nothing is "
            f"encrypted. It is a PEM file of authorities, or {SYSTEM_ROOTS!r}"
        )
    return None
