"""What may be a storage root: one rule for the setting of a coordinator and for what a collection asks for."""

from typing import Final

STORAGE_SCHEMES: Final = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""The schemes of pyarrow.fs that name storage others can reach."""


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
    host = rest.partition("/")[0]
    if "@" in host and ":" in host.partition("@")[0]:
        return (
            "holds a password, and every client is told the root; give credentials to the processes (environment, instance "
            "role), not to the database"
        )
    return None
