"""Storage roots `s3://bucket/prefix`: where the endpoint, the region and the credentials come from, and the file system they make.

The root names the place and never a secret: it is stored in SQL and shown. What it leaves open comes from the environment of the
process, first from our own variables, then from the standard ones of AWS; what is not there either, the AWS SDK looks for by
itself (profiles, roles of instances and pods).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from datacoord.errors import ConfigInvalidError

PREFIX: Final = "DATACOORD_S3_"
"""Of our own variables. Each can also be given as `…_FILE`, the name of a file that holds the value."""

_QUERY: Final = ("endpoint_override", "region", "scheme")
_AWS: Final[Mapping[str, tuple[str, ...]]] = {
    "ENDPOINT": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "CA_FILE": ("AWS_CA_BUNDLE",),
    "ATTEMPTS": ("AWS_MAX_ATTEMPTS",),
}
NAMES: Final = frozenset(
    {
        *_AWS,
        "ACCESS_KEY_ID",
        "SECRET_ACCESS_KEY",
        "SESSION_TOKEN",
        "VIRTUAL_ADDRESSING",
        "CONNECT_TIMEOUT_SECONDS",
        "REQUEST_TIMEOUT_SECONDS",
    }
)
"""What follows the prefix."""


@dataclass(frozen=True, kw_only=True)
class S3Settings:
    """How a process reaches S3. Never shows a secret.

    Attributes:
        endpoint: URL of the service; empty = AWS's own for the region.
        region: empty = the SDK finds it, else us-east-1.
        access_key: empty = the SDK finds credentials.
        secret_key: belongs to it.
        session_token: of temporary credentials.
        ca_file: certificates to trust, PEM; empty = the machine's.
        virtual_addressing: the bucket stands in the host name also with an endpoint of one's own.
        attempts_max: of one request, the first included.
        connect_timeout_seconds: of one attempt.
        request_timeout_seconds: an attempt that makes no progress for so long is given up.
    """

    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    ca_file: str = ""
    virtual_addressing: bool = False
    attempts_max: int = 5
    connect_timeout_seconds: float = 5.0
    request_timeout_seconds: float = 10.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads the variables of a process.

        Raises:
            ConfigInvalidError: one of ours is unknown, malformed, or names a file that cannot be read.
        """
        for variable in environment:
            name = variable.removeprefix(PREFIX)
            if variable.startswith(PREFIX) and name.removesuffix("_FILE") not in NAMES and name not in NAMES:
                raise ConfigInvalidError(
                    f"unknown variable {variable}; there are {', '.join(PREFIX + one for one in sorted(NAMES))}",
                    setting=variable,
                )
        values = {name: _value(environment, name) for name in NAMES}
        if bool(values["ACCESS_KEY_ID"]) != bool(values["SECRET_ACCESS_KEY"]):
            raise ConfigInvalidError(
                f"{PREFIX}ACCESS_KEY_ID and {PREFIX}SECRET_ACCESS_KEY belong together; set both, or none to use the standard "
                "credentials of AWS",
                setting=f"{PREFIX}ACCESS_KEY_ID",
            )
        return cls(
            endpoint=values["ENDPOINT"],
            region=values["REGION"],
            access_key=values["ACCESS_KEY_ID"],
            secret_key=values["SECRET_ACCESS_KEY"],
            session_token=values["SESSION_TOKEN"],
            ca_file=values["CA_FILE"],
            virtual_addressing=_flag(values["VIRTUAL_ADDRESSING"]),
            attempts_max=int(_number("ATTEMPTS", values, cls.attempts_max)),
            connect_timeout_seconds=_number("CONNECT_TIMEOUT_SECONDS", values, cls.connect_timeout_seconds),
            request_timeout_seconds=_number("REQUEST_TIMEOUT_SECONDS", values, cls.request_timeout_seconds),
        )

    def file_system(self) -> pafs.S3FileSystem:
        """The file system; does not talk to the service.

        Raises:
            ConfigInvalidError: the endpoint's scheme is neither http nor https, or pyarrow does not take another setting.
            OSError: the SDK cannot be started.
        """
        scheme, _, host = self.endpoint.rpartition("://")
        try:
            return self._file_system(scheme or "https", host.rstrip("/"))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise ConfigInvalidError(
                f"S3 cannot be reached at {self.endpoint or 'its own endpoint'!r} with these settings: {error}; the scheme is http "
                "or https",
                setting="endpoint",
            ) from error

    def _file_system(self, scheme: str, host: str) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key=self.access_key or None,
            secret_key=self.secret_key or None,
            session_token=self.session_token or None,
            region=self.region or None,
            scheme=scheme,
            endpoint_override=host or None,
            force_virtual_addressing=self.virtual_addressing,
            tls_ca_file_path=self.ca_file or None,
            connect_timeout=self.connect_timeout_seconds,
            request_timeout=self.request_timeout_seconds,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=self.attempts_max),
            # A small object is one PUT instead of three requests of a multipart upload.
            allow_delayed_open=True,
        )


