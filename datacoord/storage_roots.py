"""What may be a storage root: one rule for the setting of a coordinator and for what a collection asks for."""

from typing import Final
from urllib.parse import parse_qsl

STORAGE_SCHEMES: Final = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""The schemes of pyarrow.fs that name storage others can reach."""

OPTIONS: Final = frozenset(
    {
        *(
            "region",
            "endpoint_override",
            "scheme",
            "retry_limit_seconds",
            "project_id",
            "replication",
            "default_block_size",
            "user",
        ),
        *("blob_storage_authority", "dfs_storage_authority", "enable_tls", "credential_kind", "tenant_id", "client_id"),
    }
)
"""Options of a URI that say where storage is. No other may stand in one: pyarrow takes secrets there, too."""


def problem_of(root: str) -> str | None:
    """What is wrong with a storage root, to be read behind `storage_root `; None = nothing.

    A relative one would mean another place to every process; one with a password would hand it to every client.
    """
    scheme, separator, rest = root.partition("://")
    if not separator:
        scheme, rest = "file", root
    known = scheme in STORAGE_SCHEMES and (bool(rest.strip("/")) if separator else root.startswith("/"))
    if not known or ".." in rest.split("/"):
        return f"must be an absolute directory or a URI of {', '.join(STORAGE_SCHEMES)}, without '..'"
    place, _, query = rest.partition("?") if separator else (rest, "", "")
    unknown = sorted({name for name, _ in parse_qsl(query, keep_blank_values=True)} - OPTIONS)
    if unknown or (query and not parse_qsl(query)) or (separator and "#" in rest):
        return (
            f"may have the options {', '.join(sorted(OPTIONS))} and no others: every client is told the root, and it stands in the "
            "database; give credentials to the processes (environment, instance role)"
        )
    host = place.partition("/")[0]
    if "@" in host and ":" in host.partition("@")[0]:
        return (
            "holds a password, and every client is told the root; give credentials to the processes (environment, instance "
            "role), not to the database"
        )
    return None
