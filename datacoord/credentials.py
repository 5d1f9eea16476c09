"""Where a client finds what it needs to know whom it speaks to, and to say who it is. `datacoord.access` uses it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

AUTHORIZATION_METADATA_KEY: Final = "authorization"
BEARER: Final = "Bearer "

TOKEN_VARIABLE: Final = "DATACOORD_TOKEN"  # noqa: S105 - the name of a variable
"""A token itself; it never leaves the environment it stands in."""

PLAINTEXT_VARIABLE: Final = "DATACOORD_ALLOW_PLAINTEXT"
"""`true`: a token may go to another machine unencrypted. The coordinator's setting of the same name says the same of it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Paths, never secrets: they may be printed, logged and pickled to executors.

    What is empty comes from the environment of the process that calls.

    Attributes:
        tls_ca: PEM file of the authorities that the coordinator's certificate is checked against, or `system`; empty = no TLS.
        tls_client_cert: PEM file of a certificate of our own, where the coordinator asks for one.
        tls_client_key: PEM file of its key.
        tls_server_name: name the coordinator's certificate must hold, where it is not the address's.
        token_file: file that holds the token.
    """

    tls_ca: str = ""
    tls_client_cert: str = ""
    tls_client_key: str = ""
    tls_server_name: str = ""
    token_file: str = ""

    def completed(self, environment: Mapping[str, str]) -> "Credentials":
        """The same, with what is empty from an environment."""
        return Credentials(
            **{
                spec.name: getattr(self, spec.name) or environment.get(VARIABLES[spec.name], "")
                for spec in fields(self)
            }
        )


VARIABLES: Final[Mapping[str, str]] = {spec.name: f"DATACOORD_{spec.name.upper()}" for spec in fields(Credentials)}
"""The variable of each field of `Credentials`."""