def open_s3(storage_root: str, environment: Mapping[str, str] | None = None) -> tuple[pafs.S3FileSystem, str]:
    """Reads a storage root `s3://bucket/prefix?region=…&endpoint_override=…&scheme=…`.

    Args:
        storage_root: the root; what it says goes before the environment.
        environment: variables; None = those of this process.

    Returns:
        the file system, and bucket and prefix in it.

    Raises:
        ConfigInvalidError: the root or a variable is malformed, or the root holds credentials.
        OSError: the SDK cannot be started.
    """
    parts = urlsplit(storage_root)
    # Without the root itself: it may hold what must not be shown.
    if "@" in parts.netloc:
        raise ConfigInvalidError(
            "the storage root holds credentials; give them to the processes (environment, files, roles), not to the database",
            setting="storage_root",
        )
    bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(given) - set(_QUERY))
    if not bucket or unknown or parts.fragment:
        what = f"has unknown options {', '.join(unknown)}" if unknown else "names no bucket"
        raise ConfigInvalidError(
            f"a storage root in S3 is s3://bucket/prefix?{'&'.join(name + '=…' for name in _QUERY)}; this one {what}",
            setting="storage_root",
        )
    settings = S3Settings.from_environment(os.environ if environment is None else environment)
    scheme, _, host = settings.endpoint.rpartition("://")
    if "endpoint_override" in given:
        scheme, host = "", given["endpoint_override"].rpartition("://")[2]
    endpoint = f"{given.get('scheme') or scheme or 'https'}://{host}"
    settings = replace(settings, endpoint=endpoint, region=given.get("region", settings.region))
    return settings.file_system(), f"{bucket}/{prefix}".rstrip("/")


def _value(environment: Mapping[str, str], name: str) -> str:
    variable = PREFIX + name
    file = environment.get(f"{variable}_FILE")
    if file:
        if variable in environment:
            raise ConfigInvalidError(
                f"{variable} and {variable}_FILE are both set; unset one of them", setting=variable
            )
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigInvalidError(
                f"{variable}_FILE names {file!r}, which cannot be read: {error}", setting=variable
            ) from error
    names = (variable, *_AWS.get(name, ()))
    return next((environment[one] for one in names if environment.get(one)), "")


def _number(name: str, values: Mapping[str, str], default: float) -> float:
    text = values[name]
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6 or (isinstance(default, int) and not number.is_integer()):
        raise ConfigInvalidError(f"{PREFIX}{name} is {text!r}, but must be a number above 0", setting=PREFIX + name)
    return number


def _flag(text: str) -> bool:
    if text.lower() not in {"", "true", "false", "1", "0"}:
        raise ConfigInvalidError(
            f"{PREFIX}VIRTUAL_ADDRESSING is {text!r}, but must be true or false", setting=f"{PREFIX}VIRTUAL_ADDRESSING"
        )
    return text.lower() in {"true", "1"}
