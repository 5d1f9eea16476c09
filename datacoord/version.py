"""The version of this installation."""

from importlib import metadata


def version() -> str:
    """Version of the distribution `datacoord`; `0+source` where the code runs without being installed."""
    try:
        return metadata.version("datacoord")
    except metadata.PackageNotFoundError:
        return "0+source"
